"""All vector files, in the order they are written."""

from __future__ import annotations

from . import alignment, blocks, pages, versions

ALL = (*versions.PIECES, *blocks.PIECES, *pages.PIECES, *alignment.PIECES)
