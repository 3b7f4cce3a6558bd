"""What an image is: the read-only folders below a sandbox's own, and how a command starts there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intercode.sandbox.images.cache import ImageCache

HOSTNAME = "intercode"
"""What sandboxes call themselves; it is in every image's ``/etc/hosts``."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_environment() -> dict[str, str]:
    """The environment of a command, where an image asks for no other. Nothing is inherited."""
    return {
        "PATH": SEARCH_PATH,
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "USER": "root",
        "TERM": "dumb",
        "SHELL": "/bin/bash",
    }


@dataclass(frozen=True, slots=True)
class Image:
    """A file system to start sandboxes from."""

    name: str
    """For people."""
    digest: str
    """Hexadecimal; the same for the same inputs of the recipe."""
    layers: tuple[Path, ...]
    """Folders, lowest first, each in the form of an overlayfs layer."""
    host: bool = False
    """This machine's `host_mounts()` (``/usr`` and what is not merged into it) are bound
    read-only over the layers."""
    env: Mapping[str, str] = field(default_factory=clean_environment, hash=False)
    """The whole environment of a command."""
    cwd: str = "/root"
    """The directory in which a command starts."""
    user: str = ""
    """Who a command runs as, by number: ``uid:gid``, and ``,group`` for each other group; empty:
    root."""
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The configuration of an image that has one, as OCI writes it: ``Env``, ``Cmd``, ``Labels``, …
    for people and for other tools. What InterCode goes by are the fields above."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that makes a layer: run as the image says, with root's rights over its files."""

    argv: tuple[str, ...]
    script: bytes | None = None
    """A file that the program is given: `SCRIPT`, which is not in the layer."""
    network: bool = False
    """Whether it may use this machine's network."""
    timeout: float = 3600.0


SCRIPT = "/dev/shm/setup"
"""Where a sandbox has the script that it is to run."""

BuildScript = Callable[[Image, "bytes | Command", Path], None]
"""Runs a set-up script, or a command, in a sandbox of an image and leaves what it changed in a
layer folder."""

Progress = Callable[[str], None]
"""Is told, line by line, how a build goes."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the makers of images are given."""

    cache: ImageCache
    progress: Progress
    build_script: BuildScript
    inputs: set[Path] = field(default_factory=set)
    """The files and folders that the image was made from and that its name does not tell."""
    refresh: bool = False
    """Whether registries are asked anew what their names stand for."""


def digest_of(*parts: str | bytes) -> str:
    """One digest of several values; no two different lists of values share one."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        hasher.update(b"%d:" % len(data))
        hasher.update(data)
    return hasher.hexdigest()
