"""What has to be compiled, asked of the packages in a child: asking can start CUDA, which would end all forking."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.errors import AttnrouteError
from attnroute.probe.schedule import Task, run_tasks

if TYPE_CHECKING:
    from attnroute.launch.problem import Module


class SurveyError(AttnrouteError):
    """A child that asked the packages for their modules died or hung."""


#: By name of a piece of work: (module, whether it is compiled already) for each module that it needs.
Needs = dict[str, list[tuple[str, bool]]]
TIMEOUT = 180.0


def survey(works: Mapping[str, Callable[[], tuple[Module, ...]]]) -> Needs:
    """The modules of each piece of work. Raises SurveyError with the child's words if it could not answer at all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "needs.json"  # a pipe would hold only the first 64 KiB

        def work() -> dict[str, Any]:
            found = {name: [(m.name, bool(m.ready())) for m in modules()] for name, modules in works.items()}
            path.write_text(json.dumps(found), encoding="utf-8")
            return {"outcome": "ok"}

        answers: list[dict[str, Any]] = []
        run_tasks([Task("survey", "case", work, TIMEOUT)], {"case": 1}, lambda _task, result: answers.append(result))
        if answers[0].get("outcome") != "ok":
            said = answers[0].get("message", "no answer")
            raise SurveyError(f"the packages could not say what they compile: {said}")
        read = json.loads(path.read_text(encoding="utf-8"))
    return {name: [(module, ready) for module, ready in needs] for name, needs in read.items()}
