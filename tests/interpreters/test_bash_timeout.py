"""Time limits, background jobs, late output: what runs too long, and what runs on."""

from __future__ import annotations

import time

import pytest

from intercode.interpreters.bash import BashInterpreter

pytestmark = pytest.mark.timeout(60)
LIMIT = 0.4
SOON = 15.0
"""Seconds that no action here may take, however busy the machine is."""


@pytest.fixture
def bash(shell: object) -> BashInterpreter:
    opened: BashInterpreter = shell(timeout=LIMIT)  # type: ignore[operator]
    opened.execute("kept=1")
    return opened


def output_of(bash: BashInterpreter, action: str, timeout: float = 10) -> str:
    return bash.execute(action, timeout).output.decode()


def running(bash: BashInterpreter) -> set[str]:
    """What runs, beside process 1 and the shell."""
    time.sleep(0.05)  # a job may still be a copy of the shell
    listed = bash.sandbox.exec(["ps", "-e", "-o", "args="]).stdout.decode().splitlines()
    ours = ("init", "bash --norc", "ps -e")
    return {line.strip() for line in listed if not line.startswith(ours)}


def assert_timed_out(bash: BashInterpreter, action: str, output: bytes = b"") -> None:
    done = bash.execute(action)
    assert done.info["timed_out"] is True
    assert (done.exit_code, done.ok) == (124, False)
    assert done.output == output
    assert f"timed out after {LIMIT:g} s" in done.observation
    assert done.seconds < SOON
    assert output_of(bash, "echo $? $kept; pwd") == "124 1\n/tmp/w\n"
    assert not running(bash)


@pytest.mark.case(17)
def test_exec_of_a_program_that_does_not_end(bash: BashInterpreter) -> None:
    assert_timed_out(bash, "exec sleep 999")


@pytest.mark.case(39)
def test_the_rest_of_the_action_never_runs(bash: BashInterpreter) -> None:
    assert_timed_out(bash, "kept=2; kept=1; sleep 100; touch never; kept=3")
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
        "trap '' TERM INT HUP QUIT; sleep 50",
        "perl -e '$SIG{$_} = \"IGNORE\" for qw(TERM INT HUP); sleep 50'",
        "(trap '' TERM; while :; do :; done) & wait",
        "(setsid sleep 50 & setsid -f sleep 51); sleep 50",
        "perl -e 'fork or do { fork and exit; setpgrp; sleep 52 }'; sleep 50",
    ],
)
def test_what_ignores_signals_is_killed_with_all_its_children(
    bash: BashInterpreter, action: str
) -> None:
    assert_timed_out(bash, action)


@pytest.mark.case(43)
def test_partial_output_is_kept(bash: BashInterpreter) -> None:
    assert_timed_out(bash, "echo part; printf more; sleep 100; echo never", b"part\nmore")


def test_state_set_before_the_timeout_survives(bash: BashInterpreter) -> None:
    done = bash.execute("cd /; f() { echo kept; }; new=2; sleep 100")
    assert "its variables and directory kept" in done.observation
    assert output_of(bash, "pwd; f; echo $new") == "/\nkept\n2\n"


@pytest.mark.case(44)
@pytest.mark.defends("self DoS")
def test_a_background_job_that_holds_the_output(bash: BashInterpreter) -> None:
    done = bash.execute("sleep 30 & echo hi", 20)
    assert (done.output, done.seconds < SOON) == (b"hi\n", True)
    assert running(bash) == {"sleep 30"}


@pytest.mark.case(45)
def test_a_daemon_lives_on_through_timeouts_and_restarts(bash: BashInterpreter) -> None:
    bash.execute("setsid sleep 77 >/dev/null 2>&1 & sleep 78 & disown -a")
    time.sleep(0.1)  # setsid forks
    bash.execute("sleep 50")
    bash.execute("set -f; exit")
    assert running(bash) == {"sleep 77", "sleep 78"}
    bash.execute("kill -9 $$")
    bash.execute("while :; do :; done")
    assert running(bash) == {"sleep 77", "sleep 78"}


@pytest.mark.case(46)
def test_late_output_is_in_the_next_observation(bash: BashInterpreter) -> None:
    assert output_of(bash, "(sleep 0.1; echo late) & echo now") == "now\n"
    time.sleep(0.5)
    assert output_of(bash, "echo next").startswith("late\n")
    assert output_of(bash, "echo next") == "next\n"


@pytest.mark.case(47)
def test_a_background_writer_never_stalls(bash: BashInterpreter) -> None:
    bash.execute("(head -c 20000000 /dev/zero; echo end; touch /tmp/done) & :")
    until = time.monotonic() + SOON
    while bash.sandbox.exec(["test", "-e", "/tmp/done"]).exit_code:
        assert time.monotonic() < until, "the writer stands still"
        time.sleep(0.05)
    done = bash.execute("echo next", 10)
    assert done.info["truncated"] is True
    assert b"cut" in done.output
    assert done.output.endswith((b"end\nnext\n", b"touch /tmp/done )\nnext\n"))


@pytest.mark.case(47)
@pytest.mark.defends("host DoS")
def test_an_endless_background_writer(bash: BashInterpreter) -> None:
    bash.execute("yes &")
    time.sleep(0.3)
    done = bash.execute("kill $!; wait; echo next", 20)
    assert len(done.output) < 2 * bash.sandbox.limits.output
    assert output_of(bash, "echo after")[-6:] == "after\n"


@pytest.mark.case(50)
def test_zombies_are_reaped(bash: BashInterpreter) -> None:
    bash.execute("for i in {1..50}; do (sleep 0.01 & exec sleep 0.02) & done; wait", 10)
    bash.execute("for i in {1..20}; do setsid -f sh -c 'sleep 0.01 & exit'; done", 10)
    time.sleep(0.3)
    states = bash.sandbox.exec(["ps", "-e", "-o", "stat="]).stdout.decode().split()
    assert not [state for state in states if state.startswith("Z")]
    assert len(states) == 3


@pytest.mark.case(51)
@pytest.mark.defends("host DoS", "self DoS")
@pytest.mark.parametrize("action", ["yes", "yes >&2", "cat /dev/zero", "while :; do echo x; done"])
def test_endless_output(shell: object, action: str) -> None:
    bash: BashInterpreter = shell(output=4096)  # type: ignore[operator]
    bash.execute("kept=1")
    done = bash.execute(action, 30)
    assert "killed after" in done.observation
    assert (done.exit_code, done.info["truncated"]) == (137, True)
    assert len(done.output) < 5000
    assert output_of(bash, "echo $kept") == "1\n"


@pytest.mark.case(52)
def test_output_is_cut_and_counted(bash: BashInterpreter) -> None:
    done = bash.execute("echo head; head -c 5000000 /dev/zero | tr '\\0' x; echo tail", 10)
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
    bash: BashInterpreter = shell(processes=40, timeout=1.0)  # type: ignore[operator]
    bash.execute("kept=1")
    bash.execute(bomb)
    for _ in range(6):
        if bash.execute("/bin/true").output == bash.execute("/bin/echo a").output[:-2] == b"":
            break
    else:
        pytest.fail("the shell cannot fork any more")
    assert output_of(bash, "echo $kept") == "1\n"
