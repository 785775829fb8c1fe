"""vLLM's own decisions for a whole model: backends, blocks, pages, groups, capacity, in the engine's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnroute.engines.data import load_engine
from attnroute.engines.result import EngineOptions, EngineResult, StateLike
from attnroute.engines.steps import Steps
from attnroute.engines.world import capability
from attnroute.errors import UsageError

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup
    from attnroute.registry.registry import Registry

HEAD_SIZES = ("per-layer", "as-shipped")


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
    options = options or EngineOptions()
    if options.head_size not in HEAD_SIZES:
        raise UsageError(
            f"head_size {options.head_size!r}: choose {' or '.join(HEAD_SIZES)} (whose head size block sizes follow)",
            code="bad-field",
        )
    rules = load_engine(engine, registry)
    if arch[:1].isdigit() and "." in arch:
        cc = capability(arch)
    else:
        if registry is None:
            from attnroute.registry.registry import default_registry

            registry = default_registry()
        arch = registry.arch_id(arch)
        cc = capability(str(registry.catalogue["archs"][arch]["compute_capability"]))
    return Steps(rules, arch, cc, target, draft, state, options).run()
