"""attnroute: which attention kernel can serve a KV-cache group, which should, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnroute.dispatch.answer import CandidateAnswer
    from attnroute.dispatch.decision import Decision
    from attnroute.dispatch.group import KVGroup
    from attnroute.dispatch.packages import Packages
    from attnroute.dispatch.route import route
    from attnroute.errors import AttnrouteError, UnservedError, UsageError
    from attnroute.planning.plan import Plan, Workload, plan
    from attnroute.registry.detect import detect_arch
    from attnroute.registry.registry import Registry, load_registry

__version__ = "0.1.0"

#: Public names and where they live; each module is imported when its name is first used.
_HOMES = {
    "AttnrouteError": "attnroute.errors",
    "CandidateAnswer": "attnroute.dispatch.answer",
    "Decision": "attnroute.dispatch.decision",
    "KVGroup": "attnroute.dispatch.group",
    "Packages": "attnroute.dispatch.packages",
    "Plan": "attnroute.planning.plan",
    "Registry": "attnroute.registry.registry",
    "UnservedError": "attnroute.errors",
    "UsageError": "attnroute.errors",
    "Workload": "attnroute.planning.plan",
    "detect_arch": "attnroute.registry.detect",
    "load_registry": "attnroute.registry.registry",
    "plan": "attnroute.planning.plan",
    "route": "attnroute.dispatch.route",
}

__all__ = [
    "AttnrouteError",
    "CandidateAnswer",
    "Decision",
    "KVGroup",
    "Packages",
    "Plan",
    "Registry",
    "UnservedError",
    "UsageError",
    "Workload",
    "__version__",
    "detect_arch",
    "load_registry",
    "plan",
    "route",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'attnroute' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
