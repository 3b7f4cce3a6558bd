"""Replies on disk, under a hash of everything they hang on.

One file a reply, written beside its place and moved there, so that readers see all of it or
nothing, and writers who come together write the same. What cannot be read is asked for anew.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.errors import UsageError
from intercode.files import sha256, write_whole
from intercode.models.base import Reply, Settings, ToolCall, Usage
from intercode.models.client import Request

log = logging.getLogger(__name__)

FORMAT = 1
"""Part of the hash: another form of these files is another cache."""


def varies(settings: Settings) -> bool:
    """Whether asking twice is meant to give two answers: one that is drawn, with no seed.

    Such replies are not cached, or ten samples would be ten times the first.
    """
    return settings.temperature != 0 and settings.seed is None


def digest(model: str, endpoint: str, request: Request) -> str:
    """The hash of everything that a reply hangs on. No secret is part of it."""
    parts = {"format": FORMAT, "model": model, "endpoint": endpoint, "request": asdict(request)}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return sha256(text)


class Cache:
    """Replies in a folder, which any number of threads, processes and runs may share."""

    def __init__(self, folder: str | Path) -> None:
        """Create the folder if need be.

        Raises:
            UsageError: It cannot be.
        """
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the cache {folder} cannot be made: {error.strerror}") from error

    def __repr__(self) -> str:
        return f"Cache({str(self.folder)!r})"

    def get(self, key: str) -> Reply | None:
        """The reply, if it is there and whole."""
        try:
            data = json.loads(self._path(key).read_bytes())
            return _reply(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # not there, cut off, or another's: as good as not there

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply. Where it cannot be kept, a warning says so: it has been paid for."""
        path = self._path(key)
        data = json.dumps(asdict(reply), ensure_ascii=False).encode(errors="surrogatepass")
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, data, many=True)
        except OSError as error:
            log.warning("the cache %s cannot be written to: %s", self.folder, error.strerror)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _reply(data: dict[str, Any]) -> Reply:
    data["usage"] = Usage(**data["usage"])
    data["tool_calls"] = tuple(ToolCall(**call) for call in data["tool_calls"])
    return Reply(**data)
