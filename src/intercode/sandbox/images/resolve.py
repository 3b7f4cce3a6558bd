"""From an image's name to the image, building what is missing."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import cast

from intercode.errors import ImageError
from intercode.sandbox.images.base import BuildScript, Context, Image, Progress
from intercode.sandbox.images.cache import ImageCache
from intercode.sandbox.images.debian import make_system
from intercode.sandbox.images.prune import sweep
from intercode.sandbox.images.recipes import RECIPES
from intercode.sandbox.images.spec import UNDERSTOOD, Addition, Spec, parse

log = logging.getLogger(__name__)

MakeBase = Callable[[str, Context], Image]
"""Given what follows the scheme's colon."""
Add = Callable[[Image, Addition, str, Context], Image]
"""Given the image below, what is laid over it, and the canonical spec of the result."""

SCHEMES: dict[str, str] = {
    "host": "intercode.sandbox.images.host",
    "folder": "intercode.sandbox.images.folder",
    "debian": "intercode.sandbox.images.debian",
    "scratch": "intercode.sandbox.images.scratch",
    "dockerfile": "intercode.sandbox.images.dockerfile",
    "oci": "intercode.sandbox.images.oci",
    "docker": "intercode.sandbox.images.pulled",
    "docker-daemon": "intercode.sandbox.images.daemon",
}
"""Scheme → the module whose `make` (a `MakeBase`) makes such an image."""

_ARCHIVE = "intercode.sandbox.images.archive"
_SCRIPT = "intercode.sandbox.images.script"


def resolve(
    spec: str,
    *,
    build_script: BuildScript | None = None,
    progress: Progress | None = None,
    refresh: bool = False,
) -> Image:
    """The image of that name, built if it is not in the cache.

    Of an image that this process has had before it only asks the file system whether its inputs
    are the same: some ten microseconds.

    Args:
        spec: ``host``, ``debian:bookworm+./files.tar.gz``, …: see `parse`.
        build_script: What runs set-up scripts: the provider of sandboxes.
        progress: Is told how a build goes; default: the log.
        refresh: Ask registries anew what their names stand for.

    Raises:
        ImageError: The name is not understood, an input is missing, or the build failed.
    """
    parsed = _plain(spec) if spec.isidentifier() else check(spec)
    cache = ImageCache.default()
    if not refresh and (found := cache.recall(_key(parsed, cache))):
        return found
    sweep(cache)
    context = Context(cache, progress or log.info, build_script or _no_scripts, refresh=refresh)
    image = build(parsed, context)
    cache.inputs[parsed] = tuple(sorted(map(str, context.inputs)))
    cache.remember(_key(parsed, cache), image)
    return image


@lru_cache(maxsize=64)
def _plain(spec: str) -> Spec:
    """The same of a name without a path, which every start asks for."""
    return check(spec)


def check(spec: str) -> Spec:
    """The parsed name of an image that can be made, as far as the name tells.

    Raises:
        ImageError: It is not understood.
    """
    parsed = parse(spec)
    if parsed.scheme not in SCHEMES and (parsed.argument or parsed.scheme not in RECIPES):
        raise ImageError(f"there is no image called {spec!r}.\n{UNDERSTOOD}")
    return parsed


def build(spec: Spec, context: Context) -> Image:
    """The image, its base first and then layer by layer, each taken from the cache or made."""
    if spec.additions:
        below = replace(spec, additions=spec.additions[:-1])
        last = spec.additions[-1]
        add = cast(Add, _from(_SCRIPT if last.is_script else _ARCHIVE, "add"))
        return add(build(below, context), last, str(spec), context)
    if spec.scheme in SCHEMES:
        return cast(MakeBase, _from(SCHEMES[spec.scheme], "make"))(spec.argument, context)
    return make_system(spec.scheme, RECIPES[spec.scheme], context)


def _key(spec: Spec, cache: ImageCache) -> Hashable:
    """Changes when an input does.

    A folder is taken to be the same for as long as its own time is; what is deeper in it is looked
    at once in a process. Of a Dockerfile all that it copies is looked at, unless it is very much.
    """
    paths = [*(str(addition.path) for addition in spec.additions), *cache.inputs.get(spec, ())]
    if spec.scheme == "folder":
        paths.append(spec.argument)
    return (spec, *map(_stamp, paths))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(path)  # noqa: PTH116 - on a hot path
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def _from(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def _no_scripts(image: Image, script: object, layer: object) -> None:
    raise ImageError(f"what is run over {image.name} needs a sandbox to run in")
