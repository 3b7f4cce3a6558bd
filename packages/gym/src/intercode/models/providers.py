"""Model providers: the URLs of their servers, and the variables of their keys and URLs."""

from __future__ import annotations

from dataclasses import dataclass

from intercode.errors import UsageError
from intercode.models.api_keys import check_url, find, require


@dataclass(frozen=True, slots=True)
class ModelProvider:
    """The default URL of a provider's server, and the variables with its key and another URL.

    Attributes:
        key: The environment variable with the key.
        url: The default base URL; empty: no default.
        url_variable: The environment variable that overrides `url`; empty: no variable.
        needs_key: Whether the server refuses requests without a key.
    """

    key: str
    url: str = ""
    url_variable: str = ""
    needs_key: bool = True

    def locate(self, model: str, base_url: str | None) -> tuple[str, str]:
        """Return the base URL and the key.

        Args:
            model: The model's name with its provider, for messages.
            base_url: A URL that takes precedence; None: the URL in `url_variable`, otherwise `url`.

        Returns:
            The base URL, and the key, which is empty if no key is set and none is needed.

        Raises:
            UsageError: The URL or the key is missing or malformed.
        """
        url = base_url or (find(self.url_variable) if self.url_variable else None) or self.url
        key = require(self.key, model) if self.needs_key else find(self.key) or ""
        if not url:
            raise UsageError(f"{model} needs a base URL: http://localhost:8000/v1")
        return check_url(url), key


def _compatible(url: str = "") -> ModelProvider:
    """Return the provider of a self-hosted server, which must never receive OpenAI's key."""
    return ModelProvider("OPENAI_COMPATIBLE_API_KEY", url, needs_key=False)


PROVIDERS = {
    "openai": ModelProvider("OPENAI_API_KEY", "https://api.openai.com/v1", "OPENAI_BASE_URL"),
    "anthropic": ModelProvider(
        "ANTHROPIC_API_KEY", "https://api.anthropic.com", "ANTHROPIC_BASE_URL"
    ),
    "vllm": _compatible("http://localhost:8000/v1"),
    "ollama": _compatible("http://localhost:11434/v1"),
    "llama.cpp": _compatible("http://localhost:8080/v1"),
    "openai-compatible": _compatible(),
}
