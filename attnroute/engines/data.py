"""An engine's data file, compiled once: derived facts, resolve tables, backends, packing, kinds of caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnroute.engines.rules import Condition, EngineError, Facts, Table, condition, declared, rule, say
from attnroute.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from attnroute.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class Size:
    """One declared kernel block size in tokens: exactly `base`, or any multiple of it."""

    base: int
    exact: bool

    def takes(self, block: int) -> bool:
        """Whether a kernel block of `block` tokens is this size."""
        return block == self.base if self.exact else block % self.base == 0

    def __repr__(self) -> str:
        return str(self.base) if self.exact else f"MultipleOf({self.base})"

    def __str__(self) -> str:
        return str(self.base) if self.exact else f"{self.base}../{self.base}"


def size(item: int | str) -> Size:
    """`64` or `16../16` as the data writes it."""
    return Size(item, True) if isinstance(item, int) else Size(int(item.partition("..")[0]), False)


@dataclass(frozen=True, slots=True)
class SizeRule:
    """Kernel block sizes that hold under a condition."""

    when: Condition
    sizes: tuple[Size, ...]
    at_least: bool
    intersect: bool
    if_both: bool


@dataclass(slots=True)
class Backend:
    """A compiled backend. `label` is the name it reports; `children` (general, causal) make it a composite."""

    name: str
    label: str
    data: Mapping[str, Any]
    properties: dict[str, Condition]
    sizes: list[SizeRule]
    combination: list[tuple[Condition, str]]
    children: tuple[Backend, ...] = ()
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """How a backend stores one head slot of one token: sum of parts, `plus` bytes, rounded up to `round_to`."""

    mode: Condition
    parts: tuple[tuple[str, int, int, bool], ...]
    plus: int
    round_to: int
    slots: int
    equal_heads: str | None

    def content(self, head: int, head_v: int) -> int:
        """Bytes; raises EngineError where K and V must be of one size and are not."""
        if self.equal_heads and head != head_v:
            raise EngineError(self.equal_heads, "AssertionError")
        total = self.plus
        for of, times, over, up in self.parts:
            product = (head if of == "head" else head_v) * times
            total += -(-product // over) if up else product // over
        return -(-total // self.round_to) * self.round_to


class Engine:
    """All rules of one engine, ready to be asked. Make it with `load_engine`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.name: str = data["engine"]
        self.version: str = str(data["version"])
        self.tables = {name: Table(table) for name, table in data["resolve"].items()}
        self.derived = {name: self._derived(item) for name, item in data["derived"].items()}
        self.kv_dtypes: Mapping[str, Mapping[str, Any]] = data["kv_dtypes"]
        self.constants = {name: item["value"] for name, item in data["constants"].items()}
        self.kinds: Mapping[str, Mapping[str, Any]] = data["spec_kinds"]
        self.checks = [(c["property"], condition(c.get("asked")), c["text"]) for c in data["checks"]]
        self.packs = {name: _pack(item) for name, item in data["packs"].items()}
        self.priority = [_order(item) for item in data["priority"]]
        self.backends: dict[str, Backend] = {}
        for name in data["backends"]:
            self.backend(name)

    def facts(self, given: Mapping[str, Any]) -> Facts:
        """Facts for the rules of this engine."""
        return Facts(self, given)

    def constant(self, name: str) -> Any:
        """A number of the data's `constants`."""
        return self.constants[name]

    def backend(self, name: str) -> Backend:
        """The backend of that name; UsageError for one that the data does not have."""
        found = self.backends.get(name)
        if found is None:
            if name not in self.data["backends"]:
                raise UsageError(unknown_name("attention backend", name, self.data["backends"]), code="unknown-backend")
            found = self.backends[name] = self.made(name, self.data["backends"][name])
        return found

    def selectable(self, name: str) -> Backend:
        """The backend that somebody asks for by name; UsageError for one that the engine does not offer."""
        offered = [n for n in self.data["backends"] if n not in self.data.get("internal_backends", ()) and "@" not in n]
        if name not in offered:
            raise UsageError(unknown_name("attention backend", name, offered), code="unknown-backend")
        return self.backend(name)

    def made(self, name: str, data: Mapping[str, Any]) -> Backend:
        """Compile a backend's data, inheriting from `like` and the defaults."""
        whole = {**self.data["defaults"], **self._inherited(data)}
        children = whole.get("composite")
        kids = tuple(self.backend(children[part]) for part in ("general", "causal")) if children else ()
        names = [c["property"] for c in self.data["checks"] if c["property"] != "block"]
        return Backend(
            name,
            whole.get("name", name),
            whole,
            {n: declared(whole[n], n) for n in names},
            [_size_rule(item) for item in whole["block_sizes"]],
            self._combination(whole),
            kids,
            whole.get("exact", False),
        )

    def _inherited(self, data: Mapping[str, Any]) -> dict[str, Any]:
        base = self._inherited(self.data["backends"][data["like"]]) if "like" in data else {}
        return {**{k: v for k, v in base.items() if k != "about"}, **data}

    def _combination(self, data: Mapping[str, Any]) -> list[tuple[Condition, str]]:
        found: list[tuple[Condition, str]] = []
        for item in data.get("combination", []):
            if "use" in item:
                found += self._combination(self._inherited(self.data["backends"][item["use"]]))
            else:
                found.append((condition(item["when"]), item["text"]))
        return found

    def _derived(self, item: Mapping[str, Any]) -> Callable[[Facts], Any]:
        if "when" in item:
            return condition(item["when"])
        if "ratio" in item:
            above, below = item["ratio"]

            def ratio(facts: Facts) -> int | None:
                q, kv = facts[above], facts[below]
                return q // kv if q and kv and q % kv == 0 else None

            return ratio
        table, changes = item["resolve"], item["with"]
        if not changes:
            return lambda facts: self.tables[table].answer(facts).value

        def resolved(facts: Facts) -> Any:
            given = {k: facts[v["fact"]] if isinstance(v, Mapping) else v for k, v in changes.items()}
            return self.tables[table].answer(facts.but(given)).value

        return resolved


@dataclass(slots=True)
class Order:
    """An order of backends under a condition, with tails of which the first that matches is added."""

    when: Condition
    names: tuple[str, ...]
    tails: list[Order] = field(default_factory=list)


def _order(item: Mapping[str, Any]) -> Order:
    return Order(condition(item.get("when")), tuple(item["order"]), [_order(t) for t in item.get("then", [])])


def _pack(item: Mapping[str, Any]) -> Pack:
    parts = tuple((p["of"], p.get("times", 1), p.get("over", 1), p.get("round") == "up") for p in item["parts"])
    return Pack(
        condition(item["when"]),
        parts,
        item.get("plus", 0),
        item.get("round_to", 1),
        item.get("slots", 1),
        item.get("equal_heads"),
    )


def _size_rule(item: Mapping[str, Any]) -> SizeRule:
    return SizeRule(
        condition(item.get("when")),
        tuple(size(s) for s in item.get("sizes", [])),
        item.get("prefer") == "at-least",
        item.get("intersect", False),
        item.get("if_both_accept", False),
    )


def first_use(rules: list[Mapping[str, Any]], facts: Facts, otherwise: Any = None) -> Any:
    """The value of the first of a few uncompiled rules that matches (graph levels, layouts: asked once a plan)."""
    for item in rules:
        r = rule(item)
        if r.when(facts):
            return r.use
    return otherwise


_engines: dict[int, Engine] = {}


def compiled(data: Mapping[str, Any]) -> Engine:
    """The compiled form of an engine's data, made once for each data object."""
    found = _engines.get(id(data))
    if found is None:
        found = _engines[id(data)] = Engine(data)
    return found


def load_engine(name: str = "vllm", registry: Registry | None = None) -> Engine:
    """The rules of an engine in the registry's tables; UsageError for an unknown one."""
    if registry is None:
        from attnroute.registry.registry import default_registry

        registry = default_registry()
    return compiled(registry.engine(name))


__all__ = ["Backend", "Engine", "Pack", "Size", "compiled", "first_use", "load_engine", "say", "size"]
