"""Anthropic's models, by its own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intercode.models import keys, sdk
from intercode.models.anthropic_wire import decode, encode
from intercode.models.client import Answer, Request

if TYPE_CHECKING:
    import anthropic as sdk_types


class AnthropicClient:
    """``messages``.

    Args:
        model: As Anthropic names it.
        base_url: What stands in for Anthropic, without ``/v1``.
        key: The secret.
        timeout: Seconds for which the server may be silent.
    """

    def __init__(self, model: str, base_url: str | None, key: str, timeout: float) -> None:
        module = sdk.load("anthropic", "Anthropic's protocol")
        self.model = model
        self._errors = sdk.Errors(module, key)
        self._timeout = module.Timeout(timeout, connect=min(sdk.CONNECT, timeout))
        self._sdk: sdk_types.Anthropic = module.Anthropic(
            api_key=key, base_url=base_url, timeout=self._timeout, max_retries=0
        )
        self.endpoint = f"{str(self._sdk.base_url).rstrip('/')}/v1/messages"

    def __repr__(self) -> str:
        return f"AnthropicClient({self.model!r}, {self.endpoint!r})"

    def send(self, request: Request) -> Answer:
        """Ask once."""
        create: Any = self._sdk.messages.with_raw_response.create
        body = encode(request)
        known = {name: body.pop(name) for name in ("max_tokens", "messages")}
        with self._errors:
            # Each call has the timeout, or the client would refuse long replies unasked.
            response = create(model=self.model, extra_body=body, timeout=self._timeout, **known)
            data = self._errors.read(response.http_response.content)
        return decode(data)

    def close(self) -> None:
        """Let go of connections."""
        self._sdk.close()


def anthropic(model: str, *, base_url: str | None, timeout: float) -> AnthropicClient:
    """Anthropic, or what stands in for it at ``ANTHROPIC_BASE_URL``."""
    key = keys.require("ANTHROPIC_API_KEY", f"anthropic/{model}")
    url = base_url or keys.find("ANTHROPIC_BASE_URL")
    # Its client adds ``/v1`` itself; OpenAI's does not, so that many give it.
    where = keys.check_url(url).removesuffix("/v1") if url else None
    return AnthropicClient(model, where, key, timeout)
