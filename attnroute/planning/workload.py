"""What a plan is made for: the batches, contexts and phases that a server is expected to run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from attnroute.errors import UsageError


@dataclass(frozen=True, slots=True)
class Workload:
    """The load that the choice is weighed over. Every field has a default, and the defaults are guesses to be replaced.

    `batch_sizes` (requests a step) and `context_lens` (tokens a request) span a grid whose points count equally; they
    select measured preference bands, and the contexts also weigh what blocks waste. `prefill_share` is the part of the
    attention time spent in prompts; the rest is decoding. With speculative tokens, `verify_share` of the decoding steps
    verify drafts and the rest decode single tokens. `graph_weight` is what a missing full CUDA graph counts for, as a
    part of the decoding of every layer. The three are weights that an operator may set, not measurements.
    """

    batch_sizes: tuple[int, ...] = (1, 32)
    context_lens: tuple[int, ...] = (4096, 16384)
    prefill_share: float = 0.25
    verify_share: float = 0.9
    graph_weight: float = 0.1

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "context_lens"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
                message = f"Workload.{name} is {values!r}; it needs whole numbers of 1 or more"
                raise UsageError(message, code="bad-field")
        for name in ("prefill_share", "verify_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"Workload.{name} is {getattr(self, name)!r}; it must lie in 0..1", code="bad-field")
        if self.graph_weight < 0:
            raise UsageError(f"Workload.graph_weight is {self.graph_weight!r}; it must be 0 or more", code="bad-field")

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """(batch size, context length) pairs."""
        return tuple(product(self.batch_sizes, self.context_lens))

    def share(self, phase: str, speculative: bool) -> float:
        """The part of the attention time that a phase takes."""
        decoding = 1 - self.prefill_share
        if phase == "prefill":
            return self.prefill_share
        if phase == "draft":
            return decoding
        return (
            decoding * (self.verify_share if phase == "verify" else 1 - self.verify_share)
            if speculative
            else (decoding if phase == "decode" else 0.0)
        )
