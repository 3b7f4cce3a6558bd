"""API keys and base URLs from environment variables or ``.env`` in the working directory.

No other source is read. The keys are passed to clients, which remove them from replies and errors.
`intercode.redaction` removes the keys from records.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from intercode.errors import UsageError
from intercode.secrets import FILE, dotenv


def find(name: str) -> str | None:
    """Return a variable's value from the environment, otherwise from ``.env``, otherwise None.

    An empty value counts as missing.

    Raises:
        UsageError: The value has characters that no key or URL has, such as a line break. Clients
            would escape these characters in messages, so redaction might miss the value.
    """
    value = os.environ.get(name, "").strip() or dotenv().get(name) or None
    if value and not (value.isascii() and value.isprintable()):
        raise UsageError(f"{name} has a character that no key contains, such as a line end")
    return value


def require(name: str, consumer: str) -> str:
    """Return a required key.

    Args:
        name: The environment variable.
        consumer: The model or feature that needs the key, for the message.

    Raises:
        UsageError: The key is missing or malformed.
    """
    if value := find(name):
        return value
    raise UsageError(f"{consumer} needs a key: set {name} in the environment or in {FILE}")


def check_url(url: str) -> str:
    """Validate a base URL, and return it without a trailing slash.

    The returned URL has no user, query or fragment. Output and records may therefore include the
    URL.

    Raises:
        UsageError: The text is not an HTTP URL, or its user, query or fragment may hold a secret.
    """
    try:
        url_parts = urlsplit(url)
        usable = url_parts.scheme in {"http", "https"} and bool(url_parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError("a base URL begins with http:// or https:// and a host")
    if (
        url_parts.username is not None
        or url_parts.password is not None
        or url_parts.query
        or url_parts.fragment
    ):
        raise UsageError(
            f"the base URL of {url_parts.hostname} has a user, a query or a fragment, which "
            f"would be recorded: put keys in the environment or in {FILE}"
        )
    return url.rstrip("/")
