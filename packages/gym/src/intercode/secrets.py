"""Known secrets: the values of secret environment variables, and of variables in ``.env``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from intercode.errors import UsageError

FILE = ".env"
_NAME = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|_PWD|CREDENTIAL", re.IGNORECASE)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}
MIN_SECRET_LENGTH = 6
"""The minimum length of a secret: hiding shorter values would make texts unreadable."""


def parse_variables(text: str) -> dict[str, str]:
    r"""Parse the variables of an ``.env`` file.

    A line is ``NAME=value``, with or without ``export``. ``#`` begins a comment, within an unquoted
    value only after a blank. ``'…'`` is literal; ``"…"`` has escapes such as ``\n``. The parser
    expands no variables. Other lines are ignored: the files of other tools may contain them.
    """
    values: dict[str, str] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        if match := _NAME.fullmatch(line.strip()):
            values[match[1]] = _value(match[2])
    return values


def _value(text: str) -> str:
    if match := re.match(r"'([^']*)'", text):
        return match[1]
    if match := re.match(r'"((?:[^"\\]|\\.)*)"', text):
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[1])
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()


def dotenv() -> dict[str, str]:
    """Read the variables of ``.env`` in the working directory; empty without the file.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        return parse_variables(Path(FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{FILE} cannot be read: {reason}") from None


def variables() -> dict[str, str]:
    """Return the environment variables, and those of a readable ``.env``, with lower priority."""
    try:
        return {**dotenv(), **os.environ}
    except UsageError:
        return dict(os.environ)


def secret_labels() -> dict[str, str]:
    """Return secret value → the variable's name in brackets."""
    return {value: f"[{name}]" for name, value in variables().items() if _SECRET.search(name)}


def hide(text: str, *secrets: str) -> str:
    """Replace these secrets in a text, and all secrets of the environment and ``.env``.

    A server may repeat a key in its error message.
    """
    labels = secret_labels()
    labels.update((secret, "[key]") for secret in secrets if secret not in labels)
    for value in sorted(labels, key=len, reverse=True):  # a secret may contain another
        if len(value.strip()) >= MIN_SECRET_LENGTH:
            text = text.replace(value, labels[value])
    return text


def hide_in(document: Any, secret: str) -> Any:
    """Replace a secret in a server's response, given as JSON data."""
    if len(secret) < MIN_SECRET_LENGTH:
        return document
    if isinstance(document, str):
        return document.replace(secret, "[key]")
    if isinstance(document, list):
        return [hide_in(value, secret) for value in document]
    if isinstance(document, dict):
        return {name: hide_in(value, secret) for name, value in document.items()}
    return document
