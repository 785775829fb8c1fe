#!/usr/bin/env python3
"""Writes tests/vectors/*.json.gz: what vLLM 0.33.0's own functions answer.

    python scripts/vllm_vectors.py

Fetches the wheel and builds an environment (torch for its dtypes, coverage for the branches) under ~/.cache/attnroute
the first time; no GPU and no other part of vLLM is needed. `--wheel PATH` uses a wheel that is already here, `--check`
writes nothing and fails if a file would change.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from vllm_vectors.main import main  # the package beside this file wins over the file's name

if __name__ == "__main__":
    raise SystemExit(main())
