"""The Pythons of this machine, by their versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def program(version: str) -> str | None:
    """A Python of that version that works (a version manager's shim may not)."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    folders = os.environ["PATH"].split(":")
    folders += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin"))
    for folder in folders:
        found = shutil.which(f"python{version}", path=folder)
        if found and not subprocess.run([found, "-V"], capture_output=True).returncode:
            return found
    return None
