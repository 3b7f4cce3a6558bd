"""``docker-daemon:REFERENCE``: an image that a container engine has, for containers alone."""

from __future__ import annotations

from typing import NoReturn

from intercode.errors import ImageError
from intercode.sandbox.images.base import Context


def make(argument: str, context: Context) -> NoReturn:
    """Refuse: the name is understood, but its files are the engine's.

    Raises:
        ImageError: Always.
    """
    raise ImageError(
        f"docker-daemon:{argument} is an image of the engine's own, for --sandbox docker; for the "
        f"native sandbox save it (docker save -o image.tar {argument}) and name it oci:image.tar"
    )
