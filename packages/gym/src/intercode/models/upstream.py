"""Upstream model servers: the address and the key of the server to which a gateway sends requests.

Only the upstream server receives the key, not the gateway's clients. If the server repeats the key
in a response, the gateway replaces the key (`Upstream.remove_key`).
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
    """A model of a provider or of a self-hosted server, with the server's address and key.

    Attributes:
        provider: The provider, as in ``PROVIDER/NAME``.
        model: The provider's name of the model.
        url: The base URL, with ``/v1``.
        key: The API key; empty: the server needs no key.

    Raises:
        UsageError: The key has characters that no HTTP header permits.
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
    def resolve(cls, model: str, base_url: str | None = None) -> Upstream:
        """Resolve a model's server and key, by the rules of InterCode's own clients.

        Args:
            model: ``PROVIDER/NAME``: ``openai/gpt-5``, ``anthropic/claude-sonnet-4-5``,
                ``vllm/NAME``, ``ollama/NAME``, ``llama.cpp/NAME``, ``openai-compatible/NAME``.
            base_url: The server's URL; None: the provider's default.

        Raises:
            UsageError: The provider is unknown, or the key or URL is missing.
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
        """The model's name with its provider, as in the price table."""
        return f"{self.provider}/{self.model}"

    def credentials(self) -> dict[str, str]:
        """Return the HTTP headers with the key; empty without a key."""
        if not self.key:
            return {}
        if self.provider == "anthropic":
            return {"x-api-key": self.key}
        headers = {"Authorization": f"Bearer {self.key}"}
        # Self-hosted servers that support Anthropic's protocol read the key from Anthropic's
        # header.
        return headers if self.provider == "openai" else {**headers, "x-api-key": self.key}

    def remove_key(self, content: bytes) -> bytes:
        """Replace the key in a server's response by ``[key]``.

        A key shorter than `MIN_SECRET_LENGTH` characters is not replaced. Such a short text may
        occur by chance, and a replacement would corrupt the response.
        """
        return (
            content.replace(self.key.encode(), b"[key]")
            if len(self.key) >= MIN_SECRET_LENGTH
            else content
        )


@contextmanager
def serve_upstream(model: str, base_url: str | None = None, calls: int = 1) -> Iterator[Upstream]:
    """Yield a model's upstream; a local model's server runs for the duration of the block.

    Args:
        model: ``PROVIDER/NAME`` as for `Upstream.resolve`, or ``local/NAME``.
        base_url: The server's URL; None: the provider's default.
        calls: The number of concurrent calls to expect, for a local server.

    Raises:
        UsageError: The errors of `Upstream.resolve`. For a local model: the model is missing, or
            the memory is too small.
        ModelAccessError: The server of a local model cannot be started.
    """
    provider, _, name = model.partition("/")
    if provider != LOCAL_PROVIDER or not name:
        yield Upstream.resolve(model, base_url)
        return
    from intercode.models.local.client import run_server

    with run_server(name, base_url, calls) as server:
        yield Upstream(provider, name, f"{server.url}/v1", server.key)
