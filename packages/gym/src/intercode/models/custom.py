"""User-defined clients, whose factory, methods and answers are validated.

A faulty factory is reported before any episode starts. If a call of a client fails permanently, the
episode that made the call ends as an error. The error names the user's class, not the agent.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from numbers import Integral
from typing import Any, get_args

from intercode.errors import InterCodeError, ModelError, UsageError
from intercode.models.base import (
    Answer,
    AttemptError,
    ClientFactory,
    Finish,
    ModelClient,
    Request,
    SupportsServerStart,
    TokenTrace,
    ToolCall,
    Usage,
)
from intercode_sandbox.interruption import is_handlers
from intercode_sandbox.user_code import describe_error

log = logging.getLogger(__name__)

_FACTORY = "a factory is called as factory(model, *, base_url, timeout)"
_CLIENT = "a client has the text 'endpoint' and the methods send(request) and close()"


def is_own(factory: object) -> bool:
    """Return whether a client factory is user-defined, not one of InterCode's."""
    module = getattr(factory, "__module__", None) or ""
    return module.partition(".")[0] != "intercode"


def make_client(
    factory: ClientFactory, provider: str, model: str, *, base_url: str | None, timeout: float
) -> ModelClient:
    """Construct a client by a user's factory, and validate it.

    Args:
        factory: The factory.
        provider: The factory's name, for error messages, such as ``path/to/file.py:make``.
        model: The model's name.
        base_url: The server's URL; None: the factory's default.
        timeout: Seconds for which the server may be silent.

    Raises:
        UsageError: The factory cannot be called or fails, or its result is not a client.
    """
    options: dict[str, Any] = {"base_url": base_url, "timeout": timeout}
    if flaw := _call_flaw(factory, model, **options):
        raise UsageError(f"model {provider}: {flaw}; {_FACTORY}")
    try:
        client = factory(model, **options)
        flaw = _client_flaw(client)
    except InterCodeError:
        raise
    except BaseException as error:
        if is_handlers(error):
            raise
        raise UsageError(f"model {provider} could not be made: {describe_error(error)}") from error
    if flaw:
        raise UsageError(f"model {provider}: {flaw}; {_CLIENT}")
    kind = CustomModelServer if isinstance(client, SupportsServerStart) else CustomModelClient
    return kind(client)


class CustomModelClient:
    """A wrapper of a user-defined client, which validates the client's answers.

    Args:
        client: The user's client.
    """

    def __init__(self, client: Any) -> None:
        self.endpoint: str = client.endpoint
        self._client = client
        self._name = type(client).__qualname__

    def __repr__(self) -> str:
        return repr(self._client)

    def send(self, request: Request) -> Answer:
        """Send one request; see `ModelClient.send`.

        Raises:
            AttemptError: The user's method reports a failure that a retry may repair.
            ModelError: The user's method failed, or did not return a valid `Answer`.
        """
        try:
            answer = self._client.send(request)
        except (InterCodeError, AttemptError):
            raise
        except BaseException as error:  # sys.exit() in a client ends the episode, not the run
            if is_handlers(error):
                raise
            raise ModelError(f"{self._name}.send raised {describe_error(error)}") from error
        if inspect.iscoroutine(answer):
            answer.close()
        if flaw := _answer_flaw(answer):
            raise ModelError(
                f"{self._name}.send must return an intercode.models.Answer(text, usage=Usage(…)): "
                f"{flaw}"
            )
        return Answer(
            answer.text,
            tuple(answer.tool_calls),
            answer.usage,
            answer.model,
            answer.finish,
            answer.trace,
        )

    def close(self) -> None:
        """Close the user's client.

        A failure is only logged, because all episodes are recorded at this time.
        """
        try:
            self._client.close()
        except BaseException as error:
            if is_handlers(error):
                raise
            log.warning("%s.close raised %s", self._name, describe_error(error))


class CustomModelServer(CustomModelClient):
    """A wrapper of a user-defined client that starts a server: a `SupportsServerStart`."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.weights: str = client.weights

    def start(self, calls: int = 1) -> None:
        """Start the server; see `SupportsServerStart.start`.

        Raises:
            UsageError: The user's method failed.
        """
        try:
            self._client.start(calls)
        except InterCodeError:
            raise
        except BaseException as error:
            if is_handlers(error):
                raise
            raise UsageError(f"{self._name}.start raised {describe_error(error)}") from error


def _call_flaw(function: Any, *arguments: object, **options: object) -> str:
    """Return the reason why a function cannot be called with arguments; empty: no reason."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return ""
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
    if any(
        test(candidate)
        for test in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        for candidate in (function, call)
    ):
        return f"{_name(function)} is async; write a plain function"
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        return f"{_name(function)}{signature} cannot be called: {error}"
    return ""


def _client_flaw(client: Any) -> str:
    """Return the reason why a factory's result is not a client; empty: the result is a client."""
    if client is None or isinstance(client, type):
        return f"the result must be a client, not {_describe_value(client)}"
    if inspect.iscoroutine(client):
        client.close()
        return f"the result must be a client, not {_describe_value(client)}"
    kind = type(client).__qualname__
    endpoint = getattr(client, "endpoint", None)
    if not isinstance(endpoint, str) or not endpoint:
        return f"{kind} has no text 'endpoint'"
    for name, arguments in (("send", (None,)), ("close", ())):
        method = getattr(client, name, None)
        if not callable(method):
            return f"{kind} has no method {name!r}"
        if flaw := _call_flaw(method, *arguments):
            return flaw
    if isinstance(client, SupportsServerStart):
        if not isinstance(client.weights, str):
            return f"{kind} has start(), but no text 'weights'"
        return _call_flaw(client.start, 1)
    return ""


def _answer_flaw(answer: Any) -> str:
    """Return the reason why a call's result is not a valid `Answer`; empty: the result is valid."""
    if not isinstance(answer, Answer):
        return f"it returned {_describe_value(answer)}"
    usage, calls = answer.usage, answer.tool_calls
    fields = {
        "text": isinstance(answer.text, str),
        "tool_calls": isinstance(calls, list | tuple) and all(map(_is_call, calls)),
        "usage": usage is None or (isinstance(usage, Usage) and _is_usage(usage)),
        "model": isinstance(answer.model, str),
        "finish": answer.finish in get_args(Finish),
        "trace": answer.trace is None or isinstance(answer.trace, TokenTrace),
    }
    field_name = next((name for name, is_right in fields.items() if not is_right), None)
    return (
        f"its {field_name} is {_describe_value(getattr(answer, field_name))}" if field_name else ""
    )


def _is_call(call: object) -> bool:
    return (
        isinstance(call, ToolCall)
        and isinstance(call.name, str)
        and isinstance(call.call_id, str)
        and isinstance(call.arguments, Mapping)
    )


def _is_usage(usage: Usage) -> bool:
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    return all(isinstance(count, Integral) and count >= 0 for count in counts)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _describe_value(value: object) -> str:
    """Return at most 100 characters of a value's ``repr``; if ``repr`` fails, the type's name."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - whatever a user's own class raises
        return f"{type(value).__qualname__}, whose repr() raised {type(error).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"
