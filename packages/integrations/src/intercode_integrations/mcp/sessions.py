"""Sessions of MCP clients in the episodes of a run; each client is the agent of its episode.

The tool calls of a client wait in a queue of its session, and the episode executes them one by one.
A session does not depend on a connection, because MCP's version of 2026 has no connections. By
default, only the operator learns the score, not the client.
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
from intercode.interpreters.base import CANCELLATION, ActionCancellation
from intercode.records import Key, episode_key

if TYPE_CHECKING:
    from intercode.agents.base import AgentContext
    from intercode.agents.guarded_env import AgentEnv
    from intercode.episode import Episode
    from intercode.task import Task
    from intercode.tool_calls import Tool

Answer = tuple[str, bool]
"""Type of a call's answer: the text for the model, and whether the call has failed."""
_AGAIN_SECONDS = 0.1
"""Seconds between two requests to stop an action, because the first may come before the start."""
MAX_WAITING_CALLS = 64
"""Maximum number of calls that may wait in a session."""
CANCELLED: Answer = "[cancelled: this call did nothing]", True
FAILED = "[the episode has failed, by no fault of yours: it has no result]"


@dataclass(frozen=True, slots=True)
class _PendingToolCall:
    """A tool call that waits in the session, or that the episode is executing."""

    name: str
    arguments: Mapping[str, Any]
    answer: Future[Answer] = field(default_factory=Future)
    cancellation: ActionCancellation = field(default_factory=ActionCancellation)

    def cancel(self) -> None:
        """Stop the action of this call, repeatedly until the call is answered.

        This method must run on an event loop.
        """
        if not self.answer.done():
            self.cancellation.request()
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self.cancel)


@dataclass(frozen=True, slots=True)
class _EpisodeStart:
    """The query and the tools of an episode that has started, for its client."""

    query: str
    tools: list[Tool]


class EpisodeSession:
    """The session of a client, which is also the agent of the episode.

    The client's requests call `call` on an event loop. The episode calls `run` on its own thread.

    Args:
        idle_seconds: Seconds without a call after which the client counts as disconnected; None: no
            limit.
    """

    def __init__(self, idle_seconds: float | None = None) -> None:
        self.secret = secrets.token_urlsafe(24)
        """The name of the session in its URL: random, so other clients cannot guess it."""
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
        """Put a tool call into the queue, and wait for its answer.

        A call that is cancelled while it waits has no effect. If the call is already running, the
        cancellation stops its action, which still counts as a turn.

        Args:
            name: The tool's name.
            arguments: The tool's arguments by name.
            request_id: The id of the client's request, by which `cancel` finds the call.

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
        """Cancel the call of a request; this method must run on the event loop of the call.

        Args:
            request_id: The id of the request; an unknown id is ignored.
        """
        if isinstance(request_id, str | int) and (call := self._open.get(request_id)) is not None:
            call.cancel()

    def run(self, env: AgentEnv) -> None:
        """Play the episode with the client's calls.

        If the client disconnects, the episode's current state is submitted.

        Raises:
            ModelError: The client has made no call within the idle time.
            EpisodeStop: The client has disconnected without any call.
        """
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
        """Wait for the next call, and return it; None if the client has disconnected.

        Raises:
            ModelError: The client has not made its first call within the idle time.
            EpisodeStop: The client has disconnected without any call.
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
        """Return the way in which the client disconnected; empty if it did not."""
        if self._leave_reason is None:
            return {}
        return {"ended_by": "client", "mcp": {"left": self._leave_reason}}

    def leave(self) -> None:
        """Submit the current state of the episode after the calls that already wait."""
        self._calls.put(None)

    def end(self, message: str, failed: bool) -> None:
        """Answer the call that ended the episode, and all waiting and later calls.

        Args:
            message: The text about the end, for the model.
            failed: Whether the episode has failed, and therefore has no result.
        """
        with self._lock:
            self._final_answer = ALREADY_ENDED if not failed else message, failed
        if not self.episode_start.done():
            self.episode_start.set_exception(EpisodeStop())
        if self._current_call is not None and not self._current_call.answer.done():
            text = message if failed else f"{self._observation.rstrip()}\n{message}".lstrip()
            self._current_call.answer.set_result((text, failed))
        # A run may have many sessions, so an ended one keeps no observation in memory.
        self._current_call, self._observation = None, ""
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None and call.answer.set_running_or_notify_cancel():
                call.answer.set_result(self._final_answer)


class EpisodeSessions:
    """The client sessions of a run, by which the run gets an agent for each episode.

    Args:
        idle_seconds: Seconds without a call after which a client counts as disconnected; None: no
            limit.
        show_score: Whether the answer to the last call contains the reward.

    Attributes:
        announce: A function that receives the session and the episode of each episode that starts.
        leave_event: An event that is set when the clients have disconnected.
    """

    def __init__(self, *, idle_seconds: float | None = None, show_score: bool = False) -> None:
        self.__name__ = "mcp"  # the agent's name in the run's record
        self.leave_event = threading.Event()
        self.announce: Callable[[EpisodeSession, Episode], object] = lambda session, episode: None
        self._idle_seconds, self._show_score = idle_seconds, show_score
        self._sessions: dict[Key, EpisodeSession] = {}

    def session(self, task_id: str, epoch: int = 0) -> EpisodeSession:
        """Return the session of an episode, which need not have started yet."""
        return self._sessions.setdefault((epoch, task_id, ()), EpisodeSession(self._idle_seconds))

    def find(self, secret: str) -> EpisodeSession | None:
        """Find a session by its secret; None if no session has it.

        The comparisons take equal time, so the time reveals nothing about partial matches.
        """
        secret_bytes, match = secret.encode(), None
        for session in list(self._sessions.values()):
            if hmac.compare_digest(session.secret.encode(), secret_bytes):
                match = session
        return match

    def __call__(self, task: Task) -> EpisodeSession:
        """Return the agent for a task's episode in the first epoch."""
        return self.session(task.task_id)

    def make_agent(self, env: AgentContext, task: Task) -> EpisodeSession:
        """Return the agent for an episode that has started, and announce the episode."""
        session = self.session(task.task_id, env.episode.epoch)
        if self.leave_event.is_set():
            session.leave()
        self.announce(session, env.episode)
        return session

    def finish_episode(self, episode: Episode) -> None:
        """Send the client the end of its episode, which has now been recorded."""
        session = self._sessions.get(episode_key(episode))
        if session is None:
            return
        if episode.status == "error":
            session.end(FAILED, failed=True)
        else:
            score_text = f"\n[reward: {episode.reward}]" if self._show_score else ""
            is_last_turn = episode.status == "truncated" and "ended_by" not in episode.metadata
            session.end(f"{TURN_LIMIT if is_last_turn else ENDED}{score_text}", failed=False)

    def leave(self) -> None:
        """Submit the current states of all episodes, including those that start later."""
        self.leave_event.set()
        for session in list(self._sessions.values()):
            session.leave()

    def close(self) -> None:
        """Answer all waiting calls with a failure, because their episodes get no result."""
        for session in list(self._sessions.values()):
            session.end(FAILED, failed=True)
