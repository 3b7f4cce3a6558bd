"""Each protocol's model, at a scripted server."""

from __future__ import annotations

from typing import Any

from intercode.models import Message, Retry, get_model
from intercode.models.remote import RemoteModel
from intercode_integrations.testing import ScriptedServer

CHAT = "openai/gpt-4o"
COMPLETIONS = "openai-completions/gpt-3.5-turbo-instruct"
ANTHROPIC = "anthropic/claude-haiku-4-5-20251001"
ALL = (CHAT, COMPLETIONS, ANTHROPIC)
_RETRY = {"timeout", "retries", "first_wait"}
HELLO = (Message("user", "one two three"),)


def connect(name: str, server: ScriptedServer, **options: Any) -> RemoteModel:
    """The model, which does not wait long before it tries again."""
    url = server.root if name.startswith("anthropic/") else server.url
    patience = {name: options.pop(name) for name in _RETRY & options.keys()}
    retry = Retry(**{"first_wait": 0.001, "timeout": 60, **patience})
    return get_model(name, base_url=url, retry=retry, **options)
