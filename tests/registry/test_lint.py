"""Each rule finds what it is for, at its line and column, and nothing in sound tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnroute.registry.validate import validate
from tests.registry import mini
from tests.registry.mini import SM1, at, problems, row

TRAP = """
traps:
  fast:
    - trap: t
      package: {demo: 1.0..}
      where: {WHERE}
      outcome: OUTCOME
      why: It fails.
      evidence: [{claimed: notes, says: it fails}]
"""


def trap(where: str, outcome: str = "faults") -> str:
    return TRAP.replace("WHERE", where).replace("OUTCOME", outcome).lstrip("\n")


def test_the_small_tables_are_sound(tmp_path: Path) -> None:
    assert problems(mini.write(tmp_path)) == []


def test_the_real_tables_are_sound() -> None:
    folder = Path(__file__).parents[2] / "capabilities"
    assert [p.render() for p in validate([folder])] == []


def hole(where: str, more: str = "") -> str:
    """SM1 with an exclusion in its row."""
    item = f"{{where: {where}, {more}outcome: faults, why: w, evidence: [{{claimed: a, says: b}}]}}"
    return f"{SM1}      exclusions:\n        - {item}\n"


EARLY = SM1.replace("{demo: 1.0..}", "{demo: ..2.0}").replace('"1.0", 2.0.1', '"1.0"')
#: code, text at whose first occurrence the fault is, the architecture's table
CASES = [
    ("set", "128..64", SM1 + "      head_dim: 128..64\n"),
    ("set", "16..40/16", SM1 + "      head_dim: [64, 16..40/16]\n"),
    ("set", '"64..64"', SM1 + '      head_dim: [64, "64..64", "64..64"]\n'),
    ("set", "2.0..1.0", SM1.replace("1.0..}", "2.0..1.0}")),
    ("name", "sm9", SM1.replace("arch: sm1", "arch: sm9")),
    ("name", "first # again", SM1 + row("first # again")),
    ("unknown-id", "fsat", SM1.replace("  fast:", "  fsat:")),
    ("unknown-id", "demos", SM1.replace("{demo: 1.0..}", "{demos: 1.0..}")),
    ("unknown-id", "zeroo", SM1 + "      call: [zeroo]\n"),
    ("unknown-id", "fats", SM1 + "default_order: {decode: [fats]}\n"),
    ("unknown-id", "head-dimm", SM1 + trap("head_dim: 512", "raises\n      code: head-dimm")),
    ("like", "fast/bsae", SM1.replace("fast/base", "fast/bsae")),
    ("mirrors", "sm7", SM1.replace("kernels:", "mirrors: sm7\nkernels:")),
    ("missing-key", "arch: sm1", SM1.replace("name: One\n", "")),
    ("missing-key", "row: first", SM1.replace("      package: {demo: 1.0..}\n", "")),
    ("missing-key", "row: first", SM1.replace("      like: fast/base\n", "      evidence: [{claimed: x, says: z}]\n")),
    ("evidence", "row: bare", SM1 + row("bare", "head_dim: 320").replace("fast/base", "fast/nothing")),
    ("evidence", "{says: alone}", SM1 + "      evidence: [{says: alone}]\n"),
    ("evidence", "report:", SM1 + "      evidence: [{claimed: x, report: a/b#1, says: z}]\n"),
    ("evidence", "says:", SM1 + "      evidence: [{source: demo 1.0, path: 'a:1', match: x, says: z}]\n"),
    ("unknown-id", "demo 9.9", SM1 + "      evidence: [{source: demo 9.9, path: 'a:1', match: x}]\n"),
    ("unknown-id", "gpu.json", SM1 + "      evidence: [{capture: gpu.json}]\n"),
    ("unknown-id", '"1.0.0"', SM1.replace('"1.0",', '"1.0.0",')),
    ("seen", '"1.0", 2', SM1.replace("1.0..}", "2.0..}")),
    ("kind", "mla", SM1 + "      kind: [mla]\n"),
    ("kind", "latent", SM1 + "      latent: 512\n"),
    ("q-len", '"2.."', SM1 + '      q_len: "2.."\n'),
    ("code", "{head_dim: 512, page: 16}", SM1 + trap("head_dim: 512, page: 16", "raises")),
    ("code", "page-size", SM1 + trap("page: 64", "faults\n      code: page-size")),
    ("same-as-inherited", "window", SM1 + "      features: {window: true}\n"),
    ("same-as-inherited", "page", SM1 + "      page: [16, 32]\n"),
    ("overlap", "second", SM1 + row("second", "page: [32, 64]\nfeatures: {window: false}")),
    ("overlap", "second", SM1 + row("second", "page: [32, 64]\ncall: [warm]")),
    ("dead-row", "second", SM1 + row("second", "page: 32\nhead_dim: 128").replace('"2.0"', "2.0.1")),
    ("dead-exclusion", "{page: 64}", hole("{page: 64}")),
    ("dead-exclusion", "..0.9", hole("{page: 16}", "versions: ..0.9, ")),
    ("dead-exclusion", "{features: {lse: true}}", hole("{features: {lse: true}}")),
    ("trap-over-row", "{page: any}", SM1 + trap("page: any")),
    ("version-gap", "2.0.1..", EARLY + row("second", package="{demo: 2.0.1..}").replace('["2.0"]', "[2.0.1]")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "table"), CASES)
def test_rule(tmp_path: Path, code: str, text: str, table: str) -> None:
    kernels = mini.KERNELS.replace("  slow:", """      - row: nothing
        phase: [decode]
        storage: [paged]
        head_dim: 512
        page: 16
        dtypes: {bf16: [bf16]}
        group_ratio: 1
  slow:""")  # fmt: skip
    root = mini.write(tmp_path, sm1=table, kernels=kernels)
    found = [(p.code, p.line, p.col) for p in problems(root) if p.file.endswith("sm1.yaml")]
    nth = 2 if code == "set" and text == '"64..64"' else 1
    assert (code, *at(root, text, nth=nth)) in found, [str(p) for p in problems(root)]


def test_disjoint_rows_do_not_overlap(tmp_path: Path) -> None:
    later = SM1.replace("{demo: 1.0..}", "{demo: 1.0..2.0}").replace(", 2.0.1]", "]")
    apart = [
        SM1 + row("second", "page: 64\nfeatures: {window: false}"),
        SM1 + row("second", "phase: [verify]\nq_len: '2..'\nfeatures: {window: false}"),
        SM1 + row("second", "dtypes: {bf16: [int8]}\nfeatures: {window: false}"),
        later + row("second", "features: {window: false}", package="{demo: 2.0..}"),
        SM1.replace("like: fast/base", "like: fast/base\n      features: {window: required}")
        + row("b", "features: {window: false}"),
    ]
    for table in apart:
        assert problems(mini.write(tmp_path, sm1=table)) == []


def test_an_exception_is_used_or_stale(tmp_path: Path) -> None:
    table = SM1 + row("second", "page: [32, 64]\ncall: [warm]")
    lint = "exceptions:\n  - {rule: overlap, at: sm1/fast/second, why: measured}\n"
    sm2 = "arch: sm2\nname: Two\ncompute_capability: '2.0'\nkernels: {}\n"
    assert problems(mini.write(tmp_path, sm1=table, sm2=sm2, lint=lint)) == []
    (stale,) = problems(mini.write(tmp_path, sm1=SM1, sm2=sm2, lint=lint))
    assert (stale.code, stale.line, stale.col) == ("stale-exception", 2, 5)


def test_a_misspelt_key_is_said_once(tmp_path: Path) -> None:
    root = mini.write(tmp_path, sm1=SM1.replace("      package:", "      pakcage:"))
    (problem,) = problems(root)
    assert (problem.code, problem.hint) == ("unknown-key", "did you mean 'package'?")


def test_catalogues(tmp_path: Path) -> None:
    root = mini.write(tmp_path, packages=mini.PACKAGES.replace("demo: 2.0.1}", "demo: 3.0}"))
    assert [p.message for p in problems(root)] == ["expected text, found the number 3.0 in releases.1.0.0.pins.demo"]
    root = mini.write(tmp_path, packages=mini.PACKAGES.replace("demo: 2.0.1}", "demo: 3.0.0}"))
    assert [p.message for p in problems(root)] == ["unknown release of demo '3.0.0'"]
    root = mini.write(tmp_path, reasons=mini.REASONS.replace("  page-size:", "  page-sizes:"))
    assert "no reason has the code 'page-size'" in [p.message for p in problems(root)]


def test_preference_bands_are_disjoint(tmp_path: Path) -> None:
    order = "[{kernel: fast, provider: demo, versions: 1.0.., time: 1}]"
    band = f"  - {{band: NAME, phase: decode, batch: RANGE, SHAPE, order: {order}, evidence: []}}\n"
    band = band.replace("SHAPE", "head_dim: 64, dtypes: {bf16: [bf16]}")
    first = band.replace("NAME", "a").replace("RANGE", "1..9")
    apart = SM1 + "preference:\n" + first + band.replace("NAME", "b").replace("RANGE", "9..")
    assert problems(mini.write(tmp_path, sm1=apart)) == []
    over = SM1 + "preference:\n" + first + band.replace("NAME", "b").replace("RANGE", "8..")
    (problem,) = problems(mini.write(tmp_path, sm1=over))
    assert problem.code == "preference"


def test_only_the_problems_of_a_named_file(tmp_path: Path) -> None:
    root = mini.write(tmp_path, sm1=SM1 + "zz: 1\n", calls="calls: 1\n")
    assert [p.code for p in validate([root / "arch" / "sm1.yaml"])] == ["unknown-key"]
