"""Which InterCode this is: its version, its code, and where that is known its commit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from intercode import __version__

DISTRIBUTION = "intercode-gym"
_PACKAGE = Path(__file__).parents[1]
_GIT_SECONDS = 10.0


@cache
def own_versions() -> dict[str, str]:
    """``intercode``, ``code`` and, where it is known, ``commit``.

    The digest of the code says whether two are the same, also if both were changed and not
    committed; the commit says where to find one of them again.
    """
    known = {"intercode": __version__, "code": _code()}
    commit = _checkout() or _installed()
    return known | ({"commit": commit} if commit else {})


def _code() -> str:
    """A digest of everything that the package consists of, but for what Python has made of it."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE)
        # In a __pycache__ files come and go under other names while another process imports us.
        if path.suffix != ".pyc" and "__pycache__" not in name.parts and path.is_file():
            data = path.read_bytes()
            hasher.update(f"{name}\0{len(data)}\0".encode())
            hasher.update(data)
    return hasher.hexdigest()


def _checkout() -> str:
    """The commit that is checked out, with a ``+`` if files were changed since."""
    root = _PACKAGE.parents[1]
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "HEAD")
    changed = commit and _git(root, "status", "--porcelain", "--", str(_PACKAGE))
    return f"{commit}+" if changed else commit


def _git(root: Path, *arguments: str) -> str:
    """What git prints; nothing if there is none, or it refuses this folder."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            env={name: text for name, text in os.environ.items() if not name.startswith("GIT_")},
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _installed() -> str:
    """The commit that pip has installed from, as ``pip install git+https://…`` leaves it."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(text) if text else {}
    return str(origin.get("vcs_info", {}).get("commit_id", ""))
