"""Entry point: parses, runs one subcommand, turns every failure into one clear line and an exit code.

Exit codes: 0 fine; 1 the answer is no; 2 usage or unreadable input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from attnroute import __version__
from attnroute.errors import AttnrouteError, UsageError, near_miss

COMMANDS = {
    "plan": "choose kernels, pages and blocks for a whole model",
    "explain": "every candidate kernel for one attention shape, and why or why not",
    "query": "the rows of the tables, filtered",
    "validate": "check a capabilities folder, a file or an overlay",
    "arch": "the architectures known, and that of this machine",
    "probe": "ask a real GPU whether the tables are true",
}


class Parser(argparse.ArgumentParser):
    """argparse with a near miss for unknown flags and values, and without its wall of usage."""

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith("unrecognized arguments: "):
            flag = message.removeprefix("unrecognized arguments: ").strip().partition(" ")[0].partition("=")[0]
            close = near_miss(flag, [o for a in self._all_actions() for o in a.option_strings])
            hint = f"; did you mean {close}?" if close else ""
        elif "invalid choice: " in message:
            asked = message.split("invalid choice: ")[1].split(" (", maxsplit=1)[0].strip("'\"")
            choices = [str(c) for a in self._all_actions() for c in (a.choices or ())]
            close = near_miss(asked, choices)
            hint = f"; did you mean {close}?" if close else ""
        raise UsageError(f"{message}{hint}\n{self.prog} --help lists what there is", code="usage")

    def _all_actions(self) -> list[argparse.Action]:
        found: list[argparse.Action] = []
        for action in self._actions:
            found.append(action)
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    found += sub._all_actions()
        return found


def build_parser(command: str | None) -> Parser:
    """The parser; only the named subcommand's module is imported, so that each starts fast."""
    from importlib import import_module

    parser = Parser(
        prog="attnroute",
        description="Which attention kernel can serve a KV-cache group, which should, and why.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"attnroute {__version__}")
    subs = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=Parser, required=True, prog="attnroute"
    )  # a stated prog saves argparse a formatter
    for name, words in COMMANDS.items():
        sub = subs.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".", allow_abbrev=False)
        if name == command:
            import_module(f"attnroute.cli.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and never lets a traceback out."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code: int = 0
    try:
        command = next((a for a in arguments if not a.startswith("-")), None)
        args = build_parser(command).parse_args(arguments)
        from importlib import import_module

        run = import_module(f"attnroute.cli.{args.command}").run
        code = run(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse: help, version
        return stop.code if isinstance(stop.code, int) else 2
    except AttnrouteError as error:
        return _fail(error, arguments)
    except BrokenPipeError:
        # the reader (head, less) has seen enough; keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    except KeyboardInterrupt:
        print("attnroute: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("ATTNROUTE_DEBUG"):
            raise
        print(
            f"attnroute: internal error, please report it: {type(error).__name__}: {error}\n"
            "ATTNROUTE_DEBUG=1 shows where it happened",
            file=sys.stderr,
        )
        return 2


def _fail(error: AttnrouteError, arguments: list[str]) -> int:
    if wants_json(arguments):
        import json

        payload: dict[str, Any] = {"error": {"code": error.code, "message": str(error)}}
        problems = getattr(error, "problems", None)
        if problems:
            payload["problems"] = [p.to_json() for p in problems]
        print(json.dumps(payload, indent=2))
    else:
        from attnroute.cli.text import wrap

        text = f"attnroute: {error}"
        # faults in tables come laid out, with a caret under the column; everything else is a sentence
        lines = [part for line in text.splitlines() for part in wrap(line, 2, 0)]
        print(text if getattr(error, "problems", None) else "\n".join(lines), file=sys.stderr)
    return error.exit_code


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the raw arguments ask for JSON, for errors that come before parsing is done."""
    return "--format=json" in arguments or any(a == "--format" and b == "json" for a, b in pairwise(arguments))


if __name__ == "__main__":
    sys.exit(main())
