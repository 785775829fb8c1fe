"""Half-open version ranges in plain version order.

`0.6.16..0.6.18rc4` holds every version from the first up to, not including, the second; either end may be left open.
Betas and post releases are ordinary versions here: PEP 440 specifiers drop both in ways nobody expects. A local part
(`+cu130`) is ignored; an unreleased source is `git+<commit>` and compares for equality only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version


class VersionSyntaxError(ValueError):
    """A version or range is not written the way the tables write them."""


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version:
    """The public part of a release version; raises VersionSyntaxError for anything else."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(text).public)
    except (InvalidVersion, TypeError):
        raise VersionSyntaxError(f"{text!r} is no version; write one such as 0.7.4 or 4.0.0b36") from None


def is_commit(text: str) -> bool:
    """Whether a version is an unreleased source, `git+<commit>`."""
    return text.startswith("git+")


@lru_cache(maxsize=4096)
def public(text: str) -> str:
    """The version without its local part; commits unchanged."""
    return text if is_commit(text) else str(parse_version(text))


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `lo` (None: no lower end) up to, not including, `hi` (None: no upper end), or one commit."""

    lo: str | None
    hi: str | None
    commit: str | None = None

    @staticmethod
    def parse(text: str) -> VersionRange:
        """From `lo..hi`, `lo..`, `..hi`, `..` or `git+<commit>`."""
        return _parse_range(text)

    @staticmethod
    def of(text: str) -> VersionRange:
        """As `parse`, from tables that were validated: nothing is parsed before a version is compared."""
        return _split_range(text)

    def __contains__(self, version: str) -> bool:
        return _contains(self, version)

    def __str__(self) -> str:
        return self.commit or f"{self.lo or ''}..{self.hi or ''}"

    def words(self) -> str:
        """`0.6.16 or later`, `before 0.6.18rc4`, `0.6.16 to before 0.6.18rc4`."""
        if self.commit:
            return self.commit
        if self.lo and self.hi:
            return f"{self.lo} to before {self.hi}"
        return f"{self.lo} or later" if self.lo else f"before {self.hi}" if self.hi else "any version"

    def covers(self, other: VersionRange) -> bool:
        """Whether every version of `other` is one of these."""
        if self.commit or other.commit:
            return self.commit == other.commit
        below = not self.lo or (bool(other.lo) and parse_version(str(self.lo)) <= parse_version(str(other.lo)))
        above = not self.hi or (bool(other.hi) and parse_version(str(other.hi)) <= parse_version(str(self.hi)))
        return below and above

    def overlaps(self, other: VersionRange) -> bool:
        if self.commit or other.commit:
            return self.commit == other.commit
        lo = max((parse_version(r.lo) for r in (self, other) if r.lo), default=None)
        hi = min((parse_version(r.hi) for r in (self, other) if r.hi), default=None)
        return lo is None or hi is None or lo < hi


@lru_cache(maxsize=4096)
def _split_range(text: str) -> VersionRange:
    if is_commit(text):
        return VersionRange(None, None, text)
    lo, _, hi = text.partition("..")
    return VersionRange(lo or None, hi or None)


@lru_cache(maxsize=4096)
def _parse_range(text: str) -> VersionRange:
    if not isinstance(text, str) or (".." not in text and not is_commit(text)):
        raise VersionSyntaxError(f"{text!r} is no version range; write lo..hi (hi excluded), lo.. or ..hi")
    found = _split_range(text)
    low = parse_version(found.lo) if found.lo else None
    high = parse_version(found.hi) if found.hi else None
    if low is not None and high is not None and low >= high:
        raise VersionSyntaxError(
            f"{text!r}: the range is reversed or empty; the lower end comes first, the upper is excluded"
        )
    return found


@lru_cache(maxsize=16384)
def _contains(span: VersionRange, version: str) -> bool:
    if span.commit or is_commit(version):
        return span.commit == version
    parsed = parse_version(version)
    if span.lo and parsed < parse_version(span.lo):
        return False
    return span.hi is None or parsed < parse_version(span.hi)


def ascending(versions: Iterable[str]) -> list[str]:
    """Each version once: releases in version order, then commits."""
    distinct = set(versions)
    releases = sorted((v for v in distinct if not is_commit(v)), key=parse_version)
    return releases + sorted(v for v in distinct if is_commit(v))


def newest_first(versions: list[str]) -> list[str]:
    """Release versions newest first, commits last."""
    releases = sorted((v for v in versions if not is_commit(v)), key=parse_version, reverse=True)
    return releases + [v for v in versions if is_commit(v)]
