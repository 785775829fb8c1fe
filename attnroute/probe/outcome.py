"""What an exception says: the package refused, the device faulted, the build failed, or nothing is known."""

from __future__ import annotations

import re
import traceback

from attnroute.launch.errors import NotInstalledError

_FAULTS = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction|device-side assert"
    r"|hardware stack error|invalid program counter|illegal address"
    r"|cudaError(IllegalAddress|MisalignedAddress|LaunchFailure|IllegalInstruction|HardwareStackError)"
    r"|CUDA_ERROR_(ILLEGAL|MISALIGNED|LAUNCH_FAILED|HARDWARE)",
    re.IGNORECASE,
)
_BUILDS = re.compile(
    r"ninja (build )?(failed|exited)|nvcc|ptxas|static assertion|static_assert|MLIR|nvvm|cute\.compile", re.I
)
#: The machine's doing, not the kernel's: nothing is known.
_HERE = re.compile(
    r"could not find nvcc|no such file or directory: '?(ninja|nvcc)|ninja is required|no space left on device"
    r"|cannot allocate memory|out of memory|CUDA driver version is insufficient|no CUDA-capable device",
    re.IGNORECASE,
)
_BUILD_TYPES = ("DSL", "MLIR", "ICE", "Compil")
LONGEST = 400


def classify(error: BaseException) -> str:
    """The outcome that an exception stands for."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, (NotInstalledError, MemoryError)) or _HERE.search(text):
        return "not-installed"
    if _FAULTS.search(text):
        return "faults"
    if any(mark in type(error).__name__ for mark in _BUILD_TYPES) or _BUILDS.search(str(error)):
        return "build-fails"
    return "raises"


def words(error: BaseException) -> str:
    """Type, text and the innermost frame, on one line: what a person needs to find it again."""
    frames = traceback.extract_tb(error.__traceback__)
    where = (
        f" ({frames[-1].filename.rpartition('site-packages/')[2].rpartition('/')[2]}:{frames[-1].lineno})"
        if frames
        else ""
    )
    text = build_line(str(error)) or " ".join(plain(str(error)).split())
    return f"{type(error).__name__}: {text[:LONGEST]}{where}"


def plain(text: str) -> str:
    """Without a terminal's colours, and with a package's files named from its own folder."""
    return re.sub(r"/\S*/(flashinfer|vllm|flash_attn)/", r"\1/", re.sub("\x1b" + r"\[[0-9;]*m", "", text))


def build_line(text: str) -> str:
    """Of a compiler's output the first line that names an error; empty if there is none."""
    found = re.search(r"^.*?\b(?:fatal )?error\b ?:? .*$", text, re.MULTILINE)
    if not found or "\n" not in text.strip():
        return ""
    return plain(" ".join(found.group(0).split()))


def signal_words(signal: int) -> str:
    """A process that died by a signal faulted."""
    import signal as signals

    try:
        name = signals.Signals(signal).name
    except ValueError:
        name = str(signal)
    return f"the process died by {name}"
