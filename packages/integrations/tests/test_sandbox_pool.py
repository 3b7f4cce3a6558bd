"""`SandboxPool`: capacity, time without use, age, clients that left, sandboxes started ahead."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import intercode
from envs.toy import Gate, Toy, many, toy
from intercode import CapacityError, ImageError, LeaseError, SandboxPool, UsageError
from intercode.errors import EnvironmentStateError, SandboxClosedError
from test_async_env import cancelled, reached, run
from waiting import PATIENCE, eventually, new_marker, sleepers


class Thing:
    """What these pools lease."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Things:
    """Makes them, and a clock that the test turns."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Thing]] = []
        self.now = 0.0
        self.before: Callable[[], object] = lambda: None

    def open(self, key: str) -> Thing:
        self.before()
        self.made.append((key, Thing()))
        return self.made[-1][1]

    def alive(self) -> int:
        return sum(not thing.closed for _, thing in self.made)


@pytest.fixture
def things() -> Things:
    return Things()


@pytest.fixture
def pool(things: Things) -> Iterator[SandboxPool[str, Thing]]:
    with SandboxPool(things.open, capacity=2, clock=lambda: things.now) as made:
        yield made
    assert not things.alive()


Pool = SandboxPool[str, Thing]


def test_sandboxes_of_an_image_and_of_a_task() -> None:
    with SandboxPool[str, Any](capacity=1) as pool:
        with pool.lease("host") as sandbox:
            assert sandbox.exec(["echo", "1"]).stdout == b"1\n"
        with pytest.raises(SandboxClosedError):
            sandbox.exec(["true"])
        with pool.lease("host") as other:
            assert other is not sandbox
        with pytest.raises(ImageError):
            pool.lease("no-such-image").open()
        assert pool.counts().failed == 1 and pool.counts().leased == 0
    env = intercode.make("bash")

    async def main() -> None:
        task = env.dataset[0]
        with SandboxPool(env.stage.open) as pool:
            async with pool.lease(task) as place:
                await place.exec(["bash", "-c", task.gold[0]])
                assert env.score(task, place.sandbox).value <= 1.0
        with pytest.raises(CapacityError, match="closing"):
            pool.lease(task).open()

    run(main)


def test_environments() -> None:
    async def main() -> None:
        tasks = many(3)
        with SandboxPool[str, Any](lambda _: toy(tasks)) as pool:
            lease = await pool.lease("toy").open_async()
            async with pool.use_async(lease.id) as env:
                await env.reset()
            async with pool.use_async(lease.id) as env:
                assert (await env.step("submit"))[1] == 1.0
            lease.close()

    run(main)


def test_capacity(pool: Pool, things: Things) -> None:
    first, _ = pool.lease("a").open(), pool.lease("b").open()
    with pytest.raises(CapacityError, match="all 2 of the pool are leased: try again later"):
        pool.lease("c").open()
    with pytest.raises(CapacityError, match=r"for 0\.01 seconds"):
        pool.lease("c", wait=0.01).open()
    assert pool.counts().refused == 2 and pool.counts().waiting == 0
    waiting = pool.lease("c", wait=None)
    thread = threading.Thread(target=waiting.open)
    thread.start()
    assert eventually(lambda: pool.counts().waiting == 1)
    first.close()
    first.close()
    thread.join(PATIENCE)
    assert waiting.resource is not None and things.alive() == 2
    with pytest.raises(LeaseError, match="used before"):
        waiting.open()


def test_clients_wait_in_turn_and_may_give_up(pool: Pool, things: Things) -> None:
    async def main() -> None:
        first, second = pool.lease("a").open(), pool.lease("b").open()
        impatient = pool.lease("c", wait=0.01)
        with pytest.raises(CapacityError):
            await impatient.open_async()
        left, patient = (
            asyncio.create_task(pool.lease(key, wait=None).open_async()) for key in "de"
        )
        await asyncio.sleep(0)  # allow sleep: it lets the tasks begin
        assert pool.counts().waiting == 2
        await cancelled(left)
        first.close()
        assert (await patient).key == "e"
        assert [key for key, _ in things.made] == ["a", "b", "e"]
        # Granted in the moment in which it is cancelled: the slot is not lost.
        late = asyncio.create_task(pool.lease("f", wait=None).open_async())
        await asyncio.sleep(0)  # allow sleep: it lets the task begin
        second.close()
        await cancelled(late)
        assert pool.counts().leased == 1
        pool.lease("g").open()

    run(main)


def test_cancelled_while_it_is_opened(pool: Pool, things: Things) -> None:
    async def main() -> None:
        with Gate() as gate:
            things.before = gate
            opening = asyncio.create_task(pool.lease("a").open_async())
            await reached(gate)
            await cancelled(opening)
            gate.opened.set()
            assert await asyncio.to_thread(eventually, lambda: pool.counts().leased == 0)
            assert len(things.made) == 1 and not things.alive()

    run(main)


def test_time_without_use(pool: Pool, things: Things) -> None:
    lease = pool.lease("a").open()
    things.now = 899
    with pool.use(lease.id) as thing:
        things.now = 2000
        assert pool.counts().used == 1 and pool.sweep() == 0  # it is in use
    things.now = 2899
    assert pool.sweep() == 0 and not thing.closed
    things.now = 2900
    assert pool.sweep() == 1 and thing.closed
    assert pool.counts().idle == 1 and pool.counts().leased == 0
    with (
        pytest.raises(LeaseError, match=r"no such lease, or it has ended: .*900 seconds"),
        pool.use(lease.id),
    ):
        pass


def test_the_greatest_age(pool: Pool, things: Things) -> None:
    with pool.lease("a") as thing:
        things.now = 3600
        assert pool.sweep() == 1 and thing.closed  # in use or not
        assert pool.counts().aged == 1
    assert pool.counts().leased == 0


def test_the_pool_s_thread_sweeps(things: Things) -> None:
    with SandboxPool(things.open, idle=0.01) as pool:
        pool.lease("a").open()
        assert eventually(lambda: pool.counts().idle == 1 and not things.alive())


def test_an_environment_that_is_too_old_is_freed_when_its_step_has_ended() -> None:
    now, freed = [0.0], threading.Event()

    class Env(type(toy(many(1)))):  # type: ignore[misc]
        def close(self) -> None:
            super().close()
            freed.set()

    with Gate() as gate:
        place = Toy({"wait": gate})
        made = toy(many(1), place)
        made.__class__ = Env
        pool = SandboxPool[str, Any](lambda _: made, clock=lambda: now[0])
        lease = pool.lease("toy").open()

        def client() -> None:
            with pool.use(lease.id) as env:
                env.reset()
                env.step("wait")

        thread = threading.Thread(target=client)
        thread.start()
        assert gate.reached.wait(PATIENCE)
        now[0] = 3600
        stopped = threading.Event()
        place.close = stopped.set  # type: ignore[method-assign]
        assert pool.sweep() == 1 and stopped.is_set() and not freed.is_set()
        gate.opened.set()
        assert freed.wait(PATIENCE)
        thread.join()
        pool.close()


def test_a_call_that_is_no_longer_awaited_is_use() -> None:
    async def main() -> None:
        with Gate() as gate:
            made = toy(many(1), Toy({"wait": gate}))
            with SandboxPool[str, Any](lambda _: made) as pool:
                lease = await pool.lease("toy").open_async()
                async with pool.use_async(lease.id) as env:
                    await env.reset()
                    step = asyncio.create_task(env.step("wait"))
                    await reached(gate)
                    await cancelled(step)
                assert pool.counts().used == 1
                gate.opened.set()
                with pytest.raises(EnvironmentStateError, match="CancelledError has interrupted"):
                    await env.step("next")
                assert pool.counts().used == 0

    run(main)


def test_a_client_that_left(pool: Pool, things: Things) -> None:
    for owner in ("one", "other"):
        pool.lease("a", owner=owner).open()
    assert pool.leave("one") == 1 and pool.leave("one") == 0
    assert things.alive() == 1 and pool.counts().abandoned == 1


def test_some_are_started_ahead(things: Things) -> None:
    with SandboxPool(things.open, capacity=2, warm={"a": 2}) as pool:
        assert eventually(lambda: pool.counts().warm == 2 and len(things.made) == 2)
        with pool.lease("a") as thing:
            assert thing in [made for _, made in things.made[:2]]
            with pool.lease("b"):  # the other one makes room
                assert things.alive() == 2 and pool.counts().warm == 0
        assert eventually(lambda: pool.counts().warm == 2 and things.alive() == 2)
    assert not things.alive()
    with pytest.raises(UsageError, match="more sandboxes than the capacity"):
        SandboxPool(things.open, capacity=1, warm={"a": 2})
    with pytest.raises(UsageError, match="idle must be more than 0"):
        SandboxPool(things.open, idle=0)


def test_one_that_cannot_be_started_ahead_is_not_tried_for_ever(things: Things) -> None:
    tried: list[str] = []

    def fail() -> None:
        tried.append("")
        if len(tried) < 3:
            raise ImageError("there is no such image")

    things.before = fail
    with SandboxPool(things.open, warm={"a": 1}) as pool:
        assert eventually(lambda: pool.counts().failed == 1)
        with pytest.raises(ImageError):
            pool.lease("a").open()
        assert len(tried) == 2
        with pool.lease("a"):
            assert eventually(lambda: pool.counts().warm == 1)


def test_drained(things: Things) -> None:
    pool = SandboxPool(things.open)
    lease = pool.lease("a").open()
    assert pool.drain(timeout=0) is False
    with pytest.raises(CapacityError, match="closing"):
        pool.lease("b").open()
    threading.Thread(target=lease.close).start()
    assert pool.drain(timeout=PATIENCE)
    pool.close()
    pool.close()


def test_who_waits_hears_that_it_closes(pool: Pool) -> None:
    async def main() -> None:
        for key in "ab":
            pool.lease(key).open()
        waiting = asyncio.create_task(pool.lease("c", wait=None).open_async())
        await asyncio.sleep(0)  # allow sleep: it lets the task begin
        await asyncio.to_thread(pool.close)
        with pytest.raises(CapacityError, match="closing"):
            await waiting

    run(main)


SERVER = """
import sys
from intercode import SandboxPool
pool = SandboxPool(warm={"host": 1})
sandbox = pool.lease("host").open().resource
script = f"sleep {sys.argv[1]} & echo begun"
print(sandbox.exec(["sh", "-c", script]).stdout.decode(), flush=True)
input()
"""


def test_nothing_is_left_of_a_server_that_is_killed() -> None:
    marker = new_marker()
    command = [sys.executable, "-c", SERVER, marker]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == "begun\n"
        assert eventually(lambda: sleepers(marker))
        server.send_signal(signal.SIGKILL)
    assert eventually(lambda: not sleepers(marker))
