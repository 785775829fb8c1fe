"""Which architecture this machine's GPUs have, without starting CUDA.

Order: an explicit argument, `ATTNROUTE_ARCH`, NVML through cuda-python (no CUDA context, so that a later fork stays
safe), torch if the process has imported it already. `CUDA_VISIBLE_DEVICES` is honoured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnroute.errors import AttnrouteError


class NoArchError(AttnrouteError):
    """No architecture was named and none could be found."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: its index as the driver counts, name, compute capability (major, minor), UUID and who reported it."""

    index: int
    name: str
    capability: tuple[int, int]
    uuid: str
    source: str

    @property
    def arch(self) -> str:
        """`sm90` for compute capability 9.0."""
        return f"sm{self.capability[0]}{self.capability[1]}"


def nvml_devices() -> list[Device]:
    """All GPUs that the driver knows; empty without cuda-python or without a driver."""
    if "cuda.bindings.nvml" not in sys.modules and not _has_nvml():
        return []
    try:
        from cuda.bindings import nvml  # type: ignore[import-not-found,unused-ignore]
    except Exception:  # noqa: BLE001 - a broken installation must not take the caller down with it
        return []
    try:
        nvml.init_v2()
    except Exception:  # noqa: BLE001 - the binding raises several unrelated classes where there is no driver
        return []
    try:
        found = []
        for index in range(nvml.device_get_count_v2()):
            handle = nvml.device_get_handle_by_index_v2(index)
            major, minor = nvml.device_get_cuda_compute_capability(handle)
            found.append(
                Device(
                    index, nvml.device_get_name(handle), (int(major), int(minor)), nvml.device_get_uuid(handle), "nvml"
                )
            )
        return found
    except Exception:  # noqa: BLE001
        return []
    finally:
        nvml.shutdown()


def _has_nvml() -> bool:
    """Whether the driver's library is there: asked first, because importing the binding costs a quarter of a second."""
    import ctypes

    try:
        ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def torch_devices() -> list[Device]:
    """What an already imported torch sees, if its CUDA is already running; never starts CUDA itself."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    found = []
    for index in range(cuda.device_count()):
        major, minor = cuda.get_device_capability(index)
        found.append(Device(index, cuda.get_device_name(index), (major, minor), "", "torch"))
    return found


def visible(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """The devices that `CUDA_VISIBLE_DEVICES` leaves, in its order.

    CUDA numbers GPUs fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, the driver always by bus; where GPUs differ and
    the order is not by bus, an index does not say which GPU is meant, so all stay.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(devices)
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({d.capability for d in devices}) <= 1
    kept: list[Device] = []
    for part in (p.strip() for p in text.split(",")):
        if part.isascii() and part.removeprefix("-").isdigit():
            index = int(part)
            if not 0 <= index < len(devices):
                break  # CUDA ignores an invalid index and all that follow it
            if not by_bus:
                return list(devices)
            hit = [devices[index]]
        elif part.startswith("MIG-"):
            return list(devices)  # a slice has the architecture of its GPU, which the name does not tell
        else:
            hit = [d for d in devices if part and d.uuid.startswith(part)]
            if not hit:
                break
        kept += [d for d in hit if d not in kept]
    return kept


def devices(
    environ: Mapping[str, str] | None = None,
    sources: Sequence[Callable[[], list[Device]]] = (nvml_devices, torch_devices),
) -> list[Device]:
    """GPUs visible to this process, from the first source that knows any."""
    environ = os.environ if environ is None else environ
    for source in sources:
        found = source()
        if found:
            # torch has applied CUDA_VISIBLE_DEVICES itself
            return list(found) if found[0].source == "torch" else visible(found, environ)
    return []


def local_archs() -> tuple[str, ...]:
    """Architectures of this machine's visible GPUs, each once; empty without a GPU."""
    return tuple(dict.fromkeys(d.arch for d in devices()))


def detect_arch(arch: str | None = None) -> str:
    """The architecture to answer for: the argument, `ATTNROUTE_ARCH`, or that of this machine's GPUs.

    Raises NoArchError, with the way to name one, if there is no GPU, or if several different ones are visible.
    """
    named = arch or os.environ.get("ATTNROUTE_ARCH")
    if named:
        from .registry import default_registry

        return default_registry().arch_id(named)
    found = devices()
    archs = tuple(dict.fromkeys(d.arch for d in found))
    if len(archs) == 1:
        return archs[0]
    if not archs:
        raise NoArchError(
            "no GPU found (NVML through cuda-python, then torch if imported); "
            "name an architecture: --arch sm90, ATTNROUTE_ARCH=sm90, or detect_arch('sm90')",
            code="no-arch",
        )
    listed = ", ".join(f"GPU {d.index} {d.name} {d.arch}" for d in found)
    raise NoArchError(f"several architectures: {listed}; name one: --arch {archs[0]}", code="several-archs")
