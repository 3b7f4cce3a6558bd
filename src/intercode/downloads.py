"""Downloads of files by HTTP: whole and checked, or not there."""

from __future__ import annotations

import errno
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from intercode.errors import FetchError, UsageError
from intercode.files import replaced
from intercode.files import sha256 as digest

Progress = Callable[[int, "int | None"], None]
"""Receives the number of bytes that have come, and of all bytes, if that is known."""

_BLOCK = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class _BrokenOffError(Exception):
    """A failure that may pass."""


def download(
    url: str,
    target: Path,
    *,
    sha256: str = "",
    progress: Progress | None = None,
    attempts: int = 5,
    timeout: float = 60.0,
    pause: float = 1.0,
) -> None:
    """Download a file, which is then whole and checked, or not there.

    Args:
        url: Its address, by HTTP or HTTPS.
        target: Its place.
        sha256: The digest that it must have, in hexadecimal; empty: any.
        progress: Called with the bytes that have come.
        attempts: The number of attempts, if the connection breaks or the server is in trouble.
        timeout: Seconds without a byte, before the connection counts as broken.
        pause: Seconds before the second attempt; each further one waits twice as long.

    Raises:
        UsageError: The URL is not one of HTTP's.
        FetchError: It is not there, does not come whole, or is something else.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url}: only http:// and https:// can be downloaded")
    with replaced(target) as part:
        for attempt in range(attempts):
            try:
                _receive(url, part, progress or (lambda done, total: None), timeout)
                break
            except _BrokenOffError as error:
                if attempt + 1 == attempts:
                    raise FetchError(f"{url}: {error}") from error
                time.sleep(pause * 2**attempt)
        if sha256 and (found := digest(part)) != sha256.lower():
            raise FetchError(
                f"{url}: is not what it was: SHA-256 is {found}, not {sha256}; if the "
                "authors have changed it and you trust that, say so by --checksum"
            )


def _receive(url: str, part: Path, progress: Progress, timeout: float) -> None:
    """Make one attempt to download a file."""
    headers = {"User-Agent": "intercode", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response, part.open("wb") as file:
            if "text/html" in response.headers.get("Content-Type", ""):
                raise FetchError(
                    f"{url}: what came is a web page, not an archive; open it in a browser"
                )
            length = response.headers.get("Content-Length") or ""
            total = int(length) if length.isdigit() else None
            progress(0, total)
            while block := response.read(_BLOCK):
                file.write(block)
                progress(file.tell(), total)
            if total not in (None, file.tell()):
                raise _BrokenOffError(f"the connection broke off at {file.tell()} of {total} bytes")
    except urllib.error.HTTPError as error:
        error.close()
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
