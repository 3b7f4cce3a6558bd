"""Secrets: from the environment, or from ``.env`` in the working directory; from nowhere else.

They are handed to the clients; `intercode.redaction` keeps them out of all output and records.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from intercode.errors import UsageError
from intercode.secrets import FILE, dotenv


def find(name: str) -> str | None:
    """Return a variable's value, from the environment or else from ``.env``; ``None`` if empty.

    Raises:
        UsageError: The value cannot be a key or URL, and in a client's messages it would be
            hard to find and hide.
    """
    value = os.environ.get(name, "").strip() or dotenv().get(name) or None
    if value and not (value.isascii() and value.isprintable()):
        raise UsageError(f"{name} has a character that no key contains, such as a line end")
    return value


def require(name: str, consumer: str) -> str:
    """Return a key that must be there.

    Raises:
        UsageError: The key is missing.
    """
    if value := find(name):
        return value
    raise UsageError(f"{consumer} needs a key: set {name} in the environment or in {FILE}")


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
