"""vLLM's own decisions for a whole model: backends, blocks, pages, groups, capacity, in the order the engine makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnroute.engines.result import EngineOptions, EngineResult, StateLike

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup
    from attnroute.registry.registry import Registry


def plan_groups(
    target: Sequence[KVGroup],
    arch: str,
    *,
    draft: Sequence[KVGroup] = (),
    state: Sequence[StateLike] = (),
    options: EngineOptions | None = None,
    registry: Registry | None = None,
    engine: str = "vllm",
) -> EngineResult:
    """What vLLM decides for these groups on `arch` (an id of the tables, `sm100`, or a compute capability, `10.0`).

    `target` and `draft` are the KV-cache groups (per rank, after tensor parallelism); `state` the recurrent state of
    linear layers (`models.StateSpec`, or anything shaped like `StateLike`). A start-up error of the engine does not
    raise: it stands in `EngineResult.errors` in the engine's own words, with what had been decided before. Raises
    UsageError for options that the engine does not know.
    """
    raise NotImplementedError
