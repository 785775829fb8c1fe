"""Where the compiled tables come from: the one file in a wheel, or the YAML folder beside the package in a checkout."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnroute.errors import AttnrouteError

PACKAGE = Path(__file__).resolve().parent.parent
DATA_FILE = PACKAGE / "_data" / "capabilities.json"
CHECKOUT_FOLDER = PACKAGE.parent / "capabilities"


@dataclass(frozen=True, slots=True)
class Store:
    """Reads one section of the compiled tables at a time; `origin` says where from, for people."""

    origin: str
    version: str
    digest: str
    sections: tuple[str, ...]
    read: Callable[[str], Any]


def open_store(overlays: Sequence[Path] = ()) -> Store:
    """The tables beside the package if this is a checkout, else those of the wheel; with overlays, both compiled anew.

    Raises AttnrouteError if there are no tables, or if an overlay is invalid.
    """
    in_checkout = (CHECKOUT_FOLDER / "kernels.yaml").is_file()
    if overlays or in_checkout:
        return _folder_store(CHECKOUT_FOLDER if in_checkout else unpacked_sources(), overlays)
    if DATA_FILE.is_file():
        return _file_store(DATA_FILE)
    raise AttnrouteError(f"no capability tables: neither {CHECKOUT_FOLDER} nor {DATA_FILE} exists", code="no-tables")


def _file_store(path: Path) -> Store:
    """A compiled file: line 1 is a header with the offset and length of each section after it."""
    with path.open("rb") as file:
        first = file.readline()
    header = json.loads(first)
    base = len(first)

    def read(section: str) -> Any:
        offset, length = header["sections"][section]
        with path.open("rb") as file:
            file.seek(base + offset)
            return json.loads(file.read(length))

    return Store("installed", header["version"], header["sha256"], tuple(header["sections"]), read)


def _folder_store(folder: Path, overlays: Sequence[Path]) -> Store:
    from .compile import folder_store

    return folder_store(folder, tuple(overlays))


def unpacked_sources() -> Path:
    """The YAML files that a wheel carries inside its compiled file, written to a temporary folder for overlays."""
    import atexit
    import shutil
    import tempfile

    if not DATA_FILE.is_file():
        raise AttnrouteError(
            f"no capability tables: neither {CHECKOUT_FOLDER} nor {DATA_FILE} exists", code="no-tables"
        )
    folder = Path(tempfile.mkdtemp(prefix="attnroute-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in _file_store(DATA_FILE).read("sources").items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder
