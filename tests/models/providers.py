"""Each protocol's model, at a scripted server."""

from __future__ import annotations

from typing import Any

from intercode.models import Message, get_model
from intercode.models.remote import RemoteModel
from intercode.models.scripted_server import ScriptedServer

CHAT = "openai/gpt-4o"
COMPLETIONS = "openai-completions/gpt-3.5-turbo-instruct"
ANTHROPIC = "anthropic/claude-haiku-4-5-20251001"
ALL = (CHAT, COMPLETIONS, ANTHROPIC)
HELLO = (Message("user", "one two three"),)


def connect(name: str, server: ScriptedServer, **options: Any) -> RemoteModel:
    """The model, which does not wait long before it tries again."""
    url = server.root if name.startswith("anthropic/") else server.url
    return get_model(name, base_url=url, **{"first_wait": 0.001, "timeout": 60, **options})
