"""The versions of common tools in images, as the tools themselves say in a sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from intercode.errors import ImageError
from intercode_sandbox.images.base import parse

if TYPE_CHECKING:
    from intercode_sandbox.base import Provider, SandboxBackend

TOOLS = {
    "bash": "bash",
    "coreutils": "ls",
    "findutils": "find",
    "grep": "grep",
    "sed": "sed",
    "awk": "awk",
    "tar": "tar",
    "git": "git",
    "python": "python3",
    "perl": "perl",
    "gcc": "gcc",
    "sqlite": "sqlite3",
}
"""Name → the program that is asked for it."""
LIMIT = 16
"""Images are asked before a run begins."""
_VERSION = re.compile(rb"\d+(?:\.\d+)+")
_NAME = re.compile(rb'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_OUTPUT_LIMIT = 2000


def tool_versions(provider: Provider, images: Iterable[str]) -> dict[str, dict[str, str]]:
    """Find the tools of each image; of images that differ only in what is laid over them, once.

    That may bring tools, too; but an image's digest tells of it, and hundreds of tasks have each
    their own files laid over the same image. Nor are more than `LIMIT` asked, for the same reason.

    Args:
        provider: Starts the sandboxes in which they are asked.
        images: The images' names.

    Returns:
        Image → tool → version.

    Raises:
        ImageError: The image cannot be found or built.
        SandboxError: The sandbox cannot be started, or died.
    """
    bases = sorted({_base(name) for name in images})
    return {base: _tools(provider, base) for base in bases[:LIMIT]}


def _base(name: str) -> str:
    """Return an image's name without what is laid over it, if that is an image by itself."""
    try:
        spec = parse(name)
    except ImageError:  # a name of another provider's
        return name
    return name if spec.scheme == "scratch" else str(replace(spec, additions=()))


def _tools(provider: Provider, image: str) -> dict[str, str]:
    with closing(provider.start(image)) as sandbox:
        versions = {name: _version(sandbox, program) for name, program in TOOLS.items()}
        versions["system"] = _system(sandbox)
    return {name: text for name, text in versions.items() if text}


def _version(sandbox: SandboxBackend, program: str) -> str:
    """Return a program's version; "" if the image has no such program, or it does not say."""
    result = sandbox.exec([program, "--version"], cwd="/", output_limit=_OUTPUT_LIMIT)
    match = _VERSION.search(result.stdout) if result.ok else None
    return match[0].decode() if match else ""


def _system(sandbox: SandboxBackend) -> str:
    try:
        match = _NAME.search(sandbox.read_file("/etc/os-release", limit=1 << 16))
    except OSError:
        return ""
    return match[1].decode(errors="replace") if match else ""
