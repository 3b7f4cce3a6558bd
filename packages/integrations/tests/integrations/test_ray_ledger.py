"""The ledger of a cluster's processes, without a cluster: what one holds is given back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from intercode.errors import BudgetError
from intercode.models.base import Usage
from intercode.models.limits import SpendingAmounts
from intercode_integrations.ray.shared_limits import (
    SharedBudget,
    SharedLimitsActor,
    SharedLimitsConnection,
)
from waiting import PATIENCE


def test_a_lost_process_has_paid_for_its_calls() -> None:
    ledger = SharedLimitsActor(None, 100, SpendingAmounts(0.0, 10), None)
    ledger.reserve("one", 60, 0.0)
    ledger.reserve("other", 20, 0.0)
    ledger.end("other", 20, 0.0, "spent", (0.0, 5))
    ledger.release_process("one")
    assert ledger.read_spending() == (SpendingAmounts(0.0, 15), SpendingAmounts(0.0, 60))
    ledger.end("one", 60, 0.0, "spent", (0.0, 60))  # which was on its way: it counts once
    assert ledger.read_spending()[0].tokens == 15
    with pytest.raises(BudgetError):
        ledger.reserve("other", 26, 0.0)
    ledger.reserve("other", 25, 0.0)


class _DirectOutbox(SharedLimitsConnection):
    """The connection to a ledger in the same process, which sends each post at once."""

    def __init__(self, ledger: SharedLimitsActor) -> None:
        super().__init__(ledger, "one")

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._ledger.handle(self._process_name, self._take_posts(), method, *arguments)

    def post(self, method: str, *arguments: Any) -> None:
        self._ledger.handle(self._process_name, [(method, *arguments)])


def test_the_ledger_charges_what_a_process_reports() -> None:
    ledger = SharedLimitsActor(None, 100, SpendingAmounts(), None)
    budget = SharedBudget(_DirectOutbox(ledger), None, 100)
    budget.reserve(10, 0.5).presume()  # the answer was lost
    budget.reserve(20, 0.0).settle(Usage(10, 5), 0.25)
    budget.reserve(30, 0.0).release()
    assert ledger.read_spending() == (SpendingAmounts(0.25, 15), SpendingAmounts(0.5, 10))
    with pytest.raises(BudgetError):
        budget.reserve(76, 0.0)
    budget.reserve(75, 0.0)


def test_others_wait_for_what_a_lost_process_held() -> None:
    ledger = SharedLimitsActor(None, None, SpendingAmounts(), 1)
    ledger.enter("one")
    ledger.acquire("one", 10, None)
    ended = threading.Event()

    def call() -> None:
        ledger.enter("other")
        ledger.release("other", ledger.acquire("other", 10, None)[0], 0, True)
        ledger.leave("other")
        ended.set()

    waiting = threading.Thread(target=call)
    waiting.start()
    assert not ended.is_set()  # the only permit is held
    ledger.release_process("one")
    assert ended.wait(PATIENCE)
    waiting.join()
    ledger.leave("one")  # too late: it has none
    ledger.enter("third")


def test_a_refusal_slows_all() -> None:
    ledger = SharedLimitsActor(None, None, SpendingAmounts(), None)
    started, _ = ledger.acquire("one", 10, None)
    ledger.refuse("one", started, 0.01)
    assert ledger.acquire("other", 10, None)[0] >= started + 0.01


def test_a_call_keeps_its_ticket_and_leaves_nothing() -> None:
    ledger = SharedLimitsActor(None, 10**6, SpendingAmounts(), None)
    for _ in range(3):
        ledger.reserve("one", 60, 0.5)
        started, ticket = ledger.acquire("one", 10, None)
        ledger.refuse("one", started, 0.0)
        started, again = ledger.acquire("one", 10, ticket)
        assert again == ticket
        ledger.release("one", started, 0, True)
        ledger.end("one", 60, 0.5, "spent", (0.5, 60))
    held = ledger._states["one"]
    assert not held.reservations and not held.start_times and not held.permits


def test_posts_come_before_the_question() -> None:
    ledger = SharedLimitsActor(None, 100, SpendingAmounts(), None)
    ledger.reserve("one", 90, 0.0)
    ended = [("end", 90, 0.0, "spent", (0.0, 40))]
    ledger.handle("one", ended, "reserve", 60, 0.0)  # without them, it would wait for ever
    ledger.handle("one", [("end", 60, 0.0, "", (0.0, 0))])
    assert ledger.read_spending()[0].tokens == 40
