"""Downloads of files by HTTP. The target file appears only if the download is complete.

If the caller gives a digest, the download is verified before the target file appears. With a
digest, an interrupted download continues after its last received byte.
"""

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
from intercode_sandbox.host_files import sha256 as digest

Progress = Callable[[int, "int | None"], None]
"""A callback that receives the number of received bytes, and the file's size (None: unknown)."""

_BLOCK = 1 << 20
_TENTHS = 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def tenth_progress(report_line: Callable[[str], None]) -> Progress:
    """Return a progress callback that reports a line of text after each 10 % of a download.

    If the size of the file is unknown, no line is reported.

    Args:
        report_line: The function that receives each line.
    """
    last_tenth = 0

    def progress(received_bytes: int, total: int | None) -> None:
        nonlocal last_tenth
        tenth = received_bytes * _TENTHS // total if total else 0
        if total and tenth > last_tenth:
            report_line(
                f"{received_bytes / 1e6:,.0f} of {total / 1e6:,.0f} MB "
                f"({100 * received_bytes // total} %)"
            )
        last_tenth = tenth

    return progress


class _InterruptedDownloadError(Exception):
    """An attempt at a download failed, but a further attempt may succeed."""


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
    """Download a file; on failure, `target` is neither created nor changed.

    After a broken connection, the next attempt continues after the last received byte, but only if
    the digest is known. Only the digest proves that the server's file is still the same.

    Args:
        url: The file's address, by HTTP or HTTPS.
        target: The path of the downloaded file.
        sha256: The required digest in hexadecimal; empty: no verification.
        progress: A callback that receives the number of received bytes and the file's size.
        resumable: Whether the received bytes stay in a file beside `target` when all attempts fail
            or the process ends. The next call then continues after these bytes. Needs `sha256`.
        attempts: The maximum number of attempts. A broken connection or a temporary error of the
            server leads to the next attempt.
        timeout: Seconds without a byte until the connection counts as broken.
        pause: Seconds before the second attempt; each further attempt waits twice as long.

    Raises:
        UsageError: The URL's scheme is not HTTP or HTTPS.
        FetchError: The file does not exist, is incomplete, is a web page, has another digest, or
            cannot be written.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url}: only http:// and https:// can be downloaded")
    partial_file = target.with_name(f".{target.name}.new")
    is_resumable = resumable and bool(sha256)
    try:
        for attempt in range(attempts):
            try:
                start = _size(partial_file) if sha256 and (is_resumable or attempt) else 0
                _receive(
                    url,
                    partial_file,
                    start,
                    progress or (lambda received_bytes, total: None),
                    timeout,
                )
                break
            except _InterruptedDownloadError as error:
                if attempt + 1 == attempts:
                    raise FetchError(f"{url}: {error}") from error
                time.sleep(pause * 2**attempt)
        if sha256 and (actual_digest := digest(partial_file)) != sha256.lower():
            is_resumable = False
            raise FetchError(
                f"{url}: has changed: SHA-256 is {actual_digest}, not {sha256}; if you trust the "
                "new file, pass its SHA-256 by --checksum"
            )
        partial_file.replace(target)
    finally:
        if not is_resumable:
            partial_file.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url: str, partial_file: Path, start: int, progress: Progress, timeout: float) -> None:
    """Make one attempt to download a file.

    Args:
        url: The file's address.
        partial_file: The file that receives the bytes.
        start: The number of bytes that `partial_file` already has. If the server ignores the
            requested range, the download starts again at the first byte.
        progress: A callback that receives the number of received bytes and the file's size.
        timeout: Seconds without a byte until the connection counts as broken.

    Raises:
        FetchError: A further attempt is useless.
        _InterruptedDownloadError: A further attempt may succeed.
    """
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
                start = 0  # the server ignored the range and sends the whole file
            length = response.headers.get("Content-Length") or ""
            total = start + int(length) if length.isdigit() else None
            with partial_file.open("ab" if start else "wb") as file:
                progress(start, total)
                while block := response.read(_BLOCK):
                    file.write(block)
                    progress(file.tell(), total)
                if total not in (None, file.tell()):
                    raise _InterruptedDownloadError(
                        f"the connection broke off at {file.tell()} of {total} bytes"
                    )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            # Status 416 after a range request: the file has no byte after `start`, so no byte is
            # missing. The caller verifies the digest.
            return
        if error.code < 500 and error.code not in (408, 425, 429):
            raise FetchError(f"{url}: {error.code} {error.reason}") from error
        raise _InterruptedDownloadError(f"{error.code} {error.reason}") from error
    except FetchError:
        raise
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise FetchError(f"cannot write {partial_file}: {error.strerror}") from error
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise _InterruptedDownloadError(str(reason)) from error
