"""Components of an image, and the grammar of its name: ``BASE`` or ``BASE+PATH+PATH…``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from intercode_sandbox.errors import ImageError
from intercode_sandbox.extensions import FOLDERS
from intercode_sandbox.user_code import absolute, is_reference, split

HOSTNAME = "intercode"
"""The host name of sandboxes, also in every image's ``/etc/hosts``."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_environment() -> dict[str, str]:
    """Return a command's default environment variables. No variable is inherited."""
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
    """A file system from which sandboxes start."""

    name: str
    """Display name."""
    digest: str
    """Hexadecimal digest; equal for equal inputs of the recipe."""
    layers: tuple[Path, ...]
    """Folders, lowest first, each in the format of an overlayfs layer."""
    host: bool = False
    """Whether this machine's `host_mounts()` (``/usr``, and folders not merged into it) are bound
    read-only over the layers."""
    env: Mapping[str, str] = field(default_factory=clean_environment, hash=False)
    """All environment variables of a command."""
    cwd: str = "/root"
    """The working directory at a command's start."""
    user: str = ""
    """The user of a command, by number: ``uid:gid``, and ``,group`` for each other group; empty:
    root."""
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The configuration of an image, if any, in OCI's format: ``Env``, ``Cmd``, ``Labels``, …
    For people and other tools: InterCode uses the fields above."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that creates a layer: run by the image's settings, with root's privileges."""

    argv: tuple[str, ...]
    script: bytes | None = None
    """A file for the program, at `SCRIPT`, outside the layer."""
    network: bool = False
    """Whether the program may use this machine's network."""
    timeout: float = 3600.0


SCRIPT = "/dev/shm/setup"
"""The path in a sandbox of the script to run."""

BuildScript = Callable[[Image, "bytes | Command", Path], None]
"""Runs a set-up script, or a command, in a sandbox of an image, and writes the changes into a layer
folder."""

Progress = Callable[[str], None]
"""A function that receives a build's messages, line by line."""


Fill = Callable[[Path, int], Mapping[str, object]]
"""Fills an empty layer folder, with the lock's descriptor for its children to inherit; returns the
build's facts for the record."""


class Cache(Protocol):
    """The store of the makers of images: see `cache.ImageCache`."""

    root: Path

    def lookup(self, digest: str) -> Image | None:
        """Return a built image, and mark it as used by this process."""

    def build(self, template: Image, spec: str, fill: Fill, progress: Progress) -> Image:
        """Return the template with one more layer on top, filled by `fill` unless it exists."""

    def read(self, digest: str) -> dict[str, Any] | None:
        """Return an image's record, or None if it is missing or incomplete."""


@dataclass(frozen=True, slots=True)
class Context:
    """Tools and options for the makers of images."""

    cache: Cache
    progress: Progress
    build_script: BuildScript
    inputs: set[Path] = field(default_factory=set)
    """Files and folders that the build used and that the image's name does not contain."""
    refresh: bool = False
    """Whether to resolve the names in registries again."""


FOLDER = "folder"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
SCRIPTS = (".sh",)

GRAMMAR = """\
An image is one of
  host                    this machine's /usr, read-only, below a clean writable root
  base                    a small system of Debian 12, the same files on every machine
  nl2bash                 a recipe by name (`intercode images list` shows them)
  debian:SUITE            Debian by its suite: debian:bookworm, debian:bullseye, debian:trixie
  debian:SUITE[PKG,PKG]   the same with packages: debian:bookworm[python3,jq]
  scratch                 nothing: for a tarball that is a whole root file system
  /PATH, ./PATH, ~/PATH   a folder that is a root file system, or that has a Dockerfile
  ./PATH/Dockerfile       what a Dockerfile describes; also dockerfile:PATH, and with options
                          ./Dockerfile[NAME=VALUE,--target=STAGE,--network=default]
  oci:PATH                what `docker save` wrote, or an OCI layout
  docker://REFERENCE      an image of a registry's, pulled with skopeo
  digest:DIGEST           one that is built or imported, by eight digits or more of its digest
  PATH.py:NAME:ARGUMENT   what a function of your own makes
and may be followed, more than once, by what is laid over it
  +PATH.tar[.gz|.xz|.bz2], +PATH.tgz   a tarball, unpacked at /
  +PATH.sh                a set-up script, run once as root in a sandbox
  +builtin:NAME           the same for a file that comes with InterCode
where PATH starts with / or ./ or ../ or ~."""

_ADDITION = r"\+(?={})"
"""A '+' of an addition: the next characters distinguish it from a '+' in a name ("g++")."""
_STARTS = (r"/", r"\./", r"\.\./", r"~")
_DOCKERFILE = re.compile(
    r"(.*/)?(Dockerfile(\.[^/\[]*)?|[^/]*\.[Dd]ockerfile)(\[[^\[\]]*\])?", re.DOTALL
)
_OPTIONS = re.compile(r"\[[^\[\]]*\]$")
_PATH_SCHEMES = ("dockerfile", "oci")
_NAME = re.compile(r"(?P<scheme>[a-z][a-z0-9_-]*)(?::(?P<argument>.*))?", re.DOTALL)
_PATH = re.compile(r"/|~|\.{1,2}(?:/|$)")


@dataclass(frozen=True, slots=True)
class Addition:
    """A tarball or a script that is laid over an image."""

    text: str
    """The text in the canonical spec: an absolute path, or ``builtin:NAME``."""
    path: Path
    """The path of its content."""

    @property
    def is_script(self) -> bool:
        """Whether it is executed rather than unpacked."""
        return self.text.endswith(SCRIPTS)


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed image name. The `str()` of a spec is canonical: valid in any working directory."""

    scheme: str
    """The maker of the base: ``host``, ``debian``, … or ``folder``."""
    argument: str = ""
    """The text after the scheme's colon, or the folder's absolute path."""
    additions: tuple[Addition, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files and folders in the name."""
        has_path = self.scheme in (FOLDER, *_PATH_SCHEMES) and self.argument
        base = (Path(_OPTIONS.sub("", self.argument)),) if has_path else ()
        return (*base, *(addition.path for addition in self.additions))

    def __str__(self) -> str:
        if self.scheme == FOLDER:
            base = self.argument
        else:
            base = f"{self.scheme}:{self.argument}" if self.argument else self.scheme
        return "+".join([base, *(addition.text for addition in self.additions)])


def is_path(text: str) -> bool:
    """Return whether a name is the path of a file or folder."""
    return _PATH.match(text) is not None


def parse(text: str, folder: Path | None = None) -> Spec:
    """Parse an image name.

    Args:
        text: The name as written.
        folder: The base of relative paths; default: the working directory.

    Raises:
        ImageError: The name does not fit the grammar.
    """
    if "\0" in text or not text.strip():
        raise ImageError(f"{text!r} is not an image.\n{GRAMMAR}")
    starts = "|".join((*_STARTS, *map(re.escape, FOLDERS)))
    base, *addition_texts = re.split(_ADDITION.format(starts), text.strip())
    additions = tuple(_addition(addition_text, text, folder) for addition_text in addition_texts)
    if is_reference(base) and not _NAME.fullmatch(base):  # its file is the user's own
        scheme, argument = split(absolute(base), ":")
        return Spec(scheme, argument, additions)
    if is_path(base):
        scheme = "dockerfile" if _DOCKERFILE.fullmatch(base) else FOLDER
        return Spec(scheme, str(_absolute(base, folder)), additions)
    match = _NAME.fullmatch(base)
    if match is None or match["argument"] == "":
        raise ImageError(f"cannot understand {base!r} in the image {text!r}.\n{GRAMMAR}")
    if match["scheme"] == FOLDER:
        raise ImageError(f"cannot understand {base!r}: write the folder's path.\n{GRAMMAR}")
    argument = match["argument"] or ""
    if match["scheme"] in _PATH_SCHEMES and argument:
        argument = str(_absolute(argument, folder))
    return Spec(match["scheme"], argument, additions)


def _addition(addition_text: str, image_text: str, folder: Path | None) -> Addition:
    if not addition_text.endswith(ARCHIVES + SCRIPTS):
        endings = ", ".join(ARCHIVES + SCRIPTS)
        raise ImageError(f"a layer over an image must end in one of {endings}: {addition_text!r}")
    prefix = next((prefix for prefix in FOLDERS if addition_text.startswith(prefix)), None)
    if prefix is None:
        path = _absolute(addition_text, folder)
        return Addition(str(path), path)
    name = Path(addition_text.removeprefix(prefix))
    if name.is_absolute() or ".." in name.parts:
        raise ImageError(
            f"{addition_text!r} in the image {image_text!r} is not a bundled file of InterCode"
        )
    return Addition(f"{prefix}{name}", FOLDERS[prefix] / name)


def _absolute(text: str, folder: Path | None) -> Path:
    try:
        path = Path(folder or "", Path(text).expanduser())
    except RuntimeError:
        raise ImageError(f"the home directory of this user is unknown: {text!r}") from None
    # Not resolve(): that asks the file system, and a link may point elsewhere tomorrow.
    return path if path.is_absolute() and ".." not in path.parts else _normal(path)


def _normal(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - without resolving links
