"""The tolerances and key tiles, which stand as data beside the tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.errors import AttnrouteError

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def find_tolerances() -> Path:
    """The file in a checkout, else the copy that an installed wheel carries."""
    package = Path(__file__).resolve().parents[1]
    for path in (package.parent / "capabilities" / NAME, package / "_data" / NAME):
        if path.is_file():
            return path
    raise AttnrouteError(f"{NAME} is neither in capabilities/ of a checkout nor in the installed package")


@lru_cache(maxsize=8)
def load_tolerances(path: Path | None = None) -> Tolerances:
    """Reads the file (default: the one `find_tolerances` finds)."""
    import yaml

    data = yaml.safe_load((path or find_tolerances()).read_text(encoding="utf-8"))
    tiles = {k: {int(h): tuple(pages) for h, pages in heads.items()} for k, heads in data.get("key_tiles", {}).items()}
    return Tolerances(tuple(data["tolerances"]), float(data["lse"]), tiles)
