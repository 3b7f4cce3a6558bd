"""`keys`: programs that need a terminal, in real sandboxes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.cli.main import main
from intercode.envs.base import InterCodeEnv
from intercode.envs.terminal_keys import encode_keys
from intercode.errors import ActionError, ForkError, UsageError
from intercode.interpreters.terminal import ROWS, TerminalScreen
from intercode.models.scripted import Line
from intercode.records import read_episodes
from intercode.task import Dataset, Task
from intercode_integrations.testing import ScriptedServer
from waiting import PATIENCE

pytestmark = pytest.mark.ordinary

TASK = Task("note", "Write a note.", verification="grep -qx 'a line' /root/note")
# A full-screen program that reads keys as editors do.
CURSES = r"""
import curses
def main(screen):
    while True:
        screen.addstr(5, 10, "ready"); screen.refresh()
        key = curses.keyname(screen.getch()).decode()
        screen.addstr(7, 10, f"got {key}     ")
        if key == "q":
            break
curses.wrapper(main)
"""


def made(**options: Any) -> InterCodeEnv[Any]:
    env = intercode.make(
        "bash", data=Dataset([TASK]), keys=True, max_turns=100, timeout=PATIENCE, **options
    ).unwrapped
    assert isinstance(env, InterCodeEnv)
    env.reset()
    return env


@pytest.fixture
def env() -> Iterator[InterCodeEnv[Any]]:
    with closing(made()) as running:
        yield running


def shown(env: InterCodeEnv[Any], keys: str, *texts: str) -> str:
    """Type, and look until the screen shows all of some texts."""
    screen = env.step(f"keys {keys}")[0]
    while not all(text in screen for text in texts):
        screen = env.step("keys")[0]
    return screen


def test_a_file_that_was_typed_is_scored(env: InterCodeEnv[Any]) -> None:
    shown(env, '"echo g; echo o; cat > /root/note; echo done" Enter', "\ng\no\n")
    shown(env, '"a line" Enter C-d', "a line\ndone")
    assert env.step("submit")[1] == 1.0


def test_a_terminal_with_size_job_control_and_keys(env: InterCodeEnv[Any]) -> None:
    screen = shown(env, '"tty; stty size; echo $TERM" Enter', "/dev/pts/0\n24 80\nlinux\n")
    assert screen.rstrip("]").rpartition("\n")[2].startswith("[cursor at row 5, column ")
    shown(env, '"clear; echo be; echo gun; sleep 999" Enter', "be\ngun\n")
    shown(env, "C-c", "^C")
    shown(env, '"echo 1" Enter', "\n1\n")
    shown(env, "Up BSpace 2 Enter", "\n2\n")  # the shell's own editing


def test_a_full_screen_program_gets_keys_by_their_names(env: InterCodeEnv[Any]) -> None:
    env.workspace.write_file("/tmp/full.py", CURSES.encode())
    shown(env, '"python3 /tmp/full.py" Enter', "\n          ready")
    for key, name in (("Down", "KEY_DOWN"), ("F2", "KEY_F(2)"), ("PageUp", "KEY_PPAGE")):
        shown(env, key, f"          got {name}")
    shown(env, "F12", "          got KEY_F(12)")
    shown(env, "q")
    shown(env, '"echo ba; echo ck" Enter', "\nba\nck\n")


def test_the_shell_and_the_terminal_share_files_and_the_tool_calls_both(
    env: InterCodeEnv[Any],
) -> None:
    bash, keys, submit = intercode.tools(env)
    keys('"cd /tmp; echo typed > shared" Enter')
    assert bash("until [ -s /tmp/shared ]; do :; done; cat /tmp/shared") == "typed\n"
    assert env.call("keys", {})[0] == "[the tool 'keys' needs 'keys', a text]"
    names = [tool["function"]["name"] for tool in _called(env)]
    assert names == ["keys", "bash"]
    submit()


def _called(env: InterCodeEnv[Any]) -> list[Any]:
    return [call for message in env.messages("tools") for call in message.get("tool_calls", ())]


def test_the_terminals_shell_ends_and_another_starts(env: InterCodeEnv[Any]) -> None:
    assert "the terminal's shell has ended" in shown(env, '"exit" Enter', "ended")
    shown(env, '"echo $((6 * 7))" Enter', "\n42\n")


def test_output_without_end_is_looked_at_and_can_be_stopped(env: InterCodeEnv[Any]) -> None:
    screen = env.step('keys "yes flood" Enter')[0]
    while "[it is still writing]" not in screen:
        screen = env.step("keys")[0]
    assert "\nflood\nflood\n" in screen and screen.count("\n") < ROWS + 2
    shown(env, "C-c", "^C")
    shown(env, '"clear; echo $((6 * 7))" Enter', "42\n")


def test_what_hostile_programs_print_is_no_error_and_changes_nothing() -> None:
    # The parser has its own exceptions for some of it: none may end the episode.
    dice, screen = random.Random(17), TerminalScreen()
    screen.draw(b"\x1b[" + b"1" * 5000 + b"m")
    parts = [b"\x1b[", b"\x1b]0;t\x07", b"?", b">", b"25", b"9999", b";", b"e\xcc\x81", b"\xff"]
    parts += [b"\x1bP", b"\x1b#", *(bytes([n]) for n in range(64, 123)), "中".encode(), b"\x1b[6n"]
    for _ in range(300):
        screen.draw(b"".join(dice.choice(parts) for _ in range(40)))
        row, column = screen.look().cursor
        assert 1 <= row <= ROWS and 1 <= column <= 80
    screen.draw(b"\x07\x1b\\\x1bc" + b"e" + b"\xcc\x81" * 100_000 + b"nd")  # no quadratic time
    assert screen.look().text == "end"


def test_keys_are_refused_by_their_text(env: InterCodeEnv[Any]) -> None:
    assert (
        encode_keys(r'''"a\"b" 'c\d' Enter C-c M-x : F5 "é"''')
        == b'a"bc\\d\r\x03\x1bx:\x1b[[E\xc3\xa9'
    )
    assert encode_keys('"one\ntwo\\e"') == b"one\rtwo\x1b"
    for wrong in ('"open', "ls", '"a"b', "C-xx", f'"{"x" * 5000}"'):
        with pytest.raises(ActionError):
            encode_keys(wrong)
    said = env.step("keys ls")[0]
    assert said == '[not executed: ls is not a key: put text in quotes, as in "ls" Enter]'


def test_a_fork_has_no_terminal_and_the_source_keeps_it(env: InterCodeEnv[Any]) -> None:
    env.step("name=value")
    with closing(env.snapshot(mode="state")):
        pass
    shown(env, '"echo ter; echo minal" Enter', "ter\nminal\n")  # begun while the shell rested
    with pytest.raises(ForkError, match=r"process \d+ \(bash\)"):
        env.snapshot(mode="state")
    snapshot = env.snapshot(mode="state", lossy=True)
    assert len(snapshot.lost) == 1
    shown(env, '"echo still; echo there" Enter', "minal\n", "still\nthere\n")
    env.restore(snapshot)
    assert env.step("echo $name")[0] == "value\n"
    assert "ter\nminal" not in shown(env, '"echo fresh; echo one" Enter', "fresh\none\n")


def test_files_are_compared_while_the_terminal_runs() -> None:
    with closing(made(keep_diffs=True)) as env:
        for n in range(3):  # all programs are stopped and continued after each action
            shown(env, f'"echo {n} > /tmp/{n}; echo al; echo so{n}" Enter', f"al\nso{n}\n")
        found = {file.path for turn in env.episode.turns for file in turn.changes.files}  # type: ignore[union-attr]
    assert found == {"/tmp/0", "/tmp/1", "/tmp/2"}


def test_it_is_off_by_default_and_for_shells_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(intercode.make("bash").unwrapped) as env:
        assert [tool.name for tool in env.tools] == ["bash", "submit"]  # type: ignore[attr-defined]
        env.reset()
        assert "command not found" in env.step("keys Enter")[0]
    with pytest.raises(UsageError, match="for environments with a shell, not for python"):
        intercode.make("python", keys=True)
    monkeypatch.setitem(sys.modules, "pyte", None)
    with pytest.raises(UsageError, match=r"pip install 'intercode-gym\[keys\]'"):
        intercode.make("bash", keys=True)


def test_a_model_that_calls_tools_types(tmp_path: Path) -> None:
    data = tmp_path / "tasks.json"
    data.write_text('[{"task_id": "n", "query": "Q", "verification": "test -s /root/n"}]')
    lines = iter(
        [
            Line(
                "",
                (intercode.tool_calls.ToolCall("1", "keys", {"keys": '"echo x >/root/n" Enter'}),),
            ),
            Line(
                "",
                (
                    intercode.tool_calls.ToolCall(
                        "2", "bash", {"command": "until [ -s /root/n ]; do :; done"}
                    ),
                ),
            ),
            Line("", (intercode.tool_calls.ToolCall("3", "submit", {}),)),
        ]
    )
    prompts: list[str] = []

    def answer(messages: Any) -> Line:
        prompts.append(messages[0].content)
        return next(lines)

    with ScriptedServer() as server:
        server.script = answer
        args = ["run", "bash", "--data", str(data), "--out", str(tmp_path / "run"), "--keys"]
        args += ["--agent", "tool-calling", "--model", "openai-compatible/test"]
        assert main([*args, "--base-url", server.url, "--quiet"]) == 0
    (episode,) = read_episodes(tmp_path / "run" / "episodes.jsonl")
    assert episode.success and episode.turns[0].action == 'keys "echo x >/root/n" Enter'
    assert "Programs that need a terminal" in prompts[0]
