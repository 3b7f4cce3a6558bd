"""A set-up script that runs once, as root in a sandbox without a network, and leaves a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from intercode.errors import ImageError
from intercode.sandbox.images.base import Context, Image, digest_of
from intercode.sandbox.images.spec import Addition

VERSION = "1"


def add(base: Image, addition: Addition, spec: str, context: Context) -> Image:
    """The image after the script; known by the base and by the script's text."""
    try:
        script = addition.path.read_bytes()
    except OSError as error:
        raise ImageError(
            f"cannot read the set-up script {addition.path}: {error.strerror}"
        ) from None
    template = replace(
        base,
        name=f"{base.name}+{addition.path.name}",
        digest=digest_of("script", VERSION, base.digest, script),
    )

    def fill(layer: Path, lock: int) -> Mapping[str, object]:
        context.build_script(base, script, layer)
        return {"version": VERSION}

    return context.cache.build(template, spec, fill, context.progress)
