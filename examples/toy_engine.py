"""A toy engine: decide once, send the plan to every rank, compare digests, then look kernels up by layer.

It allocates nothing and launches nothing; it shows which call belongs to which moment of a real engine's start-up.

    python examples/toy_engine.py examples/gemma-4-26b-a4b sm120
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from attnroute import Plan, plan
from attnroute.models import read_model

PACKAGES = {"flashinfer-python": "0.7.4"}


@dataclass
class Rank:
    """One process of the engine. It never decides: it reads the plan that rank 0 made."""

    number: int
    plan: Plan
    pools: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Size the KV cache of each group: pages of equal bytes for all layers."""
        assert self.plan.kv is not None
        for group in self.plan.groups:
            self.pools[group.name] = group.page_bytes or 0

    def step(self, layer: str, phase: str) -> str:
        """The kernel of a layer in a phase, its page, and the block of its table."""
        group = self.plan.for_layer(layer)
        use = group.phases[phase]
        if use is None:
            return f"{layer}: nothing serves {phase}"
        return f"{layer}: {use.kernel} page {use.page_size} in blocks of {group.block_size}"


def serve(model_path: str, arch: str, ranks: int = 2, kv_memory: int = 80 << 30) -> list[str]:
    """Start `ranks` processes and run one step of each phase on the first layer of every group."""
    model = read_model(model_path, tp=ranks)
    decided = plan(
        model.groups, arch, PACKAGES, state=model.state, tp=ranks, kv_memory=kv_memory, max_model_len=16384
    )  # once, in one process
    message = json.dumps(decided.to_json())  # what is sent to the others
    workers = [Rank(number, Plan.from_json(message)) for number in range(ranks)]
    digests = {worker.plan.digest for worker in workers} | {decided.digest}
    if len(digests) != 1:
        raise RuntimeError(f"ranks disagree on the plan: {sorted(digests)}")
    lines = [f"plan {decided.digest[:12]} on {ranks} ranks, {decided.kv['tokens']:,} tokens" if decided.kv else ""]
    lines += [f"warning: {text}" for text in decided.warnings]
    for worker in workers:
        worker.start()
    for group in decided.groups:
        lines += [workers[-1].step(str(group.layers[0]), phase) for phase in group.needed]
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/toy_engine.py MODEL ARCH")
    print("\n".join(serve(*sys.argv[1:])))
