"""Shared code of the model clients: SDK imports, SDK errors, HTTP errors, parts of responses."""

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
from intercode.models.api_keys import find
from intercode.models.base import AttemptError, Finish, Usage
from intercode.secrets import FILE, hide, hide_in

CONNECT = 2.5
"""Timeout of a connection in seconds. TCP resends a lost packet after a second, so a connection
survives the loss of one packet."""
MAX_MESSAGE_LENGTH = 500
"""Maximum characters of a server's message in an error."""
RETRY_STATUSES = {408, 409, 425, 429}
"""HTTP statuses below 500 after which a call is retried. Statuses of 500 and above also lead to a
retry, unless the response shows that a retry is pointless (see `status_error`)."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _-]?(?:length|window|size|limit)"
    r"|prompt is too long|input is too long|maximum (?:prompt|input|model) length"
    r"|too many (?:input )?tokens|request_too_large",
    re.IGNORECASE,
)
"""The pattern of messages about a prompt that is too long, from OpenAI, vLLM, llama.cpp,
llama-cpp-python, Anthropic and others."""
_NO_MONEY = re.compile(
    r"insufficient_quota|billing_hard_limit|credit balance is too low", re.IGNORECASE
)
_NO_MODEL = re.compile(r"model_not_found|unknown model|no such model", re.IGNORECASE)
_CONTENT_REFUSAL = re.compile(r"moderation|flagged|content[ _-]?(?:filter|policy)", re.IGNORECASE)
"""The pattern of messages with status 403 that concern the request's text, not the key. OpenRouter,
for example, sends such messages."""
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
    """Return the name of a provider's SDK with the command that installs it, for messages."""
    return f"the package {name!r}: pip install 'intercode-gym[{name}]'"


def require_sdk(name: str, key: str, model: str) -> None:
    """Refuse to continue without a provider's SDK.

    Args:
        name: The package of the SDK.
        key: The environment variable with the key.
        model: The model, for messages.

    Raises:
        UsageError: The SDK is missing. If the key is not set either, the message names both.
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

    Args:
        name: The package of the SDK.
        consumer: The feature that needs the SDK, for the message.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{consumer} needs {package(name)} ({error})") from None


class SdkErrorTranslator(AbstractContextManager[None]):
    """A context that converts errors of OpenAI's or Anthropic's SDK into InterCode's errors.

    Both SDKs have error classes with equal names. The converted errors are not chained to the SDK's
    errors, because those hold the request and the response, and therefore the key. A context has no
    state, so threads may share one context.
    """

    def __init__(self, module: Any, key: str) -> None:
        self._module = module
        self._key = key

    def __repr__(self) -> str:
        return f"Errors({self._module.__name__})"

    def read(self, body: bytes) -> dict[str, Any]:
        """Parse the JSON object of a response, and redact the key, because replies are recorded.

        Raises:
            AttemptError: The body is not a JSON object.
        """
        response_body: dict[str, Any] = hide_in(load(body), self._key)
        return response_body

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
            is_lost = not _unsent(error)
            is_late = isinstance(error, module.APITimeoutError)
            message = "it did not answer in time" if is_late else self._cause(error)
            return AttemptError(message, charged=is_lost, unreachable=not is_lost)
        if isinstance(error, module.APIStatusError):
            response = error.response
            body = response.text or str(error)  # the responses that LiteLLM constructs have no body
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
    """Return whether the request cannot have reached the server.

    The provider then cannot charge for the call.
    """
    cause = error.__cause__
    return type(cause).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}


def status_error(status: int, headers: Mapping[str, str], body: str, secret: str = "") -> Exception:
    """Return the error for an HTTP status other than 2xx.

    Args:
        status: The status.
        headers: Headers by name, in lower case unless the mapping ignores case.
        body: The response's body.
        secret: The key of the request, which the error's message must not contain.

    Returns:
        A `ContextLengthError` if the prompt is too long; an `AttemptError` if a retry may succeed;
        a `ModelAccessError` if every request would fail; otherwise a `ModelError`.
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
    """Return advice for the user if every request with this account or model would fail.

    The advice is empty if other requests may succeed.
    """
    if status == 402 or _NO_MONEY.search(body):
        return _CHECK_MONEY
    if status == 404 or (status == 400 and _NO_MODEL.search(body)):
        return _CHECK_MODEL
    if status == 401:
        return _CHECK_KEY
    # A response with status 403 and an HTML page as its body comes from a firewall. Such a response
    # concerns only the content of this request.
    if status == 403 and _json(body) is not None and not _CONTENT_REFUSAL.search(body):
        return _CHECK_KEY
    return ""


def _json(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def extract_message(body: str) -> str:
    """Return the message in the body of an error response, in the format of any known server."""
    if (document := _json(body)) is None:
        return " ".join(body.split())
    for key in ("error", "message", "detail"):
        while isinstance(document, dict) and key in document:
            document = document[key]
    return document if isinstance(document, str) else json.dumps(document)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that a server asks a client to wait before a retry.

    Args:
        headers: The response's headers by name. ``retry-after-ms`` holds milliseconds;
            ``retry-after`` holds seconds or a date.
        now: The current Unix time in seconds; None: the time of the system's clock.

    Returns:
        The seconds, at least 0; None without a valid header.
    """
    if (milliseconds := _nonnegative_number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (seconds := _nonnegative_number(text)) is not None:
        return seconds
    try:
        retry_time = parsedate_to_datetime(text or "").timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, retry_time - (time.time() if now is None else now))


def _nonnegative_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def unusable_answer(reason: str) -> AttemptError:
    """Return the error for a response without a usable answer.

    The model has run, so the provider may charge for the call.
    """
    return AttemptError(reason, charged=True)


def load(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a response.

    Raises:
        AttemptError: The body is not a JSON object, for example because the body is truncated, or
            is a proxy's HTML page.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unusable_answer(f"the answer is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise unusable_answer(f"the answer is not a JSON object but a {type(document).__name__}")
    return document


def finish(reason: object, calls: bool) -> Finish:
    """Convert a server's reason for the end of a reply to one of InterCode's reasons.

    Args:
        reason: The server's reason; an unknown reason becomes ``stop``.
        calls: Whether the reply has tool calls.
    """
    finish_reason = _FINISH.get(str(reason).lower(), "stop")
    # Ollama and older versions of vLLM report "stop" even for a reply with tool calls.
    if calls and finish_reason == "stop":
        return "tool_calls"
    return "stop" if finish_reason == "tool_calls" and not calls else finish_reason


def arguments(value: object) -> Mapping[str, Any]:
    """Parse the arguments of a tool call.

    Args:
        value: A JSON object as a text (OpenAI), or a JSON object (Ollama).

    Returns:
        The arguments by name. If the arguments are invalid or too deeply nested, the only argument
        is ``_raw``, their text (empty if they cannot be encoded). The nesting is limited, because
        later steps are recursive.
    """
    if isinstance(value, str):
        if not is_flat(value):
            return {"_raw": value}
        try:
            # The parser is not strict, because with llama-cpp-python models may write unescaped
            # line ends in strings.
            parsed_arguments = json.loads(value, strict=False) if value.strip() else {}
        except (ValueError, RecursionError):
            return {"_raw": value}
        return parsed_arguments if isinstance(parsed_arguments, dict) else {"_raw": value}
    if value is None:
        return {}
    try:
        text = json.dumps(value)
    except RecursionError:
        return {"_raw": ""}
    return value if isinstance(value, dict) and is_flat(text) else {"_raw": text}


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON may escape but UTF-8 cannot encode."""
    if text.isascii():  # fast path: most texts are ASCII
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def extract_text(content: object) -> str:
    """Return the text of a message's content: a string, ``None``, or a list of parts.

    Raises:
        AttemptError: The content has another type.
    """
    if isinstance(content, str):
        return replace_surrogates(content)
    if isinstance(content, list):
        content_parts = (
            content_part if isinstance(content_part, dict) else {"text": content_part}
            for content_part in content
        )
        return replace_surrogates(
            "".join(
                content_part_["text"]
                for content_part_ in content_parts
                if isinstance(content_part_.get("text"), str)
            )
        )
    if content is None:
        return ""
    raise unusable_answer(f"the answer's content is a {type(content).__name__}")


def extract_model(response_body: Mapping[str, Any]) -> str:
    """Return the name of the model that answered; empty if the answer has none."""
    model = response_body.get("model")
    return model if isinstance(model, str) else ""


def usage(counts: object, prompt: str, reply: str) -> Usage | None:
    """Return the token counts of a response of OpenAI's protocols; ``None``: not reported.

    Args:
        counts: The field ``usage`` of a response.
        prompt: The field with the prompt's tokens; ``NAME_details`` holds the cached tokens.
        reply: The field with the reply's tokens.
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
    """Return a token count; ``None`` if it is missing or not a non-negative integer."""
    count = usage.get(name)
    known = isinstance(count, int) and not isinstance(count, bool) and count >= 0
    return count if known else None
