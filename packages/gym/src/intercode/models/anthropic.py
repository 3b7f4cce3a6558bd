"""The client of Anthropic's models, which uses Anthropic's Python SDK.

The client uses Anthropic's API protocol ``messages``. `encode` and `decode` convert the protocol's
requests and responses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from intercode.models import response_parsing
from intercode.models.api_fields import MESSAGES
from intercode.models.base import Answer, Message, Request, Role, ToolCall, Usage
from intercode.models.providers import PROVIDERS

if TYPE_CHECKING:
    import anthropic as sdk_types

MOST_TOKENS = 4096
"""Token limit of a reply if the settings contain none, because the protocol requires a limit."""


class AnthropicClient:
    """The client of the protocol ``messages``.

    Args:
        model: Anthropic's name of the model.
        base_url: The server's URL, without ``/v1``.
        key: The API key.
        timeout: Seconds for which the server may be silent.
    """

    def __init__(self, model: str, base_url: str, key: str, timeout: float) -> None:
        module = response_parsing.sdk("anthropic", "Anthropic's protocol")
        self.model = model
        self._errors = response_parsing.SdkErrorTranslator(module, key)
        self._timeout = module.Timeout(timeout, connect=min(response_parsing.CONNECT, timeout))
        self._sdk: sdk_types.Anthropic = module.Anthropic(
            api_key=key, base_url=base_url, timeout=self._timeout, max_retries=0
        )
        self.endpoint = f"{str(self._sdk.base_url).rstrip('/')}{MESSAGES.path}"

    def __repr__(self) -> str:
        return f"AnthropicClient({self.model!r}, {self.endpoint!r})"

    def send(self, request: Request) -> Answer:
        """Send one request; see `ModelClient.send`."""
        create: Any = self._sdk.messages.with_raw_response.create
        body = encode(request)
        sdk_arguments = {name: body.pop(name) for name in ("max_tokens", "messages")}
        with self._errors:
            # The timeout is passed with each call, because without it the SDK refuses requests for
            # long replies.
            response = create(
                model=self.model, extra_body=body, timeout=self._timeout, **sdk_arguments
            )
            response_body = self._errors.read(response.http_response.content)
        return decode(response_body)

    def close(self) -> None:
        """Close all connections."""
        self._sdk.close()


def anthropic(model: str, *, base_url: str | None, timeout: float) -> AnthropicClient:
    """Return the client of Anthropic, or of a compatible server.

    Args:
        model: Anthropic's name of the model.
        base_url: The server's URL; None: the URL in ``ANTHROPIC_BASE_URL``, otherwise Anthropic's.
        timeout: Seconds for which the server may be silent.

    Raises:
        UsageError: The SDK or the key is missing, or the key or the URL is malformed.
    """
    name, provider = f"anthropic/{model}", PROVIDERS["anthropic"]
    response_parsing.require_sdk("anthropic", provider.key, name)
    url, key = provider.locate(name, base_url)
    # Anthropic's SDK adds ``/v1`` to the URL. OpenAI's SDK does not, so many users' URLs include
    # ``/v1``.
    return AnthropicClient(model, url.removesuffix("/v1"), key, timeout)


def encode(request: Request) -> dict[str, Any]:
    """Return the request parameters of ``messages``.

    System messages are joined into the separate field ``system``. Adjacent messages of one speaker
    are merged, because the protocol requires alternating speakers. Tool results become messages of
    the role ``user``. The protocol has no seed, so `Settings.seed` is ignored.
    """
    settings = request.settings
    system = "\n\n".join(m.content for m in request.messages if m.role == "system")
    dialogue = [m for m in request.messages if m.role != "system"]
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in request.tools
    ]
    body: dict[str, Any] = {
        "max_tokens": settings.max_tokens or MOST_TOKENS,
        "messages": [
            {"role": speaker, "content": [block for m in group for block in _blocks(m)]}
            for speaker, group in groupby(dialogue, _speaker)
        ],
        "system": system or None,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": list(settings.stop) or None,
        "tools": tools or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def _speaker(message: Message) -> Role:
    return "assistant" if message.role == "assistant" else "user"


def _blocks(message: Message) -> list[dict[str, Any]]:
    text = message.content
    if message.role == "tool":
        call = message.call_id or ""
        return [{"type": "tool_result", "tool_use_id": call, "content": text}]
    # The server refuses blank texts, and refuses an assistant's message that ends in whitespace.
    text = text.rstrip() if message.role == "assistant" else text
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [
        {"type": "tool_use", "id": c.call_id, "name": c.name, "input": dict(c.arguments)}
        for c in message.tool_calls
    ]
    return blocks or [{"type": "text", "text": "(nothing)"}]


def decode(response_body: dict[str, Any]) -> Answer:
    """Decode a model's answer from a response of the protocol ``messages``.

    Args:
        response_body: The JSON object of the response.

    Raises:
        AttemptError: The response has no usable content.
    """
    content = response_body.get("content")
    if not isinstance(content, list):
        raise response_parsing.unusable_answer("the answer has no content")
    blocks = [block for block in content if isinstance(block, dict)]
    text = response_parsing.extract_text([block for block in blocks if block.get("type") == "text"])
    calls = _calls([block for block in blocks if block.get("type") == "tool_use"])
    finish = response_parsing.finish(response_body.get("stop_reason"), bool(calls))
    return Answer(
        text, calls, _usage(response_body), response_parsing.extract_model(response_body), finish
    )


def _calls(blocks: Sequence[dict[str, Any]]) -> tuple[ToolCall, ...]:
    for block in blocks:
        if not isinstance(block.get("name"), str):
            excerpt = json.dumps(block)[:200]
            raise response_parsing.unusable_answer(
                f"the answer has a tool call without a name: {excerpt}"
            )
    return tuple(
        ToolCall(
            str(block.get("id", "")), block["name"], response_parsing.arguments(block.get("input"))
        )
        for block in blocks
    )


def _usage(response_body: dict[str, Any]) -> Usage | None:
    usage = response_body.get("usage")
    if not isinstance(usage, dict):
        return None
    input_tokens, output_tokens = (
        response_parsing.tokens(usage, "input_tokens"),
        response_parsing.tokens(usage, "output_tokens"),
    )
    if input_tokens is None or output_tokens is None:
        return None
    # Anthropic's count ``input_tokens`` excludes tokens that are read from, or written to, a cache.
    cached_tokens = response_parsing.tokens(usage, "cache_read_input_tokens") or 0
    cache_write_tokens = response_parsing.tokens(usage, "cache_creation_input_tokens") or 0
    return Usage(input_tokens + cached_tokens + cache_write_tokens, output_tokens, cached_tokens)
