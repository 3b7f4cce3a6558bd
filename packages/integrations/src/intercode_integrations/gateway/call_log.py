"""Records of a gateway's calls: a file with one line per call, and the totals of their usage."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from intercode.errors import UsageError
from intercode.models.base import Message, Usage
from intercode.models.limits import Budget
from intercode.models.recording_model import compact_message
from intercode.redaction import SecretRedactor
from intercode_integrations.gateway.calls import Call


class CallLog:
    """A file of recorded calls, one JSON object per line.

    Each call is written at once, so a crash loses at most the line being written.

    Args:
        path: The file. New calls are appended to an existing file. A new file is readable only for
            its owner.
        key: The provider's key; redacted.
        token: The clients' token; redacted, because an agent may print its environment variables.
        max_bytes: The bytes after which the file is full, and `is_full` is true. Each call repeats
            its dialogue, so clients could otherwise fill the disk.

    Raises:
        UsageError: The file cannot be opened, or has reached its limit.
    """

    def __init__(self, path: str, key: str, token: str, max_bytes: int) -> None:
        self.path = path
        self._limit = max_bytes
        self._redactor = SecretRedactor()
        self._replacements = {json.dumps(key)[1:-1]: "[key]", token: "[token]"}
        self._lock = threading.Lock()
        try:
            open_flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, open_flags, 0o600), "a+b", buffering=0)
            file_size = self._file.seek(0, os.SEEK_END)
            if file_size and os.pread(self._file.fileno(), 1, file_size - 1) != b"\n":
                self._file.write(b"\n")  # end the last line, which a crash cut off
        except OSError as error:
            raise UsageError(f"--record {path}: cannot be written: {error.strerror}") from None
        self._size = file_size
        if self.is_full:
            self.close()
            raise UsageError(
                f"--record {path}: the file has {self._size} bytes, above the limit of "
                f"{max_bytes}: "
                "name another file, or raise --record-limit"
            )

    @property
    def is_full(self) -> bool:
        """Whether the file has reached its limit. The calls already running are still written."""
        return self._size >= self._limit

    def write(self, call: Call) -> None:
        """Append a call, with the secrets redacted.

        Raises:
            OSError: The write failed, for example because the disk is full.
        """
        line = json.dumps(self._redactor.dialogue(_call_record(call)))
        for secret, replacement in self._replacements.items():
            line = line.replace(secret, replacement) if secret else line
        data = memoryview(f"{line}\n".encode())
        with self._lock:
            self._size += len(data)
            while data:
                data = data[self._file.write(data) or 0 :]

    def close(self) -> None:
        """Close the file of calls."""
        self._file.close()


def _call_record(call: Call) -> dict[str, Any]:
    """Return a call as JSON data, with the field names of an episode's record in a run folder."""
    has_reply = call.text or call.tool_calls
    token_data = {
        name: getattr(call, name) for name in ("token_ids", "prompt_token_ids", "logprobs")
    }
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "protocol": call.protocol,
        "path": call.path,
        "model": call.model,
        "messages": [compact_message(message) for message in call.messages],
        "tools": list(call.tools),
        "reply": compact_message(Message("assistant", call.text, call.tool_calls))
        if has_reply
        else None,
        **asdict(call.usage),
        "cost": call.cost,
        "finish": call.finish,
        "cached": call.cached,
        "seconds": round(call.seconds, 6),
        "retries": call.retries,
        "status": call.status,
        "streamed": call.streamed,
        "error": call.error,
        **{name: list(value) for name, value in token_data.items() if value is not None},
    }


class CallLedger:
    """Totals of all calls, and the writer of the file of calls.

    Args:
        budget: The budget of the gateway, for the spending.
    """

    def __init__(self, budget: Budget) -> None:
        self.file: CallLog | None = None
        self.error: OSError | None = None
        """First error of writing a call; None: all calls have been written."""
        self.failed: Callable[[], None] = lambda: None
        """Function that runs after each failure to write a call."""
        self._budget = budget
        self._calls = self._cached_calls = self._errors = 0
        self._usage = Usage()
        self._is_priced = True
        self._lock = threading.Lock()

    def note(self, call: Call) -> None:
        """Add a call to the totals, and write it; a token count is only written.

        Raises:
            OSError: The call could not be written. The caller then sends the client nothing more.
        """
        with self._lock:
            self._calls += not call.is_count
            self._cached_calls += call.cached
            self._errors += bool(call.error) and not call.is_count
            if not call.cached:
                self._usage += call.usage
            self._is_priced = self._is_priced and (call.cost is not None or bool(call.error))
        if self.file is not None:
            try:
                self.file.write(call)
            except OSError as error:
                error.filename = self.file.path
                self.error = self.error or error
                self.failed()
                raise

    def is_full(self) -> bool:
        """Return whether the file of calls has reached its limit."""
        return self.file is not None and self.file.is_full

    def spent(self) -> dict[str, Any]:
        """Return the totals of all calls. A cost is None if the price of any call is unknown."""
        with self._lock:
            presumed_spending = self._budget.presumed_spending
            return {
                "calls": self._calls,
                "cached": self._cached_calls,
                "errors": self._errors,
                **asdict(self._usage),
                "cost": self._budget.spent.cost if self._is_priced else None,
                "presumed_tokens": presumed_spending.tokens,
                "presumed_cost": presumed_spending.cost if self._is_priced else None,
            }
