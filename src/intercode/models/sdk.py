"""The providers' own clients: imported when first used, and their errors in our terms."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any

from intercode.errors import ModelError, UsageError
from intercode.models import keys, refusal
from intercode.models.client import AttemptError
from intercode.models.decoding import load as load_json

CONNECT = 10.0
"""Seconds in which a server must be reached."""


def load(name: str, what: str) -> ModuleType:
    """A provider's client.

    Raises:
        UsageError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{what} needs the package {name!r}: pip install 'intercode-gym[{name}]' ({error})"
        ) from None


class Errors(AbstractContextManager[None]):
    """Turns the errors of OpenAI's client, and of Anthropic's, which is its twin, into ours.

    They are raised anew and not chained: theirs hold requests and responses, keys among them.
    It keeps no state, so threads may share one.
    """

    def __init__(self, module: Any, key: str) -> None:
        self._module = module
        self._key = key

    def __repr__(self) -> str:
        return f"Errors({self._module.__name__})"

    def read(self, body: bytes) -> dict[str, Any]:
        """The JSON object of a response, without our key: a reply is recorded.

        Raises:
            AttemptError: It is none.
        """
        data: dict[str, Any] = keys.hide_in(load_json(body), self._key)
        return data

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if found := self._ours(error):
            raise found from None

    def _ours(self, error: BaseException | None) -> Exception | None:
        module = self._module
        if isinstance(error, UnicodeEncodeError):
            return ModelError("the request is no text: it has half a character in it")
        if isinstance(error, module.APITimeoutError):  # a connection error, too
            lost = not _unsent(error)
            return AttemptError("it did not answer in time", charged=lost, unreachable=not lost)
        if isinstance(error, module.APIConnectionError):
            lost = not _unsent(error)
            return AttemptError(self._cause(error), charged=lost, unreachable=not lost)
        if isinstance(error, module.APIStatusError):
            response = error.response
            body = response.text or str(error)  # LiteLLM makes up responses without a body
            return refusal.judge(response.status_code, response.headers, body, self._key)
        if isinstance(error, module.APIError):
            return AttemptError(self._clean(error), charged=True)
        if isinstance(error, _base(module)):
            return ModelError(self._clean(error))
        return None

    def _cause(self, error: BaseException) -> str:
        cause = error.__cause__ or error
        return f"no connection, or it broke: {self._clean(cause) or type(cause).__name__}"

    def _clean(self, error: BaseException) -> str:
        return keys.hide(str(error), self._key)[: refusal.LONGEST]


def _base(module: Any) -> Any:
    return getattr(module, "OpenAIError", None) or module.AnthropicError


def _unsent(error: BaseException) -> bool:
    """Whether the server cannot have seen the request: nobody charges for that."""
    cause = error.__cause__
    return type(cause).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}
