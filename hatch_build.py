"""Build hook: validates the capability tables and puts their compiled form, with the schemas, into the wheel.

An editable install gets nothing: there, `capabilities/` lies beside the package and is read as it is.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileTables(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `attnroute/_data/capabilities.json` and `attnroute/_data/schema/` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the tables outside the source tree, so that a build leaves no file behind in it."""
        if version == "editable":
            return
        root = Path(self.root)
        scratch = Path(tempfile.mkdtemp(prefix="attnroute-build-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        compiled = scratch / "capabilities.json"
        # The package is not installed while it is being built: it is imported from the source tree.
        sys.path.insert(0, str(root))
        try:
            from attnroute.registry.compile import write_compiled
            from attnroute.registry.problems import TableError
            from attnroute.registry.validate import validate

            try:
                # Compiling stops at what it cannot use; only validation names every fault where it stands.
                if problems := validate([root / "capabilities"]):
                    raise TableError(problems)
                write_compiled(root / "capabilities", compiled, self.metadata.version)
            except TableError as error:
                # A traceback through the build backend would bury the file and the line.
                raise SystemExit(f"the capability tables are not valid:\n{error}") from None
        finally:
            sys.path.remove(str(root))
        build_data["force_include"][str(compiled)] = "attnroute/_data/capabilities.json"
        build_data["force_include"][str(root / "capabilities" / "schema")] = "attnroute/_data/schema"
