"""Launchers: bind a decision to a kernel's own call. torch and kernel packages are imported here and in probe/ alone.

`bind(decision, group, ...)` gives a launcher; `launcher.modules()` and `workspace_bytes()` say before start-up what is
compiled and allocated, `warmup()` compiles, `plan(batch)` takes a step in on the host, `run(q, kv)` runs it.
"""

from __future__ import annotations

from attnroute.launch.bind import bind, launcher_for
from attnroute.launch.errors import LaunchError, NotInstalledError
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Problem

__all__ = [
    "AttentionOut",
    "Batch",
    "KVPages",
    "LaunchError",
    "Limits",
    "Module",
    "NotInstalledError",
    "Problem",
    "bind",
    "launcher_for",
]
