"""The catalog of open models that can be fetched by name: ``models.toml`` beside this module."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib import resources

import msgspec

from intercode.errors import UsageError
from intercode_sandbox.spelling_suggestions import hint_text

HOST = "https://huggingface.co"
"""The hub on which the models' publishers have their repositories."""


class LocalModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An open model: one file from its publisher, pinned by its digest."""

    name: str
    repository: str
    """The repository on the hub, such as ``Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF``."""
    file: str
    revision: str
    """The commit of the publisher's repository."""
    sha256: str
    """The SHA-256 of the file, in hexadecimal."""
    size: int
    """The size of the file in bytes."""
    licence: str
    speed: float | None = None
    """Generated tokens per second of a single dialogue on two cores; None: not measured."""

    @property
    def url(self) -> str:
        """The URL of the file."""
        return f"{HOST}/{self.repository}/resolve/{self.revision}/{self.file}"


@lru_cache(maxsize=1)
def entries() -> tuple[LocalModelEntry, ...]:
    """Return all models of the catalog, the smallest file first."""
    text = resources.files("intercode.models.local").joinpath("models.toml").read_text("utf-8")
    models = msgspec.convert(tomllib.loads(text)["model"], tuple[LocalModelEntry, ...])
    return tuple(sorted(models, key=lambda entry: entry.size))


def find_entry(name: str) -> LocalModelEntry:
    """Return the model with a name.

    Raises:
        UsageError: The catalog has no such model.
    """
    names = [entry.name for entry in entries()]
    if name not in names:
        raise UsageError(
            f"there is no local model {name!r}{hint_text(name, names)}; a file of your own is "
            "local/PATH.gguf"
        )
    return entries()[names.index(name)]
