"""A proxy between an agent and its model's API, which records and limits the agent's calls."""

from __future__ import annotations

from intercode.models.upstream import Upstream
from intercode_integrations.gateway.calls import Call
from intercode_integrations.gateway.gateway import Gateway, GatewaySession
from intercode_integrations.gateway.policy import GatewayPolicy

__all__ = ["Call", "Gateway", "GatewaySession", "GatewayPolicy", "Upstream"]
