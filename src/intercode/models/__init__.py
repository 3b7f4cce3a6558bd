"""Language models: one contract, a client for each protocol, and what stands around a call."""

from __future__ import annotations

from intercode.models.base import Message, Model, Reply, Settings, Tool, ToolCall, Usage
from intercode.models.budget import Budget
from intercode.models.rate_limit import RateLimit
from intercode.models.registry import MODELS, get_model

__all__ = [
    "MODELS",
    "Budget",
    "Message",
    "Model",
    "RateLimit",
    "Reply",
    "Settings",
    "Tool",
    "ToolCall",
    "Usage",
    "get_model",
]
