"""Tensor parallelism: which sizes a model allows, and the error that names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnroute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


MOST = 4096
"""The largest size that an error lists."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`number` things (of the field `field`) that ranks divide; if `replicates`, ranks may also share each of them
    evenly.
    """

    field: str
    number: int
    replicates: bool = False

    def allows(self, tp: int) -> bool:
        """Whether `tp` ranks can divide (or replicate) them."""
        return self.number % tp == 0 or (self.replicates and tp % self.number == 0)


def check_tp(where: str, tp: int, limits: Iterable[Limit]) -> None:
    """UsageError naming the field that forbids `tp` and all sizes that are possible."""
    if tp < 1:
        raise UsageError(f"tensor parallel size {tp!r}: a whole number of at least 1 is needed", code="tp")
    limits = tuple(limits)
    broken = next((limit for limit in limits if not limit.allows(tp)), None)
    if broken is None:
        return
    top = min((limit.number for limit in limits if not limit.replicates), default=tp)
    possible = [size for size in range(1, min(top, MOST) + 1) if all(limit.allows(size) for limit in limits)]
    raise UsageError(
        f"{where}: tensor parallel size {tp} is impossible: {broken.field} is {broken.number}"
        f"; possible sizes: {' '.join(map(str, possible))}",
        code="tp",
    )
