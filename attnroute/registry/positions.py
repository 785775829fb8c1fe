"""YAML text to values that know their file, line and column.

The tables use a small part of YAML: no anchors, tags, tabs, second documents or duplicate keys. Each of these is a
`Problem`, and reading goes on where it can, so that one pass reports all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnroute.registry.problems import Problem
from attnroute.registry.scalars import Plain, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 4 << 20
MAX_DEPTH = 24
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|\r(?!\n)"
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value; `plain` is what it means, `quoted` whether it was written in quotes or as a block."""

    plain: Plain
    file: str
    line: int
    col: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Seq:
    """A list; `plain` is the list of plain values."""

    plain: list[Any]
    file: str
    line: int
    col: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping with text keys; `keys` holds each key with its own position."""

    plain: dict[str, Any]
    file: str
    line: int
    col: int
    entries: dict[str, Node]
    keys: dict[str, Scalar]

    def get(self, key: str) -> Node | None:
        """The value under `key`, None if there is none."""
        return self.entries.get(key)

    def map(self, key: str) -> Map | None:
        """The mapping under `key`, None if there is none."""
        found = self.entries.get(key)
        return found if isinstance(found, Map) else None

    def maps(self, key: str) -> Iterator[Map]:
        """The mappings in the list under `key`."""
        found = self.entries.get(key)
        if isinstance(found, Seq):
            yield from (item for item in found.items if isinstance(item, Map))

    def text(self, key: str) -> str | None:
        """The text under `key`, None if there is none or it is something else."""
        found = self.plain.get(key)
        return found if isinstance(found, str) else None


Node = Scalar | Seq | Map


def where(node: Node) -> str:
    """`file:line:col` of a value."""
    return f"{node.file}:{node.line}:{node.col}"


def make_map(base: Map, entries: dict[str, Node], keys: dict[str, Scalar]) -> Map:
    """A mapping at the place of `base` with other entries."""
    return Map({key: node.plain for key, node in entries.items()}, base.file, base.line, base.col, entries, keys)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its shown name, lines, root (None if it could not be read) and the faults met while reading."""

    file: str
    lines: tuple[str, ...]
    root: Map | None
    problems: list[Problem] = field(default_factory=list)

    def problem(self, line: int, col: int, code: str, message: str, hint: str | None = None) -> Problem:
        """A problem of this file, with the text of its line."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Problem(self.file, line, col, code, message, text, hint)


def parse(data: bytes | str, file: str, *, pure: bool = False) -> Document:
    """Read one YAML file; never raises for bad input. `pure` forces the Python parser instead of libyaml."""
    if isinstance(data, bytes):
        if len(data) > MAX_BYTES:
            return _refused(file, "file-size", f"the file has {len(data)} bytes; tables end at {MAX_BYTES}")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            head = data[: error.start]
            line, col = head.count(b"\n") + 1, len(head[head.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
            return _refused(file, "encoding", f"byte 0x{data[error.start]:02x} is not UTF-8", line, col)
    else:
        text = data
    lines = tuple(line.removesuffix("\r") for line in text.split("\n"))
    document = Document(file, lines, None)
    _scan_characters(document, text)
    if document.problems:
        return document
    builder = _Builder(document, text, pure)
    root = builder.document()
    return Document(file, lines, root, document.problems)


def _refused(file: str, code: str, message: str, line: int = 1, col: int = 1) -> Document:
    return Document(file, (), None, [Problem(file, line, col, code, message)])


def _scan_characters(document: Document, text: str) -> None:
    if "\t" in text:
        for number, line in enumerate(document.lines, 1):
            if "\t" in line and len(document.problems) < 50:
                hint = "indent with spaces"
                document.problems.append(
                    document.problem(number, line.index("\t") + 1, "tab", "tabs are refused", hint)
                )
    for found in _UNPRINTABLE.finditer(text):
        number, col = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())
        name = f"U+{ord(found.group()):04X}"
        document.problems.append(document.problem(number, col, "character", f"character {name} is refused"))
        if len(document.problems) > 50:
            break


class _Builder:
    """Turns parser events into nodes; collects faults in the document."""

    def __init__(self, document: Document, text: str, pure: bool) -> None:
        self.doc = document
        self.file = document.file
        self.next: Any = _parser(text, pure).get_event

    def report(self, mark: Any, code: str, message: str, hint: str | None = None) -> None:
        line = min(mark.line, len(self.doc.lines) - 1)
        self.doc.problems.append(self.doc.problem(line + 1, mark.column + 1, code, message, hint))

    def document(self) -> Map | None:
        import yaml

        try:
            self.next()
            event = self.next()
            if not isinstance(event, yaml.DocumentStartEvent):
                self.doc.problems.append(self.doc.problem(1, 1, "empty", "the file holds nothing"))
                return None
            if event.version or event.tags:
                self.report(event.start_mark, "directive", "YAML directives are refused")
            root = self.node(self.next(), 0)
            self.next()
            event = self.next()
            if isinstance(event, yaml.DocumentStartEvent):
                self.report(event.start_mark, "documents", "a second document starts here; a table is one document")
        except _TooDeepError:
            return None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            begun = error.context_mark
            context = f" ({error.context}, from line {begun.line + 1})" if begun and error.context else ""
            if mark is None:
                self.doc.problems.append(self.doc.problem(1, 1, "yaml", str(error)))
            else:
                self.report(mark, "yaml", f"{error.problem}{context}")
            return None
        except yaml.YAMLError as error:  # reader errors carry no mark
            self.doc.problems.append(self.doc.problem(1, 1, "yaml", " ".join(str(error).split())))
            return None
        if not isinstance(root, Map):
            if isinstance(root, Scalar) and root.plain is None:
                self.doc.problems.append(self.doc.problem(1, 1, "empty", "the file holds nothing"))
            else:
                self.doc.problems.append(
                    self.doc.problem(root.line, root.col, "type", "a table is a mapping at its top")
                )
            return None
        return root

    def node(self, event: Any, depth: int) -> Node:
        name = type(event).__name__
        mark = event.start_mark
        if name == "AliasEvent":
            self.report(mark, "alias", f"alias *{event.anchor} is refused", "write the value out, or use `like`")
            return Scalar(None, self.file, mark.line + 1, mark.column + 1)
        if event.anchor is not None:
            self.report(mark, "anchor", f"anchor &{event.anchor} is refused", "use `like` to reuse a row")
        if event.tag is not None:
            self.report(mark, "tag", f"tag {event.tag} is refused", "quote the value if text is meant")
        if name == "ScalarEvent":
            return self.scalar(event, mark)
        if depth >= MAX_DEPTH:
            self.report(mark, "depth", f"nested deeper than {MAX_DEPTH} levels")
            raise _TooDeepError
        if name == "SequenceStartEvent":
            items: list[Node] = []
            while type(event := self.next()).__name__ != "SequenceEndEvent":
                items.append(self.node(event, depth + 1))
            return Seq([item.plain for item in items], self.file, mark.line + 1, mark.column + 1, tuple(items))
        return self.mapping(mark, depth)

    def mapping(self, mark: Any, depth: int) -> Map:
        entries: dict[str, Node] = {}
        keys: dict[str, Scalar] = {}
        plain: dict[str, Any]
        while type(event := self.next()).__name__ != "MappingEndEvent":
            key = self.node(event, depth + 1)
            value = self.node(self.next(), depth + 1)
            if not isinstance(key, Scalar) or not isinstance(key.plain, str):
                shown = f"{key.plain}" if isinstance(key, Scalar) else "a list or mapping"
                hint = f'write "{shown}"' if isinstance(key, Scalar) and key.plain is not None else None
                self.report(
                    event.start_mark,
                    "key",
                    f"a key must be text, found {'nothing' if shown == 'None' else shown}",
                    hint,
                )
            elif key.plain in keys:
                first = keys[key.plain].line
                self.report(event.start_mark, "duplicate-key", f"key {key.plain!r} stands twice; first on line {first}")
            else:
                entries[key.plain], keys[key.plain] = value, key
        plain = {key: node.plain for key, node in entries.items()}
        return Map(plain, self.file, mark.line + 1, mark.column + 1, entries, keys)

    def scalar(self, event: Any, mark: Any) -> Scalar:
        if not event.implicit[0]:  # quoted, or a block: text whatever it looks like
            return Scalar(event.value, self.file, mark.line + 1, mark.column + 1, True)
        value, fault, hint = resolve(event.value)
        if fault:
            self.report(mark, "yaml-1.1", fault, hint)
        return Scalar(value, self.file, mark.line + 1, mark.column + 1)


class _TooDeepError(Exception):
    pass


def _parser(text: str, pure: bool) -> Any:
    import yaml

    if not pure:
        try:
            import yaml.cyaml

            return vars(yaml.cyaml)["CParser"](text)
        except ImportError:  # PyYAML was built without libyaml
            pass

    class PureParser(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
        def __init__(self, stream: str) -> None:
            yaml.reader.Reader.__init__(self, stream)
            yaml.scanner.Scanner.__init__(self)
            yaml.parser.Parser.__init__(self)

    return PureParser(text)
