"""`attnroute explain` for a person: width, colour, exit codes, near misses, and no traceback whatever is typed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnroute.cli import main as main_module
from attnroute.cli.main import main
from attnroute.registry import registry as registry_module
from attnroute.registry.registry import default_registry
from tests.dispatch.draw import flags_of, questions
from tests.second_evaluator import Tables

ROOT = Path(__file__).resolve().parents[2]
TABLES = Tables(ROOT / "capabilities")
SHAPE = "explain --arch sm120 --head-dim 512 --q-heads 16 --kv-heads 2"
OLD = "--package flashinfer-python==0.6.16.post3"
drawn = st.integers(0, 2**48).map(lambda seed: flags_of(next(questions(TABLES, seed, 1))))


@pytest.fixture(scope="module", autouse=True)
def quiet_surroundings() -> Iterator[None]:
    """Tables read once, and nothing of this machine's environment."""
    registry = default_registry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry_module, "load_registry", lambda overlays=(): registry)
        for name in ("ATTNROUTE_ARCH", "ATTNROUTE_DEBUG", "ATTNROUTE_CAPABILITIES", "NO_COLOR"):
            patch.delenv(name, raising=False)
        yield


def ask(arguments: str | list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(arguments) if isinstance(arguments, str) else arguments)
    return code, out.getvalue(), err.getvalue()


def examples(count: int) -> Callable[[Any], Any]:
    return settings(max_examples=count, deadline=None)


# --- what a person reads ---------------------------------------------------------------------------------------------


@given(drawn)
@examples(300)
def test_no_line_is_wider_than_80_columns(flags: list[str] | None) -> None:
    if flags is None:
        return
    code, out, err = ask(["explain", *flags])
    assert code in (0, 1)
    assert not err
    assert max(map(len, out.splitlines())) <= 80, max(out.splitlines(), key=len)
    assert "\x1b" not in out
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_the_answer_repeats_the_question_names_codes_sources_and_fixes() -> None:
    code, out, _ = ask(f"{SHAPE} --kv-dtype fp8_e4m3 {OLD}")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "decode, sm120, head 512, 16/2 heads (ratio 8), kv fp8_e4m3, page any, q_len 1"
    assert "flashinfer-python 0.6.16.post3 (named); tables" in out
    refused = out[out.index("- xqa") :]
    assert re.search(r"- xqa +head-dim +asked 512, declared 16\.\.256 step 16", refused)
    assert "flashinfer-python 0.6.16.post3, flashinfer/jit/xqa.py:88" in refused
    assert "would be accepted with flashinfer-python 0.6.18.post1 or later" in refused
    assert "not measured" in out
    assert "not considered: name their package with --package" in out


def test_warnings_are_said() -> None:
    _, out, _ = ask("explain --arch sm120 --head-dim 128 --package flashinfer-python==9.0")
    assert "! flashinfer-python 9.0 is newer than the last one looked at" in out


def test_a_projection_says_with_which_cache_the_kernel_is_known_to_be_wrong() -> None:
    shape = "explain --arch sm90 --head-dim 128 --q-heads 20 --kv-heads 1 --page-size 64"
    _, out, _ = ask(f"{shape} --kv-dtype any")
    assert "! xqa not with kv bf16 fp16: build-fails:" in out
    _, out, _ = ask(f"{shape} --kv-dtype fp8_e4m3")
    assert "xqa not with" not in out


def test_auto_is_the_models_own_dtype() -> None:
    _, out, _ = ask("explain --arch sm90 --head-dim 128 --dtype bf16 --kv-dtype auto")
    assert "model bf16, kv bf16" in " ".join(out.split())
    _, out, _ = ask("explain --arch sm90 --head-dim 128 --q-heads 20 --kv-heads 1")  # not given: auto as well
    assert "kv auto" in out
    assert re.search(r"- xqa +known-wrong +build-fails", out)


def test_what_is_taken_although_unknown_is_said() -> None:
    new = "--package flashinfer-python==0.7.4"
    _, out, _ = ask(f"explain --arch sm120 --head-dim 128 --batch-invariance --allow-unknown {new}")
    assert "! accepted although no source was checked for: batch_invariance [undeclared]" in out
    _, out, _ = ask(f"explain --arch sm120 --head-dim 128 --allow-unknown {new}")
    assert "no source was checked" not in out
    _, out, _ = ask("explain --arch sm120 --head-dim 128 --allow-unknown --package flashinfer-python==0.6.16")
    assert "flashinfer-python 0.6.16 is not a version that was looked at" in " ".join(out.split())


def test_a_preferred_kernel_that_cannot_serve_is_a_warning_with_the_reason() -> None:
    code, out, _ = ask(f"{SHAPE} {OLD} --prefer xqa")
    assert code == 0
    assert "! preferred xqa cannot serve" in out
    assert "[head-dim]" in out


def test_a_preferred_kernel_that_serves_is_chosen() -> None:
    _, out, _ = ask(f"{SHAPE} {OLD} --prefer native_cc --format json")
    assert json.loads(out)["decision"]["kernel"] == "native_cc"


# --- exit codes and errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, f"{SHAPE} {OLD}"),
        (1, f"{SHAPE} --page-size 7 --package vllm==0.33.0"),
        (1, f"{SHAPE} {OLD} --force xqa"),
        (2, f"{SHAPE} --no-such-flag"),
        (2, "explain --arch sm91 --head-dim 128"),
        (2, "explain --arch sm90 --head-dim many"),
        (2, "explain --arch sm90 --head-dim 0"),
        (2, "explain --arch sm90 --q-heads 7"),
        (2, "explain --arch sm90 --q-heads 7 --kv-heads 2"),
        (2, "explain --arch sm90 --phase decode --q-len 4"),
        (2, "explain --arch sm90 --head-dim-v 64"),
        (2, "explain --arch sm90 --package flashinfer-python"),
        (2, "explain --arch sm90 --package flashinfer-python==new"),
        (2, "explain --arch sm90 --package vllm==0.33.0 --package vllm==0.32.0"),
        (2, "explain --arch sm90 --env nvcc=maybe"),
        (2, "explain --arch sm90 --env cuda=new"),
        (2, "explain --arch sm90 --sinks fp7"),
        (0, "--version"),
        (0, "--help"),
        (0, "explain --help"),
        (2, ""),
        (2, "explode"),
    ],
)
def test_exit_codes(code: int, arguments: str) -> None:
    given_code, _, err = ask(arguments)
    assert given_code == code
    assert bool(err) == (code == 2 or "--force" in arguments)
    assert "internal error" not in err


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        ("explain --arch sm90 --head-dims 128", "--head-dim"),
        ("explain --arch sm90 --slidng-window", "--sliding-window"),
        ("explain --arch sm91", "sm90"),
        ("explain --arch sm90 --kv-dtype fp8_e4m4", "fp8_e4m3"),
        ("explain --arch sm90 --dtype bf61", "bf16"),
        ("explain --arch sm90 --phase decod", "decode"),
        ("explain --arch sm90 --storage pagd", "paged"),
        ("explain --arch sm90 --layout NDH", "NHD"),
        ("explain --arch sm90 --min-evidence sourc", "source"),
        ("explain --arch sm90 --package flashinfer==0.7.4", "flashinfer-python"),
        ("explain --arch sm90 --package vlm==0.33.0", "vllm"),
        ("explain --arch sm90 --force xqaa", "xqa"),
        ("explain --arch sm90 --prefer fa4@flash-atn-4", "flash-attn-4"),
        ("explain --arch sm90 --cannot cast-k", "cast-q"),
        ("explain --arch sm90 --env nvc=yes", "nvcc"),
        ("explian --arch sm90", "explain"),
    ],
)
def test_unknown_names_get_a_near_miss(arguments: str, near: str) -> None:
    code, out, err = ask(arguments)
    assert code == 2
    assert not out
    assert re.search(rf"did you mean '?{re.escape(near)}\b", " ".join(err.split())), err
    assert max(map(len, err.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        "explain --format json --arch sm91",
        "explain --format=json --arch sm90 --package flashinfer-python",
        "explain --format json --arch sm90 --force xqa --alibi",
        "explain --format json --arch sm90 --head-dim many",
        "explain --format json --arch sm90 --no-such-flag",
        "explain --format json --arch sm90 --phase decode --q-len 4",
    ],
)
def test_errors_are_json_where_json_was_asked_for(arguments: str) -> None:
    code, out, err = ask(arguments)
    said = json.loads(out)
    assert code in (1, 2)
    assert not err
    assert set(said["error"]) == {"code", "message"}
    assert said["error"]["message"]


def test_an_internal_error_is_one_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ValueError("not foreseen")

    monkeypatch.setattr(main_module, "build_parser", broken)
    code, _, err = ask("explain --arch sm90")
    assert code == 2
    assert "please report" in err
    assert "Traceback" not in err


# --- whatever is typed ----------------------------------------------------------------------------------------------

WORDS = """explain query arch --arch --phase --kind --head-dim --head-dim-v --latent --rope --nope --topk --dtype
--kv-dtype
--q-heads --kv-heads --page-size --q-len --storage --layout --cuda-graph --dcp --lse --sliding-window --softcap --sinks
--non-causal --alibi --mask --varlen --batch-size --context-len --min-evidence --allow-unknown --strict-versions --env
--cannot --force --prefer --package --format json text --help sm90 sm100 sm120 decode verify prefill draft mla gqa paged
ragged bf16 fp8_e4m3 fp16 nvfp4 measured NHD uniform flashinfer-python==0.7.4 vllm==0.33.0 vllm==git+ab flash-attn==
xqa fa4@vllm fa4@ @ = == nvcc=yes cuda=13.0 cuda= zeroed-workspace cast-q -- - 0 1 2 8 16 128 512 99999999999 -1 1.5
1e3""".split()
words = st.one_of(st.sampled_from(WORDS), st.text(max_size=8), st.integers().map(str))
lines = st.one_of(
    st.lists(words, max_size=12),
    st.lists(words, max_size=10).map(lambda more: ["explain", "--arch", "sm90", *more]),
    st.lists(st.tuples(st.sampled_from([w for w in WORDS if w[:2] == "--"]), words), max_size=6).map(
        lambda pairs: ["explain", "--arch", "sm100", *(part for pair in pairs for part in pair)]
    ),
)


@given(lines)
@example(["explain", "--arch", "sm90", "--package", "vllm==git+"])
@example(["explain", "--arch", "sm90", "--topk", "-5"])
@example(["explain", "--arch", "sm90", "--kind", "mla", "--latent", "0"])
@example(["explain", "--arch", "sm90", "--head-dim", "1" * 5000])
@example(["explain", "--arch", "", "--head-dim", "64"])
@example(["--format", "json"])
@examples(600)
def test_no_traceback_whatever_is_typed(arguments: list[str]) -> None:
    code, out, err = ask(arguments)
    assert code in (0, 1, 2)
    assert "internal error" not in err
    assert "Traceback" not in out + err
    if code == 2:
        assert out or err


# --- colour ---------------------------------------------------------------------------------------------------------


def on_a_terminal(arguments: str, monkeypatch: pytest.MonkeyPatch) -> str:
    pty = pytest.importorskip("pty", reason="needs a pseudo terminal")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(drain, leader)
            main(shlex.split(arguments))
            terminal.write("\0")
            terminal.flush()
            monkeypatch.undo()
            written = reader.result(timeout=30)
    os.close(leader)
    return written.decode().replace("\r\n", "\n").rstrip("\0")


def drain(leader: int) -> bytes:
    """What is written to the terminal, up to a zero byte."""
    written = b""
    while not written.endswith(b"\0"):
        written += os.read(leader, 1 << 16)
    return written


def test_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in on_a_terminal(f"{SHAPE} {OLD}", monkeypatch)
    assert "\x1b" not in ask(f"{SHAPE} {OLD}")[1]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_turned_off(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    written = on_a_terminal(f"{SHAPE} {OLD}", monkeypatch)
    assert "native_tc" in written
    assert "\x1b" not in written


def test_json_is_never_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert json.loads(on_a_terminal(f"{SHAPE} {OLD} --format json", monkeypatch))


def test_a_reader_that_stops_early_is_no_error() -> None:
    """`attnroute explain ... | head -1` ends quietly."""
    command = [sys.executable, "-m", "attnroute", *shlex.split(f"{SHAPE} --format json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
