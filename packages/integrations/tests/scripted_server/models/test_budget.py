"""A budget holds, whoever shares it, and refuses nothing that would have fitted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from intercode.errors import BudgetError, UsageError
from intercode.models import Budget, Message, Settings, Usage
from intercode.models.base import Request
from intercode.models.scripted import Line, count
from intercode_integrations.testing import ScriptedServer
from scripted_server.models.providers import CHAT, HELLO, connect
from waiting import eventually


@pytest.mark.parametrize("limit", [{"max_cost": 0.02}, {"max_tokens": 3000}])
def test_many_threads_cannot_overspend(limit: dict[str, float]) -> None:
    budget = Budget(**limit)  # type: ignore[arg-type]
    settings = Settings(max_tokens=60)

    def ask(_: int) -> bool:
        try:
            model.complete(HELLO, settings)
        except BudgetError:
            return False
        return True

    with ScriptedServer(lambda _: Line("word " * 60)) as server:
        model = connect(CHAT, server, budget=budget)
        with ThreadPoolExecutor(8) as pool:
            answered = list(pool.map(ask, range(80)))
        taken = server.usage
    assert budget.spent.tokens == taken.total
    assert 0 < sum(answered) < 80
    cost = (taken.input_tokens * 2.5 + taken.output_tokens * 10) / 1e6
    # Not above the limit, and less than what one call may take below it.
    bound = Request(HELLO).most_input_tokens() + 60
    if "max_tokens" in limit:
        assert limit["max_tokens"] - bound < taken.total <= limit["max_tokens"]
    else:
        assert limit["max_cost"] - bound * 10 / 1e6 < cost <= limit["max_cost"]


def test_who_does_not_fit_waits_for_those_under_way() -> None:
    budget = Budget(max_tokens=100)
    under_way = budget.reserve(90, 0)
    got = threading.Event()

    def wait() -> None:
        budget.reserve(50, 0).settle(Usage(20, 20), None)
        got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: budget._condition._waiters)  # type: ignore[attr-defined]
    assert not got.is_set()
    under_way.settle(Usage(5, 5), None)
    assert got.wait(60)
    thread.join()
    assert budget.spent.tokens == 50
    with pytest.raises(BudgetError, match="may take 51 tokens, and 50 of 100 are left"):
        budget.reserve(51, 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from("spr"))))
def test_the_sum_is_never_above_the_limit(calls: list[tuple[int, int, str]]) -> None:
    budget = Budget(max_tokens=100)
    for bound, used, end in calls:
        left = 100 - budget.spent.tokens - budget.presumed_spending.tokens
        assert left >= 0
        if bound > left:
            with pytest.raises(BudgetError):
                budget.reserve(bound, 0)
            continue
        hold = budget.reserve(bound, 0)
        if end == "s":
            hold.settle(Usage(0, min(used, bound)), None)
        else:
            hold.presume() if end == "p" else hold.release()


@given(st.lists(st.text()))
def test_no_prompt_has_more_tokens_than_are_set_aside(texts: list[str]) -> None:
    request = Request(tuple(Message("user", text) for text in texts))
    most = request.most_input_tokens()
    assert most >= sum(count(text) for text in texts)
    assert most >= sum(len(text.encode()) for text in texts), "not even of one byte each"


def test_dollars_need_a_price() -> None:
    with ScriptedServer() as server:
        with pytest.raises(UsageError, match="the price of vllm/any is unknown"):
            connect("vllm/any", server, budget=Budget(max_cost=1))
        connect("vllm/any", server, budget=Budget(max_tokens=5000)).complete(HELLO)
    for limits in ({"max_cost": 0}, {"max_tokens": -1}, {"max_cost": float("nan")}):
        with pytest.raises(UsageError, match="above 0"):
            Budget(**limits)  # type: ignore[arg-type]


def test_a_server_that_does_not_say_what_it_took() -> None:
    budget = Budget(max_tokens=5000)
    with ScriptedServer(dialect="old llama.cpp") as server:
        reply = connect("llama.cpp/any", server, budget=budget).complete(HELLO)
    assert (reply.usage, reply.cost) == (Usage(), None)
    assert budget.spent.tokens == 0
    assert budget.presumed_spending.tokens > 4000
