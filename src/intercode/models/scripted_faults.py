"""What may go wrong with a server, for `intercode.models.scripted_server`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Literal

Kind = Literal["status", "malformed", "truncated", "disconnect", "slow", "empty"]
"""``malformed``: whole, but no JSON. ``truncated``: the connection ends amid the body.
``disconnect``: it ends before any answer. ``slow``: the answer is right, but late. ``empty``: an
answer without choices."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request.

    Attributes:
        kind: What.
        status: The status, where that is the fault.
        headers: Sent with it.
        body: Sent with it; ``None`` is an error as the protocol has it.
        delay: Seconds before the first byte.
    """

    kind: Kind
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    delay: float = 0.0


Plan = Callable[[int], "Fault | None"]
"""Number of the request, from 0 → what goes wrong with it."""


def status(code: int, **headers: str) -> Fault:
    """An error; ``Retry_After="2"`` is the header ``Retry-After``."""
    return Fault("status", code, {name.replace("_", "-"): text for name, text in headers.items()})


def too_many(seconds: float, *, as_date: bool = False) -> Fault:
    """429 with ``Retry-After``, in seconds or as a date."""
    wait = formatdate(time.time() + seconds, usegmt=True) if as_date else f"{seconds:g}"
    return status(429, Retry_After=wait)


def usual() -> tuple[Fault, ...]:
    """One of each, as quick as they come."""
    return (
        status(500),
        status(503),
        status(529),
        too_many(0),
        Fault("status", 429, {"retry-after-ms": "1"}),
        Fault("status", 502, body="<html>Bad Gateway</html>"),
        Fault("malformed"),
        Fault("truncated"),
        Fault("disconnect"),
        Fault("empty"),
    )


def first(*faults: Fault) -> Plan:
    """These, in order, then none."""
    return lambda number: faults[number] if number < len(faults) else None


def some(share: float, faults: Sequence[Fault], seed: int = 0) -> Plan:
    """One of these for this share of the requests, the same for the same seed."""

    def plan(number: int) -> Fault | None:
        chance = random.Random(f"{seed} {number}")
        return chance.choice(faults) if chance.random() < share else None

    return plan
