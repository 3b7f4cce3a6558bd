"""Resolution of a name to an image: the missing layers are built.

This module also builds the simple images: a folder, ``scratch``, and the result of a set-up script.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NoReturn, cast

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import joint_digest, open_regular
from intercode_sandbox.images.base import (
    GRAMMAR,
    BuildScript,
    Image,
    ImageAddition,
    ImageBuilderContext,
    ParsedImageName,
    Progress,
    parse,
)
from intercode_sandbox.images.cache import ImageCache, sweep
from intercode_sandbox.images.debian import RECIPES, make_system
from intercode_sandbox.images.tarballs import add_archive
from intercode_sandbox.images.tree import set_times
from intercode_sandbox.lazy_imports import LazyRegistry
from intercode_sandbox.privileges import sandboxes_user
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.user_code import is_reference

log = logging.getLogger(__name__)

MakeBase = Callable[[str, ImageBuilderContext], Image]
"""A function that returns an image, built if necessary. The first argument is the text after the
scheme's colon."""
SCHEMES = LazyRegistry(
    "kind of image",
    {
        scheme: f"{__package__}.{target}"
        for scheme, target in {
            "host": "host:make",
            "base": "pinned_debian:make",
            "folder": "resolve:make_folder",
            "debian": "debian:make",
            "scratch": "resolve:make_scratch",
            "dockerfile": "dockerfile.build:make",
            "oci": "oci:make",
            "docker": "oci:pull",
            "docker-daemon": "resolve:refuse_daemon",
            "digest": "resolve:make_known",
        }.items()
    },
    "intercode.images",
)
"""Scheme, the kind of an image → the function (a `MakeBase`) that builds such an image."""


def admit(spec: str) -> None:
    """Permit the scheme of an image that the user has named, for the rest of this process.

    A scheme may be a function in a file, ``my.py:make:ARGUMENT``, or come from an installed
    package. To build such an image runs that code. A task may name an image, too, and often comes
    from a stranger. Therefore `check` refuses such schemes, unless this function has permitted
    them.

    Args:
        spec: The name of the image, from the command line or from the caller's code.

    Raises:
        UsageError: The file has no such function.
        ImportError: The package's module, or a dependency, is not installed.
    """
    with suppress(ImageError):  # `resolve` raises the error for an invalid name
        scheme = parse(spec).scheme
        if SCHEMES.is_foreign(scheme):
            SCHEMES.register(scheme, SCHEMES.resolve(scheme), replace=True)


_ADMISSION_ADVICE = (
    "code of a file or of an installed package makes such images, and a task may not run it by "
    "itself: give the image as an option, once in a process (--image, image=)"
)


def resolve(
    spec: str,
    *,
    build_script: BuildScript | None = None,
    progress: Progress | None = None,
    refresh: bool = False,
) -> Image:
    """Return the image of a name, built if it is not in the cache.

    If this process has resolved the name before, the function only checks whether the inputs of
    the image are unchanged. The check examines the file system, in about ten microseconds.

    Args:
        spec: The name: ``host``, ``debian:bookworm+./files.tar.gz``, …: see `parse`.
        build_script: A function that runs set-up scripts, usually a method of the provider.
        progress: A function that receives the build's messages; default: the log.
        refresh: Whether to request again which image a registry has under a name.

    Raises:
        ImageError: The name is invalid, an input is missing, or the build failed.
    """
    cache = ImageCache.default()
    if spec in _digest_by_spec and (image := cache.lookup(_digest_by_spec[spec])):
        return image
    parsed_spec = _check_plain_name(spec) if spec.isidentifier() else check(spec)
    if not refresh and (cached_image := cache.recall(_key(parsed_spec, cache))):
        return cached_image
    sweep(cache)
    context = ImageBuilderContext(
        cache, progress or log.info, build_script or _refuse_script, refresh=refresh
    )
    image = build(parsed_spec, context)
    cache.inputs[parsed_spec] = tuple(sorted(map(str, context.inputs)))
    cache.remember(_key(parsed_spec, cache), image)
    return image


_digest_by_spec: dict[str, str] = {}
"""Name of an image → the digest to which `register_digest` has bound it."""


def register_digest(spec: str, digest: str) -> None:
    """Bind a name to an image in the cache, for the rest of this process.

    Another machine has built the image under this name, from inputs (a Dockerfile, a registry's
    response) that this machine may lack.
    """
    _digest_by_spec[spec] = digest


@lru_cache(maxsize=64)
def _check_plain_name(spec: str) -> ParsedImageName:
    """Check a name that contains no path, as `check` does.

    The result is remembered, because every start of a sandbox needs it.
    """
    return check(spec)


def check(spec: str) -> ParsedImageName:
    """Parse the name of an image, and check the name as far as possible without a build.

    Raises:
        ImageError: The name is invalid, or its file or folder does not exist.
    """
    parsed_spec = parse(spec)
    if spec in _digest_by_spec:
        return parsed_spec
    is_recipe = parsed_spec.scheme in RECIPES and not parsed_spec.argument
    if not is_recipe and not SCHEMES.is_trusted(parsed_spec.scheme):
        name = str(replace(parsed_spec, additions=()))
        if SCHEMES.is_foreign(parsed_spec.scheme):
            raise ImageError(f"the image {name}: {_ADMISSION_ADVICE}")
        suggestion = hint_text(name, [*SCHEMES.names(), *RECIPES], listed=False) or "."
        raise ImageError(f"there is no image called {name!r}{suggestion}\n{GRAMMAR}")
    if missing_path := next((path for path in parsed_spec.paths if not path.exists()), None):
        raise ImageError(f"the image {spec}: {missing_path} does not exist")
    return parsed_spec


def build(spec: ParsedImageName, context: ImageBuilderContext) -> Image:
    """Return the image of a parsed name.

    The base is built first, then a layer for each addition. Layers in the cache are not built.

    Raises:
        ImageError: An input is missing, or the build failed.
    """
    if spec.additions:
        base_spec = replace(spec, additions=spec.additions[:-1])
        addition = spec.additions[-1]
        add_layer = add_script if addition.is_script else add_archive
        return add_layer(build(base_spec, context), addition, str(spec), context)
    if SCHEMES.is_trusted(spec.scheme):
        return _find_maker(spec.scheme)(spec.argument, context)
    return make_system(spec.scheme, RECIPES[spec.scheme], context)


def _key(spec: ParsedImageName, cache: ImageCache) -> Hashable:
    """Return a key for the image of a name, which changes with the image's inputs.

    The key covers the modification times of input files and folders. Files inside an image's folder
    are not examined again, only the folder itself. For a Dockerfile all copied files are examined,
    unless they are too many: see `_MAX_WATCHED_FILES` in `dockerfile.build`.
    """
    paths = [*(str(addition.path) for addition in spec.additions), *cache.inputs.get(spec, ())]
    if spec.scheme == "folder":
        paths.append(spec.argument)
    elif is_reference(spec.scheme):
        paths.append(spec.scheme.rpartition(":")[0])
    return (spec, *map(_stamp, paths))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(path)  # noqa: PTH116 - on a hot path
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def _find_maker(scheme: str) -> MakeBase:
    return cast(MakeBase, SCHEMES.get(scheme))


def _refuse_script(image: Image, script: object, layer: object) -> None:
    raise ImageError(f"a script over {image.name} needs a sandbox")


def make_folder(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image of a folder that is a root file system, or has a Dockerfile.

    The digest of a root file system covers the names, modes, sizes and times of its files.

    Args:
        argument: The path of the folder.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The folder is missing or no root file system, contains the cache, or belongs to
            another user.
    """
    folder = Path(argument)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise ImageError(f"the image {argument} {problem}")
    if not any((folder / subfolder).is_dir() for subfolder in ("usr", "bin")):
        if (folder / "Dockerfile").is_file():
            return _find_maker("dockerfile")(argument, context)
        raise ImageError(
            f"the folder {argument} is not a root file system: it has no /usr and no /bin, and no "
            "Dockerfile"
        )
    cache_root = context.cache.root.resolve()
    if any(folder.samefile(ancestor) for ancestor in (cache_root, *cache_root.parents)):
        raise ImageError(
            f"the folder {argument} cannot be an image, because it contains InterCode's cache "
            f"({cache_root}). For this machine's programs, use the image 'host'; for other "
            "files, copy "
            "them to a folder"
        )
    required_owner = sandboxes_user() or os.geteuid()
    if required_owner and folder.stat().st_uid != required_owner:
        raise ImageError(
            f"the folder {argument} belongs to another user, and your sandboxes could not "
            f"overwrite its files; copy it: cp -r {argument} COPY"
        )
    context.progress(f"reading {argument}")
    return Image(name=folder.name or "/", digest=_folder_digest(folder), layers=(folder,))


def _folder_digest(folder: Path) -> str:
    lines: list[bytes] = []
    folders = [os.fsencode(folder)]
    prefix_length = len(folders[0].rstrip(b"/"))
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError as error:
            raise ImageError(f"cannot read the image {folder}: {error}") from error
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            entry_stamp = b"%o %d %d" % (info.st_mode, info.st_size, info.st_mtime_ns)
            lines.append(entry.path[prefix_length:] + b"\0" + entry_stamp)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return joint_digest("folder", *sorted(lines))


def make_scratch(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image ``scratch``, which has only the folders /dev and /proc."""
    if argument:
        raise ImageError(f"the image 'scratch' takes no argument, not {argument!r}")
    template = Image(name="scratch", digest=joint_digest("scratch", "2"), layers=())
    return context.cache.build(template, "scratch", _fill_scratch, context.progress)


def _fill_scratch(layer: Path, lock_fd: int) -> Mapping[str, object]:
    for name in ("dev", "proc"):
        (layer / name).mkdir()
    return {"version": "2"}


def make_known(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image in the cache whose digest begins with the argument.

    Raises:
        ImageError: The cache has no such image, or several.
    """
    images = []
    if re.fullmatch("[0-9a-f]{8,}", argument):
        folders = (context.cache.root / "images").glob(f"{argument}*")
        images = [image for folder in folders if (image := context.cache.lookup(folder.name))]
    if len(images) != 1:
        raise ImageError(
            f"{len(images) or 'no'} images here have a digest that begins with {argument!r}; "
            "'intercode images list' shows their first twelve digits"
        )
    return images[0]


def refuse_daemon(argument: str, context: ImageBuilderContext) -> NoReturn:
    """Refuse a name with ``docker-daemon:``: only the Docker engine has the files of the image.

    Raises:
        ImageError: Always.
    """
    raise ImageError(
        f"docker-daemon:{argument} is an image of the engine, for --sandbox docker; for the "
        f"native sandbox, save it (docker save -o image.tar {argument}) and name it oci:image.tar"
    )


_SCRIPT_VERSION = "2"
_SCRIPT_TIME = 1767225600  # 2026-01-01 00:00 UTC
"""The time of all files that a script creates without an explicit time. Without a fixed time, two
builds of the same script would always differ."""


def add_script(
    base: Image, addition: ImageAddition, spec: str, context: ImageBuilderContext
) -> Image:
    """Return the image with a further layer: the changes of a set-up script.

    The digest covers the base and the script's text.

    Args:
        base: The image below.
        addition: The script.
        spec: The name of the resulting image.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The script cannot be read, or failed.
    """
    try:
        with open_regular(addition.path) as file:
            script = file.read()
    except OSError as error:
        raise ImageError(
            f"cannot read the set-up script {addition.path}: {error.strerror}"
        ) from None
    template = replace(
        base,
        name=f"{base.name}+{addition.path.name}",
        digest=joint_digest("script", _SCRIPT_VERSION, base.digest, script),
    )

    def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
        begin_time = time.time() - 1  # times of new files lag behind the clock by some milliseconds
        context.build_script(base, script, layer)
        set_times(layer, begin_time, _SCRIPT_TIME)
        return {"version": _SCRIPT_VERSION}

    return context.cache.build(template, spec, fill, context.progress)
