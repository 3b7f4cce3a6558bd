"""From an action to a turn of the record."""

from __future__ import annotations

from dataclasses import replace

from intercode.episode import ENDED, NoAction, Turn, decode, encode
from intercode.errors import ActionError, CausedInsideError
from intercode.interpreters.base import Execution, Interpreter

_HAS_ENDED = "the sandbox has ended, by what ran in it"


def act(interpreter: Interpreter, action: str, timeout: float | None) -> Turn:
    """Run an action, and record it; see `Interpreter.execute`."""
    return recorded(action, execute(interpreter, action, timeout))


def execute(interpreter: Interpreter, action: str, timeout: float | None) -> Execution:
    """Run an action. The agent is told of its mistakes; the end of its sandbox may be one.

    Raises:
        SandboxError: The sandbox died, and not by what ran in it.
    """
    if isinstance(action, NoAction):
        told = {"executed": False, "invalid": True}
        return Execution(b"", ok=False, notes=(action.note,), info=told)
    try:
        encode(action)  # half a surrogate pair has no bytes that could be executed
        done = interpreter.execute(action, timeout)
    except (ActionError, UnicodeEncodeError) as error:
        note = f"not executed: {error}"
        return Execution(b"", ok=False, notes=(note,), info={"executed": False})
    except CausedInsideError:
        return Execution(b"", ok=False, notes=(_HAS_ENDED,), info={ENDED: True})
    if done.info.get("gone") and done.info.get("executed") is False:
        # The turn that lost the interpreter has said so, and left one for `submit`.
        return replace(done, info={**done.info, ENDED: True})
    return done


def recorded(action: str, execution: Execution) -> Turn:
    """Record an action and what came of it."""
    info = dict(execution.info)
    if execution.notes:
        info["output"] = decode(execution.output)  # what a reward compares
    return Turn(
        str(action),
        execution.observation,
        ok=execution.ok,
        exit_code=execution.exit_code,
        seconds=execution.seconds,
        info=info,
    )
