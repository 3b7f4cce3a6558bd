"""Limits of calls to models and of busy sandboxes: kept, apart, fair, and in no measured time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evaluate.fakes import FakeEnv, dataset
from evaluate.test_interrupts import CHILD, start, wait_for
from intercode import datasets, make
from intercode.agents import registry
from intercode.agents.language import EpisodeLimits
from intercode.episode import Turn
from intercode.errors import UsageError
from intercode.evaluate import evaluate, run_episode
from intercode.evaluate.episode_loop import EpisodeStop, FifoSemaphore, SharedRunResources
from intercode.models import Message, Reply, Settings, get_model
from intercode.models.scripted import Line
from intercode.task import Task
from intercode_integrations.testing import ScriptedServer
from waiting import eventually

TASKS = dataset(12)
TOGETHER = 60.0
"""Seconds in which those who may be busy together must have met."""


class Meter:
    """Counts who is inside, and the most that ever were; who comes waits for so many to be."""

    def __init__(self, expected: int) -> None:
        self.most = self._inside = 0
        self._expected = expected
        self._changed = threading.Condition()

    @contextmanager
    def busy(self) -> Iterator[None]:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._expected, TOGETHER)
        time.sleep(0.002)  # allow sleep: one too many may come, and need not
        yield
        with self._changed:
            self._inside -= 1


class Measured(FakeEnv):
    """An environment in which only so many are busy at once."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(TASKS)
        self._meter = meter

    def reset(self, **options: Any) -> Any:
        with self._meter.busy():
            return super().reset(**options)

    def step(self, action: str) -> Any:
        with self._meter.busy():
            return super().step(action)


class Counted:
    """A model that says `echo`, then `submit`."""

    name = "counted"

    def __init__(self, during: Callable[[], Any]) -> None:
        self._during = during

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Any = (),
    ) -> Reply:
        self._during()
        return Reply("submit" if len(messages) > 2 else "```bash\necho 1\n```")


def test_never_more_than_that_many() -> None:
    calls, sandboxes = Meter(3), Meter(2)

    def call() -> None:
        with calls.busy():
            pass

    agents = registry.get("try-again", model=Counted(call))
    result = evaluate(
        TASKS, agents, lambda: Measured(sandboxes), workers=8, max_connections=3, max_sandboxes=2
    )
    assert result.complete and result.ran == 12
    assert (calls.most, sandboxes.most) == (3, 2)


def test_an_agent_of_ones_own_is_limited_while_it_decides() -> None:
    calls = Meter(2)

    class Own:
        def act(self, observation: str, history: Sequence[Turn]) -> str:
            with calls.busy():
                return "submit" if history else "echo"

    def own(task: Task) -> Own:
        return Own()

    assert evaluate(TASKS, own, lambda: FakeEnv(TASKS), workers=6, max_connections=2).complete
    assert calls.most == 2


def test_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    served = Meter(2)

    def say(messages: Sequence[Message]) -> Line:
        with served.busy():
            return Line("submit")

    with (
        ScriptedServer(say) as server,
        get_model("openai-compatible/any", base_url=server.url) as model,
    ):
        agents = registry.get("single-turn", model=model)
        result = evaluate(
            TASKS, agents, lambda: FakeEnv(TASKS), workers=6, max_connections=2, epochs=2
        )
    assert result.complete and served.most == 2


def test_who_waits_for_a_model_holds_no_sandbox() -> None:
    """All of 4 calls are under way together, which with one sandbox each episode must reach."""
    together = threading.Barrier(4, timeout=TOGETHER)
    agents = registry.get("single-turn", model=Counted(together.wait))
    result = evaluate(TASKS, agents, lambda: FakeEnv(TASKS), workers=4, max_sandboxes=1)
    assert result.complete and not together.broken


def test_who_waits_for_a_sandbox_holds_no_model() -> None:
    """All of 4 sandboxes are busy together, although only one call is made at a time."""
    together = threading.Barrier(4, timeout=TOGETHER)

    class Slow(FakeEnv):
        def step(self, action: str) -> Any:
            if action != "submit":
                together.wait()
            return super().step(action)

    agents = registry.get("try-again", model=Counted(lambda: None))
    result = evaluate(
        TASKS, agents, lambda: Slow(TASKS), workers=4, max_connections=1, max_sandboxes=4
    )
    assert result.complete and not together.broken


def test_first_come_first_served() -> None:
    semaphore, order = FifoSemaphore(1), []
    arrived = [threading.Event() for _ in range(6)]

    def visit(number: int) -> None:
        arrived[number].set()
        with semaphore as waited:
            order.append(number)
            assert waited > 0

    visits: list[Future[None]] = []
    with ThreadPoolExecutor(6) as threads, semaphore as waited:
        assert waited == 0
        for number, event in enumerate(arrived):
            visits.append(threads.submit(visit, number))
            assert event.wait(TOGETHER)
            assert eventually(lambda: len(semaphore._waiters) > number)  # noqa: B023
    for visited in visits:
        visited.result()
    assert order == list(range(6))


def test_a_permit_comes_back_after_a_failure_and_none_is_given_after_the_end() -> None:
    semaphore = FifoSemaphore(1)
    with pytest.raises(ZeroDivisionError), semaphore:
        raise ZeroDivisionError
    with ThreadPoolExecutor(1) as threads, semaphore:
        waiting = threads.submit(semaphore.__enter__)
        assert eventually(lambda: semaphore._waiters)
        semaphore.close()
        with pytest.raises(EpisodeStop):
            waiting.result(TOGETHER)
        assert semaphore.held == 1
    with pytest.raises(EpisodeStop), semaphore:
        pass
    assert semaphore.held == 0


class AnHour(FifoSemaphore):
    """Says that it was waited for, for an hour."""

    def __enter__(self) -> float:
        return super().__enter__() + 3600


@pytest.mark.parametrize(
    ("shared", "limit", "ended_by"),
    [
        ({}, 0.01, "seconds"),
        ({"calls": AnHour()}, 1800, None),
        ({"sandboxes": AnHour()}, 1800, None),
    ],
)
def test_waiting_is_in_no_limit(
    shared: dict[str, FifoSemaphore], limit: float, ended_by: str | None
) -> None:
    agents = registry.get(
        "try-again",
        model=Counted(lambda: time.sleep(0.02)),  # allow sleep: it takes longer than the limit
        limits=EpisodeLimits(seconds=limit),
    )
    episode = run_episode(FakeEnv(TASKS), agents, TASKS[0], resources=SharedRunResources(**shared))
    assert episode.metadata.get("ended_by") == ended_by
    calls = episode.metadata["model"]["calls"]
    assert calls and sum(call["seconds"] for call in calls) < 3600


@pytest.mark.parametrize("env", ["bash", "sql"])
def test_one_busy_sandbox_is_enough_for_several_workers(env: str) -> None:
    """Nobody keeps what another needs to go on: scoring starts sandboxes and databases, too."""
    tasks = datasets.load(env)
    result = evaluate(
        tasks, "oracle", lambda: make(env, data=tasks), workers=4, max_sandboxes=1, limit=8
    )
    assert result.complete and result.statistics.successes == 8


def test_who_waits_is_stopped_by_a_second_interrupt(tmp_path: Path) -> None:
    joined = (
        "except KeyboardInterrupt:\n"
        "    for thread in threading.enumerate():\n"
        "        if thread.name.startswith('worker-'): thread.join()\n"
    )
    code = CHILD.replace("max_sandboxes=4", "max_sandboxes=1")
    code = code.replace("AT_ONCE = 4", "AT_ONCE = 1").replace("except KeyboardInterrupt:\n", joined)
    with start(tmp_path / "run", 200, 3600, code) as child:
        wait_for(tmp_path / "run" / "acting")
        child.send_signal(signal.SIGTERM)  # counts twice
        told, _ = child.communicate(timeout=60)
    assert (child.returncode, told) == (130, "stopped True\n")


@pytest.mark.parametrize("name", ["max_connections", "max_sandboxes"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        evaluate(TASKS, "noop", lambda: FakeEnv(TASKS), **{name: 0})  # type: ignore[arg-type]
