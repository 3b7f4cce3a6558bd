"""Downloads of files by HTTP: whole and checked, or not there; a broken one is continued."""

from __future__ import annotations

import errno
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from intercode.errors import FetchError, UsageError
from intercode_sandbox.files import sha256 as digest

Progress = Callable[[int, "int | None"], None]
"""Receives the number of bytes that have come, and of all bytes, if that is known."""

_BLOCK = 1 << 20
_TENTHS = 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def tenth_progress(say: Callable[[str], None]) -> Progress:
    """Return a progress that says a line at each tenth of a download whose size is known."""
    last_tenth = 0

    def progress(received_bytes: int, total: int | None) -> None:
        nonlocal last_tenth
        tenth = received_bytes * _TENTHS // total if total else 0
        if total and tenth > last_tenth:
            say(
                f"{received_bytes / 1e6:,.0f} of {total / 1e6:,.0f} MB "
                f"({100 * received_bytes // total} %)"
            )
        last_tenth = tenth

    return progress


class _BrokenOffError(Exception):
    """A failure that may pass."""


def download(
    url: str,
    target: Path,
    *,
    sha256: str = "",
    progress: Progress | None = None,
    resumable: bool = False,
    attempts: int = 5,
    timeout: float = 60.0,
    pause: float = 1.0,
) -> None:
    """Download a file, which is then whole and checked, or not there.

    Where the connection breaks, the next attempt continues at that byte if the digest is known:
    only the digest tells that the server's file has stayed the same.

    Args:
        url: Its address, by HTTP or HTTPS.
        target: Its place.
        sha256: The digest that it must have, in hexadecimal; empty: any.
        progress: Called with the bytes that have come.
        resumable: Whether bytes that have come stay beside `target` when all attempts fail or the
            process ends, so that the next call continues there. Needs `sha256`.
        attempts: The number of attempts, if the connection breaks or the server is in trouble.
        timeout: Seconds without a byte, before the connection counts as broken.
        pause: Seconds before the second attempt; each further one waits twice as long.

    Raises:
        UsageError: The URL is not one of HTTP's.
        FetchError: It is not there, does not come whole, or is something else.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url}: only http:// and https:// can be downloaded")
    part = target.with_name(f".{target.name}.new")
    keeps = resumable and bool(sha256)
    try:
        for attempt in range(attempts):
            try:
                start = _size(part) if sha256 and (keeps or attempt) else 0
                _receive(
                    url, part, start, progress or (lambda received_bytes, total: None), timeout
                )
                break
            except _BrokenOffError as error:
                if attempt + 1 == attempts:
                    raise FetchError(f"{url}: {error}") from error
                time.sleep(pause * 2**attempt)
        if sha256 and (actual_digest := digest(part)) != sha256.lower():
            keeps = False
            raise FetchError(
                f"{url}: has changed: SHA-256 is {actual_digest}, not {sha256}; if you trust the "
                "new file, pass its SHA-256 by --checksum"
            )
        part.replace(target)
    finally:
        if not keeps:
            part.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url: str, part: Path, start: int, progress: Progress, timeout: float) -> None:
    """Make one attempt to download a file, from this byte on if the server can."""
    headers = {"User-Agent": "intercode", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if "text/html" in response.headers.get("Content-Type", ""):
                raise FetchError(
                    f"{url}: the download is a web page, not an archive; open it in a browser"
                )
            if response.status != HTTPStatus.PARTIAL_CONTENT:
                start = 0  # the server sends all of it
            length = response.headers.get("Content-Length") or ""
            total = start + int(length) if length.isdigit() else None
            with part.open("ab" if start else "wb") as file:
                progress(start, total)
                while block := response.read(_BLOCK):
                    file.write(block)
                    progress(file.tell(), total)
                if total not in (None, file.tell()):
                    raise _BrokenOffError(
                        f"the connection broke off at {file.tell()} of {total} bytes"
                    )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # no byte is missing; the digest tells whether the bytes are right
        if error.code < 500 and error.code not in (408, 425, 429):
            raise FetchError(f"{url}: {error.code} {error.reason}") from error
        raise _BrokenOffError(f"{error.code} {error.reason}") from error
    except FetchError:
        raise
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise FetchError(f"cannot write {part}: {error.strerror}") from error
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise _BrokenOffError(str(reason)) from error
