"""Flags and headings that several subcommands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnroute.errors import UsageError
from attnroute.registry.dims import DTYPES, STRENGTHS

if TYPE_CHECKING:
    from attnroute.dispatch.packages import Packages
    from attnroute.registry.registry import Registry


def add_format(parser: argparse.ArgumentParser) -> None:
    """`--format text|json`."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for a person, json by the contract"
    )


def add_registry(parser: argparse.ArgumentParser) -> None:
    """`--overlay PATH`, repeatable."""
    parser.add_argument(
        "--overlay",
        action="append",
        default=[],
        metavar="PATH",
        help="a folder or file laid over the tables; repeatable",
    )


def add_packages(parser: argparse.ArgumentParser) -> None:
    """`--package NAME==VERSION`, repeatable."""
    parser.add_argument(
        "--package", action="append", default=[], metavar="NAME==VERSION",
        help="a kernel package; repeatable. Once one is named, those not named are not considered",
    )  # fmt: skip


def add_strictness(parser: argparse.ArgumentParser) -> None:
    """How much proof an answer needs, and what is known of the machine."""
    parser.add_argument("--min-evidence", choices=STRENGTHS, help="weakest proof that counts")
    parser.add_argument("--allow-unknown", action="store_true", help="accept what no source was checked for")
    parser.add_argument("--strict-versions", action="store_true", help="refuse versions above the last one looked at")
    parser.add_argument(
        "--env", action="append", default=[], metavar="KEY=yes|no",
        help="state of the machine: nvcc, cubins, network, driver_jit, cuda=13.0",
    )  # fmt: skip


def parse_packages(texts: Sequence[str]) -> dict[str, str]:
    """`NAME==VERSION` texts to a mapping; raises UsageError naming the flag."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, version = text.partition("==")
        if not sign or not name.strip() or not version.strip():
            raise UsageError(
                f"--package {text}: write NAME==VERSION, such as flashinfer-python==0.7.4", code="bad-package"
            )
        if found.setdefault(name.strip(), version.strip()) != version.strip():
            raise UsageError(f"--package {name}: named twice, {found[name.strip()]} and {version}", code="bad-package")
    return found


def parse_environment(texts: Sequence[str]) -> dict[str, Any]:
    """`KEY=yes|no|VERSION` texts to a mapping."""
    from attnroute.registry.dims import ENV_KEYS

    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if key not in ENV_KEYS or not sign:
            from attnroute.errors import unknown_name

            raise UsageError(
                f"--env {text}: {unknown_name('environment key', key, ENV_KEYS)}; write KEY=yes or KEY=no",
                code="bad-env",
            )
        if key == "cuda":
            found[key] = value
        elif value in ("yes", "no"):
            found[key] = value == "yes"
        else:
            raise UsageError(f"--env {text}: write {key}=yes or {key}=no", code="bad-env")
    return found


def positive(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return value


def dtype(text: str) -> str:
    """A dtype name; common spellings (`bfloat16`, `fp8`) are understood."""
    known = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
             "fp8": "fp8_e4m3",
             "fp8_e4m3fn": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}  # fmt: skip
    name = known.get(text, text)
    if name not in DTYPES:
        from attnroute.errors import unknown_name

        raise argparse.ArgumentTypeError(unknown_name("dtype", text, DTYPES))
    return name


def origin_line(packages: Packages, registry: Registry) -> str:
    """`flashinfer-python 0.7.4 (named); tables 0.1.0 3f9c21a`."""
    return f"{packages.words()}; tables {registry.label}"


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    print(json.dumps(value, indent=2))
