"""Sessions of MCP clients in the episodes of a run; each client is the agent of its episode.

The calls of a client wait in its session. The episode takes the calls one by one. A session does
not depend on a connection, because MCP's version of 2026 has no connections. The operator, not the
client, learns the score.
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
from intercode.evaluate.episode_loop import EpisodeStop
from intercode.interpreters.base import CANCELLATION, Cancellation
from intercode.records import Key, episode_key

if TYPE_CHECKING:
    from intercode.agents.base import AgentContext
    from intercode.agents.guarded_env import GuardedEnv
    from intercode.episode import Episode
    from intercode.task import Task
    from intercode.tool_calls import Tool

Answer = tuple[str, bool]
"""Text for the model, and whether the call has failed."""
_AGAIN_SECONDS = 0.1
"""Seconds between two requests to stop an action: the first may precede the action's start."""
MAX_WAITING_CALLS = 64
"""Maximum number of waiting calls of an episode."""
CANCELLED: Answer = "[cancelled: this call did nothing]", True
FAILED = "[the episode has failed, by no fault of yours: it has no result]"


@dataclass(frozen=True, slots=True)
class _PendingToolCall:
    """A tool call that waits, or that the episode has taken."""

    name: str
    arguments: Mapping[str, Any]
    answer: Future[Answer] = field(default_factory=Future)
    cancellation: Cancellation = field(default_factory=Cancellation)

    def cancel(self) -> None:
        """Stop the action of this call; call this method on an event loop."""
        if not self.answer.done():
            self.cancellation.request()
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self.cancel)


@dataclass(frozen=True, slots=True)
class _EpisodeStart:
    """The query and tools of a started episode, which its client may read."""

    query: str
    tools: list[Tool]


class EpisodeSession:
    """The session of a client in an episode, and the episode's agent.

    Args:
        idle_seconds: Seconds without a call after which the client counts as gone; None: no limit.
    """

    def __init__(self, idle_seconds: float | None = None) -> None:
        self.secret = secrets.token_urlsafe(24)
        """Unguessable name of the session."""
        self.episode_start: Future[_EpisodeStart] = Future()
        self._idle_seconds = idle_seconds
        self._calls: SimpleQueue[_PendingToolCall | None] = SimpleQueue()
        self._open: dict[str | int, _PendingToolCall] = {}
        self._leave_reason: str | None = None
        self._current_call: _PendingToolCall | None = None
        self._observation = ""
        self._final_answer: Answer | None = None
        self._lock = threading.Lock()

    async def call(
        self, name: str, arguments: Mapping[str, Any], request_id: str | int | None = None
    ) -> Answer:
        """Call a tool in the episode.

        A call that is cancelled before its turn has no effect. A later cancellation stops the
        action, which still counts as a turn.

        Args:
            name: The tool.
            arguments: Its arguments by name.
            request_id: The id of the request, for `cancel`.

        Returns:
            The text for the model, and whether the call has failed.
        """
        with self._lock:
            if self._final_answer is not None:
                return self._final_answer
            if self._calls.qsize() >= MAX_WAITING_CALLS:
                return "[too many calls wait: this one did nothing]", True
            call = _PendingToolCall(name, arguments)
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
        """Cancel a call by its request's id; call this method on the event loop of the call."""
        if isinstance(request_id, str | int) and (call := self._open.get(request_id)) is not None:
            call.cancel()

    def run(self, env: GuardedEnv) -> None:
        """Play the episode with the client's calls; submit the current state if it leaves."""
        self.episode_start.set_result(_EpisodeStart(env.observation, env.tools))
        while env.running and (call := self._next_call(env.episode)) is not None:
            self._current_call = call
            cancellation_token = CANCELLATION.set(call.cancellation)
            try:
                self._observation = sendable(env.call(call.name, call.arguments)[0])
            finally:
                CANCELLATION.reset(cancellation_token)
            if env.running:
                call.answer.set_result((self._observation, False))

    def _next_call(self, episode: Episode) -> _PendingToolCall | None:
        """Wait for a call; None: the client has left.

        Raises:
            ModelError, Stopped: The client has left without any call, so the episode has no result.
        """
        while True:
            try:
                call = self._calls.get(timeout=self._idle_seconds)
            except Empty:
                if not episode.turns:
                    raise ModelError(
                        f"no client has called a tool in {self._idle_seconds:g} s"
                    ) from None
                self._leave_reason = f"no call in {self._idle_seconds:g} s"
                return None
            if call is None:
                if not episode.turns:
                    raise EpisodeStop
                self._leave_reason = "disconnected"
                return None
            if call.answer.set_running_or_notify_cancel():
                if not call.cancellation.requested:
                    return call
                call.answer.set_result(CANCELLED)

    def episode_metadata(self) -> Mapping[str, Any]:
        """Return why the episode was submitted if the client did not submit it."""
        if self._leave_reason is None:
            return {}
        return {"ended_by": "client", "mcp": {"left": self._leave_reason}}

    def leave(self) -> None:
        """Submit the current state of the episode, after the waiting calls."""
        self._calls.put(None)

    def end(self, message: str, failed: bool) -> None:
        """Answer the call that has ended the episode, and all later calls."""
        with self._lock:
            self._final_answer = ALREADY_ENDED if not failed else message, failed
        if not self.episode_start.done():
            self.episode_start.set_exception(EpisodeStop())
        if self._current_call is not None and not self._current_call.answer.done():
            text = message if failed else f"{self._observation.rstrip()}\n{message}".lstrip()
            self._current_call.answer.set_result((text, failed))
        self._current_call, self._observation = None, ""  # frees memory of many sessions
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None and call.answer.set_running_or_notify_cancel():
                call.answer.set_result(self._final_answer)


class EpisodeSessions:
    """The client sessions of a run, as the factory of its agents.

    Args:
        idle_seconds: Seconds without a call after which a client counts as gone; None: no limit.
        show_score: Whether the answer to the last call contains the reward.

    Attributes:
        announce: Called with each started episode's session and the episode.
        leave_event: Set when all clients have left.
    """

    def __init__(self, *, idle_seconds: float | None = None, show_score: bool = False) -> None:
        self.__name__ = "mcp"  # the agent's name in the record
        self.leave_event = threading.Event()
        self.announce: Callable[[EpisodeSession, Episode], object] = lambda session, episode: None
        self._idle_seconds, self._show_score = idle_seconds, show_score
        self._sessions: dict[Key, EpisodeSession] = {}

    def session(self, task_id: str, epoch: int = 0) -> EpisodeSession:
        """Return the session of an episode, which may start later."""
        return self._sessions.setdefault((epoch, task_id, ()), EpisodeSession(self._idle_seconds))

    def find(self, secret: str) -> EpisodeSession | None:
        """Find a session by its secret, in a time that reveals nothing about partial matches."""
        secret_bytes, match = secret.encode(), None
        for session in list(self._sessions.values()):
            if hmac.compare_digest(session.secret.encode(), secret_bytes):
                match = session
        return match

    def __call__(self, task: Task) -> EpisodeSession:
        """Make the agent of a first attempt."""
        return self.session(task.task_id)

    def make_agent(self, env: AgentContext, task: Task) -> EpisodeSession:
        """Make the agent of a started episode."""
        session = self.session(task.task_id, env.episode.epoch)
        if self.leave_event.is_set():
            session.leave()
        self.announce(session, env.episode)
        return session

    def finish_episode(self, episode: Episode) -> None:
        """Notify the client that its episode has ended and is recorded."""
        session = self._sessions.get(episode_key(episode))
        if session is None:
            return
        if episode.status == "error":
            session.end(FAILED, failed=True)
        else:
            score = f"\n[reward: {episode.reward}]" if self._show_score else ""
            is_last_turn = episode.status == "truncated" and "ended_by" not in episode.metadata
            session.end(f"{TURN_LIMIT if is_last_turn else ENDED}{score}", failed=False)

    def leave(self) -> None:
        """Submit the current state of all episodes, now and later."""
        self.leave_event.set()
        for session in list(self._sessions.values()):
            session.leave()

    def close(self) -> None:
        """Answer all waiting calls: their episodes will have no result."""
        for session in list(self._sessions.values()):
            session.end(FAILED, failed=True)
