"""The machine at hand: its GPU, driver, toolchain and kernel packages, found without touching the device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.dispatch.packages import installed_version
from attnroute.errors import AttnrouteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class NoGpuError(AttnrouteError):
    """There is no GPU to ask, or nothing to ask it with."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a capture says about where it was taken."""

    gpu: str
    compute_capability: str
    driver: str
    cuda: str | None
    torch: str | None
    gpus: int = 1


def find_gpu() -> tuple[str, str, str, int]:
    """(name, compute capability such as `9.0`, driver) of the first GPU, how many like it may be used; else NoGpuError.

    CUDA_VISIBLE_DEVICES bounds how many.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise NoGpuError("no NVIDIA GPU found: nvidia-smi is not on the PATH; run this on a machine with a GPU")
    query = [tool, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoGpuError(f"no NVIDIA GPU found: {tool} did not answer ({error})") from None
    lines = [line for line in done.stdout.splitlines() if line.count(",") >= 2]
    if done.returncode or not lines:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise NoGpuError(f"no NVIDIA GPU found: nvidia-smi said {said or 'nothing'}")
    name, capability, driver = (part.strip() for part in lines[0].split(",")[:3])
    visible, alike = visible_gpus(), lines.count(lines[0])
    if visible == []:
        raise NoGpuError("no NVIDIA GPU found: CUDA_VISIBLE_DEVICES is empty and hides every one")
    return name, capability, driver, alike if visible is None else min(alike, len(visible))


def visible_gpus() -> list[str] | None:
    """The names that CUDA_VISIBLE_DEVICES gives the GPUs of this process; None where it is not set."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else [name for name in named.split(",") if name]


def nvcc_version() -> str | None:
    """The CUDA compiler's version, such as `13.0`, or None without one."""
    tool = shutil.which("nvcc")
    if tool is None:
        return None
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    _, found, rest = text.partition("release ")
    return rest.split(",")[0].strip() if found else None


def torch_version() -> str:
    """torch's version without importing it; NoGpuError if it is not installed."""
    found = installed_version("torch")
    if found is None:
        raise NoGpuError("torch is not installed; the probe needs it to make inputs and references")
    return found


def installed(distributions: Iterable[str], named: Mapping[str, str]) -> dict[str, str]:
    """Versions of the distributions that are here; `named` overrides, for packages that carry no metadata."""
    found = ((name, named.get(name) or installed_version(name)) for name in distributions)
    return {name: version for name, version in found if version is not None}


def this_machine() -> Machine:
    """Everything a capture names about the machine; NoGpuError if no case could run here."""
    if sys.platform != "linux":
        raise NoGpuError(f"the probe runs on Linux; this is {sys.platform}")
    name, capability, driver, count = find_gpu()
    return Machine(name, capability, driver, nvcc_version(), torch_version(), count)


def arch_of(capability: str, archs: Mapping[str, Any]) -> str:
    """The architecture id whose compute capability this is; NoGpuError where no table covers it."""
    for arch, about in archs.items():
        if str(about.get("compute_capability")) == capability:
            return arch
    raise NoGpuError(
        f"the GPU has compute capability {capability}; there is no table for it (tables: {' '.join(archs)})"
    )
