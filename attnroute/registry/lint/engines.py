"""Names inside an engine's file: facts that conditions test, tables, backends, layouts, kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.lint.context import Context, Finding, items
from attnroute.registry.lint.references import unknown
from attnroute.registry.positions import Map, Node, Seq
from attnroute.registry.sets import IntSet

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONDITIONS = ("when", "asked")
#: Where names are used: (key, the key it stands under), `*` for anywhere.
USES: dict[str, tuple[tuple[str, str], ...]] = {
    "fact": (("fact", "*"), ("ratio", "*"), ("of", "*")),
    "backend": (
        *(("order", "priority"), ("order", "then"), ("like", "*"), ("use", "combination")),
        *(("general", "composite"), ("causal", "composite"), ("internal_backends", "")),
    ),
    "packing": (("packs", "*"),),
    "resolve table": (("resolve", "*"), ("q_dtype", "kernels"), ("graph", "*")),
    "element type": (("stored", "*"),),
    "layout": (("preference", "layouts"), ("use", "layouts")),
    "kernel": (("use", "prefill"),),
}
#: Mappings whose every value is a name.
KEYED = {"own_packing": "backend", "indexers": "backend", "aliases": "layout", "by": "kernel"}


def check(context: Context) -> Iterator[Finding]:
    """Each engine's file."""
    for name in context.tables.engine_ids():
        root = context.tables.table(f"engines/{name}.yaml")
        if root is not None and root.map("facts") is not None:
            yield from _Names(context, name, root).check()
        if root is not None:
            yield from _version(context, name, root)


def _version(context: Context, name: str, root: Map) -> Iterator[Finding]:
    distribution, version = root.text("distribution"), root.text("version")
    if distribution is not None and version is not None:
        known = context.releases(distribution)
        if known is None:
            yield unknown(name, root.entries["distribution"], "package", distribution, context.ids("packages"))
        elif version not in known:
            yield unknown(name, root.entries["version"], f"release of {distribution}", version, known)


class _Names:
    """The names one file defines, and the walk that looks up those it uses."""

    def __init__(self, context: Context, engine: str, root: Map) -> None:
        self.context, self.engine, self.root = context, engine, root
        self.facts = (*self._keys("facts"), *self._keys("derived"), "version")
        layouts = root.map("layouts")
        self.known = {
            "fact": self.facts,
            "resolve table": self._keys("resolve"),
            "backend": self._keys("backends"),
            "packing": self._keys("packs"),
            "element type": self._keys("element_bytes"),
            "layout": tuple(str(item.plain) for item in items(layouts.get("order") if layouts else None)),
        }

    def _keys(self, section: str) -> tuple[str, ...]:
        found = self.root.map(section)
        return tuple(found.entries) if found else ()

    def check(self) -> Iterator[Finding]:
        yield from self._walk(self.root, ())
        for section in ("backends", "defaults"):
            yield from self._declared(self.root.map(section), section == "backends")

    def _walk(self, node: Node, path: tuple[str, ...]) -> Iterator[Finding]:
        if isinstance(node, Seq):
            for item in node.items:
                yield from self._walk(item, path)
        if not isinstance(node, Map):
            return
        for key, value in node.entries.items():
            if key in _CONDITIONS:
                yield from self._condition(value)
            elif key == "with" and isinstance(value, Map):
                yield from self._facts_of(value)
            elif path[:1] != ("facts",):
                if key == "kernels" and isinstance(value, Map):
                    yield from self._values(value)
                yield from self._use(key, value, path)
                yield from self._walk(value, (*path, key))

    def _use(self, key: str, value: Node, path: tuple[str, ...]) -> Iterator[Finding]:
        inside = path[-1] if path else ""
        used = next((what for what, places in USES.items() if (key, inside) in places or (key, "*") in places), None)
        if used is None and inside in KEYED:
            used = KEYED[inside]
        if used == "resolve table" and (not path or path[0] == "state_backends"):
            return
        if used == "kernel":
            yield from self._kernel(value)
        elif used is not None and not isinstance(value, Map):
            yield from self._look(value, used, self.known[used])

    def _values(self, kernels: Map) -> Iterator[Finding]:
        """The values that kernels are listed by are those that the table may give."""
        tables = self.root.map("resolve")
        table = tables.map(kernels.text("resolve") or "") if tables else None
        known = {"null"}
        for step in table.maps("steps") if table else ():
            for rule in step.maps("rules"):
                use = rule.plain.get("use")
                if isinstance(use, dict):
                    return  # the value of a fact: anything
                known.add("null" if use is None else str(use))
        by = kernels.map("by")
        for key, node in by.keys.items() if by else ():
            if key not in known:
                yield unknown(self.engine, node, "value", key, sorted(known))

    def _look(self, value: Node, what: str, known: tuple[str, ...]) -> Iterator[Finding]:
        for item in items(value):
            name = item.plain if isinstance(item.plain, str) else None
            if name is not None and name not in known:
                yield unknown(self.engine, item, what, name, known)

    def _kernel(self, value: Node) -> Iterator[Finding]:
        name, _, provider = value.plain.partition("@") if isinstance(value.plain, str) else ("", "", "")
        if provider:
            entry = self.context.kernel(name)
            if entry is None:
                yield unknown(self.engine, value, "kernel", name, self.context.ids("kernels"))
            elif (providers := entry.map("providers")) is not None and provider not in providers.entries:
                yield unknown(self.engine, value, f"provider of {name}", provider, providers.entries)

    def _condition(self, node: Node) -> Iterator[Finding]:
        if not isinstance(node, Map):
            return
        for key, value in node.entries.items():
            if key == "any":
                for item in value.items if isinstance(value, Seq) else ():
                    yield from self._condition(item)
            elif key == "not":
                yield from self._condition(value)
            elif key not in self.facts:
                yield unknown(self.engine, node.keys[key], "fact", key, self.facts)
            else:
                yield from self._ranges(value)

    def _ranges(self, value: Node) -> Iterator[Finding]:
        for item in items(value):
            if isinstance(item.plain, str) and ".." in item.plain:
                try:
                    IntSet.parse(item.plain)
                except ValueError as error:
                    yield Finding("set", self.engine, item, str(error))

    def _facts_of(self, node: Map) -> Iterator[Finding]:
        for key, value in node.entries.items():
            if key not in self.facts:
                yield unknown(self.engine, node.keys[key], "fact", key, self.facts)
            yield from self._walk(value, ("with",))

    def _declared(self, section: Map | None, by_name: bool) -> Iterator[Finding]:
        for backend in section.entries.values() if section and by_name else (section,):
            for value in backend.entries.values() if isinstance(backend, Map) else ():
                if isinstance(value, Map) and not {"by", "resolve", "general", "path"} & set(value.entries):
                    yield from self._condition(value)
