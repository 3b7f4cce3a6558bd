"""What goes wrong with servers: what is tried again, what it costs, and when it is given up."""

from __future__ import annotations

import itertools
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate, parsedate_to_datetime

import pytest
from hypothesis import given, strategies as st

from intercode.errors import ModelAccessError, ModelError, ModelUnavailableError, UsageError
from intercode.models import Budget, Message, Retry, get_model
from intercode.models.limits import LONGEST_WAIT, PATIENCE
from intercode.models.response_parsing import retry_after, status_error
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.testing import (
    Fault,
    ScriptedServer,
    first,
    some,
    status,
    too_many,
    usual,
)
from scripted_server.models.providers import ALL, CHAT, HELLO, connect

SAY = script([Rule(Line("hello there"))])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fault", usual(), ids=lambda fault: f"{fault.kind}-{fault.status}")
def test_a_fault_is_tried_again(name: str, fault: Fault) -> None:
    budget = Budget(max_tokens=100_000)
    with ScriptedServer(SAY, plan=first(fault)) as server:
        reply = connect(name, server, budget=budget).complete(HELLO)
    assert (reply.text, reply.retries) == ("hello there", 1)
    assert reply.usage == server.usage, "the lost answer is not counted as the reply's"
    assert budget.spent.tokens == reply.usage.total
    lost = fault.kind != "status"
    assert (budget.presumed_spending.tokens > 0) == lost, "but may have been charged for"


def test_a_server_that_is_silent() -> None:
    budget = Budget()
    plan = first(Fault("slow", delay=3600.0), Fault("slow", delay=0.05))
    with ScriptedServer(SAY, plan=plan) as server:
        model = connect(
            CHAT, server, timeout=0.5, budget=budget, retries=60
        )  # allow limit: one of them is in time
        reply = model.complete(HELLO)
    assert reply.retries >= 1  # more where the machine was late with others, too
    # All were asked the same; who was given up before he was heard may come last.
    assert {exchange.usage for exchange in server.exchanges} == {reply.usage}
    assert budget.presumed_spending.tokens > 0


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_waited_for(as_date: bool) -> None:
    fault = too_many(2.0 if as_date else 0.1, as_date=as_date)  # a date has whole seconds
    asked = fault.headers["Retry-After"]
    with ScriptedServer(SAY, plan=first(fault)) as server:
        started = time.time()
        assert connect(CHAT, server).complete(HELLO).retries == 1
        until = parsedate_to_datetime(asked).timestamp() if as_date else started + float(asked)
        assert time.time() >= until - 0.01  # allow clock: a slow machine waits longer


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (status(429, Retry_After="86400"), "it asks to wait 86400 s"),
        (status(503), "asked 3 times; the last time: HTTP 503: on purpose"),
        (Fault("malformed"), "the answer is not JSON"),
        (Fault("disconnect"), "no connection, or it broke"),
    ],
)
def test_giving_up(fault: Fault, said: str) -> None:
    with (
        ScriptedServer(SAY, plan=lambda _: fault) as server,
        pytest.raises(ModelUnavailableError, match=said) as caught,
    ):
        connect(CHAT, server, retries=2).complete(HELLO)
    assert isinstance(caught.value, ConnectionError)


def test_nobody_there() -> None:
    budget = Budget(max_tokens=100_000)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that nobody else is; but it does not listen
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        model = get_model("vllm/any", base_url=url, retry=Retry(first_wait=PATIENCE), budget=budget)
        told = (
            f"cannot connect to a server at {url}/chat/completions: .*; start the server, or name"
        )
        with pytest.raises(ModelAccessError, match=told):
            model.complete(HELLO)
    assert budget.presumed_spending.tokens == 0, "a call that was not sent is not charged"


@pytest.mark.parametrize("name", ["openai/gpt", "openai-completions/gpt", "anthropic/claude"])
def test_a_missing_package_and_a_missing_key_are_told_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = name.partition("/")[0].partition("-")[0]
    key = f"{provider.upper()}_API_KEY"
    monkeypatch.setitem(sys.modules, provider, None)  # as if it were not installed
    package = rf"pip install 'intercode-gym\[{provider}\]'"
    monkeypatch.setenv(key, "sk-secret")
    with pytest.raises(UsageError, match=f"{package}$"):
        get_model(name)
    monkeypatch.delenv(key)
    with pytest.raises(UsageError, match=f"{package}, and a key: set {key}"):
        get_model(name)


def test_a_server_that_is_gone_is_no_mistake_in_its_url() -> None:
    with ScriptedServer(SAY, plan=lambda n: Fault("disconnect") if n else None) as server:
        model = connect(CHAT, server, retries=1)
        model.complete(HELLO)
    with pytest.raises(ModelUnavailableError, match="asked 2 times"):
        model.complete(HELLO)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (400, '{"error": {"message": "Unsupported value: temperature", "code": "unsupported"}}'),
        (404, '{"error": "model \'x\' not found"}'),
        (400, '{"error": {"message": "\\"auto\\" tool choice requires …", "code": 400}}'),
        (422, '{"detail": [{"loc": ["body"], "msg": "bad"}]}'),
        (429, '{"error": {"message": "no money", "code": "insufficient_quota"}}'),
        (403, "<html>Forbidden</html>"),
    ],
)
def test_a_refusal_for_good(code: int, body: str) -> None:
    with (
        ScriptedServer(SAY, plan=lambda _: Fault("status", code, body=body)) as server,
        pytest.raises(ModelError, match=f"{CHAT}: HTTP {code}: ") as caught,
    ):
        connect(CHAT, server).complete(HELLO)
    assert not isinstance(caught.value, ConnectionError)
    assert len(server.exchanges) == 1


def test_a_failure_behind_a_proxy_that_says_200() -> None:
    bad = Fault("status", 200, body='{"error": {"message": "upstream", "code": 502}}')
    worse = Fault("status", 200, body='{"error": {"message": "no such model", "code": 404}}')
    with ScriptedServer(SAY, plan=first(bad, worse)) as server:
        with pytest.raises(ModelError, match="HTTP 404: no such model"):
            connect(CHAT, server).complete(HELLO)
        assert len(server.exchanges) == 2


def test_many_threads_with_faults_at_a_tenth_of_the_replies() -> None:
    prices = 2.5, 10
    budget = Budget(max_cost=10.0, max_tokens=10_000_000)
    plan = some(0.1, usual(), seed=1)
    before = threading.active_count()  # some of other tests may still be on their way out
    with ScriptedServer(lambda m: Line(m[-1].content[::-1]), plan=plan) as server:
        model = connect(CHAT, server, budget=budget, retries=10)
        asked = [f"task {n} " * (1 + n % 7) for n in range(150)]

        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda text: model.complete([Message("user", text)]), asked))
    assert [reply.text for reply in replies] == [text[::-1] for text in asked]
    given_, made = server.usage.input_tokens, server.usage.output_tokens
    assert sum(reply.usage.input_tokens for reply in replies) == given_
    cost = (given_ * prices[0] + made * prices[1]) / 1e6
    assert sum(reply.cost or 0 for reply in replies) == pytest.approx(cost, rel=1e-12)
    assert budget.spent.cost == pytest.approx(cost, rel=1e-12)
    assert budget.spent.tokens == server.usage.total
    failed = [e for e in server.exchanges if not e.answered]
    assert sum(reply.retries for reply in replies) == len(failed) > 5
    assert threading.active_count() - before < 50


@given(st.integers(1, 10_000), st.none() | st.floats(0, PATIENCE), st.integers())
def test_never_sooner_than_asked(failures: int, asked: float | None, seed: int) -> None:
    wait = Retry().backoff(failures, asked, random.Random(seed))
    assert wait is not None
    assert (asked or 0) <= wait <= (asked or 0) + LONGEST_WAIT


def test_waits_grow_and_differ() -> None:
    chance = random.Random(0)
    waits = [[Retry().backoff(n, None, chance) or 0 for _ in range(50)] for n in (1, 3, 5)]
    assert [max(w) < min(longer) for w, longer in itertools.pairwise(waits)] == [True] * 2
    assert all(len(set(w)) == 50 for w in waits)
    assert Retry().backoff(1, PATIENCE + 1, chance) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": formatdate(1030, usegmt=True)}, 30),
        ({"retry-after": formatdate(900, usegmt=True)}, 0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_reading_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=1000) == seconds


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text()), st.text())
def test_no_answer_of_a_server_breaks_us(headers: dict[str, str], body: str) -> None:
    wait = retry_after(headers)
    assert wait is None or wait >= 0
    assert str(status_error(500, headers, body)).startswith("HTTP 500")


@pytest.mark.parametrize(
    ("status", "body", "same_for_all"),
    [
        (401, "", True),
        (402, "{}", True),
        (403, '{"error": {"type": "permission_error", "message": "not this model"}}', True),
        (403, '{"error": {"message": "your input was flagged: moderation"}}', False),
        (403, "<html>Blocked: /etc/passwd</html>", False),
        (404, '{"error": {"message": "The model `x` does not exist"}}', True),
        (400, '{"error": {"code": "model_not_found"}}', True),
        (400, '{"error": {"message": "bad request"}}', False),
        (429, '{"error": {"code": "insufficient_quota"}}', True),
    ],
)
def test_what_every_request_would_meet(status: int, body: str, same_for_all: bool) -> None:
    assert isinstance(status_error(status, {}, body), ModelAccessError) == same_for_all
