"""`attnroute explain`: every candidate for one shape, the reasons and what would change them."""

from __future__ import annotations

import argparse
from typing import Any

from attnroute.cli import common
from attnroute.cli.explain_text import render
from attnroute.dispatch.request import Request, check_request
from attnroute.errors import UsageError
from attnroute.registry.dims import FEATURES, GRAPH_LEVELS, KINDS, LAYOUTS, MLA_KINDS, PHASES, STORAGES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `explain`; those of features come from the table of dimensions."""
    parser.add_argument("--arch", help="architecture (sm90, ...); default: this machine's GPU")
    parser.add_argument("--phase", choices=PHASES, help="default: decode, or verify if --q-len is above 1")
    parser.add_argument("--kind", choices=KINDS, default="gqa", help="attention kind")
    parser.add_argument("--head-dim", type=common.positive, help="elements of q and k per head")
    parser.add_argument("--head-dim-v", type=common.positive, help="elements of v per head; default: as --head-dim")
    for name in ("latent", "rope", "nope", "topk"):
        parser.add_argument(
            f"--{name}", type=int, help=argparse.SUPPRESS if name == "topk" else f"MLA: {name} elements"
        )
    parser.add_argument("--dtype", type=common.dtype, help="the model's dtype")
    parser.add_argument(
        "--kv-dtype",
        type=kv_dtype,
        default="auto",
        help="dtype of the KV cache; default auto: the model's own, whichever that is; any: free",
    )
    parser.add_argument("--q-heads", type=common.positive, help="query heads on one rank")
    parser.add_argument("--kv-heads", type=common.positive, help="KV heads on one rank")
    parser.add_argument("--page-size", type=common.positive, help="tokens a page")
    parser.add_argument("--q-len", type=common.positive, help="query tokens a request; default 1")
    parser.add_argument("--storage", choices=STORAGES, help="default: paged, unless the phase is prefill")
    parser.add_argument("--layout", choices=LAYOUTS, help="KV layout inside a page")
    parser.add_argument("--cuda-graph", choices=GRAPH_LEVELS, help="CUDA-graph level needed")
    parser.add_argument("--dcp", type=common.positive, default=1, help="decode-context parallel size")
    parser.add_argument("--lse", action="store_true", help="ask for the log-sum-exp")
    for name, _, words, flag in FEATURES:
        if name == "window":
            parser.add_argument("--sliding-window", nargs="?", const=True, metavar="TOKENS", help=words)
        elif name == "softcap":
            parser.add_argument("--softcap", nargs="?", const=True, metavar="CAP", help=words)
        elif name == "sinks":
            parser.add_argument(
                "--sinks", nargs="?", const=True, metavar="DTYPE", help=f"{words}; optionally their dtype"
            )
        elif flag:
            parser.add_argument(flag, dest=name, action="store_true", help=words)
    parser.add_argument("--batch-size", type=common.positive, help="requests; weighs measured preferences")
    parser.add_argument("--context-len", type=common.positive, help="tokens; weighs measured preferences")
    common.add_strictness(parser)
    parser.add_argument(
        "--cannot", action="append", default=[], metavar="CALL", help="a call obligation the engine cannot meet"
    )
    parser.add_argument("--force", metavar="KERNEL", help="this kernel or none (kernel or kernel@package)")
    parser.add_argument(
        "--prefer", action="append", default=[], metavar="KERNEL", help="this kernel if it can serve; repeatable"
    )
    common.add_packages(parser)
    common.add_registry(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if something serves the request, 1 if nothing does."""
    from attnroute.cli.explain_free import dtype_notes
    from attnroute.dispatch.packages import resolve_packages
    from attnroute.dispatch.route import decide
    from attnroute.registry.detect import detect_arch
    from attnroute.registry.registry import load_registry

    registry = load_registry(args.overlay)
    arch = registry.arch_id(args.arch) if args.arch else detect_arch()
    request = request_from(args, arch)
    unknown = [c for c in args.cannot if c not in registry.catalogue["calls"]]
    if unknown:
        from attnroute.errors import unknown_name

        raise UsageError(f"--cannot: {unknown_name('call', unknown[0], registry.catalogue['calls'])}")
    packages = resolve_packages(registry, arch, common.parse_packages(args.package) or None)
    decision = decide(registry, check_request(request), packages, force=args.force, prefer=tuple(args.prefer))
    decision.warnings += tuple(dtype_notes(registry, request, packages, decision))
    if args.format == "json":
        common.print_json(decision.to_json())
    else:
        print("\n".join(render(registry, decision, request, common.origin_line(packages, registry))))
    return 0 if decision.served else 1


def request_from(args: argparse.Namespace, arch: str) -> Request:
    """The request that the flags describe; what is not given is free. Raises UsageError naming the flag."""
    q_len = args.q_len
    phase = args.phase or ("verify" if (q_len or 1) > 1 else "decode")
    if q_len is None and phase in ("decode", "verify"):
        q_len = 1 if phase == "decode" else None
    if (args.q_heads is None) != (args.kv_heads is None):
        missing = "--kv-heads" if args.kv_heads is None else "--q-heads"
        raise UsageError(f"{missing} is missing: the group ratio needs both --q-heads and --kv-heads", code="bad-field")
    if args.head_dim_v is not None and args.head_dim is None:
        raise UsageError("--head-dim-v needs --head-dim", code="bad-field")
    kv = args.kv_dtype
    if kv == "auto":
        kv = args.dtype or "auto"
    ratio = None
    if args.q_heads is not None:
        if args.q_heads % args.kv_heads:
            raise UsageError(
                f"--q-heads {args.q_heads} do not divide among --kv-heads {args.kv_heads}", code="bad-field"
            )
        ratio = args.q_heads // args.kv_heads
    asked: dict[str, Any] = {"lse": True} if args.lse else {}
    for name, _, _, flag in FEATURES:
        value = getattr(args, {"window": "sliding_window"}.get(name, name), None) if flag else None
        if value:
            asked[name] = common_dtype(value) if name == "sinks" and value is not True else True
    mla = args.kind in MLA_KINDS
    head = None if args.head_dim is None or mla else (args.head_dim, args.head_dim_v or args.head_dim)
    return Request(
        arch=arch, kind=args.kind, phase=phase, storage=args.storage or (None if phase == "prefill" else "paged"),
        dtype=args.dtype, kv_dtype=None if kv == "any" else kv,
        head_dim=head, latent=args.latent, rope=args.rope, nope=args.nope,
        q_len=q_len, dcp=args.dcp, group_ratio=ratio, q_heads=args.q_heads, topk=args.topk,
        features=tuple(sorted(asked.items())), layout=args.layout, cuda_graph=args.cuda_graph, page=args.page_size,
        batch_size=args.batch_size, context_len=args.context_len, window=_tokens(args.sliding_window),
        min_evidence=args.min_evidence,
        allow_unknown=args.allow_unknown, strict_versions=args.strict_versions,
        environment=tuple(sorted(common.parse_environment(args.env).items())), cannot=tuple(args.cannot),
    )  # fmt: skip


def kv_dtype(text: str) -> str:
    """A dtype, `auto` for the model's own, or `any` to leave it free."""
    return text if text in ("auto", "any") else common.dtype(text)


def _tokens(text: str | bool | None) -> int | None:
    """Tokens of `--sliding-window TOKENS`; None where they were not given."""
    if not isinstance(text, str):
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--sliding-window {text}: it must be a whole number of 1 or more tokens", code="bad-field")
    return int(text)


def common_dtype(text: str) -> str:
    """The dtype named after --sinks."""
    try:
        return common.dtype(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--sinks: {error}") from None
