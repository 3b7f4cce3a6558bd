"""The gateway: the one way from an agent in a sandbox to its model, recorded and within limits."""

from __future__ import annotations

from intercode.gateway.calls import Call
from intercode.gateway.gate import Gateway, Seat
from intercode.gateway.rules import Terms
from intercode.gateway.upstream import Upstream

__all__ = ["Call", "Gateway", "Seat", "Terms", "Upstream"]
