"""An agent from outside plays an episode: its program runs in the sandbox, and asks its model.

The sandbox has no network. One port of its loopback leads to the episode's own seat at the run's
gateway, which asks the model, keeps every call, and takes no other key than the seat's. When the
program has ended, or a limit has ended it with all that it began, the episode is submitted.

A program that fails has made an attempt, which is scored: its exit code and the end of its output
are in the record. A model that gives no answer, or a sandbox that fails, is an error of the run.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from intercode.agents.language import EpisodeLimits
from intercode.agents.outside.profile import PORT, Profile
from intercode.agents.outside.turns import retell
from intercode.episode import decode
from intercode.errors import BudgetError, CausedInsideError, UsageError
from intercode.models.limits import Budget, Hold
from intercode.redaction import Redactor
from intercode.sandbox.base import OutputBuffer
from intercode.sandbox.forward import Forwards

if TYPE_CHECKING:
    from intercode.agents.base import Surroundings
    from intercode.agents.held import HeldEnv
    from intercode.gateway import Call, Gateway, Seat
    from intercode.sandbox import Sandbox
    from intercode.sandbox.base import Process
    from intercode.task import Task

SECONDS = 1800.0
"""The time of an episode where none is given."""
CALLS = 100
"""The calls to the model of an episode where no number is given: its turns."""
GRACE = 30.0
"""Seconds in which a program must end whose model answers no more, as a limit is reached."""
KEPT = 20_000
"""Bytes of a program's output that are kept in the record."""
_CHUNK = 65_536
_CANNOT_START = 127
"""The exit code of a program that cannot be started, as a shell counts."""


class OutsideAgents:
    """Makes the agents of a profile.

    Args:
        profile: The profile.
        gateway: Where they ask their model.
        model: The model's name, as ``openai/gpt-5``.
        limits: The limits of an episode.
        calls: The calls to the model that an episode may make.
        skills: The offer of skills, told after the task; empty: there are none, or the agent finds
            them by itself.
    """

    def __init__(
        self,
        profile: Profile,
        gateway: Gateway,
        model: str,
        limits: EpisodeLimits = EpisodeLimits(),  # noqa: B008 - frozen
        calls: int = CALLS,
        skills: str = "",
    ) -> None:
        self.profile = profile
        self.gateway = gateway
        self.model = model
        self.limits = limits
        self.calls = calls
        self.skills = skills
        self.name = profile.name

    def facts(self) -> dict[str, Any]:
        """Return the facts that identify its agents, for a run's record."""
        limits = {**asdict(self.limits), "calls": self.calls}
        limits["seconds"] = self.limits.seconds or SECONDS
        return {"model": self.model, "profile": self.profile.facts(), "limits": limits}

    def __call__(self, task: Task) -> Player:
        """Make the agent of one episode."""
        return Player(self)

    def within(self, env: Surroundings, task: Task) -> Player:
        """Make the agent of one episode in this environment."""
        if env.traits.language != "bash":
            raise UsageError(
                f"agent {self.name} acts in a shell by itself: it cannot play {env.name}"
            )
        return Player(self)


@dataclass(slots=True)
class Ended:
    """How a program ended."""

    exit_code: int | None = None
    """As a shell counts; None: it was killed."""
    by: str | None = None
    """The limit that ended it: ``seconds``, ``calls``, ``tokens`` or ``cost``; ``sandbox``: what
    ran in the sandbox has ended it."""
    seconds: float = 0.0
    output: OutputBuffer = field(default_factory=lambda: OutputBuffer(KEPT))


class Player:
    """Plays one episode."""

    def __init__(self, agents: OutsideAgents) -> None:
        self._agents = agents
        self._ended = Ended()
        self._purse = Purse(agents.limits, agents.calls)
        self._metadata: dict[str, Any] = {}
        self._seat: Seat | None = None

    def run(self, env: HeldEnv) -> None:
        """Let the program play, and record its turns.

        Raises:
            ModelError: The model gave no answer.
            BudgetError: All episodes together have taken what they may.
            SandboxError: The sandbox failed.
        """
        agents = self._agents
        purse = self._purse
        seat = self._seat = agents.gateway.seat(budget=purse, record=purse.count)
        try:
            with closing(purse), closing(seat):
                env.watched(lambda sandbox: self._play(sandbox, env, seat))
        finally:  # also what a lost attempt has taken is counted
            turns, transcript = retell(agents.model, seat.calls, agents.profile.record)
            self._metadata["model"] = transcript.to_dict()
            env.recorded.turns.extend(turns)
        self._refuse_failed(seat)

    def episode_metadata(self) -> Mapping[str, Any]:
        """Return the dialogue, and how the program ended."""
        ended, redactor = self._ended, Redactor()
        output = redactor.text(decode(ended.output.getvalue()))
        if self._seat is not None:
            output = output.replace(self._seat.token, "***")
        facts = {"agent": self._agents.name, "exit_code": ended.exit_code, "output": output}
        limit = {} if ended.by is None else {"ended_by": ended.by}
        return {**self._metadata, **limit, "outside": {**facts, "seconds": ended.seconds}}

    def _play(self, sandbox: Any, env: HeldEnv, seat: Seat) -> None:
        if not isinstance(sandbox, Forwards):
            raise UsageError(f"agent {self._agents.name} needs a sandbox of --sandbox native")
        began = time.monotonic()
        try:
            with closing(sandbox.forward(PORT, seat.serve)):
                self._run_program(sandbox, env, seat, began)  # type: ignore[arg-type]
        except CausedInsideError:
            self._ended.by = "sandbox"
        self._ended.seconds = round(time.monotonic() - began, 6)

    def _run_program(self, sandbox: Sandbox, env: HeldEnv, seat: Seat, began: float) -> None:
        """Write the profile's files, and run its command to its end."""
        run, filled = self._agents.profile.run, self._filled(env.observation, seat)
        for path, text in run.files.items():
            sandbox.write_file(path, filled(text).encode())
        variables = {name: filled(value) for name, value in run.env.items()}
        commands = [[filled(word) for word in run.command]]
        if run.before is not None:
            commands.insert(0, ["/bin/bash", "--norc", "--noprofile", "-c", run.before])
        deadline = began + (self._agents.limits.seconds or SECONDS)
        for argv in commands:
            try:
                process = sandbox.popen(argv, channels={}, cwd=env.directory, env=variables)
            except (FileNotFoundError, PermissionError) as error:
                self._ended.exit_code = _CANNOT_START
                self._ended.output.add(f"{error}\n".encode())
                break
            with closing(process):
                self._wait(process, deadline)
                self._ended.exit_code = process.poll()
                if self._ended.exit_code is None:
                    sandbox.kill()  # and all that it began
            if self._ended.exit_code != 0:
                break

    def _refuse_failed(self, seat: Seat) -> None:
        """Raise the failure of the model, or of a budget, if that was the last the agent heard."""
        name, asked = self._agents.name, [call for call in seat.calls if not call.is_count]
        last = asked[-1] if asked else None
        if last is None or not last.error or self._purse.reached is not None:
            return
        if seat.failure is not None:
            raise seat.failure
        if last.unpaid:
            raise BudgetError(f"agent {name} was refused a call: {last.error}")

    def _filled(self, query: str, seat: Seat) -> Callable[[str], str]:
        name = self._agents.model.partition("/")[2] or self._agents.model
        query = "\n\n".join(filter(None, (query, self._agents.skills)))
        values = {"query": query, "model": name, "token": seat.token}
        return lambda text: self._agents.profile.filled(text, **values)

    def _wait(self, process: Process, deadline: float) -> None:
        """Read a program's output until it ends, or a limit is reached and it does not end."""
        ended, out, purse = self._ended, process.fds[1], self._purse
        poll = select.poll()
        for fd in (out, process.exit_fd, purse.fd):
            poll.register(fd, select.POLLIN)
        os.set_blocking(out, False)
        while process.poll() is None:
            if (left := deadline - time.monotonic()) <= 0:
                ended.by = purse.reached or "seconds"
                return
            ready = [fd for fd, _ in poll.poll(1000 * left)]
            if out in ready and not _drain(out, ended.output):
                poll.unregister(out)
            if purse.fd in ready:
                poll.unregister(purse.fd)
                deadline = min(deadline, time.monotonic() + GRACE)
        _drain(out, ended.output)
        ended.by = purse.reached


class Purse(Budget):
    """The calls, tokens and dollars of an episode: it refuses the first call after a limit.

    Args:
        limits: The limits; that of time is not kept here.
        calls: The calls that may be made.
    """

    def __init__(self, limits: EpisodeLimits, calls: int) -> None:
        super().__init__()
        self.reached: str | None = None
        """The limit for which a call was refused."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable once a call was refused."""
        self._limits = limits
        self._calls, self._most = 0, calls
        self._lock = threading.Lock()

    def reserve(self, tokens: int, cost: float) -> Hold:
        """Set aside the most that a call may take.

        Raises:
            BudgetError: A limit was reached before.
        """
        limits, spent, presumed = self._limits, self.spent, self.presumed
        used = {
            "calls": (self._calls, self._most),
            "tokens": (spent.tokens + presumed.tokens, limits.tokens),
            "cost": (spent.cost + presumed.cost, limits.cost),
        }
        for name, (taken, most) in used.items():
            if most is not None and taken >= most:
                self._refuse(name)
                raise BudgetError(f"this episode has used up its {name}: {taken:g} of {most:g}")
        return super().reserve(tokens, cost)

    def count(self, call: Call) -> None:
        """Count a call that has ended; counting tokens is none."""
        with self._lock:
            self._calls += not call.is_count

    def close(self) -> None:
        """Free the descriptor."""
        with self._lock:
            os.close(self.fd)
            self.fd = -1

    def _refuse(self, limit: str) -> None:
        with self._lock:
            self.reached = self.reached or limit
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)


def _drain(fd: int, into: OutputBuffer) -> bool:
    """Read what there is; return whether more may come."""
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        into.add(data)
