"""Which package versions a question is about, and who said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnroute.errors import UsageError, unknown_name
from attnroute.registry.versions import VersionSyntaxError, is_commit, newest_first, parse_version

if TYPE_CHECKING:
    from attnroute.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class Packages:
    """Versions by distribution. `origin` says where they come from: named, installed, pinned by an engine, last seen.

    `complete` means that a distribution not listed is known to be absent (an installed set); otherwise it is not
    considered. Instances hash once, so that a repeated question costs a dictionary look-up.
    """

    versions: tuple[tuple[str, str], ...]
    origin: str = "named"
    complete: bool = False
    _hash: int = field(default=0, init=False, repr=False, compare=False)
    _map: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.versions, self.origin, self.complete)))
        object.__setattr__(self, "_map", dict(self.versions))

    def __hash__(self) -> int:
        return self._hash

    def get(self, distribution: str) -> str | None:
        """The version of a distribution, or None if it is absent or not considered."""
        return self._map.get(distribution)

    def words(self) -> str:
        """`flashinfer-python 0.7.4 (named)`."""
        listed = ", ".join(f"{name} {version}" for name, version in self.versions) or "no kernel package"
        return f"{listed} ({self.origin})"


def name_packages(registry: Registry, packages: Mapping[str, str], origin: str = "named") -> Packages:
    """Checked against the catalogue; raises UsageError for an unknown distribution or a version that is none."""
    known = registry.catalogue["packages"]
    for name, version in packages.items():
        if name not in known:
            raise UsageError(unknown_name("package", name, known), code="unknown-package")
        if not isinstance(version, str) or not is_commit(version):
            try:
                parse_version(version)
            except VersionSyntaxError as error:
                raise UsageError(f"package {name}: {error}", code="bad-version") from None
    return Packages(tuple(sorted(packages.items())), origin)


def resolve_packages(
    registry: Registry, arch: str, packages: Mapping[str, str] | Packages | None, *, engine: str | None = None
) -> Packages:
    """The versions a question is about when it names none.

    An engine's own pins if an engine is named; this machine's packages if the architecture is this machine's; else, per
    distribution, the last version that the tables of the architecture were checked against.
    """
    if isinstance(packages, Packages):
        return packages
    if packages:
        return name_packages(registry, packages)
    if engine is not None:
        pins = registry.engine_pins(engine)
        if pins:
            return Packages(tuple(sorted(pins.items())), f"pinned by {engine}")
    installed = installed_packages(registry) if registry.is_local_arch(arch) else {}
    if installed:
        return Packages(tuple(sorted(installed.items())), "installed here", complete=True)
    last: dict[str, list[str]] = {}
    for candidate in registry.table(arch).candidates:
        last.setdefault(candidate.provider, []).extend(candidate.seen)
    found = {name: newest_first(seen)[0] for name, seen in last.items() if seen}
    return Packages(tuple(sorted(found.items())), "last versions looked at")


def installed_packages(registry: Registry) -> dict[str, str]:
    """Versions of the catalogue's distributions that this Python environment has, without importing them."""
    found = ((name, installed_version(name)) for name in registry.catalogue["packages"])
    return {name: version for name, version in found if version is not None}


def installed_version(distribution: str) -> str | None:
    """The version of a distribution of this Python environment, without importing it; None if it is not here."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
