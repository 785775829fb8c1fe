"""Importing the kernel packages, with an error that says which distribution is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from attnroute.dispatch.packages import installed_version
from attnroute.launch.errors import NotInstalledError
from attnroute.launch.problem import Module
from attnroute.registry.versions import VersionRange


def load(module: str, distribution: str) -> Any:
    """The module, or NotInstalledError naming the distribution and what its import said."""
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalledError(f"{module} cannot be imported; install {distribution} ({error})") from error


def at_least(distribution: str, version: str) -> bool:
    """Whether the installed distribution is that version or newer; False where it is not installed or does not say."""
    installed = installed_version(distribution)
    return installed is not None and installed in VersionRange.parse(f"{version}..")


def jit_module(spec: Any) -> Module:
    """FlashInfer's description of a module as something that can be built."""
    return Module(spec.name, spec.build, lambda: spec.is_aot or spec.is_compiled)
