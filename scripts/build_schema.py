"""Write capabilities/schema/*.json from the table of dimensions. `--check` only says whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from attnroute.registry.schema_build import NAMES, rendered  # noqa: E402


def main(arguments: list[str]) -> int:
    """Write or compare each schema; 1 if one is out of date under --check."""
    folder = ROOT / "capabilities" / "schema"
    stale = []
    for name in NAMES:
        path, text = folder / f"{name}.schema.json", rendered(name)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if "--check" not in arguments:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(
        ("out of date: " if "--check" in arguments else "wrote: ") + " ".join(stale)
        if stale
        else "schemas are up to date"
    )
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
