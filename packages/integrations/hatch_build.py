"""The version of this package, and of those of ours that it needs: one for all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent
SOURCES = (
    # In an unpacked sdist, which has nothing of the other packages.
    (HERE / "PKG-INFO", r"^Version: (\S+)$"),
    (HERE.parent / "sandbox/src/intercode_sandbox/__init__.py", r'^__version__ = "(\S+)"$'),
)
"""The files that may state the version, and how."""


def version() -> str:
    """Return the version.

    Raises:
        RuntimeError: No file states it.
    """
    for file, pattern in SOURCES:
        if file.is_file() and (match := re.search(pattern, file.read_text("utf-8"), re.MULTILINE)):
            return match[1]
    raise RuntimeError(f"no version is stated in {' or '.join(str(file) for file, _ in SOURCES)}")


class OneVersion(MetadataHookInterface):
    """Adds the version, and the dependencies: those on packages of ours are of the same version."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Complete the metadata of the package."""
        metadata["version"] = version()
        metadata["dependencies"] = [
            f"{name}=={version()}" if name.startswith("intercode-") else name
            for name in self.config["dependencies"]
        ]
