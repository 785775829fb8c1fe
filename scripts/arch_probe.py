#!/usr/bin/env python3
"""Ask this machine's GPU whether the capability tables are true: `python scripts/arch_probe.py --out report.json`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnroute.probe.main import main

if __name__ == "__main__":
    sys.exit(main())
