"""The versions of common tools in images, from the tools' own output in a sandbox."""

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
"""Name of a tool → the program that prints the tool's version for ``--version``."""
LIMIT = 16
"""Maximum number of probed bases of images, because the probes delay the start of a run."""
_VERSION = re.compile(rb"\d+(?:\.\d+)+")
_NAME = re.compile(rb'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_OUTPUT_LIMIT = 2000


def tool_versions(provider: Provider, images: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the versions of tools in the base of each image; equal bases are probed once.

    Layers that an image adds to its base may also contain tools, but are not probed. Hundreds of
    tasks may each add files to the same base, and each probe takes time. The image's digest covers
    the layers. To save time, at most `LIMIT` bases are probed.

    Args:
        provider: Starts the sandboxes that run the tools.
        images: The images' names.

    Returns:
        Name of an image's base → tool → version. The tool ``system`` is the Linux distribution.

    Raises:
        ImageError: The image cannot be found or built.
        SandboxError: The sandbox cannot be started, or died.
    """
    bases = sorted({_base(name) for name in images})
    return {base: _tools(provider, base) for base in bases[:LIMIT]}


def _base(name: str) -> str:
    """Return the name of an image's base, which is the name without the added layers.

    If the name is another provider's, or the base alone is not a valid image, the name is returned
    unchanged.
    """
    try:
        spec = parse(name)
    except ImageError:  # the name is valid only for another sandbox provider
        return name
    return name if spec.scheme == "scratch" else str(replace(spec, additions=()))


def _tools(provider: Provider, image: str) -> dict[str, str]:
    with closing(provider.start(image)) as sandbox:
        versions = {name: _version(sandbox, program) for name, program in TOOLS.items()}
        versions["system"] = _system(sandbox)
    return {name: text for name, text in versions.items() if text}


def _version(sandbox: SandboxBackend, program: str) -> str:
    """Return a program's version; "" if the program is missing or prints no version."""
    result = sandbox.exec([program, "--version"], cwd="/", output_limit=_OUTPUT_LIMIT)
    match = _VERSION.search(result.stdout) if result.ok else None
    return match[0].decode() if match else ""


def _system(sandbox: SandboxBackend) -> str:
    try:
        match = _NAME.search(sandbox.read_file("/etc/os-release", limit=1 << 16))
    except OSError:
        return ""
    return match[1].decode(errors="replace") if match else ""
