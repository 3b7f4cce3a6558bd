"""Sessions of a server: a client's consecutive episodes, in an environment for this client only."""

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
from intercode_integrations.async_env import AsyncEnv
from intercode_integrations.serve import messages
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.log import log
from intercode_integrations.serve.metrics import ServerMetrics

_WAIT_MODE = asyncio.FIRST_COMPLETED
CLOSE_SECONDS = 2.0
"""Maximum seconds for a client to receive the last message of its session."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits that a server sets for the sessions of its clients."""

    max_sessions: int = 64
    """Maximum number of concurrent sessions, of all workers together."""
    idle: float = 600.0
    """Seconds without a message from the client, after which its session ends."""
    lifetime: float | None = None
    """Seconds after which a session ends, even if it is in use; None: no limit."""
    rate: float = 1000.0
    """Maximum average number of messages per second that the server reads from a client."""
    max_message: int = 1024**2
    """Maximum bytes of a message."""
    patience: float = 30.0
    """Maximum seconds for a client to read data that the server has sent."""
    drain: float = 30.0
    """Seconds for which episodes may continue after the server's shutdown has started."""


class SessionEnd(Exception):  # noqa: N818 - mostly it is not an error
    """The end of a session, as an exception that leaves the loop of messages.

    Args:
        reason: The reason, one of `intercode_integrations.serve.metrics.ENDS`.
        close_code: The close code of the WebSocket.
        error: The error to send to the client; None if the client already knows the reason.
        error_code: The code of `error`, one of `wire.CODES`.
    """

    def __init__(
        self,
        reason: str,
        close_code: int,
        error: InterCodeError | None = None,
        error_code: str = "SESSION_ERROR",
    ) -> None:
        super().__init__(reason)
        self.reason, self.code, self.error, self.kind = reason, close_code, error, error_code


def _draining_end() -> SessionEnd:
    error = CapacityError("the server is shutting down: connect to another server, or later")
    return SessionEnd("draining", 1001, error, "CAPACITY_REACHED")


class MessageRateLimit:
    """A limit on a client's messages per second, which permits one second's messages as a burst.

    Args:
        rate: The average number of messages per second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._allowance, self._last_turn = rate, time.monotonic()

    async def turn(self) -> None:
        """Wait until the limit permits the next message."""
        now = time.monotonic()
        self._allowance = (
            min(self._rate, self._allowance + (now - self._last_turn) * self._rate) - 1
        )
        self._last_turn = now
        if self._allowance < 0:
            await asyncio.sleep(-self._allowance / self._rate)


class ServerSession:
    """The server's side of a client's session.

    Args:
        entry: The environment of the session.
        limits: The limits.
        metrics: The metrics to update.
        starts: A semaphore that the session holds while its sandbox starts. Too many concurrent
            starts would all be slow.
    """

    def __init__(
        self,
        entry: ServedEnvironment,
        limits: SessionLimits,
        metrics: ServerMetrics,
        starts: asyncio.Semaphore,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.closing = False
        """Whether the session has ended and is freeing its resources."""
        self._draining = False
        """Whether the server is shutting down, so no further episode may start."""
        self._busy = False
        """Whether an episode is running or starting."""
        self._end: SessionEnd | None = None
        self._end_event = asyncio.Event()
        self._entry, self._limits, self._metrics, self._starts = entry, limits, metrics, starts
        self._message_rate = MessageRateLimit(limits.rate)
        self._split: str | None = None
        self._env: AsyncEnv | None = None
        self._episode_id = ""
        self._steps = 0

    async def serve(self, connection: ServerConnection) -> SessionEnd:
        """Answer a client's messages until the session ends, then free the session's resources.

        The method closes the WebSocket last.

        Returns:
            The end of the session, with its reason.
        """
        answer_task = asyncio.create_task(self._answer(connection))
        disconnect_task = asyncio.create_task(connection.wait_closed())
        end_task = asyncio.create_task(self._end_event.wait())
        tasks: set[asyncio.Task[Any]] = {answer_task, disconnect_task, end_task}
        try:
            await asyncio.wait(tasks, timeout=self._limits.lifetime, return_when=_WAIT_MODE)
            end = self._session_end(answer_task, disconnect_task)
        finally:
            self.closing = True
            for asyncio_task in tasks:
                asyncio_task.cancel()
            await asyncio.wait(tasks)
            if self._env is not None:
                await self._env.close()
        if end.reason == "stalled":
            connection.transport.abort()
        with suppress(ConnectionClosed, TimeoutError):
            if end.error is not None:
                send_task = connection.send(self._error_reply(end.kind, end.error), text=True)
                await asyncio.wait_for(send_task, CLOSE_SECONDS)
            await connection.close(end.code)
        return end

    def _session_end(
        self, answer_task: asyncio.Task[None], disconnect_task: asyncio.Task[None]
    ) -> SessionEnd:
        """Return the end of the session, by the first of its tasks that is done."""
        if self._end is not None:
            return self._end
        if disconnect_task.done():
            return SessionEnd("gone", 1001)
        if not answer_task.done():
            return SessionEnd("aged", 1001, LeaseError(f"older than {self._limits.lifetime:g} s"))
        error = answer_task.exception()
        if isinstance(error, SessionEnd):
            return error
        if not isinstance(error, ConnectionClosed):
            log("error", session=self.id, error=repr(error))
            return SessionEnd(
                "failed", 1011, InterCodeError("the server has failed: its log has the reason")
            )
        return SessionEnd("gone", 1001)

    def end(self, end: SessionEnd) -> None:
        """End the session with the given reason, even while an action runs."""
        self._end = self._end or end
        self._end_event.set()

    def stop(self) -> None:
        """End the session and its running episode, because the server shuts down."""
        self.end(_draining_end())

    def drain(self) -> None:
        """End the session when its episode has ended, or at once if no episode runs."""
        self._draining = True
        if not self._busy:
            self.end(_draining_end())

    async def _answer(self, connection: ServerConnection) -> None:
        """Answer a client's messages in the order in which they arrive.

        Raises:
            SessionEnd: The session must end.
            ConnectionClosed: The client has closed the connection.
        """
        idle_text = f"idle for {self._limits.idle:g} s: connect again for another session"
        idle_end = SessionEnd("idle", 1001, LeaseError(idle_text))
        try:
            self._env = await self._make_env(None)
        except InterCodeError as error:
            raise SessionEnd("failed", 1011, error, "FACTORY_ERROR") from None
        while True:
            with self._end_after(self._limits.idle, idle_end):
                message_text = await connection.recv()
            self._metrics.add("received")
            await self._message_rate.turn()
            reply = await self._reply(message_text)
            with self._end_after(self._limits.patience, SessionEnd("stalled", 1008)):
                await connection.send(reply, text=True)
            if self._draining and not self._busy:
                raise _draining_end()

    @contextmanager
    def _end_after(self, seconds: float, end: SessionEnd) -> Iterator[None]:
        """End the session with `end` if the block runs longer than `seconds`."""
        timer = asyncio.get_running_loop().call_later(seconds, self.end, end)
        try:
            yield
        finally:
            timer.cancel()

    async def _reply(self, message_text: str | bytes) -> bytes:
        """Execute a client's message, and return the reply to send.

        Raises:
            SessionEnd: The client closes the session, or the server has failed or is shutting down.
        """
        try:
            message = messages.read(message_text, messages.ClientMessage)
            if message.type == "reset":
                return await self._reset(messages.read(message.data, messages.ResetMessage))
            if message.type == "step":
                return await self._step(messages.read(message.data, messages.StepMessage).action)
            if message.type == "state":
                return messages.encode_message("state", self._state())
            if message.type == "close":
                raise SessionEnd("closed", 1000)
            error_text = f"there is no message {message.type!r}: reset, step, state and close"
            raise messages.MessageFault("UNKNOWN_TYPE", UsageError(error_text))
        except messages.MessageFault as fault:
            return self._error_reply(fault.code, fault.error)
        except InterCodeError as error:
            return self._error_reply("EXECUTION_ERROR", error)
        except SessionEnd:
            raise
        except Exception as error:  # noqa: BLE001 - the server goes on, and its log has it
            log("error", session=self.id, error=repr(error), traceback=traceback.format_exc())
            failure = InterCodeError("the server has failed: its log has the reason")
            raise SessionEnd("failed", 1011, failure) from None

    def _error_reply(self, error_code: str, error: InterCodeError) -> bytes:
        self._metrics.add(f"error {error_code}")
        return messages.error(error_code, error)

    async def _reset(self, request: messages.ResetMessage) -> bytes:
        if self._draining:
            raise _draining_end()
        self._busy = True
        try:
            env = await self._env_for_split(request.split)
            task_choice: dict[str, Any] = {"task_id": request.task_id, "index": request.index}
            async with self._starts:
                observation, info = await env.reset(seed=request.seed, **task_choice)
        finally:
            self._busy = self._is_running()
        self._episode_id, self._steps = request.episode_id or uuid.uuid4().hex, 0
        return self._observation(observation, float("nan"), False, False, info)

    async def _env_for_split(self, split: str | None) -> AsyncEnv:
        """Return the session's environment; replace the environment if the split changes."""
        assert self._env is not None  # `_answer` has made it
        if split != self._split:
            previous_env, self._env = self._env, await self._make_env(split)
            self._split = split
            await previous_env.close()
        return self._env

    async def _make_env(self, split: str | None) -> AsyncEnv:
        loop = asyncio.get_running_loop()
        return AsyncEnv(await loop.run_in_executor(None, self._entry.make, split))

    async def _step(self, action: str) -> bytes:
        assert self._env is not None  # `_answer` has made it
        start_time = time.monotonic()
        try:
            step_result = await self._env.step(action)
        finally:
            self._busy = self._is_running()
        self._steps += 1
        self._metrics.step(time.monotonic() - start_time)
        return self._observation(*step_result)

    def _is_running(self) -> bool:
        try:
            return self._env is not None and self._env.episode.status == "running"
        except InterCodeError:  # no episode has started yet
            return False

    def _observation(
        self, text: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> bytes:
        failed = "error" in info
        is_done = terminated or truncated or failed
        if is_done:
            self._note(failed)
        reported_reward = reward if "parts" in info else None  # only a scored turn has a reward
        return messages.observation(text, reported_reward, truncated or failed, is_done, info)

    def _note(self, failed: bool) -> None:
        """Add a finished episode to the metrics and to the log."""
        assert self._env is not None  # `_answer` has made it
        episode = self._env.episode
        self._metrics.add("failures" if failed else "episodes")
        log(
            "episode",
            session=self.id,
            episode=self._episode_id,
            env=self._entry.name,
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
