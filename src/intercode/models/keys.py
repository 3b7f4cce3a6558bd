"""Secrets: from the environment, or from ``.env`` in the working directory; from nowhere else.

They are handed to the clients, and kept out of all output and records.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from intercode.errors import UsageError

FILE = ".env"
_NAME = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}
SHORTEST = 6
"""The least length of a secret: hiding shorter values would tear texts apart."""


def parse(text: str) -> dict[str, str]:
    r"""Parse the variables of an ``.env`` file.

    ``NAME=value``, with or without ``export``; ``#`` begins a comment, within an unquoted value
    only after a blank; ``'…'`` is taken as it is, ``"…"`` with escapes such as ``\n``. Nothing is
    expanded. Other lines are ignored, as the files of other tools may have them.
    """
    found: dict[str, str] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        if match := _NAME.fullmatch(line.strip()):
            found[match[1]] = _value(match[2])
    return found


def _value(text: str) -> str:
    if match := re.match(r"'([^']*)'", text):
        return match[1]
    if match := re.match(r'"((?:[^"\\]|\\.)*)"', text):
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[1])
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()


def _file() -> dict[str, str]:
    try:
        return parse(Path(FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{FILE} cannot be read: {reason}") from None


def find(name: str) -> str | None:
    """Return a variable's value, from the environment or else from ``.env``; ``None`` if empty.

    Raises:
        UsageError: The value cannot be a key or URL, and in a client's messages it would be
            hard to find and hide.
    """
    value = os.environ.get(name, "").strip() or _file().get(name) or None
    if value and not (value.isascii() and value.isprintable()):
        raise UsageError(f"{name} has a character in it that is none of a key: a line's end?")
    return value


def require(name: str, what: str) -> str:
    """Return a key that must be there.

    Raises:
        UsageError: The key is missing.
    """
    if value := find(name):
        return value
    raise UsageError(f"{what} needs a key: set {name} in the environment or in {FILE}")


def hide(text: str, *secrets: str) -> str:
    """Remove these secrets from a text, and all those of the environment and ``.env``.

    A server may repeat a key in its error message.
    """
    try:
        variables = {**_file(), **os.environ}
    except UsageError:
        variables = dict(os.environ)
    named = {value: f"[{name}]" for name, value in variables.items() if _SECRET.search(name)}
    named.update((secret, "[key]") for secret in secrets if secret not in named)
    for value in sorted(named, key=len, reverse=True):  # one may hold another
        if len(value.strip()) >= SHORTEST:
            text = text.replace(value, named[value])
    return text


def hide_in(data: Any, secret: str) -> Any:
    """Remove a secret from a server's answer, given as JSON data."""
    if len(secret) < SHORTEST:
        return data
    if isinstance(data, str):
        return data.replace(secret, "[key]")
    if isinstance(data, list):
        return [hide_in(value, secret) for value in data]
    if isinstance(data, dict):
        return {name: hide_in(value, secret) for name, value in data.items()}
    return data


def check_url(url: str) -> str:
    """Return a base URL, without a slash at its end, that may be shown and recorded.

    Raises:
        UsageError: The text is not a URL, or may hold a secret.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError("a base URL begins with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError(
            f"the base URL of {parts.hostname} has a user, a query or a fragment, which would be "
            f"recorded: put keys in the environment or in {FILE}"
        )
    return url.rstrip("/")
