"""Whatever speaks OpenAI's protocol, by OpenAI's own client: theirs, or a server of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from intercode.errors import UsageError
from intercode.models import keys, sdk
from intercode.models.client import Answer, Request
from intercode.models.openai_wire import (
    decode_chat,
    decode_completion,
    encode_chat,
    encode_completion,
)

if TYPE_CHECKING:
    import openai as sdk_types

NO_KEY = "none"
"""What is sent where a server asks for no key: the client wants one."""


class _OpenAI:
    """What both clients have: the connection, and what its errors mean."""

    path = ""

    def __init__(self, model: str, base_url: str | None, key: str, timeout: float) -> None:
        openai = sdk.load("openai", "OpenAI's protocol")
        self.model = model
        self._errors = sdk.Errors(openai, key)
        self._sdk: sdk_types.OpenAI = openai.OpenAI(
            api_key=key,
            base_url=base_url,
            timeout=openai.Timeout(timeout, connect=min(sdk.CONNECT, timeout)),
            max_retries=0,  # ours count, wait and are charged to the budget
        )
        self.endpoint = f"{self._sdk.base_url}{self.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, {self.endpoint!r})"

    def close(self) -> None:
        """Let go of connections."""
        self._sdk.close()

    def _post(self, create: Callable[..., Any], body: dict[str, Any]) -> dict[str, Any]:
        # By `extra_body`, as `create` knows no parameters but those of OpenAI's present models,
        # and raw, as other servers' answers are not quite of its types.
        with self._errors:
            response = create(extra_body=body)
            return self._errors.read(response.http_response.content)


class ChatClient(_OpenAI):
    """``chat/completions``.

    Args:
        model: As the server names it.
        base_url: The server's; ``None`` is OpenAI's.
        key: The secret.
        timeout: Seconds for which a server may be silent.
        limit: What the server calls the most tokens of a reply.
    """

    path = "chat/completions"

    def __init__(
        self,
        model: str,
        base_url: str | None,
        key: str,
        timeout: float,
        limit: str = "max_tokens",
    ) -> None:
        super().__init__(model, base_url, key, timeout)
        self._limit = limit

    def send(self, request: Request) -> Answer:
        """Ask once."""
        create: Any = self._sdk.chat.completions.with_raw_response.create
        body = encode_chat(request, self._limit)
        messages = body.pop("messages")

        def call(extra_body: dict[str, Any]) -> Any:
            return create(model=self.model, messages=messages, extra_body=extra_body)

        return decode_chat(self._post(call, body), request.tools)


class CompletionsClient(_OpenAI):
    """``completions``: models without a chat template. The arguments are those of `ChatClient`."""

    path = "completions"

    def send(self, request: Request) -> Answer:
        """Ask once."""
        create: Any = self._sdk.completions.with_raw_response.create
        body = encode_completion(request)
        prompt = body.pop("prompt")

        def call(extra_body: dict[str, Any]) -> Any:
            return create(model=self.model, prompt=prompt, extra_body=extra_body)

        return decode_completion(self._post(call, body))


def openai(model: str, *, base_url: str | None, timeout: float) -> ChatClient:
    """OpenAI, or what stands in for it at ``OPENAI_BASE_URL``."""
    key = keys.require("OPENAI_API_KEY", f"openai/{model}")
    return ChatClient(model, base_url or _openai_url(), key, timeout, "max_completion_tokens")


def openai_completions(model: str, *, base_url: str | None, timeout: float) -> CompletionsClient:
    """A model that completes a text, of OpenAI's, or of any server by its URL."""
    if base_url:
        return CompletionsClient(model, base_url, _own_key(), timeout)
    key = keys.require("OPENAI_API_KEY", f"openai-completions/{model}")
    return CompletionsClient(model, _openai_url(), key, timeout)


def compatible(model: str, *, base_url: str | None, timeout: float) -> ChatClient:
    """Any server that speaks the protocol."""
    if not base_url:
        raise UsageError(f"openai-compatible/{model} needs a base URL: http://localhost:8000/v1")
    return ChatClient(model, base_url, _own_key(), timeout)


def vllm(model: str, *, base_url: str | None, timeout: float) -> ChatClient:
    """A vLLM server; here unless a URL says otherwise."""
    return ChatClient(model, base_url or "http://localhost:8000/v1", _own_key(), timeout)


def ollama(model: str, *, base_url: str | None, timeout: float) -> ChatClient:
    """An Ollama server; here unless a URL says otherwise."""
    return ChatClient(model, base_url or "http://localhost:11434/v1", _own_key(), timeout)


def llama_cpp(model: str, *, base_url: str | None, timeout: float) -> ChatClient:
    """A llama.cpp server; here unless a URL says otherwise."""
    return ChatClient(model, base_url or "http://localhost:8080/v1", _own_key(), timeout)


def _openai_url() -> str | None:
    url = keys.find("OPENAI_BASE_URL")
    return keys.check_url(url) if url else None


def _own_key() -> str:
    """The key of a server of one's own: never OpenAI's, which would be given away to it."""
    return keys.find("OPENAI_COMPATIBLE_API_KEY") or NO_KEY
