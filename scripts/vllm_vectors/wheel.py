"""The vLLM wheel: where it is, what its sum is, its Python files unpacked beside it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "0.33.0"


def fetch(cache: Path) -> Path:
    """The wheel in the cache, downloaded with pip if it is not there (about 340 MB)."""
    folder = cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(folder.glob(f"vllm-{VERSION}-*.whl"))):
        tags = [f"--platform={p}" for p in ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux1_x86_64")]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--python-version=3.12",
                "--implementation=cp",
                "--abi=abi3",
                *tags,
                f"--dest={folder}",
                f"vllm=={VERSION}",
            ],
            check=True,
        )
        found = sorted(folder.glob(f"vllm-{VERSION}-*.whl"))
    return found[0]


def digest(wheel: Path) -> str:
    """The wheel's sha256."""
    with wheel.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(wheel: Path, cache: Path) -> Path:
    """The folder with the wheel's Python files (binaries stay packed: nothing of them runs)."""
    tree = cache / f"vllm-{VERSION}-py"
    if not (tree / ".complete").exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree, [n for n in archive.namelist() if n.endswith(".py")])
        (tree / ".complete").touch()
    return tree
