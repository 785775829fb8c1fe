"""Which phases a group has, the question each one asks of the dispatcher, and the kernels that answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnroute.dispatch.request import request_for
from attnroute.errors import UnservedError, UsageError
from attnroute.models.dtypes import PER_TOKEN_HEAD

from .joint import PhaseNeed
from .options import Option, options_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.dispatch.group import KVGroup
    from attnroute.dispatch.packages import Packages
    from attnroute.dispatch.request import Request
    from attnroute.registry.registry import Registry

    from .workload import Workload


#: The obligation (calls.yaml) of rows that read a cache with scales per token and head.
_SCALES_CALL = "kv-scales-per-token-head"


@dataclass(frozen=True, slots=True)
class Side:
    """One machine: an architecture and its package versions."""

    arch: str
    packages: Packages


@dataclass(frozen=True, slots=True)
class Setting:
    """What all phases of all groups share. `speculative` counts draft tokens a step."""

    registry: Registry
    decode: Side
    prefill: Side
    workload: Workload
    speculative: int = 0
    dcp: int = 1
    slack: float = 0.05
    min_evidence: str | None = None
    allow_unknown: bool = False
    strict_versions: bool = False
    environment: tuple[tuple[str, Any], ...] = ()
    cannot: tuple[str, ...] = ()
    force: tuple[tuple[str, str, str], ...] = ()
    prefer: tuple[tuple[str, str, str], ...] = ()
    one_kernel: bool = False
    fallbacks: list[str] = field(default_factory=list, compare=False)

    def side(self, phase: str) -> Side:
        return self.prefill if phase == "prefill" else self.decode


def phases_of(group: KVGroup, speculative: int) -> tuple[str, ...]:
    """The phases that a group has: an encoder's only prefill, a drafter's own step, verification only with drafts.

    A block drafter (non-causal) writes its cache from the target's hidden states and has no prefill of its own.
    """
    if group.attn_type in ("encoder", "encoder_only"):
        return ("prefill",)
    if group.role == "draft":
        return ("draft", "prefill") if group.causal else ("draft",)
    return ("decode", "prefill", "verify") if speculative else ("decode", "prefill")


def q_len_of(group: KVGroup, phase: str, speculative: int) -> int | None:
    """Query tokens a request in one step of the phase; None where it varies."""
    if phase == "prefill":
        return None
    if phase == "verify":
        return 1 + speculative
    return max(1, speculative) if phase == "draft" and not group.causal else 1


def request_of(group: KVGroup, phase: str, setting: Setting, storage: str | None = None) -> Request:
    """The request that a phase of a group puts to its side's table. Prompts are read from pages too (they are cached
    and may be chunked), unless `storage` says otherwise; an encoder caches nothing.
    """
    uncached = group.attn_type in ("encoder", "encoder_only")
    return request_for(
        group,
        setting.side(phase).arch,
        phase=phase,
        q_len=q_len_of(group, phase, setting.speculative),
        storage=storage if storage is not None or uncached else "paged",
        dcp=setting.dcp if group.attn_type == "decoder" and group.sliding_window is None else 1,
        min_evidence=setting.min_evidence,
        allow_unknown=setting.allow_unknown,
        strict_versions=setting.strict_versions,
        environment=dict(setting.environment),
        cannot=setting.cannot,
    )


def phase_need(group: KVGroup, names: tuple[str, ...], phase: str, setting: Setting) -> PhaseNeed:
    """The accepted kernels of one phase. `names` are the groups of this geometry, which `force` and `prefer` may name.

    Prompts that no kernel reads from pages may run on packed ones: then nothing is cached across prompts, and the plan
    warns. Raises UnservedError for a forced kernel that is not among the accepted.
    """
    side = setting.side(phase)
    table = setting.registry.table(side.arch)
    request = request_of(group, phase, setting)
    options = options_for(table, side.packages, request, setting.workload, setting.slack)
    paged = group.attn_type not in ("encoder", "encoder_only")
    if not options and phase == "prefill" and paged:
        ragged = replace(request, storage="ragged", page=None)
        options = options_for(table, side.packages, ragged, setting.workload, setting.slack)
        if options:
            paged = False
            setting.fallbacks.append(
                f"{' '.join(names)}: prompts run on packed K and V ({options[0].kernel}), since no kernel reads them"
                " from pages; chunked prefill and prefix caching are not possible [storage]"
            )
    if PER_TOKEN_HEAD in group.traits and not setting.allow_unknown and options:
        options = tuple(o for o in options if _SCALES_CALL in o.calls)
        title = f"{' '.join(names)}: {group.kv} with scales per token and head"
        words = f"{title}: no row says that it reads them [undeclared]"
        if not options and words not in setting.fallbacks:
            setting.fallbacks.append(words)
    options = _directed(options, names, phase, request, setting)
    k = q_len_of(group, phase, setting.speculative)
    level = None if phase == "prefill" else "uniform" if (k or 1) > 1 else "uniform1"
    share = setting.workload.share(phase, setting.speculative > 0)
    return PhaseNeed(phase, options, share, level, paged, phase == "verify")


def _directed(
    options: tuple[Option, ...], names: tuple[str, ...], phase: str, request: Request, setting: Setting
) -> tuple[Option, ...]:
    """The options after `force` (that kernel or an error) and `prefer` (first if accepted, else a warning)."""
    for group, at, kernel in setting.force:
        if (group and group not in names) or at != phase:
            continue
        kept = tuple(o for o in options if kernel in (o.kernel, o.name))
        if not kept:
            from attnroute.dispatch.route import decide

            decide(setting.registry, request, setting.side(phase).packages, force=kernel, group=names[0])
            raise UnservedError(f"forced kernel {kernel} cannot serve {names[0]} in {phase}", code="force-unserved")
        options = kept
    for group, at, kernel in setting.prefer:
        if (group and group not in names) or at != phase:
            continue
        first = tuple(o for o in options if kernel in (o.kernel, o.name))
        if first:
            light = min(o.weight for o in options)
            lifted = tuple(replace(o, weight=light - setting.slack, time=None) for o in first)
            return lifted + tuple(replace(o, time=None) for o in options if o not in first)
        from attnroute.dispatch.route import decide

        found = decide(setting.registry, request, setting.side(phase).packages, prefer=kernel, group=names[0])
        setting.fallbacks.extend(w for w in found.warnings if w.startswith("preferred "))
    return options


def parse_directions(
    texts: Sequence[str] | str | None, what: str, groups: Sequence[str]
) -> tuple[tuple[str, str, str], ...]:
    """`[GROUP:][PHASE=]KERNEL[@PACKAGE]` texts as (group or empty, phase, kernel); the phase is decode unless named.

    Raises UsageError for a phase that does not exist and for a group that is not one of `groups`.
    """
    if texts is None:
        return ()
    from attnroute.registry.dims import PHASES

    listed = (texts,) if isinstance(texts, str) else tuple(texts)
    found = []
    for text in listed:
        group, colon, rest = text.rpartition(":")
        phase, equals, kernel = rest.rpartition("=")
        if equals and phase not in PHASES:
            from attnroute.errors import unknown_name

            raise UsageError(f"{what} {text}: {unknown_name('phase', phase, PHASES)}", code="unknown-phase")
        if (colon and not group) or not kernel:
            raise UsageError(f"{what} {text}: write [GROUP:][PHASE=]KERNEL[@PACKAGE]", code="bad-direction")
        if group and group not in groups:
            from attnroute.errors import unknown_name

            raise UsageError(f"{what} {text}: {unknown_name('group', group, groups)}", code="unknown-group")
        found.append((group, phase or "decode", kernel))
    return tuple(found)
