"""From a decision to a launcher. Which module launches a kernel is written in the catalogue of kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from attnroute.launch.calls import settings_for
from attnroute.launch.errors import LaunchError
from attnroute.launch.problem import Limits, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnroute.dispatch.group import KVGroup
    from attnroute.launch.base import Launcher


class Decided(Protocol):
    """The part of a Decision that launching needs."""

    @property
    def kernel(self) -> str | None:
        """The kernel chosen, None if nothing serves."""
        ...

    @property
    def provider(self) -> str | None:
        """The distribution that ships it."""
        ...

    @property
    def q_dtype(self) -> str | None:
        """The query dtype that the kernel reads."""
        ...

    @property
    def calls(self) -> Iterable[str]:
        """Obligations of the row."""
        ...


def launcher_for(name: str, provider: str, problem: Problem, limits: Limits, calls: Iterable[str] = ()) -> Launcher:
    """The launcher module `name` (from the catalogue) for one problem; LaunchError if there is no such launcher."""
    try:
        module = import_module(f"attnroute.launch.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != f"attnroute.launch.{name}":
            raise
        raise LaunchError(f"{name!r} has no launcher", code="no-launcher") from None
    made: Launcher = module.Launch(problem, limits, settings_for(calls), provider)
    return made


def launcher_name(kernel: str, provider: str, kernels: Any) -> str:
    """The catalogue's launcher of a kernel as one distribution provides it; LaunchError where there is none."""
    entry = kernels.get(kernel) or {}
    name = ((entry.get("providers") or {}).get(provider) or {}).get("launcher")
    if not name:
        raise LaunchError(f"{kernel} from {provider} has no launcher in the catalogue", code="no-launcher")
    return str(name)


def problem_for(
    group: KVGroup,
    *,
    page_size: int,
    q_dtype: str | None = None,
    phase: str = "decode",
    q_len: int = 1,
    lse: bool = False,
    layout: str = "NHD",
    scale: float | None = None,
    sinks_dtype: str | None = None,
) -> Problem:
    """The problem that a KV-cache group poses in one phase.

    `sinks_dtype` is what the kernel reads; without it the group's, or fp32 where the group only says that it has sinks.
    """
    said = group.sinks if isinstance(group.sinks, str) else "fp32"
    sinks = (sinks_dtype or said) if group.sinks else None
    return Problem(
        num_q_heads=group.num_q_heads,
        num_kv_heads=group.num_kv_heads,
        head_dim=group.head_dim,
        head_dim_v=group.v_dim,
        page_size=page_size,
        dtype=group.dtype,
        q_dtype=q_dtype or group.dtype,
        kv_dtype=group.kv,
        phase=phase,
        q_len=q_len,
        scale=scale,
        window=group.sliding_window,
        softcap=group.softcap,
        sinks=sinks,
        lse=lse,
        causal=group.causal,
        layout=layout,
    )


def bind(
    decision: Decided,
    group: KVGroup,
    *,
    page_size: int,
    limits: Limits,
    phase: str = "decode",
    q_len: int = 1,
    lse: bool = False,
    layout: str = "NHD",
    scale: float | None = None,
    kernels: Any = None,
) -> Launcher:
    """A launcher for what `route` or `plan` decided about this group.

    `page_size` is the page that the engine allocates and the kernel reads, in tokens; `q_len` the query tokens a
    request (0 in prefill, where they vary); `kernels` the catalogue (default: the loaded one's). Raises LaunchError if
    nothing serves the group, the kernel has no launcher, or its call cannot express the request.
    """
    if decision.kernel is None or decision.provider is None:
        raise LaunchError(f"no kernel serves group {group.name!r}; there is nothing to launch", code="unserved")
    if kernels is None:
        from attnroute.registry.registry import load_registry

        kernels = load_registry().catalogue["kernels"]
    name = launcher_name(decision.kernel, decision.provider, kernels)
    problem = problem_for(
        group,
        page_size=page_size,
        q_dtype=decision.q_dtype,
        phase=phase,
        q_len=q_len,
        lse=lse,
        layout=layout,
        scale=scale,
        sinks_dtype=settings_for(decision.calls).sinks_dtype,
    )
    return launcher_for(name, decision.provider, problem, limits, decision.calls)
