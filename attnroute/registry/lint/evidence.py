"""Evidence that resolves: one kind an item, known releases, captures that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.dims import EVIDENCE_STRENGTH
from attnroute.registry.lint.context import Context, Finding
from attnroute.registry.lint.references import unknown
from attnroute.registry.versions import is_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.positions import Map

#: Which details go with which kind; `every_arch` goes with all.
DETAILS = {
    "capture": ("cases",),
    "compiled": ("of", "what"),
    "source": ("path", "match"),
    "report": ("says",),
    "claimed": ("says",),
    "inferred": ("because", "path", "match"),
}


def check(context: Context) -> Iterator[Finding]:
    """Evidence of rows, exclusions and traps as written."""
    for written in (context.written_rows(), context.written_traps()):
        for subject, _, item in written:
            for owner in (item, *item.maps("exclusions")):
                for piece in owner.maps("evidence"):
                    yield from _piece(context, subject, piece)


def _piece(context: Context, subject: str, piece: Map) -> Iterator[Finding]:
    kinds = [key for key in piece.entries if key in EVIDENCE_STRENGTH]
    if not kinds:
        misspelt = [key for key in piece.entries if not any(key in names for names in DETAILS.values())]
        if not misspelt or misspelt == ["every_arch"]:
            text = f"says no kind of evidence: {' '.join(EVIDENCE_STRENGTH)}"
            yield Finding("evidence", subject, piece, text)
        return
    for extra in kinds[1:]:
        yield Finding(
            "evidence", subject, piece.keys[extra], f"an item is {kinds[0]} or {extra}, not both", "make it two items"
        )
    if len(kinds) == 1:
        for key in piece.entries:
            if any(key in names for names in DETAILS.values()) and key not in DETAILS[kinds[0]]:
                yield Finding(
                    "evidence", subject, piece.keys[key], f"{key!r} does not go with evidence of kind {kinds[0]}"
                )
    for key in ("source", "of", "inferred"):
        yield from _release(context, subject, piece, key)
    capture = piece.text("capture")
    if capture is not None and context.captures is not None and capture not in context.captures:
        yield unknown(subject, piece.entries["capture"], "capture", capture, sorted(context.captures))


def _release(context: Context, subject: str, piece: Map, key: str) -> Iterator[Finding]:
    written = piece.text(key)
    name, _, version = written.partition(" ") if written is not None else ("", "", "")
    # A commit is of a package where one was read; a conclusion may start from any repository.
    if not version or (key == "inferred" and is_commit(version)):
        return
    node, known = piece.entries[key], context.releases(name)
    if known is None:
        yield unknown(subject, node, "package", name, context.ids("packages"))
    elif version not in known and not is_commit(version):
        yield unknown(subject, node, f"release of {name}", version, known)
