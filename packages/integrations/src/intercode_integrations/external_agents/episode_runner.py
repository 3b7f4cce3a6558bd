"""Episodes of external agents, whose programs run in the sandbox and call their model.

The sandbox has no network. One port of its loopback interface leads to the episode's session at the
run's gateway. The gateway calls the model, records every call, and accepts only the session's
token. The episode is submitted when the program ends. At the time limit, the program and its child
processes are killed, and the episode is submitted, too. After the refusal of a call over another
limit, the program first has `GRACE` seconds to end by itself.

If a program fails after its model has answered, the episode is scored as an attempt. The record
contains the exit code and the end of the output. Failures of the provider or the sandbox, and a
used-up budget of the run, are errors of the run instead. The same holds for a program that cannot
be started or does not call its model. A command may also run without a model.
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
from intercode.models.limits import Budget, BudgetReservation
from intercode.redaction import SecretRedactor
from intercode_integrations.external_agents.profile import PORT, AgentProfile
from intercode_integrations.external_agents.rebuilt_turns import rebuild_turns
from intercode_sandbox.base import HeadTailBuffer
from intercode_sandbox.forwarding import SupportsForwarding

if TYPE_CHECKING:
    from intercode.agents.base import AgentContext
    from intercode.agents.guarded_env import AgentEnv
    from intercode.task import Task
    from intercode_integrations.gateway import Call, Gateway, GatewaySession
    from intercode_sandbox import SandboxBackend
    from intercode_sandbox.base import Process

SECONDS = 1800.0
"""Seconds of an episode whose spec sets no time limit."""
CALLS = 100
"""Maximum number of calls to the model in an episode whose spec sets no number of turns."""
GRACE = 30.0
"""Seconds in which a program must end after the gateway has refused a call over a limit."""
MAX_OUTPUT_BYTES = 20_000
"""Bytes at the end of a program's output that the episode's record keeps."""
_MAX_QUOTED_CHARACTERS = 1000
"""Characters at the end of a program's output that an error message quotes."""
_SETTLE_SECONDS = 5.0
"""Maximum seconds to wait for the records of calls that were running when the program ended."""
_CHUNK = 65_536


class ExternalAgentFactory:
    """A factory of external agents that follow one profile.

    Args:
        profile: The profile.
        gateway: The gateway to the agents' model; None: the agents have no model.
        model: The model's name, such as ``openai/gpt-5``.
        limits: The limits of time, tokens and cost of an episode.
        calls: The maximum number of calls to the model in an episode.
        skills: The text that offers skills, appended to the task's query; empty if there are no
            skills, or the program finds their folder by itself.
    """

    def __init__(
        self,
        profile: AgentProfile,
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
        """Return the facts that identify these agents in a run's record."""
        limits = {**asdict(self.limits), "calls": self.calls}
        limits["seconds"] = self.limits.seconds or SECONDS
        model = {"model": self.model} if self.gateway is not None else {}
        return {**model, "profile": self.profile.facts(), "limits": limits}

    def __call__(self, task: Task) -> ExternalAgent:
        """Make the agent for one episode."""
        return ExternalAgent(self)

    def make_agent(self, env: AgentContext, task: Task) -> ExternalAgent:
        """Make the agent for one episode in a given environment.

        Raises:
            UsageError: The environment's language is not Bash.
        """
        if env.traits.language != "bash":
            raise UsageError(f"agent {self.name} needs a shell: it cannot play {env.name}")
        return ExternalAgent(self)


@dataclass(slots=True)
class AgentExitStatus:
    """The end of an agent's program: exit code, limit, duration, failure and output."""

    exit_code: int | None = None
    """Exit code as a shell reports it; None: the program was killed."""
    limit: str | None = None
    """Limit that the program reached: ``seconds``, ``calls``, ``tokens`` or ``cost``. ``sandbox``:
    a process in the sandbox ended the sandbox. None: no limit."""
    seconds: float = 0.0
    failure: Exception | None = None
    """Failure of the sandbox that a process in it caused, or of a connection to the gateway."""
    output: HeadTailBuffer = field(default_factory=lambda: HeadTailBuffer(MAX_OUTPUT_BYTES))


class ExternalAgent:
    """An external agent in one episode."""

    def __init__(self, agents: ExternalAgentFactory) -> None:
        self._agents = agents
        self._exit_status = AgentExitStatus()
        self._budget = EpisodeBudget(agents.limits, agents.calls)
        self._metadata: dict[str, Any] = {}
        self._session: GatewaySession | None = None

    def run(self, env: AgentEnv) -> None:
        """Run the program in the sandbox, and record its turns.

        Raises:
            ModelError: The model answered no call, or the provider failed at the last call.
            BudgetError: The run's budget is used up.
            AgentStartError: The program cannot be started, or did not call its model.
            UsageError: The sandbox cannot forward a port to the gateway.
            SandboxError: The sandbox failed.
        """
        agents = self._agents
        budget = self._budget
        if agents.gateway is None:
            with closing(budget):
                env.run_guarded(lambda sandbox: self._play(sandbox, env, None))
            return
        session = self._session = agents.gateway.open_session(budget=budget, record=budget.count)
        try:
            with closing(budget), closing(session):
                env.run_guarded(lambda sandbox: self._play(sandbox, env, session))
        finally:  # the calls of an episode that raises an error count, too
            session.drain(_SETTLE_SECONDS)
            turns, transcript = rebuild_turns(agents.model, session.calls, agents.profile.record)
            self._metadata["model"] = transcript.to_dict()
            env.full_episode.turns.extend(turns)
        env.run_guarded(lambda sandbox: self._refuse_unanswered(session))

    def episode_metadata(self) -> Mapping[str, Any]:
        """Return the recorded dialogue, and facts about the program's end."""
        exit_status, output = self._exit_status, self._output()
        facts = {"agent": self._agents.name, "exit_code": exit_status.exit_code, "output": output}
        limit = {} if exit_status.limit is None else {"ended_by": exit_status.limit}
        return {**self._metadata, **limit, "outside": {**facts, "seconds": exit_status.seconds}}

    def _output(self) -> str:
        """Return the kept end of the program's output, without secrets."""
        output = SecretRedactor().text(decode(self._exit_status.output.getvalue()))
        return output if self._session is None else output.replace(self._session.token, "***")

    def _play(self, sandbox: Any, env: AgentEnv, session: GatewaySession | None) -> None:
        if not isinstance(sandbox, SupportsForwarding):
            raise UsageError(f"agent {self._agents.name} needs a sandbox of --sandbox native")
        start_time = time.monotonic()
        try:
            with ExitStack() as stack:
                forward = None
                if session is not None:
                    forward = stack.enter_context(closing(sandbox.forward(PORT, session.serve)))
                self._run_program(sandbox, env, session, start_time)  # type: ignore[arg-type]
                self._exit_status.failure = None if forward is None else forward.error
        except CausedInsideError as error:
            self._exit_status.limit, self._exit_status.failure = "sandbox", error
        finally:
            self._exit_status.seconds = round(time.monotonic() - start_time, 6)

    def _run_program(
        self,
        sandbox: SandboxBackend,
        env: AgentEnv,
        session: GatewaySession | None,
        start_time: float,
    ) -> None:
        """Write the profile's files into the sandbox, and run its command until the end."""
        agent_label, run_config = f"agent {self._agents.name}", self._agents.profile.run
        fill = self._template_filler(env.observation, session)
        for path, text in run_config.files.items():
            sandbox.write_file(path, fill(text).encode())
        variables = {name: fill(value) for name, value in run_config.env.items()}
        deadline = start_time + (self._agents.limits.seconds or SECONDS)

        def execute(argv: list[str]) -> None:
            try:
                process = sandbox.popen(argv, channels={}, cwd=env.directory, env=variables)
            except (FileNotFoundError, PermissionError) as error:
                raise AgentStartError(f"{agent_label} cannot be started: {error}") from None
            with closing(process):
                self._wait(process, deadline)
                self._exit_status.exit_code = process.poll()
                if self._exit_status.exit_code is None:
                    # `kill` ends the program and all processes that it has started.
                    sandbox.kill()

        if run_config.before is not None:
            execute(["/bin/bash", "--norc", "--noprofile", "-c", run_config.before])
            if self._exit_status.exit_code != 0:
                raise AgentStartError(
                    f"{agent_label}: run.before failed: {self._describe_end(session)}"
                )
        execute([fill(word) for word in run_config.command])

    def _refuse_unanswered(self, session: GatewaySession) -> None:
        """Raise an error if the program made no call, or the model did not answer the last call.

        A call that only a limit of the episode refused does not count. The same holds for a call
        without any part of an answer that the episode's end or the program aborted. Unless the
        provider failed or the run's budget is used up, any answered call suffices.

        Raises:
            AgentStartError: The program did not call its model.
            ModelError: The model did not answer.
            BudgetError: The run's budget is used up.
        """
        agent_name, is_limited = self._agents.name, self._budget.reached_limit is not None
        model_calls = [
            model_call
            for model_call in session.calls
            if not model_call.is_count and not (is_limited and model_call.unpaid)
        ]
        if not model_calls and not session.pending_count:
            raise AgentStartError(
                f"agent {agent_name} did not call its model: {self._describe_end(session)}"
            )
        uncut_calls = [call for call in model_calls if not call.is_cut]
        if not uncut_calls and self._exit_status.limit is None:
            raise ModelError(f"agent {agent_name} ended before its model replied")
        if not uncut_calls:
            return
        last_call = uncut_calls[-1]
        if not last_call.error:
            return
        if session.failure is not None:
            raise session.failure
        if last_call.unpaid:
            raise BudgetError(f"agent {agent_name} had a call refused: {last_call.error}")
        if not any(call.is_answered for call in uncut_calls):
            raise ModelError(f"agent {agent_name}: its model replied to no call: {last_call.error}")

    def _describe_end(self, session: GatewaySession | None) -> str:
        """Return a text about the end of a program that did no work, for an error message."""
        exit_status, output = self._exit_status, self._output().strip()[-_MAX_QUOTED_CHARACTERS:]
        exit_text = (
            "it was killed"
            if exit_status.exit_code is None
            else f"exit code {exit_status.exit_code}"
        )
        facts = [
            exit_text
            if exit_status.limit is None
            else f"{exit_text} (ended by: {exit_status.limit})"
        ]
        if session is not None and (refusal := session.refusal) is not None:
            facts.append(f"its last request was refused with {refusal.status}: {refusal}")
        if exit_status.failure is not None:
            facts.append(f"{type(exit_status.failure).__name__}: {exit_status.failure}")
        facts.append(f"the end of its output:\n{output}" if output else "no output")
        return "; ".join(facts)

    def _template_filler(self, query: str, session: GatewaySession | None) -> Callable[[str], str]:
        model_name = self._agents.model.partition("/")[2] or self._agents.model
        query = "\n\n".join(filter(None, (query, self._agents.skills)))
        values = {"query": query, "model": model_name, "token": session.token if session else ""}
        return lambda text: self._agents.profile.fill(text, **values)

    def _wait(self, process: Process, deadline: float) -> None:
        """Read a program's output until it ends, a deadline passes, or a grace period is over.

        The grace period of `GRACE` seconds starts when the budget refuses a call.
        """
        exit_status, output_fd, budget = self._exit_status, process.fds[1], self._budget
        poller = select.poll()
        for watched_fd in (output_fd, process.exit_fd, budget.fd):
            poller.register(watched_fd, select.POLLIN)
        os.set_blocking(output_fd, False)
        while process.poll() is None:
            if (remaining_seconds := deadline - time.monotonic()) <= 0:
                exit_status.limit = budget.reached_limit or "seconds"
                return
            ready_fds = [watched_fd for watched_fd, _ in poller.poll(1000 * remaining_seconds)]
            if output_fd in ready_fds and not _drain(output_fd, exit_status.output):
                poller.unregister(output_fd)
            if budget.fd in ready_fds:
                poller.unregister(budget.fd)
                deadline = min(deadline, time.monotonic() + GRACE)
        _drain(output_fd, exit_status.output)
        exit_status.limit = budget.reached_limit


class EpisodeBudget(Budget):
    """The budget of one episode: calls, tokens and dollars.

    The budget permits calls until a limit is reached, and refuses all later calls.

    Args:
        limits: The limits of tokens and cost; the budget ignores the time limit.
        calls: The maximum number of calls to the model.
    """

    def __init__(self, limits: EpisodeLimits, calls: int) -> None:
        super().__init__()
        self.reached_limit: str | None = None
        """Name of the limit for which the first call was refused; None: no call was refused."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Descriptor that becomes readable when the first call is refused."""
        self._limits = limits
        self._calls, self._max_calls = 0, calls
        self._lock = threading.Lock()

    def reserve(self, tokens: int, cost: float) -> BudgetReservation:
        """Reserve the maximum tokens and cost that a call may use.

        Raises:
            BudgetError: A limit of the episode has already been reached.
        """
        episode_limits, current_spending, presumed_spending = (
            self._limits,
            self.spent,
            self.presumed_spending,
        )
        usage = {
            "calls": (self._calls, self._max_calls),
            "tokens": (current_spending.tokens + presumed_spending.tokens, episode_limits.tokens),
            "cost": (current_spending.cost + presumed_spending.cost, episode_limits.cost),
        }
        for limit_name, (amount, maximum) in usage.items():
            if maximum is not None and amount >= maximum:
                self._refuse(limit_name)
                raise BudgetError(
                    f"this episode has exceeded its {limit_name}: {amount:g} of {maximum:g}"
                )
        return super().reserve(tokens, cost)

    def count(self, call: Call) -> None:
        """Count a finished call; a request for a token count is not a call."""
        with self._lock:
            self._calls += not call.is_count

    def close(self) -> None:
        """Close the descriptor `fd`."""
        with self._lock:
            os.close(self.fd)
            self.fd = -1

    def _refuse(self, limit: str) -> None:
        with self._lock:
            self.reached_limit = self.reached_limit or limit
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)


def _drain(fd: int, buffer: HeadTailBuffer) -> bool:
    """Read all available bytes into a buffer; return False at the end of the file."""
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        buffer.add(data)
