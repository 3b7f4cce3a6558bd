"""All other providers, through LiteLLM: Bedrock, Vertex, Azure, Mistral, Cohere, and many more.

LiteLLM finds their keys in the environment itself, under the names that its documentation gives.
"""

from __future__ import annotations

import os
from typing import Any

from intercode.models import wire
from intercode.models.base import Answer, AttemptError, Request
from intercode.models.keys import check_url, find
from intercode.models.openai import decode_chat, encode_chat


class LiteLlmClient:
    """The client of a model under LiteLLM's name for it.

    Args:
        model: ``provider/name``, as LiteLLM has it.
        base_url: The provider's URL, if it is not where LiteLLM thinks.
        timeout: Seconds for which the server may be silent.
    """

    def __init__(self, model: str, base_url: str | None, timeout: float) -> None:
        # Else it asks GitHub for prices when it is imported, and waits; ours are in our own table.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        module: Any = wire.sdk("litellm", "a model through LiteLLM")
        module.suppress_debug_info = True  # it prints with each error
        self._complete = module.completion
        # It looks in the environment by itself, but not in ``.env``.
        provider = model.partition("/")[0].upper().replace("-", "_")
        self._key = find(f"{provider}_API_KEY") or ""
        # LiteLLM's errors are OpenAI's, or derived from them.
        self._errors = wire.Errors(wire.sdk("openai", "LiteLLM"), self._key)
        self._timeout = timeout
        self._base_url = base_url
        self.model = model
        self.endpoint = f"litellm:{base_url or ''}"

    def __repr__(self) -> str:
        return f"LiteLlmClient({self.model!r})"

    def send(self, request: Request) -> Answer:
        """Make one call."""
        try:
            return self._send(request)
        except AttemptError as error:
            # LiteLLM turns lost answers into a status of 500, so that the cost is unknown.
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
                drop_params=True,  # those that a provider does not know: a seed, mostly
                **encode_chat(request),
            )
            data = self._errors.read(response.model_dump_json().encode())
        return decode_chat(data, request.tools)

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


def litellm(model: str, *, base_url: str | None, timeout: float) -> LiteLlmClient:
    """Make the client of a model under LiteLLM's name for it."""
    return LiteLlmClient(model, base_url and check_url(base_url), timeout)
