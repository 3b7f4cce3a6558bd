"""Downloading one file: gone on with where it broke off, checked, and only then named.

While it comes it is ``TARGET.part``; beside it, ``TARGET.part.json`` says which version of which
file that is a part of, so that two versions are never put together.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from intercode import files
from intercode.errors import FetchError, UsageError

Progress = Callable[[int, "int | None"], None]
"""Is told how many bytes there are, of how many."""

_BLOCK = 1 << 18
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class _BrokenOffError(Exception):
    """It came to nothing this time, for a reason that may pass."""


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
    """Download a file, or go on with that.

    Args:
        url: Where it is, by HTTP or HTTPS.
        target: What it is to be called when it is whole.
        sha256: What it must be, in hexadecimal; empty: anything.
        progress: Is told how it goes.
        attempts: How often to go on when the connection breaks.
        timeout: Seconds in which nothing comes, before that counts as broken.
        pause: Seconds before the second attempt; each further one waits twice as long.

    Raises:
        UsageError: The URL is none of HTTP's.
        FetchError: It is not there, does not come whole, or is something else. What has come of
            it is kept in the part, unless it was something else.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url}: only http:// and https:// can be downloaded")
    part = target.with_name(f"{target.name}.part")
    for attempt in range(1, attempts + 1):
        try:
            _go_on(url, part, progress or (lambda done, total: None), timeout)
            break
        except _BrokenOffError as error:
            if attempt == attempts:
                kept = part.stat().st_size if _validator(url, part) else 0
                advice = f"; {kept} bytes are kept to go on with" if kept else ""
                raise FetchError(f"{url}: {error}{advice}") from error
            time.sleep(pause * 2 ** (attempt - 1))
    _check(url, part, sha256)
    part.replace(target)
    _record(part).unlink(missing_ok=True)


def _go_on(url: str, part: Path, progress: Progress, timeout: float) -> None:
    """One attempt: ask for what is missing, and add it."""
    headers = {"User-Agent": "intercode", "Accept-Encoding": "identity"}
    here = 0
    if validator := _validator(url, part):
        here = part.stat().st_size
        # If it is another version by now, the server answers with all of it.
        headers |= {"Range": f"bytes={here}-", "If-Range": validator}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            _receive(url, response, part, here, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # there is no such rest: begin anew
            part.unlink(missing_ok=True)
        elif error.code < 500 and error.code not in (408, 425, 429):
            raise FetchError(f"{url}: {error.code} {error.reason}") from error
        raise _BrokenOffError(f"{error.code} {error.reason}") from error
    except FetchError:
        raise
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise FetchError(f"cannot write {part}: {error.strerror}") from error
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise _BrokenOffError(str(reason)) from error


def _receive(url: str, response: Any, part: Path, here: int, progress: Progress) -> None:
    if "text/html" in response.headers.get("Content-Type", ""):
        raise FetchError(f"{url}: what came is a web page, not an archive; open it in a browser")
    total = _total(response, here)
    if response.status != 206:
        here = 0
        _note(url, part, response)
    with part.open("ab" if here else "wb") as file:
        progress(here, total)
        while block := response.read(_BLOCK):
            file.write(block)
            here += len(block)
            progress(here, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and here != total:
        raise _BrokenOffError(f"the connection broke off at {here} of {total} bytes")


def _total(response: Any, here: int) -> int | None:
    """The whole file's size, if the server tells it."""
    if response.status == 206:
        match = _RANGE.match(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != here:
            raise FetchError("the server answers with another part of the file than was asked for")
        return None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length")
    return int(length) if length and length.isdigit() else None


def _record(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _note(url: str, part: Path, response: Any) -> None:
    """Write down which version it is that begins to come."""
    part.unlink(missing_ok=True)
    tag = response.headers.get("ETag", "")
    # A weak tag says that the content means the same, not that it has the same bytes.
    validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
    _record(part).write_text(json.dumps({"url": url, "validator": validator}), encoding="utf-8")


def _validator(url: str, part: Path) -> str | None:
    """What tells the version that there is a part of; None if there is nothing to go on with."""
    try:
        record = json.loads(_record(part).read_text(encoding="utf-8"))
        known = part.stat().st_size > 0 and record["url"] == url
        return record["validator"] if known else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check(url: str, part: Path, sha256: str) -> None:
    if not sha256:
        return
    if (found := files.sha256(part)) != sha256.lower():
        part.unlink()
        raise FetchError(
            f"{url}: is not what it was: SHA-256 is {found}, not {sha256}; if the "
            "authors have changed it and you trust that, say so by --checksum"
        )
