"""The words of `attnroute explain`: the question as understood, then every candidate, at most 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.cli.text import WIDTH, label_block, paint, wrap
from attnroute.registry.dims import MLA_KINDS

if TYPE_CHECKING:
    from attnroute.dispatch.answer import CandidateAnswer
    from attnroute.dispatch.decision import Decision, Why
    from attnroute.dispatch.request import Request
    from attnroute.registry.registry import Registry

_COLUMN = 14
_KINDS = ("source", "report", "capture", "compiled", "claimed", "inferred")


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
    "noncausal": ("causal",),
    "alibi": ("alibi",),
    "mask": ("mask",),
    "cuda-graph": ("graph",),
    "env": ("nvcc", "cuda"),
    "dcp": ("dcp", "cp_world", "lse"),
    "q-heads": ("heads",),
}


def source_line(registry: Registry, decision: Decision, answer: CandidateAnswer, reason: Why) -> str:
    """Where the refusal is written: package, version and line if a source says it, else a report or other proof.

    Evidence of an exclusion or trap is about just that. Of a row's evidence, an item that does not speak of the reason
    would mislead; the row itself is named then.
    """
    installed = f"{answer.provider} {decision.packages.get(answer.provider)}"
    words = _TELLING.get(reason.code, ())
    rows = {row.id for row in registry.table(decision.arch).rows}
    best, best_rank = "", (9, 9, 9)
    for place in reason.rows:
        for n, item in enumerate(registry.evidence(decision.arch, place)):
            kind = next((k for k in _KINDS if k in item), None)
            told = any(w in str(item.get("match", "")).lower() for w in words)
            if kind is None or (place in rows and not told):
                continue
            rank = (0 if item[kind] == installed else 1, 0 if told else 1, n)
            if rank < best_rank:
                where = f", {item['path']}" if item.get("path") else ""
                best, best_rank = f"{'' if kind == 'source' else kind + ': '}{item[kind]}{where}", rank
    named = [place for place in reason.rows if place in rows]
    return best or (f"by row {named[0]}" if named else "")


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
