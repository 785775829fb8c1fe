"""What a projection over free dtypes must add: those with which an accepted kernel is known to be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnroute.dispatch.route import decide
from attnroute.registry.dims import MODEL_DTYPES

if TYPE_CHECKING:
    from attnroute.dispatch.decision import Decision
    from attnroute.dispatch.packages import Packages
    from attnroute.dispatch.request import Request
    from attnroute.registry.registry import Registry


def dtype_notes(registry: Registry, request: Request, packages: Packages, decision: Decision) -> list[str]:
    """One line for each accepted kernel and hole: `xqa not with kv bf16: build-fails: ... [known-wrong]`.

    A hole takes its values out of what the request left free, so the row still accepts; that it does so with some
    dtypes only is part of the answer.
    """
    if request.kv_dtype is not None:
        return []
    rows = {row.id: row for row in registry.table(decision.arch).rows}
    accepted = {(c.kernel, c.provider): rows[c.row] for c in decision.candidates if c.accepted and c.row}
    pairs = {(q, kv) for row in accepted.values() for q, kvs in row.dims["dtypes"].items() for kv in kvs}
    wrong: dict[tuple[str, str], list[str]] = {}
    for q, kv in sorted(pair for pair in pairs if pair[0] in MODEL_DTYPES):
        answer = decide(registry, replace(request, dtype=q, kv_dtype=kv), packages)
        for (kernel, provider), row in accepted.items():
            found = answer.candidate(kernel, provider)
            if found is not None and found.status == "known-wrong" and kv in row.dims["dtypes"].get(q, ()):
                kvs = wrong.setdefault((kernel, found.why[0].message), [])
                kvs += [] if kv in kvs else [kv]
    return [f"{name} not with kv {' '.join(kvs)}: {message} [known-wrong]" for (name, message), kvs in wrong.items()]
