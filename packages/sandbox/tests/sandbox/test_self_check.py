"""What Inspect AI's self-check leaves out, next to its cases in test_exec.py and test_files.py."""

from __future__ import annotations

import pytest

from intercode_sandbox import SandboxBackend
from waiting import PATIENCE

from . import Run

BINARY = bytes(range(256)) * 5 + b"\r\n\0\xff\xfe"


@pytest.mark.inspect("read_zero_length")
def test_an_empty_file_made_inside(sandbox: SandboxBackend, sh: Run) -> None:
    assert sh(": > zero").ok
    assert sandbox.read_file("zero") == b""


@pytest.mark.inspect("write_zero_length_over_something")
def test_writing_nothing_over_something_empties_it(sandbox: SandboxBackend) -> None:
    sandbox.write_file("full", BINARY)
    sandbox.write_file("full", b"")
    assert sandbox.read_file("full") == b""


@pytest.mark.inspect("write_is_directory_by_link")
def test_writing_onto_a_link_to_a_directory(sandbox: SandboxBackend, sh: Run) -> None:
    assert sh("ln -s /etc link").ok
    with pytest.raises(IsADirectoryError):
        sandbox.write_file("link", BINARY)


@pytest.mark.inspect("write_not_allowed_keeps_content")
def test_a_forbidden_write_leaves_the_file_as_it_was(sandbox: SandboxBackend, sh: Run) -> None:
    assert sh("echo before > closed; chmod 000 closed; mkdir -m 555 readable").ok
    with pytest.raises(PermissionError):
        sandbox.write_file("closed", BINARY)
    assert sh("chmod 600 closed; cat closed").stdout == b"before\n"
    with pytest.raises(PermissionError):
        sandbox.write_file("readable/file", BINARY)
    with pytest.raises(PermissionError):
        sandbox.write_file("readable/folder/file", BINARY)


@pytest.mark.inspect("write_existing_keeps_mode")
def test_an_existing_file_keeps_its_mode(sandbox: SandboxBackend, sh: Run) -> None:
    assert sh("yes | head -c 100000 > there; chmod 640 there").ok
    sandbox.write_file("there", BINARY)
    assert sandbox.read_file("there") == BINARY
    assert sh("stat -c %a there").stdout == b"640\n"


@pytest.mark.inspect("write_existing_of_the_image")
def test_writing_onto_a_file_of_the_image(sandbox: SandboxBackend) -> None:
    sandbox.write_file("/etc/passwd", BINARY)
    assert sandbox.read_file("/etc/passwd") == BINARY
    assert [change.path for change in sandbox.changes()] == ["/etc/passwd"]


@pytest.mark.inspect("write_not_a_directory")
def test_writing_below_a_file_and_to_too_long_a_name(sandbox: SandboxBackend) -> None:
    sandbox.write_file("file", b"")
    with pytest.raises(OSError):
        sandbox.write_file("file/below", b"")
    with pytest.raises(OSError):
        sandbox.write_file("n" * 256, b"")
    assert sandbox.exec(["true"]).ok


@pytest.mark.inspect("exec_arguments_shell_special")
def test_arguments_that_a_shell_would_read(sandbox: SandboxBackend) -> None:
    odd = ["$(id)", "`id`", "a b", "", "'", '"', "*", ";", "\n", "-n", "\\", "\udcff"]
    done = sandbox.exec(["printf", "%s\\0", *odd])
    assert done.stdout.split(b"\0")[:-1] == [a.encode(errors="surrogateescape") for a in odd]


@pytest.mark.inspect("exec_env_vars_shell_special")
def test_environment_variables_that_a_shell_would_read(sh: Run) -> None:
    odd = "$HOME `id`\n'\"\\ ü"
    done = sh('printf "%s|%s|%s" "$ONE" "${EMPTY-unset}" "$PATH"', env={"ONE": odd, "EMPTY": ""})
    one, empty, path = done.stdout.decode().split("|")
    assert (one, empty) == (odd, "")
    assert "/usr/bin" in path.split(":")
    assert sh("echo ${ONE-unset}").stdout == b"unset\n"


@pytest.mark.inspect("exec_timeout_kills_children_that_ran")
@pytest.mark.parametrize(
    "child",
    [
        "sleep 60 &",
        "setsid sleep 60 &",
        "(setsid setsid sleep 60 &);",
        "nohup sleep 60 & disown;",
        "(trap '' TERM; sleep 60; true) &",
    ],
)
def test_a_timeout_kills_children_that_were_seen_to_run(
    sandbox: SandboxBackend, child: str
) -> None:
    # No `pgrep`: not every image has one.
    seen = "until grep -qsx sleep /proc/[0-9]*/comm; do :; done; echo seen"
    script = f"{child} {seen}; sleep 999"
    for seconds in (0.4, 4.0, PATIENCE):  # on a busy machine, it does not run so soon
        done = sandbox.exec(["bash", "-c", script], timeout=seconds)
        assert done.timed_out
        assert sandbox.processes() == []
        if done.stdout:
            break
    assert done.stdout == b"seen\n", "there was a child"


@pytest.mark.inspect("cwd_relative_files")
def test_relative_files_and_programs_share_a_cwd(sandbox: SandboxBackend) -> None:
    sandbox.write_file("here", b"here")
    sandbox.write_file("folder/deep/file", b"found")
    assert sandbox.exec(["cat", "here"]).stdout == b"here"
    assert sandbox.exec(["cat", "deep/file"], cwd="./folder/deep/..").stdout == b"found"


@pytest.mark.inspect("cwd_odd")
def test_a_cwd_that_a_shell_would_read(sandbox: SandboxBackend) -> None:
    sandbox.write_file("/tmp/a $(b) ü/file", b"found")
    done = sandbox.exec(["bash", "-c", "cat file; pwd"], cwd="/tmp/a $(b) ü")
    assert done.stdout.decode() == "found/tmp/a $(b) ü\n"


@pytest.mark.inspect("exec_each_stream_is_limited")
def test_the_output_cap_holds_for_each_stream(sh: Run) -> None:
    script = "echo out; (echo HEAD; yes | head -c 10000; echo TAIL) >&2"
    done = sh(script, output_limit=1000)
    assert (done.stdout, done.truncated) == (b"out\n", True)
    assert len(done.stderr) < 1100
    assert done.stderr.startswith(b"HEAD\n") and done.stderr.endswith(b"TAIL\n")
