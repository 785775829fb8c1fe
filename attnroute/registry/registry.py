"""The registry: loads one architecture at a time, remembers what it has answered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnroute.errors import UsageError, near_miss, unknown_name

from .build import build_table
from .store import Store, open_store
from .table import ArchTable


@dataclass(slots=True, eq=False)
class Registry:
    """Capability tables, read lazily. Make one with `load_registry`; threads that only ask may share it."""

    store: Store
    overlays: tuple[Path, ...] = ()
    named: dict[Any, Any] = field(default_factory=dict, repr=False)
    _tables: dict[str, ArchTable] = field(default_factory=dict, repr=False)
    _sections: dict[str, Any] = field(default_factory=dict, repr=False)
    _served: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict, repr=False)
    _local: tuple[str, ...] | None = None

    def section(self, name: str) -> Any:
        """One section of the compiled tables (`catalogue`, `arch/sm90`, `evidence/sm90`, `engine/vllm`)."""
        if name not in self._sections:
            self._sections[name] = self.store.read(name)
        return self._sections[name]

    @property
    def catalogue(self) -> Mapping[str, Any]:
        """Kernels, packages, reasons, calls, default order and the names of the architectures."""
        found: Mapping[str, Any] = self.section("catalogue")
        return found

    @property
    def archs(self) -> tuple[str, ...]:
        """Ids of the architectures that have a table, ascending."""
        return tuple(s.removeprefix("arch/") for s in self.store.sections if s.startswith("arch/"))

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(s.removeprefix("engine/") for s in self.store.sections if s.startswith("engine/"))

    def arch_id(self, arch: str) -> str:
        """The id itself, or UsageError with the nearest one. `9.0`, `90` and `SM90` are understood as sm90."""
        if arch in self._tables or f"arch/{arch}" in self.store.sections:
            return arch
        digits = arch.lower().removeprefix("sm").replace(".", "").replace("_", "").rstrip("af")
        if f"arch/sm{digits}" in self.store.sections:
            return f"sm{digits}"
        raise UsageError(unknown_name("architecture", arch, self.archs), code="unknown-arch")

    def table(self, arch: str) -> ArchTable:
        """The indexed table of one architecture; raises UsageError for an unknown id."""
        found = self._tables.get(arch)
        if found is None:
            arch = self.arch_id(arch)
            found = self._tables[arch] = build_table(self.section(f"arch/{arch}"), self.catalogue)
        return found

    def evidence(self, arch: str, row: str) -> list[dict[str, Any]]:
        """What backs a row (`sm90/xqa/head-to-256`) or trap; each item says where it is written (`at`)."""
        found: list[dict[str, Any]] = self.section(f"evidence/{arch}").get(row, [])
        return found

    def archs_with(self, kernel: str, provider: str) -> tuple[str, ...]:
        """Architectures whose table has a row of this kernel from this provider."""
        found = self._served.get((kernel, provider))
        if found is None:
            found = self._served[kernel, provider] = tuple(
                arch
                for arch in self.archs
                if any(c.rows for c in self.table(arch).candidates if (c.kernel, c.provider) == (kernel, provider))
            )
        return found

    def engine(self, name: str) -> Mapping[str, Any]:
        """An engine's data; raises UsageError for an unknown name."""
        if f"engine/{name}" not in self.store.sections:
            raise UsageError(unknown_name("engine", name, self.engines), code="unknown-engine")
        found: Mapping[str, Any] = self.section(f"engine/{name}")
        return found

    def engine_pins(self, name: str) -> dict[str, str]:
        """The engine itself at the version its data describes, and the kernel packages that it pins."""
        if name not in self.engines:
            return {}
        data = self.engine(name)
        distribution, version = data["distribution"], data["version"]
        releases = self.catalogue["packages"].get(distribution, {}).get("releases", {})
        pins: dict[str, str] = dict(releases.get(version, {}).get("pins", {}))
        return {distribution: version} | pins

    def is_local_arch(self, arch: str) -> bool:
        """Whether a GPU of this machine has the architecture. Asked once; a machine without a GPU has none."""
        if self._local is None:
            from .detect import local_archs

            self._local = local_archs()
        return arch in self._local

    @property
    def label(self) -> str:
        """`0.1.0 3f9c21a`: version and content of the tables, for the first lines of an answer."""
        return f"{self.store.version} {self.store.digest[:7]}"


def load_registry(overlays: Sequence[str | os.PathLike[str]] = ()) -> Registry:
    """The tables, with overlays (folders or YAML files that add or replace rows by name) laid over them in order.

    `ATTNROUTE_CAPABILITIES` names further overlays, separated as in PATH; they are read here, once. Raises
    AttnrouteError naming file, line and column if an overlay is invalid.
    """
    named = [Path(p) for p in os.environ.get("ATTNROUTE_CAPABILITIES", "").split(os.pathsep) if p]
    paths = tuple(named) + tuple(Path(p) for p in overlays)
    for path in paths:
        if not path.exists():
            beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = near_miss(path.name, beside)
            raise UsageError(
                f"overlay {path} does not exist{f'; did you mean {path.parent / hint}?' if hint else ''}",
                code="no-file",
            )
    return Registry(open_store(paths), paths)


@lru_cache(maxsize=1)
def default_registry() -> Registry:
    """The registry that `route` and `plan` use when none is passed: read once per process."""
    return load_registry()
