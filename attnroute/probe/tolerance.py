"""The tolerances and key tiles, which stand as data beside the tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attnroute.errors import AttnrouteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from attnroute.probe.case import Ask

NAME = "tolerances.yaml"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Rules in order of the file, the bound of the log-sum-exp, and key tiles per kernel and head dim."""

    rules: tuple[Mapping[str, Any], ...]
    lse: float
    key_tiles: Mapping[str, Mapping[int, tuple[int, ...]]]

    def error(self, kernel: str, ask: Ask) -> float:
        """The largest relative error of a right answer; AttnrouteError if no rule speaks of these dtypes."""
        for rule in self.rules:
            fits = (("kernel", kernel), ("q", ask.q_dtype), ("kv", ask.kv_dtype))
            if all(name not in rule or value in rule[name] for name, value in fits):
                return float(rule["error"])
        raise AttnrouteError(f"{NAME} has no tolerance for {kernel} with {ask.q_dtype} queries and {ask.kv_dtype} keys")


def probe_data(name: str) -> str:
    """The text of a data file of the probe: of a checkout, else the copy inside the tables of an installed wheel."""
    from attnroute.registry.folders import read_section
    from attnroute.registry.store import CHECKOUT_FOLDER, DATA_FILE

    if (CHECKOUT_FOLDER / name).is_file():
        return (CHECKOUT_FOLDER / name).read_text(encoding="utf-8")
    found = read_section(DATA_FILE, "sources").get(name) if DATA_FILE.is_file() else None
    if found is None:
        raise AttnrouteError(f"{name} is neither in capabilities/ of a checkout nor in the installed package")
    return str(found)


@lru_cache(maxsize=8)
def load_tolerances(path: Path | None = None) -> Tolerances:
    """Reads the file (default: the one that comes with the tables). AttnrouteError if there is none."""
    import yaml

    data = yaml.safe_load(path.read_text(encoding="utf-8") if path else probe_data(NAME))
    tiles = {k: {int(h): tuple(pages) for h, pages in heads.items()} for k, heads in data.get("key_tiles", {}).items()}
    return Tolerances(tuple(data["tolerances"]), float(data["lse"]), tiles)
