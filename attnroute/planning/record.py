"""The plan as plain frozen records, and their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attnroute.errors import UsageError

PHASES = ("decode", "prefill", "verify", "draft")


@dataclass(frozen=True, slots=True)
class PhaseKernel:
    """The kernel of one phase. `page_size` counts tokens (None: it reads no pages); `q_dtype` is what it reads.

    `measured` is the relative time (1.0 is the best of its band), None where the place is that of the default order.
    `name` is what an engine calls it; where no catalogue entry stands behind that (`listed` is False), `kernel` repeats
    it for people and is null in the JSON.
    """

    kernel: str
    provider: str | None
    page_size: int | None
    q_dtype: str | None
    row: str | None
    graph_level: str | None = None
    calls: tuple[str, ...] = ()
    proof: str | None = None
    measured: float | None = None
    name: str | None = None
    listed: bool = True

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "kernel": self.kernel if self.listed else None,
            "provider": self.provider,
            "page_size": self.page_size,
            "q_dtype": self.q_dtype,
            "row": self.row,
            "graph_level": self.graph_level,
            "calls": list(self.calls),
            "proof": self.proof,
            "measured": self.measured,
        }
        return found | ({"name": self.name} if self.name is not None else {})

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PhaseKernel:
        listed = data["kernel"] is not None
        kernel = data["kernel"] if listed else data["name"]
        return PhaseKernel(**{**data, "kernel": kernel, "calls": tuple(data["calls"])}, listed=listed)


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """One KV-cache group of the plan.

    `block_size` is the group's block in tokens, `page_bytes` one layer's block in bytes with padding, `padding_percent`
    the padding relative to what is stored. `blocks_per_request` counts blocks of a request of the longest context (None
    if that is not stated). `phases` maps decode, prefill, verify and draft to kernels; None where nothing serves it or
    the group has no such phase. `needed` names the phases that it has.
    """

    name: str
    role: str
    layers: tuple[Any, ...]
    head_dim: int
    head_dim_v: int
    block_size: int | None
    page_bytes: int | None
    padding_percent: float | None
    phases: Mapping[str, PhaseKernel | None]
    needed: tuple[str, ...]
    shape: Mapping[str, Any] = field(default_factory=dict)
    blocks_per_request: int | None = None
    backend: str | None = None

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """The pages (tokens) in which the kernels of the group read its cache."""
        pages = (use.page_size for use in self.phases.values() if use is not None and use.page_size is not None)
        return tuple(dict.fromkeys(pages))

    @property
    def served(self) -> bool:
        """Whether every phase that has to be served is; drafts can be verified as prefill."""
        return all(self.phases.get(phase) is not None for phase in self.needed if phase != "verify")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "layers": list(self.layers),
            "head_dim": self.head_dim,
            "head_dim_v": self.head_dim_v,
            "block_size": self.block_size,
            "page_bytes": self.page_bytes,
            "padding_percent": self.padding_percent,
            "phases": {p: None if (use := self.phases.get(p)) is None else use.to_json() for p in PHASES},
            "needed": list(self.needed),
            "shape": dict(self.shape),
            "blocks_per_request": self.blocks_per_request,
            "backend": self.backend,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PlanGroup:
        known = {k: v for k, v in data.items() if k != "why_not"}
        phases = {p: None if use is None else PhaseKernel.from_json(use) for p, use in data["phases"].items()}
        tuples = {"layers": tuple(data["layers"]), "needed": tuple(data["needed"])}
        return PlanGroup(**{**known, **tuples, "phases": phases})


@dataclass(frozen=True, slots=True)
class Notes:
    """What is worked out when somebody asks: refusals by group name, warnings, the runner-up, graph levels in words."""

    why_not: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    runner_up: Mapping[str, Any] | None = None
    graphs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A model's kernels, pages and blocks on one architecture. Read-only; equal plans have equal digests.

    `block_size` is the smallest block of the target's groups in tokens, `manager_block` the tokens that are whole
    blocks in every group, `page_bytes` one layer's block in bytes where all groups have the same. `layout` is NHD or
    HND, `graph_level` the highest CUDA-graph level that every group's captured kernels reach. `mamba` and `kv` are
    those of `mamba_json` and `kv_json` in capacity.py. `cost` says what the choice weighs. `arch` is that of decoding,
    `prefill_arch` that of prompts if it differs.
    """

    arch: str
    engine: str
    packages: Mapping[str, str]
    block_size: int | None
    manager_block: int | None
    page_bytes: int | None
    layout: str | None
    graph_level: str
    groups: tuple[PlanGroup, ...]
    mamba: Mapping[str, Any] | None
    kv: Mapping[str, Any] | None
    cost: Mapping[str, Any]
    options: Mapping[str, Any]
    prefill_arch: str | None = None
    prefill_packages: Mapping[str, str] | None = None
    engine_detail: Mapping[str, Any] | None = None
    compare: Mapping[str, Any] | None = None
    _explain: Callable[[], Notes] = field(default=Notes, repr=False, compare=False)

    @cached_property
    def notes(self) -> Notes:
        """Explanations; worked out at the first reading, so that a plan costs nothing that nobody reads."""
        return self._explain()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know: refusals of better placed kernels, phases without a kernel, doubts."""
        return self.notes.warnings

    @property
    def served(self) -> bool:
        """Whether each group has a kernel for every phase that has to be served."""
        return all(group.served for group in self.groups)

    @cached_property
    def _by_layer(self) -> dict[Any, PlanGroup]:
        return {layer: group for group in self.groups for layer in group.layers}

    def for_layer(self, name: Any) -> PlanGroup:
        """The group that holds a layer; UsageError with the nearest name if none does."""
        found = self._by_layer.get(name)
        if found is None:
            from attnroute.errors import near_miss

            close = near_miss(str(name), [str(layer) for layer in self._by_layer])
            hint = f"; did you mean {close!r}?" if close else ""
            raise UsageError(f"no group holds the layer {name!r}{hint}", code="unknown-layer")
        return found

    def group(self, name: str) -> PlanGroup:
        """The group of that name; UsageError if there is none."""
        for found in self.groups:
            if found.name == name:
                return found
        from attnroute.errors import unknown_name

        raise UsageError(unknown_name("group", name, [g.name for g in self.groups]), code="unknown-group")

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON of `plan`, and more."""
        notes = self.notes
        groups = [g.to_json() | {"why_not": [dict(w) for w in notes.why_not.get(g.name, ())]} for g in self.groups]
        return {
            "arch": self.arch,
            "engine": self.engine,
            "packages": dict(self.packages),
            "block_size": self.block_size,
            "manager_block": self.manager_block,
            "page_bytes": self.page_bytes,
            "layout": self.layout,
            "graph_level": self.graph_level,
            "groups": groups,
            "mamba": None if self.mamba is None else dict(self.mamba),
            "kv": None if self.kv is None else dict(self.kv),
            "warnings": list(notes.warnings),
            "cost": dict(self.cost),
            "options": dict(self.options),
            "runner_up": None if notes.runner_up is None else dict(notes.runner_up),
            "graphs": dict(notes.graphs),
            "prefill_arch": self.prefill_arch,
            "prefill_packages": None if self.prefill_packages is None else dict(self.prefill_packages),
            "engine_detail": None if self.engine_detail is None else dict(self.engine_detail),
            "compare": None if self.compare is None else dict(self.compare),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any] | str) -> Plan:
        """The plan that `to_json` wrote (a mapping, or its text): equal to it, with the same digest. Keys that a plan
        does not have (the command line adds some) are passed over.
        """
        if isinstance(data, str):
            data = json.loads(data)
        assert not isinstance(data, str)
        try:
            notes = Notes(
                {g["name"]: tuple(g["why_not"]) for g in data["groups"]},
                tuple(data["warnings"]),
                data["runner_up"],
                data["graphs"],
            )
            apart = ("groups", "warnings", "runner_up", "graphs")
            known = Plan.__dataclass_fields__
            rest = {k: v for k, v in data.items() if k in known and k not in apart}
            groups = tuple(PlanGroup.from_json(g) for g in data["groups"])
            return Plan(**rest, groups=groups, _explain=lambda: notes)
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is no plan that attnroute wrote: {error}", code="bad-plan") from None

    @cached_property
    def digest(self) -> str:
        """sha256 of the decisions in canonical JSON (sorted keys, no spaces): what ranks compare.

        Explanations are left out: they follow from the decisions and the tables, and cost more than these.
        """
        from hashlib import sha256

        explaining = ("warnings", "runner_up", "graphs")
        plain = {**self.__dict__}
        kept = {k: v for k, v in plain.items() if k in self.__dataclass_fields__ and not k.startswith("_")}
        kept["groups"] = [group.to_json() for group in self.groups]
        for name in explaining:
            kept.pop(name, None)
        text = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=_plain)
        return sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
