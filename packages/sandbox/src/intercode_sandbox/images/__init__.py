"""Images: the file systems from which sandboxes start.

A name is resolved to an image, which is built at its first use and retained in a cache.
"""

from intercode_sandbox.images.base import BuildScript, Command, Image, Progress
from intercode_sandbox.images.cache import (
    ImageInfo,
    SourceTarballInfo,
    list_images,
    prune,
    prune_sources,
    sweep,
)
from intercode_sandbox.images.host import hide, host_mounts, resolve_hidden_paths
from intercode_sandbox.images.resolve import resolve

__all__ = [
    "BuildScript",
    "Command",
    "Image",
    "ImageInfo",
    "Progress",
    "SourceTarballInfo",
    "resolve_hidden_paths",
    "hide",
    "host_mounts",
    "list_images",
    "prune",
    "prune_sources",
    "resolve",
    "sweep",
]
