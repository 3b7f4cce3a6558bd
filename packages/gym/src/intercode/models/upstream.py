"""The server of a model: its address and its key.

The key is in this process only. It is never part of what a client is sent: a server may repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from intercode.errors import UsageError
from intercode.models.local import PROVIDER as LOCAL_PROVIDER
from intercode.models.providers import PROVIDERS
from intercode.secrets import MIN_SECRET_LENGTH
from intercode_sandbox.user_code import is_reference


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model of a provider, or of a server of one's own.

    Attributes:
        provider: As in ``PROVIDER/NAME``.
        model: The provider's name of the model.
        url: The base URL, with ``/v1``.
        key: The secret; empty: the server asks for none.
    """

    provider: str
    model: str
    url: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not (self.key.isascii() and self.key.isprintable()):
            raise UsageError(
                f"the key of {self.name} has characters that are not valid in a header: copy it "
                "again"
            )

    @classmethod
    def of(cls, model: str, base_url: str | None = None) -> Upstream:
        """Find the server of a model, and the key, as the clients of our own agents do.

        Args:
            model: ``PROVIDER/NAME``: ``openai/gpt-5``, ``anthropic/claude-sonnet-4-5``,
                ``vllm/NAME``, ``ollama/NAME``, ``llama.cpp/NAME``, ``openai-compatible/NAME``.
            base_url: The server's URL, if it is not the provider's usual one.

        Raises:
            UsageError: There is no such provider, no key, or no URL.
        """
        if is_reference(model):
            raise UsageError(
                f"{model} is your own client, but an external agent needs a server: serve the "
                "model by OpenAI's protocol, and name openai-compatible/NAME with its base URL"
            )
        provider, slash, name = model.partition("/")
        if not slash or not name:
            raise UsageError(
                f"a model is named PROVIDER/NAME, for instance openai/gpt-5: {model!r}"
            )
        if provider not in PROVIDERS:
            names = ", ".join(sorted([LOCAL_PROVIDER, *PROVIDERS]))
            raise UsageError(f"no provider is called {provider!r}; known: {names}")
        url, key = PROVIDERS[provider].locate(model, base_url)
        return cls(provider, name, url.removesuffix("/v1") + "/v1", key)

    @property
    def name(self) -> str:
        """The model's name with its provider, as the table of prices has it."""
        return f"{self.provider}/{self.model}"

    def credentials(self) -> dict[str, str]:
        """Return the headers with the key."""
        if not self.key:
            return {}
        if self.provider == "anthropic":
            return {"x-api-key": self.key}
        headers = {"Authorization": f"Bearer {self.key}"}
        # Servers of one's own that speak Anthropic's protocol look for its header.
        return headers if self.provider == "openai" else {**headers, "x-api-key": self.key}

    def remove_key(self, data: bytes) -> bytes:
        """Remove the key from what the server says."""
        return (
            data.replace(self.key.encode(), b"[key]")
            if len(self.key) >= MIN_SECRET_LENGTH
            else data
        )


@contextmanager
def serve_upstream(model: str, base_url: str | None = None, calls: int = 1) -> Iterator[Upstream]:
    """Find the server of a model as `Upstream.of` does; one of this machine is started meanwhile.

    Args:
        model: ``PROVIDER/NAME``; also ``local/NAME``.
        base_url: The server's URL, if it is not the provider's usual one.
        calls: Calls that will be made at a time, for a server that is started.

    Raises:
        UsageError: As `Upstream.of`; or a local model cannot be had, or does not fit.
        ModelAccessError: The server of a local model cannot be started.
    """
    provider, _, name = model.partition("/")
    if provider != LOCAL_PROVIDER or not name:
        yield Upstream.of(model, base_url)
        return
    from intercode.models.local.client import run_server

    with run_server(name, base_url, calls) as server:
        yield Upstream(provider, name, f"{server.url}/v1", server.key)
