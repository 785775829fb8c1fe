"""Files that are no tables: every fault is a problem with a place, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnroute.registry.positions import MAX_BYTES, Map, Scalar, parse
from attnroute.registry.validate import validate
from tests.registry import mini

SURPRISES = {
    "no": 'write false, or "no" if text is meant',
    "on": 'write true, or "on" if text is meant',
    "Yes": 'write true, or "Yes" if text is meant',
    "True": 'write true, or "True" if text is meant',
    "010": 'write 10, or "010" if text is meant',
    "1_000": 'write 1000, or "1_000" if text is meant',
    "0x10": 'write 16, or "0x10" if text is meant',
    "4.10": 'write "4.10"',
    "1:30": 'write "1:30"',
    "2026-01-02": 'write "2026-01-02"',
    "1e3": 'write "1e3" if text is meant, or a plain decimal such as 1.5',
    ".inf": 'write ".inf" if text is meant, or a plain decimal such as 1.5',
}


@pytest.mark.parametrize("pure", [False, True], ids=["libyaml", "python"])
@pytest.mark.parametrize(("written", "hint"), SURPRISES.items())
def test_spellings_that_yaml_readers_disagree_about(written: str, hint: str, pure: bool) -> None:
    (problem,) = parse(f"key:\n  - {written}\n", "t.yaml", pure=pure).problems
    assert (problem.line, problem.col, problem.code, problem.hint) == (2, 5, "yaml-1.1", hint)
    assert parse(f'key:\n  - "{written}"\n', "t.yaml", pure=pure).problems == []


@pytest.mark.parametrize("pure", [False, True], ids=["libyaml", "python"])
@pytest.mark.parametrize(
    ("text", "code", "line", "col"),
    [
        ("a: 1\nb: 2\na: 3\n", "duplicate-key", 3, 1),
        ("a: {b: 1, b: 2}\n", "duplicate-key", 1, 11),
        ("a:\n\t- 1\n", "tab", 2, 1),
        ("a: 1 # a\ttab\n", "tab", 1, 9),
        ("a: &x 1\n", "anchor", 1, 4),
        ("a: *x\n", "alias", 1, 4),
        ("a: !!str 1\n", "tag", 1, 4),
        ("a: 1\n---\nb: 2\n", "documents", 2, 1),
        ("%YAML 1.1\n---\na: 1\n", "directive", 1, 1),
        ("", "empty", 1, 1),
        ("# only words\n", "empty", 1, 1),
        ("---\n", "empty", 1, 1),
        ("[1]\n", "type", 1, 1),
        ("64: 1\n", "key", 1, 1),
        ("? [1]\n: 2\n", "key", 1, 3),
        ("a: {b: [1}\n", "yaml", 1, 10),
        ("a: \x01\n", "character", 1, 4),
        ("\ufeffa: 1\n", "character", 1, 1),
        ("a: 1\rb: 2\n", "character", 1, 5),
        ("[" * 1000, "depth", 1, 25),
        ("a: " + "9" * 5000 + "\n", "yaml-1.1", 1, 4),
    ],
)
def test_refused_with_its_place(text: str, code: str, line: int, col: int, pure: bool) -> None:
    (problem,) = parse(text, "t.yaml", pure=pure).problems
    assert (problem.code, problem.line, problem.col) == (code, line, col)


def test_both_parsers_agree_on_the_tables() -> None:
    for path in sorted(Path(__file__).parents[2].glob("capabilities/*.yaml")):
        data = path.read_bytes()
        assert parse(data, path.name).root == parse(data, path.name, pure=True).root


def test_all_faults_at_once() -> None:
    document = parse("a: no\nb: &x 010\na: 1:30\n", "t.yaml")
    assert [p.code for p in document.problems] == ["yaml-1.1", "anchor", "yaml-1.1", "yaml-1.1", "duplicate-key"]


def test_values_keep_their_place() -> None:
    root = parse('a:\n  - {b: "x", c: [1, 2.5, true, null]}\n', "t.yaml").root
    assert root is not None
    assert root.plain == {"a": [{"b": "x", "c": [1, 2.5, True, None]}]}
    inner = next(root.maps("a"))
    assert isinstance(inner, Map)
    b = inner.entries["b"]
    assert isinstance(b, Scalar)
    assert (b.file, b.line, b.col, b.quoted) == ("t.yaml", 2, 9, True)
    assert (inner.keys["c"].line, inner.keys["c"].col) == (2, 14)


def test_crlf_is_fine() -> None:
    document = parse("a: 1\r\nb: no\r\n", "t.yaml")
    assert [(p.line, p.col, p.line_text) for p in document.problems] == [(2, 4, "b: no")]


def test_render_points_at_the_fault() -> None:
    (problem,) = parse("a: no\n", "t.yaml").problems
    assert problem.render().splitlines() == [
        "t.yaml:1:4: yaml-1.1: unquoted no is a truth value in YAML 1.1",
        "    a: no",
        "       ^",
        '    write false, or "no" if text is meant',
    ]


@pytest.mark.parametrize("cut", range(0, 700, 37))
def test_truncated_file(tmp_path: Path, cut: int) -> None:
    root = mini.write(tmp_path)
    file = root / "kernels.yaml"
    file.write_bytes(file.read_bytes()[:cut])
    assert any(p.file.endswith("kernels.yaml") for p in validate([root]))


def test_invalid_utf8(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    file = root / "arch" / "sm1.yaml"
    file.write_bytes(file.read_bytes().replace(b"One", b"\xc3\xa9 \xff"))
    (problem,) = [p for p in validate([root]) if p.code == "encoding"]
    assert (problem.line, problem.col, problem.message) == (2, 9, "byte 0xff is not UTF-8")


def test_too_large_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = mini.write(tmp_path)
    large = root / "arch" / "sm1.yaml"
    with large.open("ab") as stream:
        stream.truncate(MAX_BYTES + 1)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read") if path == large else read(path))
    assert [p.code for p in validate([root]) if p.file.endswith("sm1.yaml")] == ["file-size"]


def test_empty_file(tmp_path: Path) -> None:
    root = mini.write(tmp_path, calls="")
    assert "empty" in [p.code for p in validate([root])]


@pytest.mark.parametrize("path", ["nowhere", "nowhere.yaml"])
def test_missing_path(tmp_path: Path, path: str) -> None:
    assert [p.code for p in validate([tmp_path / path])] == ["file"]


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    (root / "arch" / "sm3.yaml").mkdir()
    (problem,) = validate([root])
    assert (problem.code, problem.message) == ("file", "the file is no regular file")


@pytest.mark.parametrize(
    ("text", "line", "col", "words"),
    [
        ("[", 1, 2, "is not JSON"),
        ('{\n"a": }', 2, 6, "is not JSON"),
        ("[]", 1, 1, "[] is not of type 'object'"),
        ("{}", 1, 1, "'gpu' is a required property"),
        ("\\xff", 1, 1, "is not JSON"),
    ],
)
def test_captures(tmp_path: Path, text: str, line: int, col: int, words: str) -> None:
    root = mini.write(tmp_path)
    (root / "captures").mkdir()
    (root / "captures" / "gpu.json").write_text(text, encoding="utf-8")
    found = [p for p in validate([root]) if p.file.endswith("captures/gpu.json")]
    assert any((p.line, p.col) == (line, col) and words in p.message for p in found), found
