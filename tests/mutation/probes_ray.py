"""Probes of what a cluster's processes share, without a cluster."""

from __future__ import annotations

from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.models.limits import SpendingAmounts
from intercode.spec import RunSpec
from intercode_integrations.ray.shared_limits import SharedLimitsActor


def ray_passwords() -> bool:
    url = "mysql://admin:hidden@localhost:1"
    spec = RunSpec.from_layers({"env": "sql", "agent": "oracle", "engine": url, "on": "ray"})
    try:
        evaluate(spec)
    except UsageError as error:
        return "has a password" in str(error)
    return False


def ray_paid_once() -> bool:
    ledger = _lost()
    ledger.end("one", 60, 0.0, "spent", (0.0, 60))  # which was on its way
    return _counted(ledger) == 60


def ray_paid_at_all() -> bool:
    return _counted(_lost()) == 60


def _lost() -> SharedLimitsActor:
    ledger = SharedLimitsActor(None, 100, SpendingAmounts(), None)
    ledger.reserve("one", 60, 0.0)
    ledger.release_process("one")
    return ledger


def _counted(ledger: SharedLimitsActor) -> int:
    return sum(account.tokens for account in ledger.read_spending())
