"""The command: fetch the wheel, make the environment, write every vector file."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

from . import wheel

ROOT = Path(__file__).resolve().parents[2]
NEEDS = ("torch==2.13.0", "numpy>=2", "pydantic>=2", "packaging", "coverage>=7.6")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/vllm_vectors.py", description=__doc__)
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/attnroute").expanduser(), help="wheel, unpacked files, environment"
    )
    parser.add_argument("--wheel", type=Path, help="a vLLM wheel that is already here")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "vectors")
    parser.add_argument("--only", nargs="*", help="names of the vector files to write (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    args = parser.parse_args(argv)
    if (code := _in_environment(args.cache, argv if argv is not None else sys.argv[1:])) is not None:
        return code
    return _write(args)


def _in_environment(cache: Path, argv: list[str]) -> int | None:
    """Runs this command again in the cache's environment, unless what it needs is importable here."""
    try:
        import coverage  # noqa: F401
        import pydantic  # noqa: F401
        import torch  # noqa: F401

        return None
    except ImportError:
        if sys.version_info < (3, 11):
            raise SystemExit("vLLM 0.33.0 needs Python 3.11 or newer") from None
    python = cache / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(cache / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *NEEDS], check=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    return subprocess.run([python, "-m", "vllm_vectors.main", *argv], env=env, check=False).returncode


def _write(args: argparse.Namespace) -> int:
    from . import pieces, record, world

    archive = args.wheel or wheel.fetch(args.cache)
    tree = wheel.unpack(archive, args.cache)
    meta = {"vllm": wheel.VERSION, "wheel": archive.name, "sha256": wheel.digest(archive), "schema": 1}
    world.start(tree)
    short = 0
    for piece in pieces.ALL:
        if args.only and piece.name not in args.only:
            continue
        begun = time.monotonic()
        target = args.out / f"{piece.name}.json.gz"
        before = _plain(target) if args.check and target.exists() else None
        found = record.record(piece, args.out if not args.check else args.cache / "check", meta)
        if args.check and _plain(args.cache / "check" / target.name) != before:
            print(f"{piece.name}: differs from {target}")
            short += 1
        print(
            f"{piece.name}: {found['count']} cases ({found['errors']} errors), {found['bytes']} bytes, "
            f"{time.monotonic() - begun:.0f} s"
        )
        for name, b in found["functions"].items():
            print(
                f"  {b.get('percent', 0):5.1f} % of {b['branches']:3d}  {name}"
                + (f"  missed {b['missed']}" if b.get("missed") else "")
            )
            if b.get("percent", 0) < 95 and name not in piece.unreached:
                print("        below 95 % and not explained")
                short += 1
    return 1 if short else 0


def _plain(path: Path) -> Any:
    """What a file says, apart from branch counts: those and the packed bytes may differ between Python versions."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    del document["meta"]["functions"]
    return document


if __name__ == "__main__":
    raise SystemExit(main())
