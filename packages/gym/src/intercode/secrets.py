"""Known secrets: values of environment variables, and of variables in ``.env``, by their names.

A variable is secret if its name contains a word such as ``KEY`` or ``TOKEN``.
"""

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
"""The minimum length of a value that `hide` replaces. A shorter value, such as ``1``, occurs in
ordinary texts, and its replacement would make them unreadable."""


def parse_variables(text: str) -> dict[str, str]:
    r"""Parse the variables of an ``.env`` file.

    A line is ``NAME=value``, with or without ``export`` before the name. ``#`` begins a comment; in
    an unquoted value, only a ``#`` after a blank does. A value in ``'…'`` is literal; a value in
    ``"…"`` has escapes such as ``\n``. The parser expands no references to other variables. Any
    other line is ignored, because other tools may use the same file with a different syntax.

    Returns:
        Name → value.
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
    """Read the variables in the file ``.env`` of the working directory; empty if it is missing.

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
    """Return the environment variables and the variables in ``.env``.

    An environment variable overrides a variable in ``.env``. An unreadable ``.env`` is ignored.
    """
    try:
        return {**dotenv(), **os.environ}
    except UsageError:
        return dict(os.environ)


def secret_labels() -> dict[str, str]:
    """Return the known secrets and their replacements.

    Returns:
        Value of a secret variable → the variable's name in brackets.
    """
    return {value: f"[{name}]" for name, value in variables().items() if is_secret_name(name)}


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret, such as ``OPENAI_API_KEY``."""
    return _SECRET.search(name) is not None


def hide(text: str, *secrets: str) -> str:
    """Replace secrets in a text, such as the error message of a server that repeats a key.

    Args:
        text: The text.
        secrets: Secrets to replace in addition to the known secrets (`secret_labels`).
    """
    labels = secret_labels()
    labels.update((secret, "[key]") for secret in secrets if secret not in labels)
    # A secret may contain a shorter secret, so longer secrets are replaced first.
    for value in sorted(labels, key=len, reverse=True):
        if len(value.strip()) >= MIN_SECRET_LENGTH:
            text = text.replace(value, labels[value])
    return text


def hide_in(document: Any, secret: str) -> Any:
    """Return a server's response, given as JSON data, in which ``[key]`` replaces a secret."""
    if len(secret) < MIN_SECRET_LENGTH:
        return document
    if isinstance(document, str):
        return document.replace(secret, "[key]")
    if isinstance(document, list):
        return [hide_in(value, secret) for value in document]
    if isinstance(document, dict):
        return {name: hide_in(value, secret) for name, value in document.items()}
    return document
