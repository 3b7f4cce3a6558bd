"""What an agent's action does, also one that cannot be executed."""

from __future__ import annotations

from intercode.episode import NoAction, encode
from intercode.errors import ActionError
from intercode.interpreters.base import Execution, Interpreter


def execute(interpreter: Interpreter, action: str, timeout: float | None) -> Execution:
    """Run an action. What is the agent's mistake, not ours, it is told, and the episode goes on.

    Raises:
        SandboxError: The sandbox died.
    """
    if isinstance(action, NoAction):
        told = {"executed": False, "invalid": True}
        return Execution(b"", ok=False, notes=(action.note,), info=told)
    try:
        encode(action)  # half a surrogate pair has no bytes that could be executed
        return interpreter.execute(action, timeout)
    except (ActionError, UnicodeEncodeError) as error:
        note = f"not executed: {error}"
        return Execution(b"", ok=False, notes=(note,), info={"executed": False})
