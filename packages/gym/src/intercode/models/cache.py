"""A cache of replies on disk, keyed by a hash of everything that determines a reply.

Each reply is a file. A write creates a temporary file beside the target and renames it, so readers
see a complete file or none. Of several concurrent replies to one request, the last one stays. An
unreadable reply is requested again.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.errors import UsageError
from intercode.models.base import Reply, Request, Settings, TokenTrace, ToolCall, Usage
from intercode_sandbox.host_files import atomic_file, sha256

log = logging.getLogger(__name__)

FORMAT = 1
"""The version of the file format. The hash includes the version, so old files are not read."""


def is_unseeded_sampling(settings: Settings) -> bool:
    """Return whether replies may be random: no seed, and a temperature other than 0.

    Equal calls may then have different answers. Such answers are not cached: with a cache, ten
    samples would be ten copies of the first sample.
    """
    return settings.temperature != 0 and settings.seed is None


def digest(model: str, endpoint: str, request: Request) -> str:
    """Return the hash of model, endpoint and request, which is a reply's key in the cache.

    No API key enters the hash, so a new API key keeps the cached replies.
    """
    request_facts = {**asdict(request), "settings": request.settings.facts()}
    key_facts = {"format": FORMAT, "model": model, "endpoint": endpoint, "request": request_facts}
    text = json.dumps(key_facts, sort_keys=True, separators=(",", ":"))
    return sha256(text)


class ReplyCache:
    """A cache of replies in a folder, which threads, processes and runs may share."""

    def __init__(self, folder: str | Path) -> None:
        """Open the cache, and create its folder if missing.

        Raises:
            UsageError: The folder cannot be created.
        """
        self.folder = Path(folder).absolute()  # an agent's code may change the working directory
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the cache {folder} cannot be made: {error.strerror}") from error

    def __repr__(self) -> str:
        return f"ReplyCache({str(self.folder)!r})"

    def get(self, key: str) -> Reply | None:
        """Return the cached reply; None if the file is missing or damaged."""
        try:
            entry = json.loads(self._path(key).read_bytes())
            return _reply(entry)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # the file is missing, truncated, or in another format

    def put(self, key: str, reply: Reply) -> None:
        """Store a reply. A failure is only a warning, because the reply is already paid for."""
        path = self._path(key)
        content = json.dumps(asdict(reply), ensure_ascii=False).encode(errors="surrogatepass")
        try:
            path.parent.mkdir(exist_ok=True)
            with atomic_file(path, parallel=True) as temporary_file:
                temporary_file.touch(0o600)  # other users must not read the dialogues
                temporary_file.write_bytes(content)
        except OSError as error:
            log.warning("the cache %s cannot be written to: %s", self.folder, error.strerror)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _reply(entry: dict[str, Any]) -> Reply:
    entry["usage"] = Usage(**entry["usage"])
    entry["tool_calls"] = tuple(ToolCall(**call) for call in entry["tool_calls"])
    if (trace := entry.get("trace")) is not None:
        entry["trace"] = TokenTrace.parse(trace["prompt"], trace["ids"], trace["logprobs"])
    return Reply(**entry)
