"""Which attention each layer runs: from the list in the file, a pattern string, or the family's own schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.errors import near_miss
from attnroute.models.families import ALIASES
from attnroute.models.family import (
    CHUNKED,
    FULL,
    LAYER_TYPES,
    LINEAR,
    SLIDING,
    Blocks,
    Every,
    Family,
    Indices,
    Period,
    PerLayer,
    Schedule,
)

if TYPE_CHECKING:
    from attnroute.models.source import Fields

Kinds = tuple[str, ...]


def layer_kinds(fields: Fields, family: Family) -> list[Kinds]:
    """For each layer the kinds of attention it runs, () for a feed-forward layer. UsageError for contradictions."""
    kinds = _listed(fields, family)
    count = fields.first_integer(*ALIASES["num_hidden_layers"])
    if kinds is not None and count is not None and not family.always and len(kinds[1]) != count:
        raise fields.error(kinds[0], f"{len(kinds[1])} entries, but num_hidden_layers is {count}")
    if family.always:
        return [family.always] * fields.require(*ALIASES["num_hidden_layers"])
    plan = kinds[1] if kinds else _scheduled(fields, family, fields.require(*ALIASES["num_hidden_layers"]))
    if not plan:
        raise fields.error("num_hidden_layers", "a model without layers")
    if family.last_full and SLIDING in plan[-1]:
        plan[-1] = (FULL,)
    return _windows(fields, family, plan)


def _listed(fields: Fields, family: Family) -> tuple[str, list[Kinds]] | None:
    for name in family.pattern:
        value = fields.raw(name)
        if value is None:
            continue
        if not isinstance(value, (list, str)):
            raise fields.error(name, "a list of layer types is needed")
        out: list[Kinds] = []
        for index, entry in enumerate(value):
            if not isinstance(entry, str) or entry not in LAYER_TYPES:
                hint = near_miss(entry, [k for k in LAYER_TYPES if len(k) > 1]) if isinstance(entry, str) else None
                known = " ".join(sorted(k for k in LAYER_TYPES))
                middle = f"; did you mean {hint!r}?" if hint else "."
                raise fields.error(name, f"layer {index} has the unknown type {entry!r}{middle} Known: {known}")
            out.append(LAYER_TYPES[entry])
        return name, out
    return None


def _scheduled(fields: Fields, family: Family, count: int) -> list[Kinds]:
    for schedule in family.schedules:
        plan = _apply(fields, schedule, count)
        if plan is not None:
            return plan
    return [(FULL,)] * count if not _plain_window(fields, family) else _plain_sliding(fields, family, count)


def _apply(fields: Fields, schedule: Schedule, count: int) -> list[Kinds] | None:
    if isinstance(schedule, Every):
        step = (fields.first_integer(*schedule.fields) if schedule.fields else None) or schedule.default
        return [(schedule.other,) if (i + 1) % step else (FULL,) for i in range(count)]
    if isinstance(schedule, PerLayer):
        values = fields.items(schedule.field)
        if not values:  # Llama-4 writes [] for "use the interval"
            return None
        if len(values) < count:
            raise fields.error(schedule.field, f"{len(values)} entries, but num_hidden_layers is {count}")
        return [(schedule.kind,) if values[i] == schedule.value else (FULL,) for i in range(count)]
    if isinstance(schedule, Indices):
        numbers = fields.items(schedule.field)
        if numbers is None:
            return None
        chosen = {(fields.as_integer(schedule.field, n, least=0) or 0) - schedule.base for n in numbers}
        beyond = sorted(n + schedule.base for n in chosen if not 0 <= n < count)
        if beyond:
            raise fields.error(schedule.field, f"layer {beyond[0]} does not exist: num_hidden_layers is {count}")
        return [(schedule.kind,) if i in chosen else (schedule.other,) for i in range(count)]
    if isinstance(schedule, Blocks):
        return _blocks(fields, schedule, count)
    return _period(fields, schedule, count)


def _blocks(fields: Fields, schedule: Blocks, count: int) -> list[Kinds] | None:
    blocks = fields.items(schedule.field)
    if blocks is None:
        return None
    if len(blocks) != count:
        raise fields.error(schedule.field, f"{len(blocks)} entries, but num_hidden_layers is {count}")
    own = [block.get("attention") if isinstance(block, dict) else None for block in blocks]
    return [() if isinstance(a, dict) and (a.get("no_op") or a.get("replace_with_linear")) else (FULL,) for a in own]


def _period(fields: Fields, schedule: Period, count: int) -> list[Kinds]:
    period = fields.require(schedule.period)
    offset = fields.integer(schedule.offset, least=0) or 0
    return [(FULL,) if i % period == offset else (LINEAR,) for i in range(count)]


def _plain_window(fields: Fields, family: Family) -> bool:
    """A model-wide window: every layer is a sliding one (Mistral-7B v0.1, Phi-3). 0 means none."""
    window = fields.integer("sliding_window", least=0)
    return bool(window) and (not family.window_flag or bool(fields.flag("use_sliding_window")))


def _plain_sliding(fields: Fields, family: Family, count: int) -> list[Kinds]:
    first = fields.integer("max_window_layers", least=0) if family.window_flag else None
    return [(SLIDING,) if first is None or i >= first else (FULL,) for i in range(count)]


def _windows(fields: Fields, family: Family, plan: list[Kinds]) -> list[Kinds]:
    """Check that local layers have their size; without a window (0, or switched off) a sliding layer is a full one."""
    off = family.window_flag and fields.flag("use_sliding_window") is False
    if any(SLIDING in kinds for kinds in plan):
        window = fields.raw("sliding_window")
        if off or (window == 0 and not isinstance(window, bool)):
            return [tuple(FULL if k == SLIDING else k for k in kinds) for kinds in plan]
        fields.require("sliding_window")
    if any(CHUNKED in kinds for kinds in plan):
        fields.require("attention_chunk_size")
    return plan


def shared_layers(fields: Fields, plan: list[Kinds]) -> dict[int, int]:
    """Layer -> the layer whose cache it reads: the last `num_kv_shared_layers` read the last own one of their kind."""
    count = fields.integer("num_kv_shared_layers", least=0) or 0
    first = len(plan) - count
    if count and first < 1:
        raise fields.error("num_kv_shared_layers", f"{count} of {len(plan)} layers share a cache, none would hold one")
    out: dict[int, int] = {}
    for index in range(first, len(plan)):
        own = [i for i in range(first) if plan[i] == plan[index]]
        if not own:
            kind = " ".join(plan[index])
            raise fields.error(
                "num_kv_shared_layers", f"layer {index} ({kind}) shares a cache, but no layer of its kind holds one"
            )
        out[index] = own[-1]
    return out
