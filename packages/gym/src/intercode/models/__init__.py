"""Language models: the model protocol, a client for each API, and the limits around calls.

`get_model` returns a model by name. `intercode.models.base` defines the protocols `Model` and
`ModelClient`. `intercode.models.remote` adds cache, budget, rate limit and retries to every client.
"""

from __future__ import annotations

from intercode.models.base import (
    Answer,
    AttemptError,
    Message,
    Model,
    Reply,
    Request,
    Settings,
    Tool,
    ToolCall,
    Usage,
)
from intercode.models.limits import Budget, RateLimit, Retry
from intercode.models.remote import get_model
from intercode.registry import MODELS

__all__ = [
    "MODELS",
    "Answer",
    "AttemptError",
    "Budget",
    "Message",
    "Model",
    "RateLimit",
    "Reply",
    "Request",
    "Retry",
    "Settings",
    "Tool",
    "ToolCall",
    "Usage",
    "get_model",
]
