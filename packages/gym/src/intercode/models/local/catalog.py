"""The table of open models that can be fetched by name: ``models.toml`` beside this module."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib import resources

import msgspec

from intercode.errors import UsageError
from intercode_sandbox.suggestions import hint_text

HOST = "https://huggingface.co"
"""The hub on which the publishers' repositories are."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An open model: one file of its publisher's, pinned by its digest."""

    name: str
    repository: str
    """The repository on the hub, as ``Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF``."""
    file: str
    revision: str
    """The commit of the repository."""
    sha256: str
    """Of the file, in hexadecimal."""
    size: int
    """Bytes of the file."""
    licence: str
    speed: float | None = None
    """Tokens written in a second on two cores, by a single dialogue; None: not measured."""

    @property
    def url(self) -> str:
        """The address of the file."""
        return f"{HOST}/{self.repository}/resolve/{self.revision}/{self.file}"


@lru_cache(maxsize=1)
def entries() -> tuple[ModelEntry, ...]:
    """Return all models of the table, the smallest first."""
    text = resources.files("intercode.models.local").joinpath("models.toml").read_text("utf-8")
    models = msgspec.convert(tomllib.loads(text)["model"], tuple[ModelEntry, ...])
    return tuple(sorted(models, key=lambda entry: entry.size))


def find_entry(name: str) -> ModelEntry:
    """Return the model of that name.

    Raises:
        UsageError: The table has no such model.
    """
    names = [entry.name for entry in entries()]
    if name not in names:
        raise UsageError(
            f"there is no local model {name!r}{hint_text(name, names)}; a file of your own is "
            "local/PATH.gguf"
        )
    return entries()[names.index(name)]
