"""Whether the captures beside the tables can be read: one JSON object each, with the fields that name its machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attnroute.registry.problems import Problem
from attnroute.registry.schema_check import messages

if TYPE_CHECKING:
    from attnroute.registry.folders import Folder

#: Cases and timings are uniform; this many of each are compared with the schema.
_SAMPLE = 5


def check_captures(folder: Folder) -> list[Problem]:
    """Faults of all captures of a folder; one inside the JSON has the line and column where reading stopped."""
    found: list[Problem] = []
    for name in folder.captures or () if folder.root is not None else ():
        shown = folder.show(f"captures/{name}")
        try:
            data = json.loads((folder.root / "captures" / name).read_bytes())  # type: ignore[operator]
        except json.JSONDecodeError as error:
            found.append(Problem(shown, error.lineno, error.colno, "capture", f"is not JSON: {error.msg}"))
        except (OSError, UnicodeDecodeError, RecursionError) as error:
            found.append(Problem(shown, 1, 1, "capture", f"cannot be read: {error}"))
        else:
            found += [Problem(shown, 1, 1, "capture", text) for text in messages(_sampled(data), "capture")]
    return found


def _sampled(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    long = {key: data[key][:_SAMPLE] for key in ("cases", "timings") if isinstance(data.get(key), list)}
    return data | long
