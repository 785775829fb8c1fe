"""The error of a call that cannot be meant, raised before anything is launched."""

from __future__ import annotations

from attnroute.errors import AttnrouteError


class LaunchError(AttnrouteError):
    """A tensor, batch or feature does not fit what the launcher is bound to; the text names it, asked and allowed."""

    def __init__(self, message: str, *, code: str = "launch") -> None:
        super().__init__(message, code=code)


class NotInstalledError(LaunchError):
    """The package that ships the kernel cannot be imported."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, code="not-installed")
