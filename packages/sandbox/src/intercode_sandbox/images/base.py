"""The parts of an image, and the grammar of its name: ``BASE`` or ``BASE+PATH+PATH…``."""

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
"""The host name of sandboxes; it is in every image's ``/etc/hosts``."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_environment() -> dict[str, str]:
    """Return a command's environment, where an image asks for no other. None is inherited."""
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
    """Whether this machine's `host_mounts()` (``/usr`` and what is not merged into it) are bound
    read-only over the layers."""
    env: Mapping[str, str] = field(default_factory=clean_environment, hash=False)
    """The whole environment of a command."""
    cwd: str = "/root"
    """The directory in which a command starts."""
    user: str = ""
    """The user of a command, by number: ``uid:gid``, and ``,group`` for each other group; empty:
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
"""The path in a sandbox of the script that it is to run."""

BuildScript = Callable[[Image, "bytes | Command", Path], None]
"""Runs a set-up script, or a command, in a sandbox of an image and leaves what it changed in a
layer folder."""

Progress = Callable[[str], None]
"""A function that is told, line by line, how a build goes."""


Fill = Callable[[Path, int], Mapping[str, object]]
"""Fills an empty layer folder, given the lock's descriptor for its children to inherit; returns
what a record tells of the build."""


class Cache(Protocol):
    """The store in which the makers of images keep them: see `cache.ImageCache`."""

    root: Path

    def lookup(self, digest: str) -> Image | None:
        """Return a built image, now marked as in use by this process."""

    def build(self, template: Image, spec: str, fill: Fill, progress: Progress) -> Image:
        """Return the template with one more layer on top, made by `fill` unless it exists."""

    def read(self, digest: str) -> dict[str, Any] | None:
        """Return an image's record, or None if it is absent or torn."""


@dataclass(frozen=True, slots=True)
class Context:
    """The tools and the circumstances that the makers of images are given."""

    cache: Cache
    progress: Progress
    build_script: BuildScript
    inputs: set[Path] = field(default_factory=set)
    """The files and folders that the image was made from and that its name does not tell."""
    refresh: bool = False
    """Whether registries are asked again what their names stand for."""


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
"""A '+' that starts an addition is told from one in a name ("g++") by what follows it."""
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
    """Something laid over an image."""

    text: str
    """As it is written in the canonical spec: absolute, or ``builtin:NAME``."""
    path: Path
    """The place of its content."""

    @property
    def is_script(self) -> bool:
        """Whether it is run rather than unpacked."""
        return self.text.endswith(SCRIPTS)


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed image name; `str()` of it is canonical: it means the same in any directory."""

    scheme: str
    """``host``, ``debian``, … or ``folder``; who makes the base."""
    argument: str = ""
    """The text after the scheme's colon, or the folder's absolute path."""
    additions: tuple[Addition, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files and folders that the name tells of."""
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
    """Whether a name is that of a file or folder."""
    return _PATH.match(text) is not None


def parse(text: str, folder: Path | None = None) -> Spec:
    """Read an image name.

    Args:
        text: As it is written.
        folder: Where relative paths are taken from; default: the current directory.

    Raises:
        ImageError: It does not fit the grammar.
    """
    if "\0" in text or not text.strip():
        raise ImageError(f"{text!r} is not an image.\n{GRAMMAR}")
    starts = "|".join((*_STARTS, *map(re.escape, FOLDERS)))
    base, *addition_texts = re.split(_ADDITION.format(starts), text.strip())
    additions = tuple(_addition(part, text, folder) for part in addition_texts)
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


def _addition(part: str, text: str, folder: Path | None) -> Addition:
    if not part.endswith(ARCHIVES + SCRIPTS):
        endings = ", ".join(ARCHIVES + SCRIPTS)
        raise ImageError(f"a layer over an image must end in one of {endings}: {part!r}")
    prefix = next((prefix for prefix in FOLDERS if part.startswith(prefix)), None)
    if prefix is None:
        path = _absolute(part, folder)
        return Addition(str(path), path)
    name = Path(part.removeprefix(prefix))
    if name.is_absolute() or ".." in name.parts:
        raise ImageError(f"{part!r} in the image {text!r} is not a bundled file of InterCode")
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
