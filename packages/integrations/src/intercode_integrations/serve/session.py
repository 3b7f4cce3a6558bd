"""A session: one client's episodes, one after the other, in an environment of its own."""

from __future__ import annotations

import asyncio
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from intercode.errors import CapacityError, InterCodeError, LeaseError, UsageError
from intercode_integrations.asynchronous import AsyncEnv
from intercode_integrations.serve import wire
from intercode_integrations.serve.catalog import Offer
from intercode_integrations.serve.log import log
from intercode_integrations.serve.metrics import Counts

_FIRST = asyncio.FIRST_COMPLETED
CLOSING = 2.0
"""Seconds for a client to take the last word."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which clients have sessions."""

    max_sessions: int = 64
    """Sessions at a time, of all workers together."""
    idle: float = 600.0
    """Seconds without a message, after which a session ends."""
    lifetime: float | None = None
    """Seconds after which a session ends in any case."""
    rate: float = 1000.0
    """Messages a second that are read of a client, on average."""
    max_message: int = 1024**2
    """Bytes of a message."""
    patience: float = 30.0
    """Seconds for a client to take what it is sent."""
    drain: float = 30.0
    """Seconds for episodes to end, once the server is to end."""


class Ended(Exception):  # noqa: N818 - mostly it is not an error
    """The session ends.

    Args:
        why: One of `intercode_integrations.serve.metrics.ENDS`.
        code: The close code of the WebSocket.
        error: Told to the client; None: it knows.
        kind: The error's code, of `wire.CODES`.
    """

    def __init__(
        self,
        why: str,
        code: int,
        error: InterCodeError | None = None,
        kind: str = "SESSION_ERROR",
    ) -> None:
        super().__init__(why)
        self.why, self.code, self.error, self.kind = why, code, error, kind


def _draining() -> Ended:
    said = CapacityError("the server is ending: connect to another one, or later")
    return Ended("draining", 1001, said, "CAPACITY_REACHED")


class Pace:
    """Lets so many messages a second pass, and at once those that were not sent before.

    Args:
        rate: Messages a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free, self._last = rate, time.monotonic()

    async def turn(self) -> None:
        """Wait for the turn of a message."""
        now = time.monotonic()
        self._free = min(self._rate, self._free + (now - self._last) * self._rate) - 1
        self._last = now
        if self._free < 0:
            await asyncio.sleep(-self._free / self._rate)


class Session:
    """A client's session.

    Args:
        offer: The environment that it is for.
        terms: The terms.
        counts: The numbers to keep.
        starts: Held by those that start a sandbox: many at once would all be late.
    """

    def __init__(
        self, offer: Offer, terms: Terms, counts: Counts, starts: asyncio.Semaphore
    ) -> None:
        self.id = uuid.uuid4().hex
        self.closing = False
        """Whether it has ended, and what it had is being freed."""
        self._draining = False
        """Whether no further episode may begin."""
        self._busy = False
        """Whether an episode is running, or being begun."""
        self._end: Ended | None = None
        self._over = asyncio.Event()
        self._offer, self._terms, self._counts, self._starts = offer, terms, counts, starts
        self._pace = Pace(terms.rate)
        self._split: str | None = None
        self._env: AsyncEnv | None = None
        self._episode_id = ""
        self._steps = 0

    async def serve(self, connection: ServerConnection) -> Ended:
        """Answer a client until its session ends; then free what it had, and close the connection.

        Returns:
            Why it has ended.
        """
        work = asyncio.create_task(self._answer(connection))
        gone = asyncio.create_task(connection.wait_closed())
        over = asyncio.create_task(self._over.wait())
        tasks: set[asyncio.Task[Any]] = {work, gone, over}
        try:
            await asyncio.wait(tasks, timeout=self._terms.lifetime, return_when=_FIRST)
            end = self._end_of(work, gone)
        finally:
            self.closing = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._env is not None:
                await self._env.close()
        if end.why == "stalled":
            connection.transport.abort()
        with suppress(ConnectionClosed, TimeoutError):
            if end.error is not None:
                told = connection.send(self._told(end.kind, end.error), text=True)
                await asyncio.wait_for(told, CLOSING)
            await connection.close(end.code)
        return end

    def _end_of(self, work: asyncio.Task[None], gone: asyncio.Task[None]) -> Ended:
        """Tell why a session has ended."""
        if self._end is not None:
            return self._end
        if gone.done():
            return Ended("gone", 1001)
        if not work.done():
            return Ended("aged", 1001, LeaseError(f"older than {self._terms.lifetime:g} s"))
        error = work.exception()
        if isinstance(error, Ended):
            return error
        if not isinstance(error, ConnectionClosed):
            log("error", session=self.id, error=repr(error))
            return Ended("failed", 1011, InterCodeError("the server has failed: its log says why"))
        return Ended("gone", 1001)

    def end(self, end: Ended) -> None:
        """End the session, whatever it does."""
        self._end = self._end or end
        self._over.set()

    def stop(self) -> None:
        """End the session, and the episode that runs."""
        self.end(_draining())

    def drain(self) -> None:
        """End the session as soon as no episode runs."""
        self._draining = True
        if not self._busy:
            self.end(_draining())

    async def _answer(self, connection: ServerConnection) -> None:
        """Answer a client's messages, in their order.

        Raises:
            Ended: The session is over.
            ConnectionClosed: The client has gone.
        """
        said = f"idle for {self._terms.idle:g} s: connect again for another session"
        idle = Ended("idle", 1001, LeaseError(said))
        try:
            self._env = await self._made(None)
        except InterCodeError as error:
            raise Ended("failed", 1011, error, "FACTORY_ERROR") from None
        while True:
            with self._within(self._terms.idle, idle):
                text = await connection.recv()
            self._counts.add("received")
            await self._pace.turn()
            reply = await self._reply(text)
            with self._within(self._terms.patience, Ended("stalled", 1008)):
                await connection.send(reply, text=True)
            if self._draining and not self._busy:
                raise _draining()

    @contextmanager
    def _within(self, seconds: float, end: Ended) -> Iterator[None]:
        """End the session if the context lasts longer."""
        timer = asyncio.get_running_loop().call_later(seconds, self.end, end)
        try:
            yield
        finally:
            timer.cancel()

    async def _reply(self, text: str | bytes) -> bytes:
        """Take a message, and return the reply to it.

        Raises:
            Ended: The client closes the session, or the server has failed it.
        """
        try:
            found = wire.read(text, wire.Message)
            if found.type == "reset":
                return await self._reset(wire.read(found.data, wire.Reset))
            if found.type == "step":
                return await self._step(wire.read(found.data, wire.Step).action)
            if found.type == "state":
                return wire.written("state", self._state())
            if found.type == "close":
                raise Ended("closed", 1000)
            unknown = f"there is no message {found.type!r}: reset, step, state and close"
            raise wire.Fault("UNKNOWN_TYPE", UsageError(unknown))
        except wire.Fault as fault:
            return self._told(fault.code, fault.error)
        except InterCodeError as error:
            return self._told("EXECUTION_ERROR", error)
        except Ended:
            raise
        except Exception as error:  # noqa: BLE001 - the server goes on, and its log has it
            log("error", session=self.id, error=repr(error), traceback=traceback.format_exc())
            said = InterCodeError("the server has failed: its log says why")
            raise Ended("failed", 1011, said) from None

    def _told(self, code: str, error: InterCodeError) -> bytes:
        self._counts.add(f"error {code}")
        return wire.error(code, error)

    async def _reset(self, wish: wire.Reset) -> bytes:
        if self._draining:
            raise _draining()
        self._busy = True
        try:
            env = await self._of(wish.split)
            chosen: dict[str, Any] = {"task_id": wish.task_id, "index": wish.index}
            async with self._starts:
                text, info = await env.reset(seed=wish.seed, **chosen)
        finally:
            self._busy = self._is_running()
        self._episode_id, self._steps = wish.episode_id or uuid.uuid4().hex, 0
        return self._observation(text, float("nan"), False, False, info)

    async def _of(self, split: str | None) -> AsyncEnv:
        """Return an environment with the tasks of a split: another one, if it was of another."""
        assert self._env is not None  # `_answer` has made it
        if split != self._split:
            before, self._env = self._env, await self._made(split)
            self._split = split
            await before.close()
        return self._env

    async def _made(self, split: str | None) -> AsyncEnv:
        loop = asyncio.get_running_loop()
        return AsyncEnv(await loop.run_in_executor(None, self._offer.make, split))

    async def _step(self, action: str) -> bytes:
        assert self._env is not None  # `_answer` has made it
        began = time.monotonic()
        try:
            taken = await self._env.step(action)
        finally:
            self._busy = self._is_running()
        self._steps += 1
        self._counts.step(time.monotonic() - began)
        return self._observation(*taken)

    def _is_running(self) -> bool:
        try:
            return self._env is not None and self._env.episode.status == "running"
        except InterCodeError:  # there is none yet
            return False

    def _observation(
        self, text: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> bytes:
        failed = "error" in info
        done = terminated or truncated or failed
        if done:
            self._note(failed)
        known = reward if "parts" in info else None  # before the end there is none
        return wire.observation(text, known, truncated or failed, done, info)

    def _note(self, failed: bool) -> None:
        """Keep the record of an episode that has ended."""
        assert self._env is not None  # `_answer` has made it
        episode = self._env.episode
        self._counts.add("failures" if failed else "episodes")
        log(
            "episode",
            session=self.id,
            episode=self._episode_id,
            env=self._offer.name,
            task=episode.task_id,
            status=episode.status,
            outcome=episode.outcome,
            reward=episode.reward,
            turns=len(episode.turns),
            seconds=round(episode.seconds, 3),
            error=episode.error,
        )

    def _state(self) -> dict[str, Any]:
        assert self._env is not None  # `_answer` has made it
        episode = self._env.episode
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "task_id": episode.task_id,
            "status": episode.status,
            "outcome": episode.outcome,
        }
