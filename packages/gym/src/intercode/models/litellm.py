"""The client of providers such as Bedrock, Vertex and Azure, through the package LiteLLM.

LiteLLM also supports Mistral, Cohere and others. The keys of these providers are in environment
variables that LiteLLM's documentation lists.
"""

from __future__ import annotations

import os
from typing import Any

from intercode.models import response_parsing
from intercode.models.api_keys import check_url, find
from intercode.models.base import Answer, AttemptError, Request
from intercode.models.openai import decode_chat, encode_chat


class LiteLlmClient:
    """The client of a model to which LiteLLM sends the requests.

    Args:
        model: LiteLLM's name of the model, ``provider/name``.
        base_url: The provider's URL; None: LiteLLM's default.
        timeout: Seconds for which the server may be silent.
    """

    def __init__(self, model: str, base_url: str | None, timeout: float) -> None:
        # By default the import of LiteLLM downloads prices from GitHub, and waits for the download.
        # InterCode does not need LiteLLM's prices, because it has its own price table.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        module: Any = response_parsing.sdk("litellm", "a model through LiteLLM")
        module.suppress_debug_info = True  # otherwise LiteLLM prints text with each error
        self._complete = module.completion
        # LiteLLM reads the key from the environment variables, but not from the file ``.env``.
        provider = model.partition("/")[0].upper().replace("-", "_")
        self._key = find(f"{provider}_API_KEY") or ""
        # LiteLLM's errors are classes of OpenAI's SDK, or subclasses of these.
        self._errors = response_parsing.SdkErrorTranslator(
            response_parsing.sdk("openai", "LiteLLM"), self._key
        )
        self._timeout = timeout
        self._base_url = base_url
        self.model = model
        self.endpoint = f"litellm:{base_url or ''}"

    def __repr__(self) -> str:
        return f"LiteLlmClient({self.model!r})"

    def send(self, request: Request) -> Answer:
        """Send one request; see `ModelClient.send`."""
        try:
            return self._send(request)
        except AttemptError as error:
            # LiteLLM reports a lost answer as status 500, so any call may have been charged unless
            # the provider refused it for its rate limit.
            error.charged = error.charged or not error.throttled
            raise

    def _send(self, request: Request) -> Answer:
        with self._errors:
            response = self._complete(
                model=self.model,
                base_url=self._base_url,
                timeout=self._timeout,
                num_retries=0,
                max_retries=0,
                api_key=self._key or None,
                drop_params=True,  # LiteLLM drops unsupported parameters, mostly the seed
                **encode_chat(request),
            )
            response_body = self._errors.read(response.model_dump_json().encode())
        return decode_chat(response_body, request.tools)

    def close(self) -> None:
        """Do nothing, because the client holds no connection."""


def litellm(model: str, *, base_url: str | None, timeout: float) -> LiteLlmClient:
    """Return the client of a model to which LiteLLM sends the requests.

    Args:
        model: LiteLLM's name of the model, ``provider/name``.
        base_url: The provider's URL; None: LiteLLM's default.
        timeout: Seconds for which the server may be silent.

    Raises:
        UsageError: The package is not installed, or the URL or the key is malformed.
    """
    return LiteLlmClient(model, base_url and check_url(base_url), timeout)
