"""`attnroute arch`: the architectures that have a table, and which of them this machine's GPUs are."""

from __future__ import annotations

import argparse
import os

from attnroute.cli import common
from attnroute.cli.text import table, wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `arch`."""
    parser.add_argument("--arch", help="resolve this name instead of looking at the machine")
    common.add_registry(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if one architecture can be answered for, 1 if this machine has no GPU or several different ones."""
    from attnroute.registry.detect import NoArchError, detect_arch, devices
    from attnroute.registry.registry import load_registry

    registry = load_registry(args.overlay)
    found = [] if args.arch else devices()
    problem = None
    try:
        chosen = registry.arch_id(args.arch) if args.arch else detect_arch()
    except NoArchError as error:
        chosen, problem = None, str(error)
    source = (
        "argument"
        if args.arch
        else "ATTNROUTE_ARCH"
        if os.environ.get("ATTNROUTE_ARCH")
        else found[0].source
        if found
        else None
    )
    known = registry.catalogue["archs"]
    if args.format == "json":
        gpus = [{"index": d.index, "name": d.name, "arch": d.arch, "source": d.source} for d in found]
        archs = {a: known[a] for a in registry.archs}
        common.print_json({"arch": chosen, "source": source, "gpus": gpus, "archs": archs, "problem": problem})
        return 0 if chosen else 1
    rows = [["ARCH", "CC", "WHAT", "ROWS", ""]]
    for arch in registry.archs:
        mirrors = known[arch].get("mirrors")
        count = str(len(registry.table(arch).rows))
        rows.append(
            [
                arch,
                known[arch]["compute_capability"],
                known[arch]["name"],
                count,
                f"mirrors {mirrors}" if mirrors else "",
            ]
        )
    print("\n".join(table(rows, right=(3,))))
    print()
    for device in found:
        print(f"GPU {device.index}  {device.name}  {device.arch}  ({device.source})")
    where = "asked" if args.arch else "this machine"
    print(f"{where}: {chosen} ({source})" if chosen else "\n".join(wrap(problem or "", 2, 0)))
    return 0 if chosen else 1
