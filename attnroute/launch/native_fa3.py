"""FlashInfer's paged prefill with backend="fa3"."""

from __future__ import annotations

from typing import ClassVar

from attnroute.launch.native_prefill import PrefillWrapper


class Launch(PrefillWrapper):
    """Query tokens of any number a request."""

    backend: ClassVar[str] = "fa3"
