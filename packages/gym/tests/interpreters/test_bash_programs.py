"""Programs that want a person at a terminal: they end, or are ended."""

from __future__ import annotations

import pytest

from intercode.interpreters.bash import BashInterpreter
from waiting import PATIENCE


@pytest.mark.case(35)
@pytest.mark.parametrize("reader", ["cat", "read x", "bash", "sh", "perl", "grep x", "sort", "wc"])
def test_what_reads_meets_the_end_of_input(bash: BashInterpreter, reader: str) -> None:
    done = bash.execute(f"{reader}; echo ended", PATIENCE)
    assert "timed_out" not in done.info
    assert done.output.endswith(b"ended\n")


@pytest.mark.case(35)
@pytest.mark.parametrize("repl", ["python3", "gdb", "bc", "sqlite3", "node"])
def test_a_repl_meets_the_end_of_input(bash: BashInterpreter, repl: str) -> None:
    done = bash.execute(f"{repl}; echo ended", PATIENCE)
    assert "timed_out" not in done.info
    assert done.output.endswith(b"ended\n")  # where it is not installed: after saying so


@pytest.mark.case(36)
@pytest.mark.parametrize(
    "program", ["vi /etc/passwd", "vim", "nano", "less /etc/passwd", "more /etc/passwd", "top",
                "man ls", "watch ls", "tail -f /etc/passwd", "ed"],
)  # fmt: skip
def test_a_terminal_program_ends_or_times_out(bash: BashInterpreter, program: str) -> None:
    bash.execute("kept=1")
    bash.execute(program, 0.3)  # allow limit: it may end, and need not
    assert bash.execute("echo $kept").output == b"1\n"


@pytest.mark.case(37)
@pytest.mark.parametrize("program", ["sudo -n ls", "sudo ls", "su -c id nobody", "passwd"])
def test_what_asks_for_a_password_fails(bash: BashInterpreter, program: str) -> None:
    done = bash.execute(program, PATIENCE)
    assert "timed_out" not in done.info
    assert done.exit_code != 0


@pytest.mark.case(38)
@pytest.mark.parametrize("program", ["stty -a", "stty raw", "reset", "tput cols", "clear", "tty"])
def test_terminal_settings_are_harmless(bash: BashInterpreter, program: str) -> None:
    assert "timed_out" not in bash.execute(program, PATIENCE).info
    assert bash.execute("echo ok").output == b"ok\n"


@pytest.mark.case(38)
@pytest.mark.parametrize("test", ["-t 0", "-t 1", "-t 2", "-r /dev/tty -a -w /nope"])
def test_there_is_no_terminal(bash: BashInterpreter, test: str) -> None:
    assert bash.execute(f"[ {test} ]").exit_code == 1
    assert bash.execute("echo x > /dev/tty").exit_code == 1
