"""The tool ``keys``, which types into a second shell's terminal and returns the screen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from intercode.envs.tools import schema
from intercode.envs.traits import Traits
from intercode.episode import NoAction
from intercode.errors import ActionError, ForkError, UsageError
from intercode.interpreters.base import (
    Execution,
    Interpreter,
    SavedInterpreterState,
    SupportsInterpreterSave,
)
from intercode.interpreters.terminal import COLUMNS, ROWS, Terminal, check_installed
from intercode.tool_calls import ActionTool, Tool
from intercode_sandbox.base import SandboxBackend, SupportsTerminals

NAMES: Mapping[str, str] = {
    **{"Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Space": " ", "BSpace": "\x7f"},
    **{"Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "BTab": "\x1b[Z"},
    **{"Home": "\x1b[1~", "Insert": "\x1b[2~", "Delete": "\x1b[3~", "End": "\x1b[4~"},
    **{"PageUp": "\x1b[5~", "PageDown": "\x1b[6~"},
    **{f"F{n}": f"\x1b[[{letter}" for n, letter in enumerate("ABCDE", 1)},
    **{f"F{n}": f"\x1b[{17 + n - 6 + (n > 10)}~" for n in range(6, 13)},
}
"""Key name → the text that the terminal type ``linux`` sends for the key."""
_MAX_BYTES = 4096
_WORD = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s"']+))(?=\s|$)""", re.DOTALL)
_ACTION = re.compile(r"\s*keys(?:\s+(.*))?", re.DOTALL)
_ESCAPES = {"n": "\r", "t": "\t", "e": "\x1b"}
_HELP = (
    "Text in quotes, and names of keys: Enter, Tab, Escape, BSpace, Up, PageDown, F1, C-c (with "
    'Control), M-x (with Alt), as tmux has them. For instance: "vi notes" Enter. Nothing: wait, '
    "and look."
)
_DESCRIPTION = (
    "Type into a terminal beside the shell, for programs that need one: editors, pagers, "
    "debuggers, prompts. It has a shell of its own."
)
_HINT = (
    "Programs that need a terminal run in another shell, which has one: the action "
    '`keys "vi notes" Enter` types there, and shows its screen. ' + _HELP
)


def encode_keys(keys: str) -> bytes:
    """Return the bytes that a terminal sends for keys, at most 4096.

    Args:
        keys: Texts in quotes and names of keys, as for ``tmux send-keys``. Unlike tmux, the
            function refuses an unquoted word that is not the name of a key.

    Raises:
        ActionError: The syntax is invalid, a key is unknown, or the bytes are too many.
    """
    typed_text, position = "", 0
    keys = keys.strip()
    while position < len(keys):
        if (word := _WORD.match(keys, position)) is None:
            raise ActionError(
                f"a quote is not closed, or text follows it without a space: {keys[position:]}"
            )
        double_quoted, single_quoted, name = word.groups()
        if double_quoted is not None:
            text = re.sub(
                r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), double_quoted, flags=re.DOTALL
            )
        else:
            text = single_quoted if single_quoted is not None else _key(name)
        typed_text, position = typed_text + text.replace("\n", "\r"), word.end()
    key_bytes = typed_text.encode("utf-8", "surrogateescape")
    if len(key_bytes) > _MAX_BYTES:
        raise ActionError(
            f"at most {_MAX_BYTES} bytes can be typed at a time, not {len(key_bytes)}"
        )
    return key_bytes


def _key(name: str) -> str:
    if name in NAMES or len(name) == 1:
        return NAMES.get(name, name)
    kind, _, key_name = name.partition("-")
    if kind == "M" and key_name:
        return "\x1b" + _key(key_name)
    if kind == "C" and len(key_name) == 1 and "@" <= key_name.upper() <= "_":
        return chr(ord(key_name.upper()) & 0x1F)
    raise ActionError(f'{name} is not a key: put text in quotes, as in "{name}" Enter')


class TerminalKeysInterpreter:
    """An `Interpreter` that wraps another interpreter, and adds a terminal with a second shell.

    Actions that begin with ``keys`` go to the terminal, all others to the wrapped interpreter. The
    first action with ``keys`` opens the terminal. A fork does not inherit the terminal.
    """

    def __init__(self, interpreter: Interpreter, sandbox: SandboxBackend) -> None:
        self._interpreter = interpreter
        self._sandbox = sandbox
        self._terminal: Terminal | None = None

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Execute an action; see `Interpreter`. The output of ``keys`` is the screen."""
        if (match := _ACTION.fullmatch(action)) is None:
            return self._interpreter.execute(action, timeout)
        keys, start_time = encode_keys(match[1] or ""), time.monotonic()
        seconds = self._sandbox.limits.seconds(timeout)
        is_new = self._terminal is None
        if self._terminal is None:
            try:
                self._terminal = Terminal(self._sandbox, seconds)
            except OSError as error:
                note = f"there is no terminal to be had in this sandbox: {error.strerror}"
                return Execution(b"", ok=False, notes=(note,))
        typed_count = self._terminal.send(keys)
        screen = self._terminal.first_screen
        if keys or not is_new:
            screen = self._terminal.look(seconds, has_sent_keys=bool(keys))
        notes = ["cursor at row {}, column {}".format(*screen.cursor)]
        if typed_count < len(keys):
            notes.append(
                f"the program reads no keys: {len(keys) - typed_count} bytes were not typed"
            )
        if screen.busy:
            notes.append("it is still writing")
        if screen.ended:
            notes.append("the terminal's shell has ended: the next keys start another")
            self._close_terminal()
        return Execution(
            screen.text.encode(),
            ok=typed_count == len(keys),
            notes=tuple(notes),
            seconds=time.monotonic() - start_time,
        )

    def save(self, lossy: bool = False) -> SavedInterpreterState:
        """Save the wrapped interpreter's state; see `SupportsInterpreterSave`.

        The terminal's programs count as background programs of the shell.

        Raises:
            ForkError: The wrapped interpreter cannot save its state.
        """
        if not isinstance(self._interpreter, SupportsInterpreterSave):
            raise ForkError(f"{type(self._interpreter).__name__} cannot save its state")
        saved_state = self._interpreter.save(lossy)

        def reopen() -> tuple[Any, Interpreter]:
            workspace, interpreter = saved_state.open()
            return workspace, TerminalKeysInterpreter(interpreter, workspace)  # type: ignore[arg-type]

        return replace(saved_state, open=reopen)

    def _close_terminal(self) -> None:
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()

    def close(self) -> None:
        """End the terminal's shell and the interpreter. Idempotent."""
        self._close_terminal()
        self._interpreter.close()


def add_keys_tool(
    opens: Callable[[Any], Interpreter], traits: Traits
) -> tuple[Callable[[Any], Interpreter], Traits]:
    """Add the tool ``keys`` to an environment's interpreter and traits.

    Args:
        opens: Opens the environment's interpreter in a sandbox.
        traits: The environment's traits.

    Returns:
        The new opener and the new traits.

    Raises:
        UsageError: The environment's language is not ``bash``, or the package pyte is missing.
    """
    if traits.language != "bash":
        raise UsageError(f"keys=True is for environments with a shell, not for {traits.language}")
    check_installed()

    def open_interpreter(sandbox: SandboxBackend) -> Interpreter:
        if not isinstance(sandbox, SupportsTerminals):
            raise UsageError(f"{type(sandbox).__name__} has no terminals, which keys=True needs")
        return TerminalKeysInterpreter(opens(sandbox), sandbox)

    return open_interpreter, replace(traits, more=(*traits.more, _verb()), hint=_HINT)


def _verb() -> ActionTool:
    def action(arguments: Mapping[str, Any]) -> str:
        keys = arguments.get("keys")
        if not isinstance(keys, str):
            return NoAction("the tool 'keys' needs 'keys', a text")
        return f"keys {keys}".rstrip()

    def arguments(action: str) -> Mapping[str, Any] | None:
        match = _ACTION.fullmatch(action)
        return None if match is None else {"keys": match[1] or ""}

    description = f"{_DESCRIPTION} It returns the screen, {COLUMNS} x {ROWS}."
    return ActionTool(Tool("keys", description, schema({"keys": _HELP})), action, arguments)
