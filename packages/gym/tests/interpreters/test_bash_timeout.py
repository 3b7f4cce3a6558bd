"""Time limits, background jobs, late output: what runs too long, and what runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from intercode.interpreters.base import Execution
from intercode.interpreters.bash import BashInterpreter
from intercode.interpreters.shell import BashProcess, RunningShellAction
from waiting import PATIENCE, eventually, running

LIMIT = 0.4
ASLEEP = "/tmp/asleep"
AtTheLimit = Callable[[str], Execution]


@pytest.fixture
def bash(shell: object, monkeypatch: pytest.MonkeyPatch) -> BashInterpreter:
    # Hardly a shell here is out of reach: it says at its time limit what its state is.
    monkeypatch.setattr("intercode.interpreters.bash._GRACE_SECONDS", PATIENCE)
    opened: BashInterpreter = shell(timeout=PATIENCE)  # type: ignore[operator]
    opened.execute("kept=1")
    return opened


def output_of(bash: BashInterpreter, action: str) -> str:
    return bash.execute(action, PATIENCE).output.decode()


def beside(bash: BashInterpreter) -> list[str]:
    """What runs beside the shell; its copies, too."""
    return running(bash.sandbox, *(() if bash._shell is None else (bash._shell.pid,)))


def assert_runs(bash: BashInterpreter, *programs: str) -> None:
    """These and no others; a job may be a copy of the shell for a moment."""
    assert eventually(lambda: beside(bash) == sorted(programs)), beside(bash)


@pytest.fixture(params=["", "sleep 0.45; "], ids=["soon", "late"])
def at_the_limit(
    bash: BashInterpreter, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AtTheLimit:
    """What comes of an action that would then sleep: its time is up, but not before it does.

    As if this process had been stopped for so long.
    """
    read = BashProcess.read

    def read_late(shell: BashProcess, run: RunningShellAction, deadline: float) -> bool:
        is_over = read(shell, run, deadline)
        if time.monotonic() >= run.deadline:
            assert eventually(lambda: bash.sandbox.exec(["test", "-e", ASLEEP]).ok)
            monkeypatch.setattr(BashProcess, "read", read)
        return is_over

    def execute(action: str) -> Execution:
        monkeypatch.setattr(BashProcess, "read", read_late)
        return bash.execute(f"{request.param}{action}; : > {ASLEEP}; sleep 999; echo never", LIMIT)

    return execute


def assert_timed_out(bash: BashInterpreter, action: str) -> None:
    done = bash.execute(action, LIMIT)
    assert done.info["timed_out"] is True
    assert (done.exit_code, done.ok) == (124, False)
    assert done.output == b""
    assert f"timed out after {LIMIT:g} s" in done.observation
    assert output_of(bash, "echo $? $kept; pwd") == "124 1\n/tmp/w\n"
    assert_runs(bash)


@pytest.mark.case(17)
def test_exec_of_a_program_that_does_not_end(bash: BashInterpreter) -> None:
    assert_timed_out(bash, "exec sleep 999")


@pytest.mark.case(39)
def test_the_rest_of_the_action_never_runs(bash: BashInterpreter) -> None:
    assert_timed_out(bash, "sleep 999; touch never; kept=3")
    assert output_of(bash, "sleep 0.1; ls") == ""


@pytest.mark.case(40, 41)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize(
    "loop",
    ["while :; do :; done", "while :; do sleep 0.01; done", "for ((;;)); do /bin/true; done"],
)
def test_an_endless_loop(bash: BashInterpreter, loop: str) -> None:
    assert_timed_out(bash, loop)


@pytest.mark.case(42)
@pytest.mark.parametrize(
    "action",
    [
        "trap '' TERM INT HUP QUIT; sleep 500",
        "perl -e '$SIG{$_} = \"IGNORE\" for qw(TERM INT HUP); sleep 500'",
        "(trap '' TERM; while :; do :; done) & wait",
        "(setsid sleep 500 & setsid -f sleep 510); sleep 500",
        "perl -e 'fork or do { fork and exit; setpgrp; sleep 520 }'; sleep 500",
    ],
)
def test_what_ignores_signals_is_killed_with_all_its_children(
    bash: BashInterpreter, action: str
) -> None:
    assert_timed_out(bash, action)


@pytest.mark.case(43)
def test_partial_output_is_kept(bash: BashInterpreter, at_the_limit: AtTheLimit) -> None:
    done = at_the_limit("echo part; printf more")
    assert done.output == b"part\nmore"
    assert (done.exit_code, done.info["timed_out"]) == (124, True)
    assert_runs(bash)


def test_state_set_before_the_timeout_survives(
    bash: BashInterpreter, at_the_limit: AtTheLimit
) -> None:
    done = at_the_limit("cd /; f() { echo kept; }; new=2")
    assert "its variables and directory kept" in done.observation
    assert output_of(bash, "pwd; f; echo $new") == "/\nkept\n2\n"


def test_a_command_that_begins_as_the_time_ends(
    bash: BashInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the shell had started it only when the others had been killed."""
    kill, calls = bash.sandbox.kill, 0

    def too_early(keep: Sequence[int] = ()) -> int:
        nonlocal calls
        calls += 1
        return kill(keep) if calls > 1 else 0

    monkeypatch.setattr(bash.sandbox, "kill", too_early)
    done = bash.execute("new=2; sleep 999; never=3", LIMIT)
    assert "its variables and directory kept" in done.observation
    assert output_of(bash, "echo $kept $never") == "1\n"
    assert_runs(bash)


@pytest.mark.case(44)
@pytest.mark.defends("self DoS")
def test_a_background_job_that_holds_the_output(bash: BashInterpreter) -> None:
    done = bash.execute("sleep 300 & echo hi", PATIENCE)
    assert (done.output, done.info.get("timed_out")) == (b"hi\n", None)
    assert_runs(bash, "sleep 300")


@pytest.mark.case(45)
def test_a_daemon_lives_on_through_timeouts_and_restarts(bash: BashInterpreter) -> None:
    bash.execute("setsid sleep 770 >/dev/null 2>&1 & sleep 780 & disown -a")
    assert_runs(bash, "sleep 770", "sleep 780")  # setsid forks
    bash.execute("sleep 500", LIMIT)
    bash.execute("set -f; exit")
    assert_runs(bash, "sleep 770", "sleep 780")
    bash.execute("kill -9 $$")
    bash.execute("while :; do :; done", LIMIT)
    assert_runs(bash, "sleep 770", "sleep 780")


@pytest.mark.case(46)
def test_late_output_is_in_the_next_observation(bash: BashInterpreter) -> None:
    late = "until [ -e /tmp/now ]; do sleep 0.02; done; echo late"
    assert output_of(bash, f"({late}) & echo now") == "now\n"
    bash.sandbox.write_file("/tmp/now", b"")
    assert_runs(bash)
    assert output_of(bash, "echo next").startswith("late\n")
    assert output_of(bash, "echo next") == "next\n"


@pytest.mark.case(47)
def test_a_background_writer_never_stalls(bash: BashInterpreter) -> None:
    bash.execute("(head -c 20000000 /dev/zero; echo end; touch /tmp/done) & :")
    written = eventually(lambda: bash.sandbox.exec(["test", "-e", "/tmp/done"]).ok)
    assert written, "the writer stands still"
    done = bash.execute("echo next")
    assert done.info["truncated"] is True
    assert b"cut" in done.output
    assert done.output.endswith((b"end\nnext\n", b"touch /tmp/done )\nnext\n"))


@pytest.mark.case(47)
@pytest.mark.defends("host DoS")
def test_an_endless_background_writer(bash: BashInterpreter) -> None:
    bash.execute("{ head -c 20000000 /dev/zero; touch /tmp/much; exec yes; } &")
    assert eventually(lambda: bash.sandbox.exec(["test", "-e", "/tmp/much"]).ok)
    done = bash.execute("kill $!; wait; echo next")
    assert len(done.output) < 2 * bash.sandbox.limits.output
    assert output_of(bash, "echo after")[-6:] == "after\n"


@pytest.mark.case(50)
def test_zombies_are_reaped(bash: BashInterpreter) -> None:
    bash.execute("for i in {1..50}; do (sleep 0.01 & exec sleep 0.02) & done; wait")
    bash.execute("for i in {1..20}; do setsid -f sh -c 'sleep 0.01 & exit'; done")

    each = "{ read -r line < $file; } 2>/dev/null || line='? (it has just ended) ?'; echo $line"
    script = f"for file in /proc/[0-9]*/stat; do {each}; done"

    def states() -> list[str]:
        """Of process 1, the shell, the list's maker, and all others."""
        lines = bash.sandbox.exec(["bash", "-c", script]).stdout.decode().splitlines()
        return [line.rpartition(") ")[2][0] for line in lines]

    def are_reaped() -> bool:
        found = states()
        return len(found) == 3 and not {*found} & {*"Z?"}

    assert eventually(are_reaped), states()


@pytest.mark.case(51)
@pytest.mark.defends("host DoS", "self DoS")
@pytest.mark.parametrize("action", ["yes", "yes >&2", "cat /dev/zero", "while :; do echo x; done"])
def test_endless_output(shell: object, action: str) -> None:
    bash: BashInterpreter = shell(output=4096)  # type: ignore[operator]
    bash.execute("kept=1", PATIENCE)
    done = bash.execute(action, PATIENCE)
    assert "killed after" in done.observation
    assert (done.exit_code, done.info["truncated"]) == (137, True)
    assert len(done.output) < 5000
    assert output_of(bash, "echo $kept") == "1\n"


@pytest.mark.case(52)
def test_output_is_cut_and_counted(bash: BashInterpreter) -> None:
    done = bash.execute("echo head; head -c 5000000 /dev/zero | tr '\\0' x; echo tail")
    limit = bash.sandbox.limits.output
    assert done.info["truncated"] is True
    assert b"\n[... %d bytes cut ...]\n" % (5_000_010 - limit) in done.output
    assert done.output.startswith(b"head\n")
    assert done.output.endswith(b"tail\n")
    assert done.exit_code == 0


@pytest.mark.case(53)
def test_binary_output(bash: BashInterpreter) -> None:
    assert bash.execute(r"printf '\377\376\0ab\r\n\0'").output == b"\xff\xfe\0ab\r\n\0"
    everything = "".join(f"\\x{byte:02x}" for byte in range(256))
    assert bash.execute(f"printf '{everything}'").output == bytes(range(256))


@pytest.mark.case(59)
@pytest.mark.defends("host DoS", "peer DoS", "self DoS")
@pytest.mark.parametrize(
    "bomb", [":(){ :|:& };:", "f() { f | f & }; f", "while :; do sleep 9 & done"]
)
def test_a_fork_bomb(shell: object, bomb: str) -> None:
    bash: BashInterpreter = shell(processes=40, timeout=PATIENCE)  # type: ignore[operator]
    bash.execute("kept=1", PATIENCE)
    bash.execute(bomb, LIMIT)

    def can_fork() -> bool:
        two = [bash.execute("/bin/echo a", 1.0) for _ in "ab"]  # allow limit: it is tried again
        return [done.output for done in two] == [b"a\n"] * 2

    assert eventually(can_fork), "the shell cannot fork any more"
    # What is left of the bomb may still complain, or be told of as a job that has ended.
    assert eventually(lambda: output_of(bash, "echo $kept") == "1\n")
