"""`AsyncEnv`: calls in turn, cancelled at every await, closed while they run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest

import intercode
from envs.test_dropped import leaves_nothing
from envs.toy import Gate, Toy, many, toy
from intercode import AsyncEnv, EnvironmentStateError, SandboxClosedError, UsageError
from intercode_sandbox import AsyncSandbox
from waiting import PATIENCE


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_episode() -> None:
    async def main() -> None:
        async with AsyncEnv(intercode.make("bash")) as env:
            task = env.dataset[0]
            text, info = await env.reset(options={"task_id": task.task_id})
            assert text == task.query and info["task_id"] == task.task_id
            assert (await env.call("bash", {"command": "echo $((6*7))"}))[0] == "42\n"
            [fork] = await env.fork()
            async with fork:
                assert (await fork.step("echo $?"))[0] == "0\n"
                assert len(fork.episode.turns) == 2
            async with AsyncEnv(intercode.make("bash")) as other:
                await other.restore(await env.snapshot())
                assert len(other.episode.turns) == 1
            await env.step(task.gold[0])
            assert (await env.step("submit"))[1] == 1.0
            backend = env.env.unwrapped.stage.open(task)  # type: ignore[attr-defined]
            async with AsyncSandbox.from_backend(backend) as place:
                assert (await env.score(task, place, output="nothing")).value < 1.0
            with pytest.raises(EnvironmentStateError, match="has ended"):
                await env.step("true")
        with pytest.raises(EnvironmentStateError, match="closed"):
            await env.reset()
        await env.close()

    run(main)


def test_only_environments_of_ours() -> None:
    with pytest.raises(UsageError, match="CartPole"):
        AsyncEnv(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]


def test_a_wrapper_takes_part() -> None:
    class Loud(gymnasium.ActionWrapper[str, str, str]):
        def action(self, action: str) -> str:
            return action.upper()

    async def main() -> None:
        async with AsyncEnv(Loud(toy(many(1)))) as env:
            await env.reset()
            assert (await env.step("hello"))[0] == "HELLO\n"

    run(main)


def test_calls_take_turns_and_no_thread_is_kept() -> None:
    """Ten environments that wait have one thread; calls of one come in their order."""

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            envs = [AsyncEnv(toy(many(1)), executor) for _ in range(10)]
            await asyncio.gather(*(env.reset() for env in envs))
            calls = [env.step(str(number)) for number in range(5) for env in envs]
            await asyncio.gather(*calls)
            for env in envs:
                assert [turn.action for turn in env.episode.turns] == list("01234")
                await env.close()

    run(main)


def test_cancelled_before_it_begins_and_while_it_runs() -> None:
    async def main() -> None:
        with Gate() as gate:
            async with AsyncEnv(toy(many(1), Toy({"wait": gate}))) as env:
                await env.reset()
                first = asyncio.create_task(env.step("wait"))
                await reached(gate)
                second = asyncio.create_task(env.step("never"))
                third = asyncio.create_task(env.step("then"))
                await asyncio.sleep(0)  # allow sleep: it lets the tasks begin
                await cancelled(second)
                await cancelled(first)
                assert not third.done()
                gate.opened.set()
                with pytest.raises(EnvironmentStateError, match="CancelledError has interrupted"):
                    await third
                assert [turn.action for turn in env.episode.turns] == ["wait"]
                assert env.episode.status == "error"
                await env.reset()
                assert env.episode.turns == []
                assert (await env.step("again"))[0] == "again\n"

    run(main)


def test_an_action_that_is_cancelled_before_it_begins_ends_the_attempt() -> None:
    async def main() -> None:
        with Gate() as gate:
            async with AsyncEnv(toy(many(1), Toy({"wait": gate}))) as env:
                await env.reset()
                first = asyncio.create_task(env.step("wait"))
                await reached(gate)
                second = asyncio.create_task(env.call("bash", {"command": "never"}))
                await asyncio.sleep(0)  # allow sleep: it lets the task begin
                await cancelled(second)
                gate.opened.set()
                assert (await first)[0] == "wait\n"
                with pytest.raises(EnvironmentStateError, match="CancelledError has interrupted"):
                    await env.step("then")

    run(main)


def test_a_reset_that_is_cancelled() -> None:
    async def main() -> None:
        with Gate() as gate:
            place = Toy()
            env = AsyncEnv(toy(many(2), place))
            place.open = lambda task: (gate(), place)[1]  # type: ignore[method-assign]
            reset = asyncio.create_task(env.reset())
            await reached(gate)
            await cancelled(reset)
            gate.opened.set()
            assert (await env.step("now"))[0] == "now\n"
            await env.close()

    run(main)


def test_forks_that_are_no_longer_awaited_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    class Fork:
        def close(self) -> None:
            closed.set()

    async def main() -> None:
        with Gate() as gate:
            inner = toy(many(1))
            env = AsyncEnv(inner)
            await env.reset()
            monkeypatch.setattr(inner, "fork", lambda *_: (gate(), [Fork()])[1])
            forking = asyncio.create_task(env.fork(1))
            await reached(gate)
            await cancelled(forking)
            gate.opened.set()
            assert await asyncio.to_thread(closed.wait, PATIENCE)
            await env.close()

    run(main)


@pytest.mark.parametrize("name", ["bash", "python", "sql"])
def test_closed_while_an_action_runs(name: str) -> None:
    """The action has no end; also when the wait for closing is cancelled, all is closed."""
    endless = {
        "bash": "touch /tmp/begun; while :; do :; done",
        "python": "while True: pass",
        "sql": "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
        "SELECT COUNT(*) FROM r",
    }[name]

    async def main() -> None:
        env = AsyncEnv(intercode.make(name, limits={"timeout": PATIENCE}))
        await env.reset()
        running = asyncio.create_task(env.step(endless))
        waiting = asyncio.create_task(env.step("submit"))
        await asyncio.sleep(0)  # allow sleep: it lets the tasks begin
        closing = asyncio.create_task(env.close())
        await asyncio.sleep(0)  # allow sleep: it lets the task begin
        await cancelled(closing)
        await env.close()
        with pytest.raises(SandboxClosedError):
            await running
        with pytest.raises(EnvironmentStateError, match="was closed"):
            await waiting
        with pytest.raises(EnvironmentStateError, match="no sandbox"):
            _ = env.env.unwrapped.workspace  # type: ignore[attr-defined]

    run(main)


def test_closed_while_a_reset_opens_its_place() -> None:
    """The place, which `stop` could not see, is closed as well."""
    closed = threading.Event()

    async def main() -> None:
        with Gate() as gate:
            place = Toy()
            place.open = lambda task: (gate(), place)[1]  # type: ignore[method-assign]
            place.close = closed.set  # type: ignore[method-assign]
            inner = toy(many(1), place)
            env = AsyncEnv(inner)
            reset = asyncio.create_task(env.reset())
            await reached(gate)
            await asyncio.to_thread(inner.stop)
            closing = asyncio.create_task(env.close())
            gate.opened.set()
            with pytest.raises(EnvironmentStateError, match="stopped"):
                await reset
            await closing
            assert closed.is_set()

    run(main)


def test_closing_needs_no_thread_of_the_calls() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            env = AsyncEnv(intercode.make("bash", limits={"timeout": PATIENCE}), executor)
            await env.reset()
            running = asyncio.create_task(env.step("while :; do :; done"))
            await asyncio.sleep(0)  # allow sleep: it lets the task begin
            await env.close()
            with pytest.raises(SandboxClosedError):
                await running

    run(main)


def test_nothing_is_left_of_one_that_is_dropped() -> None:
    async def use() -> None:
        env = AsyncEnv(intercode.make("bash"))
        await env.reset(seed=0)
        await env.step("echo 1")

    leaves_nothing(lambda: asyncio.run(use()))
