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
    if not in_checkout and not DATA_FILE.is_file():
        message = f"no capability tables: neither {CHECKOUT_FOLDER} nor {DATA_FILE} exists"
        raise AttnrouteError(message, code="no-tables")
    if in_checkout or overlays:
        from .folder_store import folder_store

        # a packed file carries the YAML text it was made from, over which overlays are laid
        return folder_store(CHECKOUT_FOLDER if in_checkout else DATA_FILE, overlays)
    return packed_store(DATA_FILE)


def packed_store(path: Path) -> Store:
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
