"""A seeded sample of mutants of all tables: each fault is reported at its line and column."""

from __future__ import annotations

import random
from pathlib import Path

from scripts.mutate_tables import Bench, all_mutants

FOLDER = Path(__file__).parents[1] / "capabilities"
SAMPLE = 2000
SEED = 20260101


def test_mutants_are_found_in_their_place() -> None:
    bench = Bench(FOLDER)
    chosen = random.Random(SEED).sample(all_mutants(bench), SAMPLE)
    missed = bench.missed(chosen)
    listed = "\n".join(map(str, missed))
    assert len(missed) <= SAMPLE // 100, listed
