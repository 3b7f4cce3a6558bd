"""The contract of an interpreter: how an action becomes an observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Execution:
    """What executing one action gave."""

    output: bytes
    """Exactly what it printed (head and tail, if cut)."""
    ok: bool
    """Whether it ran without an error."""
    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    """What the agent must be told beside the output, for instance that the time limit was hit."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """For the record: ``timed_out``, ``restarted``, ``truncated``, ``cwd``."""
    seconds: float = 0.0
    """Wall time."""

    @property
    def observation(self) -> str:
        """What the agent sees: the output, then each note in brackets on a line of its own."""
        text = self.output.decode("utf-8", "surrogateescape")
        if not self.notes:
            return text
        if text and not text.endswith("\n"):
            text += "\n"
        return text + "\n".join(f"[{note}]" for note in self.notes)


class Interpreter(Protocol):
    """Runs actions. Its state lives from turn to turn of one episode and not beyond."""

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action.

        After an exception of the caller's own (Ctrl-C), the action may go on: what it prints
        belongs to the next one. From another thread, the sandbox can be closed meanwhile, but not
        the interpreter.

        Args:
            action: Code in the interpreter's language.
            timeout: Seconds; default: the sandbox's limit.

        Raises:
            ActionError: The action cannot be run at all (it holds a NUL).
            UsageError: There is no such time limit; see `Limits.seconds`.
            SandboxError: The sandbox died.
        """

    def close(self) -> None:
        """End it. Idempotent; the sandbox lives on."""
