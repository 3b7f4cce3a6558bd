"""An agent from outside plays an episode: its program runs in the sandbox, and asks its model.

The sandbox has no network. One port of its loopback leads to the episode's own seat at the run's
gateway, which asks the model, keeps every call, and takes no other key than the seat's. When the
program has ended, or a limit has ended it with all that it began, the episode is submitted.

A program that fails after an answer of its model has made an attempt, which is scored: its exit
code and the end of its output are in the record. A model that was not asked, or gives no answer,
and a sandbox that fails, are errors of the run. A command may also play without a model.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from intercode.agents.language import EpisodeLimits
from intercode.episode import decode
from intercode.errors import (
    AgentStartError,
    BudgetError,
    CausedInsideError,
    ModelError,
    UsageError,
)
from intercode.models.limits import Budget, Hold
from intercode.redaction import Redactor
from intercode_integrations.external_agents.profile import PORT, Profile
from intercode_integrations.external_agents.turns import retell
from intercode_sandbox.base import OutputBuffer
from intercode_sandbox.forwarding import Forwards

if TYPE_CHECKING:
    from intercode.agents.base import Surroundings
    from intercode.agents.held import HeldEnv
    from intercode.task import Task
    from intercode_integrations.gateway import Call, Gateway, Seat
    from intercode_sandbox import SandboxBackend
    from intercode_sandbox.base import Process

SECONDS = 1800.0
"""The time of an episode where none is given."""
CALLS = 100
"""The calls to the model of an episode where no number is given: its turns."""
GRACE = 30.0
"""Seconds in which a program must end whose model answers no more, as a limit is reached."""
KEPT = 20_000
"""Bytes of a program's output that are kept in the record."""
_QUOTED = 1000
"""Characters of a program's output that an error quotes."""
_SETTLE_SECONDS = 5.0
"""Seconds for the record of calls that were under way when the program ended."""
_CHUNK = 65_536


class OutsideAgents:
    """Makes the agents of a profile.

    Args:
        profile: The profile.
        gateway: Where they ask their model; None: they have no model.
        model: The model's name, as ``openai/gpt-5``.
        limits: The limits of an episode.
        calls: The calls to the model that an episode may make.
        skills: The offer of skills, told after the task; empty: there are none, or the agent finds
            them by itself.
    """

    def __init__(
        self,
        profile: Profile,
        gateway: Gateway | None,
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
        model = {"model": self.model} if self.gateway is not None else {}
        return {**model, "profile": self.profile.facts(), "limits": limits}

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
    failure: Exception | None = None
    """The failure of the sandbox, caused inside, or of a connection to the gateway."""
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
            AgentStartError: The program cannot be started, or has not asked its model.
            SandboxError: The sandbox failed.
        """
        agents = self._agents
        purse = self._purse
        if agents.gateway is None:
            with closing(purse):
                env.run_guarded(lambda sandbox: self._play(sandbox, env, None))
            return
        seat = self._seat = agents.gateway.seat(budget=purse, record=purse.count)
        try:
            with closing(purse), closing(seat):
                env.run_guarded(lambda sandbox: self._play(sandbox, env, seat))
        finally:  # also what a lost attempt has taken is counted
            seat.drain(_SETTLE_SECONDS)
            turns, transcript = retell(agents.model, seat.calls, agents.profile.record)
            self._metadata["model"] = transcript.to_dict()
            env.full_episode.turns.extend(turns)
        env.run_guarded(lambda sandbox: self._refuse_unanswered(seat))

    def episode_metadata(self) -> Mapping[str, Any]:
        """Return the dialogue, and how the program ended."""
        ended, output = self._ended, self._output()
        facts = {"agent": self._agents.name, "exit_code": ended.exit_code, "output": output}
        limit = {} if ended.by is None else {"ended_by": ended.by}
        return {**self._metadata, **limit, "outside": {**facts, "seconds": ended.seconds}}

    def _output(self) -> str:
        """Return the end of the program's output, without secrets."""
        output = Redactor().text(decode(self._ended.output.getvalue()))
        return output if self._seat is None else output.replace(self._seat.token, "***")

    def _play(self, sandbox: Any, env: HeldEnv, seat: Seat | None) -> None:
        if not isinstance(sandbox, Forwards):
            raise UsageError(f"agent {self._agents.name} needs a sandbox of --sandbox native")
        began = time.monotonic()
        try:
            with ExitStack() as stack:
                forward = None
                if seat is not None:
                    forward = stack.enter_context(closing(sandbox.forward(PORT, seat.serve)))
                self._run_program(sandbox, env, seat, began)  # type: ignore[arg-type]
                self._ended.failure = None if forward is None else forward.error
        except CausedInsideError as error:
            self._ended.by, self._ended.failure = "sandbox", error
        finally:
            self._ended.seconds = round(time.monotonic() - began, 6)

    def _run_program(
        self, sandbox: SandboxBackend, env: HeldEnv, seat: Seat | None, began: float
    ) -> None:
        """Write the profile's files, and run its command to its end."""
        agent, run = f"agent {self._agents.name}", self._agents.profile.run
        filled = self._filled(env.observation, seat)
        for path, text in run.files.items():
            sandbox.write_file(path, filled(text).encode())
        variables = {name: filled(value) for name, value in run.env.items()}
        deadline = began + (self._agents.limits.seconds or SECONDS)

        def execute(argv: list[str]) -> None:
            try:
                process = sandbox.popen(argv, channels={}, cwd=env.directory, env=variables)
            except (FileNotFoundError, PermissionError) as error:
                raise AgentStartError(f"{agent} cannot be started: {error}") from None
            with closing(process):
                self._wait(process, deadline)
                self._ended.exit_code = process.poll()
                if self._ended.exit_code is None:
                    sandbox.kill()  # and all that it began

        if run.before is not None:
            execute(["/bin/bash", "--norc", "--noprofile", "-c", run.before])
            if self._ended.exit_code != 0:
                raise AgentStartError(f"{agent}: run.before failed: {self._told(seat)}")
        execute([filled(word) for word in run.command])

    def _refuse_unanswered(self, seat: Seat) -> None:
        """Raise the reason why the agent's last call, or every call, had no answer.

        Calls that only the episode's own limits refused, or that its end cut off, do not count.
        """
        name, is_limited = self._agents.name, self._purse.reached is not None
        asked = [c for c in seat.calls if not c.is_count and not (is_limited and c.unpaid)]
        if not asked and not seat.pending:
            raise AgentStartError(f"agent {name} has not asked its model: {self._told(seat)}")
        calls = [call for call in asked if not call.is_cut]
        if not calls and self._ended.by is None:
            raise ModelError(f"agent {name} ended before its model had answered")
        if not calls:
            return
        last = calls[-1]
        if not last.error:
            return
        if seat.failure is not None:
            raise seat.failure
        if last.unpaid:
            raise BudgetError(f"agent {name} was refused a call: {last.error}")
        if not any(call.is_answered for call in calls):
            raise ModelError(f"agent {name}: no call of its model was answered: {last.error}")

    def _told(self, seat: Seat | None) -> str:
        """Tell how a program ended that has not begun to work."""
        ended, output = self._ended, self._output().strip()[-_QUOTED:]
        code = "it was killed" if ended.exit_code is None else f"exit code {ended.exit_code}"
        facts = [code if ended.by is None else f"{code} (ended by: {ended.by})"]
        if seat is not None and (refusal := seat.refusal) is not None:
            facts.append(f"its last request was refused with {refusal.status}: {refusal}")
        if ended.failure is not None:
            facts.append(f"{type(ended.failure).__name__}: {ended.failure}")
        facts.append(f"the end of its output:\n{output}" if output else "no output")
        return "; ".join(facts)

    def _filled(self, query: str, seat: Seat | None) -> Callable[[str], str]:
        name = self._agents.model.partition("/")[2] or self._agents.model
        query = "\n\n".join(filter(None, (query, self._agents.skills)))
        values = {"query": query, "model": name, "token": seat.token if seat else ""}
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
