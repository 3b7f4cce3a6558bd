"""`Image`, the types that builders of images share, and the grammar of names of images.

A name is ``BASE`` or ``BASE+PATH+PATH…``: see `parse`.
"""

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
"""The host name of sandboxes, which ``/etc/hosts`` of every image has, too."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The default ``PATH`` of programs in sandboxes."""


def clean_environment() -> dict[str, str]:
    """Return the default environment variables of programs in sandboxes.

    No variable is inherited from this process.
    """
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
    """Hexadecimal digest; images that were built from equal inputs have equal digests."""
    layers: tuple[Path, ...]
    """Folders, the lowest layer first, each in the format of an overlayfs layer."""
    host: bool = False
    """Whether folders of this machine are mounted read-only over the layers. The folders are those
    of `host_mounts()`: ``/usr``, and ``/bin`` and similar folders unless they are links."""
    env: Mapping[str, str] = field(default_factory=clean_environment, hash=False)
    """All environment variables with which programs start."""
    cwd: str = "/root"
    """The working directory in which programs start."""
    user: str = ""
    """The user of programs, by numbers: ``uid:gid``, and ``,gid`` for each further group; empty:
    root."""
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The configuration of an image, if any, in OCI's format: ``Env``, ``Cmd``, ``Labels``, …
    Sandboxes use the fields above only. A Dockerfile's build over the image starts from the
    configuration."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that creates a layer over an image, with the image's settings, as its user."""

    argv: tuple[str, ...]
    script: bytes | None = None
    """The content of a file that the program gets at `SCRIPT`, outside the layer; None: no file."""
    network: bool = False
    """Whether the program may use this machine's network."""
    timeout: float = 3600.0
    """Time limit in seconds."""


SCRIPT = "/dev/shm/setup"
"""The path, in a sandbox, of a script that creates a layer."""

BuildScript = Callable[[Image, "bytes | Command", Path], None]
"""A function that runs a set-up script, or a command, in a sandbox of an image. The function writes
the changes into the folder of a new layer, its last argument."""

Progress = Callable[[str], None]
"""A function that receives the messages of a build, line by line."""


Fill = Callable[[Path, int], Mapping[str, object]]
"""A function that fills the empty folder of a new layer, and returns facts for the image's record.

The second argument is the descriptor of the build's lock. Child processes should inherit it: the
build then counts as running until they have ended.
"""


class BuiltImageStore(Protocol):
    """The store of built images, as its users see it: see `cache.ImageCache`."""

    root: Path
    """The folder of the cache."""

    def lookup(self, digest: str) -> Image | None:
        """Return a built image, and mark the image as used by this process; None: not built."""

    def build(self, template: Image, spec: str, fill: Fill, progress: Progress) -> Image:
        """Return an image with one more layer than `template`, built unless it exists.

        Args:
            template: The image, with its final digest, but without its topmost layer.
            spec: The name from which the image is built.
            fill: Fills the topmost layer.
            progress: Receives the messages.
        """

    def read(self, digest: str) -> dict[str, Any] | None:
        """Return the record of a built image; None: the record is missing or incomplete."""


@dataclass(frozen=True, slots=True)
class ImageBuilderContext:
    """Objects and options that each builder of an image gets."""

    cache: BuiltImageStore
    progress: Progress
    build_script: BuildScript
    inputs: set[Path] = field(default_factory=set)
    """Files and folders that the build has used. `resolve` examines them for changes at later uses
    of the image in this process."""
    refresh: bool = False
    """Whether to request again which image a registry has under a name."""


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
"""Pattern of a '+' before an addition. The characters after the '+' must begin a path: so a '+' in
a name, such as "g++", does not match."""
_STARTS = (r"/", r"\./", r"\.\./", r"~")
_DOCKERFILE = re.compile(
    r"(.*/)?(Dockerfile(\.[^/\[]*)?|[^/]*\.[Dd]ockerfile)(\[[^\[\]]*\])?", re.DOTALL
)
_OPTIONS = re.compile(r"\[[^\[\]]*\]$")
_PATH_SCHEMES = ("dockerfile", "oci")
_NAME = re.compile(r"(?P<scheme>[a-z][a-z0-9_-]*)(?::(?P<argument>.*))?", re.DOTALL)
_PATH = re.compile(r"/|~|\.{1,2}(?:/|$)")


@dataclass(frozen=True, slots=True)
class ImageAddition:
    """A tarball or a script that a name adds to an image. Each addition makes one layer."""

    text: str
    """The text in the canonical name: an absolute path, or ``builtin:NAME``."""
    path: Path
    """The path of the tarball or script."""

    @property
    def is_script(self) -> bool:
        """Whether the addition is a script, rather than a tarball."""
        return self.text.endswith(SCRIPTS)


@dataclass(frozen=True, slots=True)
class ParsedImageName:
    """A parsed name of an image.

    `str()` returns the canonical name, which is valid in any working directory.
    """

    scheme: str
    """The kind of the base: ``host``, ``debian``, … or ``folder``."""
    argument: str = ""
    """The text after the scheme's colon, or the absolute path of a folder."""
    additions: tuple[ImageAddition, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the base and the additions in the name, without a user's Python file."""
        has_path = self.scheme in (FOLDER, *_PATH_SCHEMES) and self.argument
        base_paths = (Path(_OPTIONS.sub("", self.argument)),) if has_path else ()
        return (*base_paths, *(addition.path for addition in self.additions))

    def __str__(self) -> str:
        if self.scheme == FOLDER:
            base = self.argument
        else:
            base = f"{self.scheme}:{self.argument}" if self.argument else self.scheme
        return "+".join([base, *(addition.text for addition in self.additions)])


def is_path(text: str) -> bool:
    """Return whether a name is the path of a file or folder."""
    return _PATH.match(text) is not None


def parse(text: str, folder: Path | None = None) -> ParsedImageName:
    """Parse the name of an image.

    Args:
        text: The name as written.
        folder: The base of relative paths; default: the working directory.

    Raises:
        ImageError: The name does not fit the grammar.
    """
    if "\0" in text or not text.strip():
        raise ImageError(f"{text!r} is not an image.\n{GRAMMAR}")
    start_pattern = "|".join((*_STARTS, *map(re.escape, FOLDERS)))
    base_text, *addition_texts = re.split(_ADDITION.format(start_pattern), text.strip())
    additions = tuple(_addition(addition_text, text, folder) for addition_text in addition_texts)
    if is_reference(base_text) and not _NAME.fullmatch(
        base_text
    ):  # the base is a function in a user's file
        scheme, argument = split(absolute(base_text), ":")
        return ParsedImageName(scheme, argument, additions)
    if is_path(base_text):
        scheme = "dockerfile" if _DOCKERFILE.fullmatch(base_text) else FOLDER
        return ParsedImageName(scheme, str(_absolute(base_text, folder)), additions)
    match = _NAME.fullmatch(base_text)
    if match is None or match["argument"] == "":
        raise ImageError(f"cannot understand {base_text!r} in the image {text!r}.\n{GRAMMAR}")
    if match["scheme"] == FOLDER:
        raise ImageError(f"cannot understand {base_text!r}: write the folder's path.\n{GRAMMAR}")
    argument = match["argument"] or ""
    if match["scheme"] in _PATH_SCHEMES and argument:
        argument = str(_absolute(argument, folder))
    return ParsedImageName(match["scheme"], argument, additions)


def _addition(addition_text: str, image_text: str, folder: Path | None) -> ImageAddition:
    if not addition_text.endswith(ARCHIVES + SCRIPTS):
        endings = ", ".join(ARCHIVES + SCRIPTS)
        raise ImageError(f"a layer over an image must end in one of {endings}: {addition_text!r}")
    prefix = next((prefix for prefix in FOLDERS if addition_text.startswith(prefix)), None)
    if prefix is None:
        path = _absolute(addition_text, folder)
        return ImageAddition(str(path), path)
    relative_path = Path(addition_text.removeprefix(prefix))
    if relative_path.is_absolute() or ".." in relative_path.parts:
        raise ImageError(
            f"{addition_text!r} in the image {image_text!r} is not a bundled file of InterCode"
        )
    return ImageAddition(f"{prefix}{relative_path}", FOLDERS[prefix] / relative_path)


def _absolute(text: str, folder: Path | None) -> Path:
    try:
        path = Path(folder or "", Path(text).expanduser())
    except RuntimeError:
        raise ImageError(f"the home directory of this user is unknown: {text!r}") from None
    # Path.resolve() would follow links, which may point elsewhere at the next use of the name.
    return path if path.is_absolute() and ".." not in path.parts else _normal(path)


def _normal(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - without resolving links
