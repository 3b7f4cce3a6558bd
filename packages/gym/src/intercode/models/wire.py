"""Code that the protocols share: SDKs and their errors, HTTP refusals, and parts of answers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from types import ModuleType, TracebackType
from typing import Any

from intercode.errors import ContextLengthError, ModelAccessError, ModelError, UsageError
from intercode.json_limits import is_flat
from intercode.models.base import AttemptError, Finish, Usage
from intercode.models.keys import find
from intercode.secrets import FILE, hide, hide_in

CONNECT = 2.5
"""Seconds in which a server must be reached: one lost packet is sent again after one."""
MAX_MESSAGE_LENGTH = 500
"""Characters of a server's message that are kept."""
RETRY_STATUSES = {408, 409, 425, 429}
"""Statuses below 500 after which a call is repeated, as after all others from 500."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _-]?(?:length|window|size|limit)"
    r"|prompt is too long|input is too long|maximum (?:prompt|input|model) length"
    r"|too many (?:input )?tokens|request_too_large",
    re.IGNORECASE,
)
"""The words of OpenAI, vLLM, llama.cpp, llama-cpp-python, Anthropic, and their imitators."""
_NO_MONEY = re.compile(
    r"insufficient_quota|billing_hard_limit|credit balance is too low", re.IGNORECASE
)
_NO_MODEL = re.compile(r"model_not_found|unknown model|no such model", re.IGNORECASE)
_CONTENT_REFUSAL = re.compile(r"moderation|flagged|content[ _-]?(?:filter|policy)", re.IGNORECASE)
"""A 403 that concerns the text of the request, as OpenRouter sends it."""
_CHECK_KEY = "check the key, in the environment or in .env"
_CHECK_MODEL = "check the model's name and the base URL"
_CHECK_MONEY = "the account has no money left, or may spend no more"

_FINISH: dict[str, Finish] = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("model_context_window_exceeded", "limit"), "length"),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(("content_filter", "safety", "refusal"), "filter"),
}


def package(name: str) -> str:
    """Return how to install a provider's SDK, for messages."""
    return f"the package {name!r}: pip install 'intercode-gym[{name}]'"


def require_sdk(name: str, key: str, model: str) -> None:
    """Check that a provider's SDK is installed.

    Args:
        name: The package of the SDK.
        key: The variable that has the key.
        model: The model, for messages.

    Raises:
        UsageError: The SDK is missing: the message names the key, too, if it is not set.
    """
    if importlib.util.find_spec(name) is not None:
        return
    if find(key):
        raise UsageError(f"{model} needs {package(name)}")
    raise UsageError(
        f"{model} needs {package(name)}, and a key: set {key} in the environment or in {FILE}"
    )


def sdk(name: str, consumer: str) -> ModuleType:
    """Import a provider's SDK.

    Raises:
        UsageError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{consumer} needs {package(name)} ({error})") from None


class Errors(AbstractContextManager[None]):
    """Turns the errors of OpenAI's SDK, and of Anthropic's, which is its twin, into ours.

    Ours are not chained to theirs, which hold requests and responses, and so keys. A context has
    no state, so threads may share one.
    """

    def __init__(self, module: Any, key: str) -> None:
        self._module = module
        self._key = key

    def __repr__(self) -> str:
        return f"Errors({self._module.__name__})"

    def read(self, body: bytes) -> dict[str, Any]:
        """Parse the JSON object of a response, without our key, as a reply is recorded.

        Raises:
            AttemptError: The body is not a JSON object.
        """
        data: dict[str, Any] = hide_in(load(body), self._key)
        return data

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if translated_error := self._translate(error):
            raise translated_error from None

    def _translate(self, error: BaseException | None) -> Exception | None:
        module = self._module
        if isinstance(error, UnicodeEncodeError):
            return ModelError("the request cannot be encoded: it contains half a surrogate pair")
        if isinstance(error, module.APIConnectionError):
            lost = not _unsent(error)
            late = isinstance(error, module.APITimeoutError)
            message = "it did not answer in time" if late else self._cause(error)
            return AttemptError(message, charged=lost, unreachable=not lost)
        if isinstance(error, module.APIStatusError):
            response = error.response
            body = response.text or str(error)  # LiteLLM makes up responses without a body
            return status_error(response.status_code, response.headers, body, self._key)
        if isinstance(error, module.APIError):
            return AttemptError(self._redact(error), charged=True)
        if isinstance(error, getattr(module, "OpenAIError", None) or module.AnthropicError):
            return ModelError(self._redact(error))
        return None

    def _cause(self, error: BaseException) -> str:
        cause = error.__cause__ or error
        return f"no connection, or it broke: {self._redact(cause) or type(cause).__name__}"

    def _redact(self, error: BaseException) -> str:
        return hide(str(error), self._key)[:MAX_MESSAGE_LENGTH]


def _unsent(error: BaseException) -> bool:
    """Whether the server cannot have seen the request, so that it cannot charge for it."""
    cause = error.__cause__
    return type(cause).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}


def status_error(status: int, headers: Mapping[str, str], body: str, secret: str = "") -> Exception:
    """Return the error that an HTTP status other than 2xx stands for.

    Args:
        status: The status.
        headers: Headers by name, in lower case unless the mapping ignores case.
        body: The response's body.
        secret: The key that was sent; it is removed from the message.
    """
    message = hide(extract_message(body), secret)[:MAX_MESSAGE_LENGTH]
    reason = f"HTTP {status}" + (f": {message}" if message else "")
    if status in {400, 413, 422, 500} and _TOO_LONG.search(body):
        return ContextLengthError(reason)
    final = _NO_MONEY.search(body) or headers.get("x-should-retry") == "false"
    if (status in RETRY_STATUSES or status >= 500) and not final:
        return AttemptError(reason, retry_after=retry_after(headers), throttled=status == 429)
    if advice := _access_advice(status, body):
        return ModelAccessError(f"{reason} ({advice})")
    return ModelError(reason)


def _access_advice(status: int, body: str) -> str:
    """Return advice where every other request would be refused, too; empty if it might not."""
    if status == 402 or _NO_MONEY.search(body):
        return _CHECK_MONEY
    if status == 404 or (status == 400 and _NO_MODEL.search(body)):
        return _CHECK_MODEL
    if status == 401:
        return _CHECK_KEY
    # A firewall's 403 is a page, and concerns something in this one request.
    if status == 403 and _json(body) is not None and not _CONTENT_REFUSAL.search(body):
        return _CHECK_KEY
    return ""


def _json(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def extract_message(body: str) -> str:
    """Return the message in an error's body, in the form of any known server."""
    if (data := _json(body)) is None:
        return " ".join(body.split())
    for key in ("error", "message", "detail"):
        while isinstance(data, dict) and key in data:
            data = data[key]
    return data if isinstance(data, str) else json.dumps(data)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds of ``Retry-After`` (seconds or a date) or ``retry-after-ms``."""
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


def unusable_answer(reason: str) -> AttemptError:
    """Return the error of an answer that makes no sense. The model has worked for it."""
    return AttemptError(reason, charged=True)


def load(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a response.

    Raises:
        AttemptError: The body is something else: cut off, or a proxy's page.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unusable_answer(f"the answer is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise unusable_answer(f"the answer is not a JSON object but a {type(data).__name__}")
    return data


def finish(reason: object, calls: bool) -> Finish:
    """Translate a server's reason why a reply ended."""
    finish_reason = _FINISH.get(str(reason).lower(), "stop")
    if (
        calls and finish_reason == "stop"
    ):  # Ollama and older vLLM say "stop" even where tools are called
        return "tool_calls"
    return "stop" if finish_reason == "tool_calls" and not calls else finish_reason


def arguments(value: object) -> Mapping[str, Any]:
    """Parse a call's arguments: JSON as a text (OpenAI), or an object (Ollama).

    Of what nests too deep only the text is returned: it is the model's, and later steps recurse.
    """
    if isinstance(value, str):
        if not is_flat(value):
            return {"_raw": value}
        try:
            # Not strict: llama-cpp-python lets models put line ends of their own into it.
            data = json.loads(value, strict=False) if value.strip() else {}
        except (ValueError, RecursionError):
            return {"_raw": value}
        return data if isinstance(data, dict) else {"_raw": value}
    if value is None:
        return {}
    try:
        text = json.dumps(value)
    except RecursionError:
        return {"_raw": ""}
    return value if isinstance(value, dict) and is_flat(text) else {"_raw": text}


def replace_surrogates(text: str) -> str:
    """Replace halves of characters, which JSON may escape, but which cannot be sent or written."""
    if text.isascii():  # quick, and mostly so
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def extract_text(content: object) -> str:
    """Return the text of a message's content: a string, ``None``, or a list of parts."""
    if isinstance(content, str):
        return replace_surrogates(content)
    if isinstance(content, list):
        parts = (part if isinstance(part, dict) else {"text": part} for part in content)
        return replace_surrogates(
            "".join(p["text"] for p in parts if isinstance(p.get("text"), str))
        )
    if content is None:
        return ""
    raise unusable_answer(f"the answer's content is a {type(content).__name__}")


def extract_model(data: Mapping[str, Any]) -> str:
    """Return the name of the model that answered; empty if the answer has none."""
    model = data.get("model")
    return model if isinstance(model, str) else ""


def usage(counts: object, prompt: str, reply: str) -> Usage | None:
    """Read the tokens of OpenAI's protocols; ``None`` where the server does not state them.

    Args:
        counts: The field ``usage`` of an answer.
        prompt: The name of the prompt's tokens; ``NAME_details`` has those of the cache.
        reply: The name of the reply's tokens.
    """
    if not isinstance(counts, dict):
        return None
    input_tokens, output_tokens = tokens(counts, prompt), tokens(counts, reply)
    if input_tokens is None or output_tokens is None:
        return None
    details = counts.get(f"{prompt}_details")
    cached_tokens = tokens(details, "cached_tokens") if isinstance(details, dict) else 0
    return Usage(input_tokens, output_tokens, min(cached_tokens or 0, input_tokens))


def tokens(usage: Mapping[str, Any], name: str) -> int | None:
    """Return a count of tokens; ``None`` where there is none."""
    count = usage.get(name)
    known = isinstance(count, int) and not isinstance(count, bool) and count >= 0
    return count if known else None
