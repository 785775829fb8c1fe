"""Ids that rows and traps use, looked up in the catalogues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.errors import near_miss
from attnroute.registry.lint.context import Context, Finding, items
from attnroute.registry.positions import Map, Node, Scalar, Seq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RULE = "unknown-id"


def unknown(subject: str, node: Node, what: str, name: str, known: Iterable[str]) -> Finding:
    """The finding for an id that no catalogue has."""
    choices = tuple(known)
    hint = near_miss(name, choices)
    rest = f"known: {' '.join(choices)}" if 0 < len(choices) <= 30 else None
    return Finding(RULE, subject, node, f"unknown {what} {name!r}", f"did you mean {hint!r}?" if hint else rest)


def check(context: Context) -> Iterator[Finding]:
    """Kernels, providers, calls, codes, default orders, `like` and `mirrors`."""
    kernels, calls, codes = context.ids("kernels"), context.ids("calls"), context.ids("reasons")
    for arch, flat in context.archs.items():
        for section in ("kernels", "traps"):
            entries = flat.root.map(section)
            for key, node in entries.keys.items() if entries else ():
                if key not in kernels:
                    yield unknown(arch, node, "kernel", key, kernels)
        yield from order(arch, flat.root, kernels)
        for error in flat.errors:
            name = error.node.plain if isinstance(error.node, Scalar) and isinstance(error.node.plain, str) else ""
            hint = near_miss(name, error.choices)
            yield Finding(error.code, arch, error.node, error.message, f"did you mean {hint!r}?" if hint else None)
    for subject, kernel, item in context.written_rows():
        yield from _provider(context, subject, kernel, item)
        for node in items(item.get("call")):
            if isinstance(node.plain, str) and node.plain not in calls:
                yield unknown(subject, node, "call", node.plain, calls)
        for hole in item.maps("exclusions"):
            yield from _code(subject, hole, codes)
        yield from _kind(context, subject, kernel, item)
    for subject, kernel, item in context.written_traps():
        yield from _provider(context, subject, kernel, item)
        yield from _code(subject, item, codes)


def order(subject: str, root: Map, kernels: tuple[str, ...]) -> Iterator[Finding]:
    """Kernel ids of a `default_order`, each known and each once a phase."""
    phases = root.map("default_order")
    for node in phases.entries.values() if phases else ():
        for item in node.items if isinstance(node, Seq) else ():
            if isinstance(item, Scalar) and isinstance(item.plain, str) and item.plain not in kernels:
                yield unknown(subject, item, "kernel", item.plain, kernels)


def _provider(context: Context, subject: str, kernel: str, item: Map) -> Iterator[Finding]:
    package = item.map("package")
    entry = context.kernel(kernel)
    providers = entry.map("providers") if entry else None
    for key, node in package.keys.items() if package else ():
        if key not in context.ids("packages"):
            yield unknown(subject, node, "package", key, context.ids("packages"))
        elif providers is not None and key not in providers.entries:
            yield unknown(subject, node, f"provider of {kernel}", key, providers.entries)


def _code(subject: str, item: Map, codes: tuple[str, ...]) -> Iterator[Finding]:
    node = item.get("code")
    if isinstance(node, Scalar) and isinstance(node.plain, str):
        if node.plain not in codes:
            yield unknown(subject, node, "reason code", node.plain, codes)
        elif item.plain.get("outcome") != "raises":
            text = f"a code goes with outcome raises, not {item.plain.get('outcome')}"
            yield Finding("code", subject, node, text, "leave it out")


def _kind(context: Context, subject: str, kernel: str, item: Map) -> Iterator[Finding]:
    entry = context.kernel(kernel)
    served = entry.plain.get("kinds") if entry else None
    for node in items(item.get("kind")):
        if isinstance(served, list) and isinstance(node.plain, str) and node.plain not in (*served, "any"):
            yield Finding(
                "kind", subject, node, f"kernels.yaml says that {kernel} serves {' '.join(map(str, served))} only"
            )
