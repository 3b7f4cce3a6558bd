"""The seats of clients in the episodes of a run, whose agents they are.

The calls of a client wait in its seat, where the episode takes them one by one. A seat belongs to
no connection, as the protocol of 2026 has none. The operator, not the client, learns the score.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from intercode.envs.tools import ALREADY_ENDED, ENDED, TURN_LIMIT, sendable
from intercode.errors import ModelError
from intercode.evaluate.loop import Stopped
from intercode.interpreters.base import CANCELLATION, Cancellation
from intercode.records import Key, episode_key

if TYPE_CHECKING:
    from intercode.agents.base import Surroundings
    from intercode.agents.held import HeldEnv
    from intercode.calls import Tool
    from intercode.episode import Episode
    from intercode.task import Task

Answer = tuple[str, bool]
"""Text for the model, and whether the call has failed."""
_AGAIN_SECONDS = 0.1
"""Time between two requests to stop an action, the first of which may have come too early."""
MOST_CALLS = 64
"""Calls of an episode that wait, at most."""
CANCELLED: Answer = "[cancelled: this call did nothing]", True
FAILED = "[the episode has failed, by no fault of yours: it has no result]"


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a tool that waits, or is taken."""

    name: str
    arguments: Mapping[str, Any]
    answer: Future[Answer] = field(default_factory=Future)
    cancellation: Cancellation = field(default_factory=Cancellation)

    def cancel(self) -> None:
        """Stop the action of this call; call it on an event loop."""
        if not self.answer.done():
            self.cancellation.request()
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self.cancel)


@dataclass(frozen=True, slots=True)
class _Begun:
    """The request and the tools of an episode that has begun: its client may know them."""

    query: str
    tools: list[Tool]


class Seat:
    """The place of a client in an episode, and so the episode's agent.

    Args:
        idle: Seconds without a call after which the client is taken to have left; None: no limit.
    """

    def __init__(self, idle: float | None = None) -> None:
        self.secret = secrets.token_urlsafe(24)
        """The name of the seat, which cannot be guessed."""
        self.begun: Future[_Begun] = Future()
        self._idle = idle
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._open: dict[str | int, _Call] = {}
        self._left: str | None = None
        self._taken: _Call | None = None
        self._observation = ""
        self._over: Answer | None = None
        self._lock = threading.Lock()

    async def call(
        self, name: str, arguments: Mapping[str, Any], request_id: str | int | None = None
    ) -> Answer:
        """Call a tool in the episode.

        A call that is cancelled before its turn is none; later, its action is stopped, and is a
        turn as any other.

        Args:
            name: The tool.
            arguments: Its arguments by name.
            request_id: The id of the request, for `cancel`.
        """
        with self._lock:
            if self._over is not None:
                return self._over
            if self._calls.qsize() >= MOST_CALLS:
                return "[too many calls wait: this one did nothing]", True
            call = _Call(name, arguments)
            self._calls.put(call)
        if request_id is not None:
            self._open[request_id] = call
        try:
            return await asyncio.wrap_future(call.answer)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            if request_id is not None and self._open.get(request_id) is call:
                del self._open[request_id]

    def cancel(self, request_id: object) -> None:
        """Cancel a call by the id of its request; call it on the event loop of the call."""
        if isinstance(request_id, str | int) and (call := self._open.get(request_id)) is not None:
            call.cancel()

    def run(self, env: HeldEnv) -> None:
        """Play the episode with the client's calls; hand in what a client leaves behind."""
        self.begun.set_result(_Begun(env.observation, env.tools))
        while env.running and (call := self._next(env.episode)) is not None:
            self._taken = call
            before = CANCELLATION.set(call.cancellation)
            try:
                self._observation = sendable(env.call(call.name, call.arguments)[0])
            finally:
                CANCELLATION.reset(before)
            if env.running:
                call.answer.set_result((self._observation, False))

    def _next(self, episode: Episode) -> _Call | None:
        """Wait for a call; None: the client has left.

        Raises:
            ModelError, Stopped: It has left without any call, so that there is no result.
        """
        while True:
            try:
                call = self._calls.get(timeout=self._idle)
            except Empty:
                if not episode.turns:
                    raise ModelError(f"no client has called a tool in {self._idle:g} s") from None
                self._left = f"no call in {self._idle:g} s"
                return None
            if call is None:
                if not episode.turns:
                    raise Stopped
                self._left = "disconnected"
                return None
            if call.answer.set_running_or_notify_cancel():
                if not call.cancellation.requested:
                    return call
                call.answer.set_result(CANCELLED)

    def episode_metadata(self) -> Mapping[str, Any]:
        """Say why the episode was handed in, if not by the client."""
        if self._left is None:
            return {}
        return {"ended_by": "client", "mcp": {"left": self._left}}

    def leave(self) -> None:
        """Hand in the episode as it stands, after the calls that wait."""
        self._calls.put(None)

    def end(self, said: str, failed: bool) -> None:
        """Answer the call that has ended the episode, and all after it."""
        with self._lock:
            self._over = ALREADY_ENDED if not failed else said, failed
        if not self.begun.done():
            self.begun.set_exception(Stopped())
        if self._taken is not None and not self._taken.answer.done():
            text = said if failed else f"{self._observation.rstrip()}\n{said}".lstrip()
            self._taken.answer.set_result((text, failed))
        self._taken, self._observation = None, ""  # a run may have many seats
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None and call.answer.set_running_or_notify_cancel():
                call.answer.set_result(self._over)


class Seats:
    """The clients of a run, as the factory of its agents.

    Args:
        idle: Seconds without a call after which a client is taken to have left; None: no limit.
        show_score: Whether the answer to the last call tells the reward.

    Attributes:
        announce: Called with each episode that begins, and its seat.
        left: Set when all clients have left.
    """

    def __init__(self, *, idle: float | None = None, show_score: bool = False) -> None:
        self.__name__ = "mcp"  # the agent's name in the record
        self.left = threading.Event()
        self.announce: Callable[[Seat, Episode], object] = lambda seat, episode: None
        self._idle, self._show_score = idle, show_score
        self._seats: dict[Key, Seat] = {}

    def seat(self, task_id: str, epoch: int = 0) -> Seat:
        """Return the seat of an episode, which may begin later."""
        return self._seats.setdefault((epoch, task_id, ()), Seat(self._idle))

    def find(self, secret: str) -> Seat | None:
        """Find a seat by its secret, in a time that does not tell how much of it is right."""
        given, found = secret.encode(), None
        for seat in list(self._seats.values()):
            if hmac.compare_digest(seat.secret.encode(), given):
                found = seat
        return found

    def __call__(self, task: Task) -> Seat:
        """Make the agent of a first attempt."""
        return self.seat(task.task_id)

    def within(self, env: Surroundings, task: Task) -> Seat:
        """Make the agent of an episode that has begun."""
        seat = self.seat(task.task_id, env.episode.epoch)
        if self.left.is_set():
            seat.leave()
        self.announce(seat, env.episode)
        return seat

    def ended(self, episode: Episode) -> None:
        """Tell the client that its episode has ended, and is recorded."""
        seat = self._seats.get(episode_key(episode))
        if seat is None:
            return
        if episode.status == "error":
            seat.end(FAILED, failed=True)
        else:
            score = f"\n[reward: {episode.reward}]" if self._show_score else ""
            is_last_turn = episode.status == "truncated" and "ended_by" not in episode.metadata
            seat.end(f"{TURN_LIMIT if is_last_turn else ENDED}{score}", failed=False)

    def leave(self) -> None:
        """Hand in all episodes as they stand, now and later."""
        self.left.set()
        for seat in list(self._seats.values()):
            seat.leave()

    def close(self) -> None:
        """Answer all calls that still wait: there will be no result."""
        for seat in list(self._seats.values()):
            seat.end(FAILED, failed=True)
