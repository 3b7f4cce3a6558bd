"""What a server's refusal means: try again, too long, or no for good."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from intercode.errors import ContextLengthError, ModelAccessError, ModelError
from intercode.models import keys
from intercode.models.client import AttemptError

AGAIN = {408, 409, 425, 429}
"""Statuses to try again after, besides all from 500."""
LONGEST = 500
"""Characters of a server's message that are kept."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _-]?(?:length|window|size|limit)"
    r"|prompt is too long|input is too long|maximum (?:prompt|input|model) length"
    r"|too many (?:input )?tokens|request_too_large",
    re.IGNORECASE,
)
"""OpenAI, vLLM, llama.cpp, llama-cpp-python, Anthropic, and those who speak like them."""
_NO_MONEY = re.compile(
    r"insufficient_quota|billing_hard_limit|credit balance is too low", re.IGNORECASE
)
_NO_MODEL = re.compile(r"model_not_found|unknown model|no such model", re.IGNORECASE)
_OF_THE_TEXT = re.compile(r"moderation|flagged|content[ _-]?(?:filter|policy)", re.IGNORECASE)
"""A 403 that is about what was said, as OpenRouter has it."""

KEY = "check the key, in the environment or in .env"
MODEL = "check the model's name and the base URL"
MONEY = "the account has no money left, or may spend no more"


def judge(status: int, headers: Mapping[str, str], body: str, secret: str = "") -> Exception:
    """The error that an HTTP status other than 2xx is.

    Args:
        status: The status.
        headers: By name, in any case if the mapping does not mind case, else in lower case.
        body: The response's.
        secret: The key that was sent; not to be said back.
    """
    message = keys.hide(message_of(body), secret)[:LONGEST]
    said = f"HTTP {status}" + (f": {message}" if message else "")
    if status in {400, 413, 422, 500} and _TOO_LONG.search(body):
        return ContextLengthError(said)
    final = _NO_MONEY.search(body) or headers.get("x-should-retry") == "false"
    if (status in AGAIN or status >= 500) and not final:
        return AttemptError(said, retry_after=retry_after(headers), throttled=status == 429)
    if advice := _same_for_all(status, body):
        return ModelAccessError(f"{said} ({advice})")
    return ModelError(said)


def _same_for_all(status: int, body: str) -> str:
    """What to do where every other request would be refused, too; empty if it might not."""
    if status == 402 or _NO_MONEY.search(body):
        return MONEY
    if status == 404 or (status == 400 and _NO_MODEL.search(body)):
        return MODEL
    if status == 401:
        return KEY
    # A firewall's 403 is a page, and about something in this one request.
    if status == 403 and _is_json(body) and not _OF_THE_TEXT.search(body):
        return KEY
    return ""


def _is_json(body: str) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def message_of(body: str) -> str:
    """What an error's body says: as OpenAI, Anthropic, vLLM, Ollama, FastAPI or nobody has it."""
    try:
        data: Any = json.loads(body)
    except ValueError:
        return " ".join(body.split())
    for key in ("error", "message", "detail"):
        while isinstance(data, dict) and key in data:
            data = data[key]
    return data if isinstance(data, str) else json.dumps(data)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds to wait, from ``Retry-After`` (seconds or a date) or ``retry-after-ms``."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(text or "").timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
