"""Language models: one contract, a client for each protocol, and the frame around their calls."""

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
