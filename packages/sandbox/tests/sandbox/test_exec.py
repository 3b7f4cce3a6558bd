"""Running programs. The names in `inspect` are those of Inspect AI's self-check, written anew."""

from __future__ import annotations

import os
import threading

import pytest

from intercode_sandbox import Completed, SandboxBackend
from intercode_sandbox.base import HeadTailBuffer
from intercode_sandbox.errors import ActionError
from waiting import PATIENCE, eventually, new_marker, running, sleepers

from . import Run, Start

pytestmark = pytest.mark.ordinary
SOME_TIME = (0.3, 3.0, 30.0)
"""Time limits to try: on a busy machine, a program has done nothing yet when the first is over."""


@pytest.mark.case(1)
@pytest.mark.inspect("exec_output", "exec_stderr", "exec_returncode")
def test_streams_and_exit_code_are_separate_and_exact(sh: Run) -> None:
    done = sh("printf 'a\\n\\n'; printf 'b' >&2; exit 70")
    assert done == Completed(70, b"a\n\n", b"b")
    assert sh("true") == Completed(0, b"", b"")


@pytest.mark.inspect("exec_as_utf8", "exec_output_decoding")
def test_utf_8(sandbox: SandboxBackend) -> None:
    text = "ünïcödé ∀ 🙂"
    assert sandbox.exec(["printf", "%s", text]).stdout.decode() == text


@pytest.mark.case(53)
def test_bytes_are_exact(sh: Run) -> None:
    everything = bytes(range(256)) * 2
    escaped = "".join(f"\\x{byte:02x}" for byte in everything)
    assert sh(f"printf '{escaped}'").stdout == everything
    assert sh("cat", stdin=everything).stdout == everything


def test_merged_streams_are_in_order(sh: Run) -> None:
    done = sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done", merge_stderr=True)
    assert (done.stdout, done.stderr) == (b"o1\ne1\no2\ne2\no3\ne3\n", b"")


@pytest.mark.inspect("exec_timeout")
def test_a_timeout_keeps_the_output(sh: Run) -> None:
    for seconds in SOME_TIME:
        done = sh("echo part; : > said; sleep 100; echo never", timeout=seconds)
        if sh("rm said").ok:
            break
    assert (done.timed_out, done.stdout, done.ok) == (True, b"part\n", False)
    assert done.exit_code == 137


@pytest.mark.case(42)
@pytest.mark.inspect("exec_timeout_kills_process", "exec_timeout_kills_children")
@pytest.mark.parametrize(
    "script",
    [
        "sleep 100",
        "trap '' TERM INT HUP; while :; do sleep 100; done",
        "sleep 100 & sleep 101 & wait",
        "setsid sleep 100 & setsid sleep 101",
        "setsid sh -c 'sleep 100 & sleep 101' & sleep 102",
        "perl -e 'fork or do { setpgrp; fork and exit; sleep 100 }; sleep 101'",
    ],
)
def test_a_timeout_kills_the_whole_tree(sandbox: SandboxBackend, sh: Run, script: str) -> None:
    assert sh(script, timeout=0.3).timed_out  # allow limit: none ends by itself
    assert running(sandbox) == []


def test_a_timeout_kills_nothing_that_ran_before(sandbox: SandboxBackend, sh: Run) -> None:
    sh("setsid sleep 770 >/dev/null 2>&1 &")
    assert eventually(lambda: running(sandbox) == ["sleep 770"])  # setsid forks
    assert sh("sleep 100", timeout=0.2).timed_out  # allow limit: it sleeps on
    assert running(sandbox) == ["sleep 770"]


@pytest.mark.parametrize("early", [False, True])
def test_a_stop_kills_the_whole_tree_and_nothing_that_ran_before(
    sandbox: SandboxBackend, sh: Run, early: bool
) -> None:
    """By another thread while the program runs, or before it has begun."""
    sh("setsid sleep 770 >/dev/null 2>&1 &")
    assert eventually(lambda: running(sandbox) == ["sleep 770"])  # setsid forks
    marker = new_marker()
    stop = os.eventfd(int(early))

    def stop_it() -> None:
        if eventually(lambda: len(sleepers(marker)) == 2):
            os.eventfd_write(stop, 1)

    thread = threading.Thread(target=stop_it)
    if not early:
        thread.start()
    done = sh(f"echo part; setsid sleep {marker} & sleep {marker}", timeout=PATIENCE, stop=stop)
    assert (done.timed_out, done.ok, done.exit_code) == (False, False, 137)
    assert early or done.stdout == b"part\n"
    assert running(sandbox) == ["sleep 770"]
    if not early:
        thread.join()
    os.close(stop)


@pytest.mark.inspect("exec_no_timeout_on_fast_signal_death")
@pytest.mark.parametrize("number", [1, 6, 9, 11, 15])
def test_a_death_by_signal_is_no_timeout(sh: Run, number: int) -> None:
    done = sh(f"kill -{number} $$; sleep 999", timeout=PATIENCE)
    assert (done.exit_code, done.timed_out) == (128 + number, False)


@pytest.mark.case(44)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize(
    "child", ["sleep 500 &", "setsid sleep 500 &", "(sleep 500; echo x) & disown;"]
)
def test_a_background_child_that_holds_the_pipe(
    sandbox: SandboxBackend, sh: Run, child: str
) -> None:
    done = sh(f"{child} echo hi", timeout=PATIENCE)  # less than the child sleeps
    assert (done.stdout, done.exit_code, done.timed_out) == (b"hi\n", 0, False)


@pytest.mark.inspect("exec_permission_error")
def test_a_file_that_is_not_executable(sandbox: SandboxBackend, sh: Run) -> None:
    sandbox.write_file("/tmp/script", b"#!/bin/sh\n", 0o644)
    done = sandbox.exec(["/tmp/script"])
    assert done.exit_code == 126
    assert b"Permission denied" in done.stderr
    assert sh("/tmp/script").exit_code == 126


def test_a_program_that_does_not_exist(sandbox: SandboxBackend) -> None:
    done = sandbox.exec(["no-such-program"])
    assert done.exit_code == 127
    assert b"no-such-program" in done.stderr


def test_no_program(sandbox: SandboxBackend) -> None:
    for argv in ([], [""]):
        with pytest.raises(ActionError):
            sandbox.exec(argv)


@pytest.mark.case(54)
def test_a_nul_in_an_argument(sandbox: SandboxBackend) -> None:
    with pytest.raises(ValueError, match="NUL"):
        sandbox.exec(["echo", "a\0b"])


@pytest.mark.inspect("exec_env_vars")
@pytest.mark.defends("host leak")
def test_environment_variables(sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCODE_SECRET", "leaked")
    given = sandbox.exec(["env"], env={"GIVEN": "x y\nz", "LANG": "C"}).stdout.decode()
    assert "GIVEN=x y\nz\n" in given
    assert "LANG=C\n" in given
    assert "leaked" not in given


@pytest.mark.inspect("exec_input_text", "exec_input_shell_special", "exec_input_binary")
@pytest.mark.parametrize(
    "data", [b"text\n", b"", b"$(touch /x) `id` \"'\\ ; & | > < * ? ~ # !\n", bytes(range(256))]
)
def test_input(sandbox: SandboxBackend, data: bytes) -> None:
    assert sandbox.exec(["cat"], stdin=data).stdout == data


@pytest.mark.inspect("exec_input_50_mib")
def test_a_large_input(start: Start) -> None:
    sandbox = start(output=64 << 20)
    data = bytes(range(256)) * (50 << 12)
    assert sandbox.exec(["wc", "-c"], stdin=data).stdout.strip() == str(50 << 20).encode()
    assert sandbox.exec(["cat"], stdin=data).stdout == data


def test_input_that_is_not_read(sandbox: SandboxBackend) -> None:
    assert sandbox.exec(["true"], stdin=b"x" * (5 << 20)) == Completed(0, b"", b"")


@pytest.mark.case(35)
def test_no_input_is_the_end_of_input(sandbox: SandboxBackend) -> None:
    assert sandbox.exec(["cat"]) == Completed(0, b"", b"")


@pytest.mark.case(55)
@pytest.mark.inspect("exec_1_mib_argument_list")
def test_a_long_argument_list(sandbox: SandboxBackend) -> None:
    arguments = ["x" * 1023] * 1024
    done = sandbox.exec(["printf", "%s\\n", *arguments], output_limit=4 << 20)
    assert done.stdout == b"".join(argument.encode() + b"\n" for argument in arguments)


@pytest.mark.case(56)
@pytest.mark.parametrize("arguments", [["x" * (1 << 20)], ["x" * 1000] * 5000])
def test_a_too_long_argument_list(sandbox: SandboxBackend, arguments: list[str]) -> None:
    done = sandbox.exec(["true", *arguments])
    assert done.exit_code == 126
    assert b"Argument list too long" in done.stderr
    assert sandbox.exec(["true"]).ok


@pytest.mark.case(57)
def test_an_argument_that_is_not_utf_8(sandbox: SandboxBackend) -> None:
    assert sandbox.exec(["printf", "%s", b"\xff\xfe\n"]).stdout == b"\xff\xfe\n"


@pytest.mark.case(51)
@pytest.mark.defends("host DoS", "self DoS")
@pytest.mark.parametrize("script", ["yes", "yes >&2", "exec cat /dev/zero"])
def test_endless_output_is_stopped(sh: Run, script: str) -> None:
    done = sh(script, timeout=30, output_limit=10_000)
    assert done.truncated
    assert not done.timed_out
    assert done.exit_code == 137
    assert len(done.stdout + done.stderr) < 11_000


@pytest.mark.case(52)
@pytest.mark.inspect("exec_output_limit")
def test_output_is_cut_in_the_middle(sandbox: SandboxBackend, sh: Run) -> None:
    done = sh("echo head; head -c 5000000 /dev/zero; echo tail")
    assert (done.truncated, done.exit_code) == (True, 0)
    assert done.stdout.startswith(b"head\n")
    assert done.stdout.endswith(b"tail\n")
    assert b"\n[... %d bytes cut ...]\n" % (5_000_010 - sandbox.limits.output) in done.stdout
    exact = sh("head -c 1000 /dev/zero", output_limit=1000)
    assert (len(exact.stdout), exact.truncated) == (1000, False)


@pytest.mark.inspect("exec_as_user")
def test_as_another_user(sandbox: SandboxBackend) -> None:
    try:
        done = sandbox.exec(["id", "-un"], user="nobody")
    except LookupError as error:
        pytest.skip(f"this provider has one user here: {error}")
    assert done.stdout == b"nobody\n"
    assert sandbox.exec(["id", "-u"], user="1234:56").stdout == b"1234\n"
    assert sandbox.exec(["id", "-G"], user="1234:56").stdout == b"56\n"
    assert sandbox.exec(["id", "-G"], user="nobody:56").stdout == b"56\n"
    assert sandbox.exec(["id", "-G"], user="root:56").stdout == b"56\n"
    with pytest.raises(LookupError, match="group of user '1234:staff' must be a number"):
        sandbox.exec(["id"], user="1234:staff")
    assert sandbox.exec(["touch", "/root/x"], user="nobody").exit_code == 1


@pytest.mark.inspect("exec_as_user_that_does_not_exist")
def test_as_a_user_that_does_not_exist(sandbox: SandboxBackend) -> None:
    with pytest.raises(LookupError, match="no-such-user"):
        sandbox.exec(["id"], user="no-such-user")
    assert sandbox.exec(["true"]).ok


@pytest.mark.defends("self DoS")
def test_a_users_file_that_blocks(sandbox: SandboxBackend, sh: Run) -> None:
    sh("rm /etc/passwd; mkfifo /etc/passwd")
    with pytest.raises(LookupError):
        sandbox.exec(["id"], user="nobody")


@pytest.mark.inspect("cwd_unspecified", "cwd_custom", "cwd_relative", "cwd_absolute")
def test_directories(sandbox: SandboxBackend, sh: Run) -> None:
    home = sandbox.exec(["pwd"]).stdout.decode().strip()
    sh("mkdir -p sub/deep /tmp/other")
    assert sandbox.exec(["pwd"], cwd="sub/deep").stdout.decode().strip() == f"{home}/sub/deep"
    assert sandbox.exec(["pwd"], cwd="/tmp/other").stdout == b"/tmp/other\n"
    assert sandbox.exec(["sh", "-c", "echo $PWD"], cwd="/tmp").stdout == b"/tmp\n"
    assert sandbox.exec(["./here"], cwd="/tmp").exit_code == 127


@pytest.mark.inspect("cwd_missing")
def test_directories_that_cannot_be_entered(sandbox: SandboxBackend, sh: Run) -> None:
    with pytest.raises(FileNotFoundError, match="/nope"):
        sandbox.exec(["pwd"], cwd="/nope")
    with pytest.raises(NotADirectoryError):
        sandbox.exec(["pwd"], cwd="/etc/passwd")
    sh("mkdir -m 0 /tmp/closed")
    with pytest.raises(PermissionError):
        sandbox.exec(["pwd"], cwd="/tmp/closed")
    assert sandbox.exec(["true"]).ok


def test_the_limit_of_a_program_that_has_just_ended(sandbox: SandboxBackend) -> None:
    """It is no reason to end any other."""
    other = sandbox.popen(["sleep", "60"], channels={})
    for _ in range(20):
        done = sandbox.exec(["head", "-c", "6000", "/dev/zero"], output_limit=100)
        assert done.truncated
        assert sandbox.processes() == [other.pid]


@pytest.mark.parametrize("char", ["a", "é", "漢", "🙂"])
@pytest.mark.parametrize("limit", range(2, 40))
def test_no_output_is_cut_within_a_character(char: str, limit: int) -> None:
    data = (100 * char).encode()
    for chunk in (1, 7, len(data)):
        buffer = HeadTailBuffer(limit)
        for at in range(0, len(data), chunk):
            buffer.add(data[at : at + chunk])
        head, note, tail = buffer.getvalue().decode().split("\n")
        cut = int(note.split()[1])
        assert len((head + tail).encode()) + cut == len(data)
        assert not (head + tail).strip(char) and limit - 6 <= len((head + tail).encode()) <= limit


def test_output_that_is_no_text_is_cut_at_its_limit() -> None:
    buffer = HeadTailBuffer(10)
    buffer.add(b"\xff" * 50)
    assert buffer.getvalue() == b"\xff" * 5 + b"\n[... 40 bytes cut ...]\n" + b"\xff" * 5
