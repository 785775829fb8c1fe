"""`attnroute explain`: every candidate for one shape, the reasons and what would change them."""

from __future__ import annotations

import argparse
from typing import Any

from attnroute.cli import common
from attnroute.cli.text import WIDTH, label_block, paint, wrap
from attnroute.dispatch.answer import CandidateAnswer
from attnroute.dispatch.decision import Decision, Why
from attnroute.dispatch.request import Request
from attnroute.errors import UsageError
from attnroute.registry.dims import FEATURES, GRAPH_LEVELS, KINDS, LAYOUTS, MLA_KINDS, PHASES, STORAGES, STRENGTHS
from attnroute.registry.registry import Registry

_COLUMN = 14


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
    parser.add_argument("--kv-dtype", type=common.dtype, help="dtype of the KV cache")
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
    parser.add_argument("--min-evidence", choices=STRENGTHS, help="weakest proof that counts")
    parser.add_argument("--allow-unknown", action="store_true", help="accept what no source was checked for")
    parser.add_argument("--strict-versions", action="store_true", help="refuse versions above the last one looked at")
    parser.add_argument(
        "--env", action="append", default=[], metavar="KEY=yes|no",
        help="state of the machine: nvcc, cubins, network, driver_jit, cuda=13.0",
    )  # fmt: skip
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
    decision = decide(registry, request, packages, force=args.force, prefer=tuple(args.prefer))
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
        dtype=args.dtype, kv_dtype=args.kv_dtype or args.dtype,
        head_dim=head, latent=args.latent, rope=args.rope, nope=args.nope,
        q_len=q_len, dcp=args.dcp, group_ratio=ratio, q_heads=args.q_heads, topk=args.topk,
        features=tuple(sorted(asked.items())), layout=args.layout, cuda_graph=args.cuda_graph, page=args.page_size,
        batch_size=args.batch_size, context_len=args.context_len, window=_tokens(args.sliding_window),
        min_evidence=args.min_evidence,
        allow_unknown=args.allow_unknown, strict_versions=args.strict_versions,
        environment=tuple(sorted(common.parse_environment(args.env).items())), cannot=tuple(args.cannot),
    )  # fmt: skip


def _tokens(text: str | bool | None) -> int | None:
    """Tokens of `--sliding-window TOKENS`; None where they were not given."""
    if not isinstance(text, str):
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--sliding-window {text}: it must be a whole number of 1 or more tokens", code="bad-field")
    return int(text)


def common_dtype(text: str) -> str:
    try:
        return common.dtype(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--sinks: {error}") from None


def question(request: Request) -> str:
    """The request as understood: `decode, sm120, head 512, 16/2 heads (ratio 8), kv fp8_e4m3, page any, q_len 1`."""
    parts = [request.phase, request.arch]
    if request.kind in MLA_KINDS:
        parts.append(
            f"{request.kind} latent {request.latent or 'any'} rope {'any' if request.rope is None else request.rope}"
        )
    elif request.head_dim is None:
        parts.append("head any")
    else:
        qk, v = request.head_dim
        parts.append(f"head {qk}" if qk == v else f"head {qk}x{v}")
    if request.q_heads is None:
        parts.append("heads any")
    else:
        parts.append(f"{request.q_heads}/{request.kv_heads} heads (ratio {request.group_ratio})")
    if request.dtype is not None:
        parts.append(f"model {request.dtype}")
    parts.append(f"kv {request.kv_dtype or 'any'}")
    parts.append(f"page {request.page or 'any'}")
    parts.append(f"q_len {request.q_len or 'any'}")
    parts += [request.storage] if request.storage not in (None, "paged") else []
    parts += [f"dcp {request.dcp}"] if request.dcp > 1 else []
    parts += [name if value is True else f"{name} {value}" for name, value in request.features]
    parts += [f"layout {request.layout}"] if request.layout else []
    parts += [f"cuda graph {request.cuda_graph}"] if request.cuda_graph else []
    return ", ".join(parts)


def render(registry: Registry, decision: Decision, request: Request, origin: str) -> list[str]:
    """The whole answer as lines of at most 80 columns."""
    lines = [*wrap(question(request), 2, 0), *wrap(origin, 2, 0), ""]
    if not decision.served:
        lines += [paint("nothing serves this request", "bad"), ""]
    brief: dict[tuple[str, str], list[str]] = {}
    for answer in decision.candidates:
        if answer.accepted:
            lines += _accepted(answer, len(decision.packages) > 1)
        elif _is_brief(answer):
            reason = answer.why[0]
            brief.setdefault((reason.code, _brief_text(answer)), []).append(answer.kernel)
        else:
            lines += _refused(registry, decision, answer)
    for (_, text), kernels in brief.items():
        lines += _brief(" ".join(dict.fromkeys(kernels)), text)
    for note in decision.warnings:
        lines += ["", *(paint(line, "warn") for line in wrap(f"! {note}", 2, 0))]
    return [*lines, "", *_elsewhere(registry, decision)]


def _brief(names: str, text: str) -> list[str]:
    """Several kernels refused for one plain reason: `- native_fa2 native_fa3  phase: prefill ...`."""
    if len(names) + 2 < _COLUMN:
        return label_block(f"- {names}", text, _COLUMN)
    return (
        [*wrap(f"- {names}", 2, 0), *wrap(text, _COLUMN)]
        if len(names) + len(text) + 4 > WIDTH
        else [f"- {names}  {text}"]
    )


def _is_brief(answer: CandidateAnswer) -> bool:
    return answer.why[0].code in ("arch", "kind", "phase", "not-considered", "package-missing")


def _brief_text(answer: CandidateAnswer) -> str:
    reason = answer.why[0]
    if reason.code == "not-considered":
        return "not considered: name their package with --package"
    if reason.code == "package-missing":
        return f"package-missing  {reason.message}"
    return f"{reason.code:<12} {reason.message}"


def _name(answer: CandidateAnswer, mark: str) -> str:
    return f"{mark} {answer.kernel}"


def _accepted(answer: CandidateAnswer, say_provider: bool) -> list[str]:
    word = "chosen" if answer.status == "chosen" else "accepted"
    text = answer.preference.text if answer.preference else ""
    page = f"page {answer.page_sizes.words()}" if answer.page_sizes is not None else ""
    head = f"{_name(answer, '+')}".ljust(_COLUMN) + f"{word}: {text}"
    if len(head) + len(page) + 2 <= WIDTH:
        lines = [head + page.rjust(WIDTH - len(head))]
    else:
        lines = [*wrap(f"{word}: {text}", _COLUMN), " " * _COLUMN + page]
        lines[0] = _name(answer, "+").ljust(_COLUMN) + lines[0][_COLUMN:]
    lines[0] = paint(lines[0], "good") if word == "chosen" else lines[0]
    proof = f"row {answer.row}  proof: {answer.strength}"
    lines += wrap(proof + (f"  from {answer.provider}" if say_provider else ""), _COLUMN)
    if word == "chosen":
        if answer.q_dtype:
            lines += wrap(f"query in {answer.q_dtype}; CUDA graph: {answer.graph_level or 'unknown'}", _COLUMN)
        if answer.calls:
            lines += wrap(f"the caller must: {', '.join(answer.calls)}", _COLUMN)
    return lines


def _refused(registry: Registry, decision: Decision, answer: CandidateAnswer) -> list[str]:
    lines: list[str] = []
    for reason in answer.why:
        head = reason.code if answer.status != "undeclared" else "undeclared"
        lines += label_block(_name(answer, "-") if not lines else "", f"{head:<12} {reason.message}", _COLUMN)
        source = source_line(registry, decision, answer, reason)
        lines += wrap(source, _COLUMN) if source else []
    for fix in answer.fix:
        lines += wrap(fix.message, _COLUMN)
    return lines


#: What a source line about a reason code tends to name; picks the telling one of a row's evidence.
_TELLING = {
    "head-dim": ("head_dim", "headdim", "head_size", "head"),
    "page-size": ("page", "block_size"),
    "group-ratio": ("group", "ratio", "gqa"),
    "q-len": ("q_seq_len", "q_len", "seqlen_q", "speculative"),
    "kv-dtype": ("dtype", "fp8", "e4m3"),
    "q-dtype": ("dtype", "fp8"),
    "lse": ("lse",),
    "storage": ("paged", "page"),
    "sinks": ("sink",),
    "softcap": ("softcap", "soft_cap"),
    "window": ("window",),
}


def source_line(registry: Registry, decision: Decision, answer: CandidateAnswer, reason: Why) -> str:
    """Where the refusing rows are written: package, version and line if a source was read, else the report."""
    installed = f"{answer.provider} {decision.packages.get(answer.provider)}"
    words = _TELLING.get(reason.code, ())
    best, best_rank = "", (9, 9, 9)
    for row in reason.rows:
        for n, item in enumerate(registry.evidence(decision.arch, row)):
            kind = next(
                (k for k in ("source", "report", "capture", "compiled", "claimed", "inferred") if k in item), None
            )
            if kind is None:
                continue
            told = 0 if any(w in str(item.get("match", "")).lower() for w in words) else 1
            rank = (0 if item[kind] == installed else 1, told, n)
            if rank < best_rank:
                where = f", {item['path']}" if item.get("path") else ""
                best, best_rank = f"{'' if kind == 'source' else kind + ': '}{item[kind]}{where}", rank
    return best


def _elsewhere(registry: Registry, decision: Decision) -> list[str]:
    """Other questions worth asking: a neighbouring architecture, another version of the package in question."""
    hints = []
    others = [a for a in registry.archs if a != decision.arch]
    if others:
        hints.append(f"--arch {others[0]}")
    for name, version in decision.packages.items():
        seen = sorted({v for c in registry.table(decision.arch).candidates if c.provider == name for v in c.seen})
        different = [v for v in seen if v != version]
        if different:
            hints.append(f"--package {name}=={different[-1]}")
            break
    return wrap("Same question elsewhere:  " + " | ".join(hints), 2, 0) if hints else []


__all__ = ["add_arguments", "question", "render", "run"]
