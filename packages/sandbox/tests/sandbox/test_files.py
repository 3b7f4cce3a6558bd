"""Reading and writing files. The names in `inspect` are those of Inspect AI's self-check."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from intercode_sandbox import SandboxBackend
from intercode_sandbox.errors import ActionError, OutputLimitError

from . import Run, Start

pytestmark = pytest.mark.ordinary


@pytest.mark.inspect("write_text", "write_binary", "write_zero_length", "read_text", "read_binary")
@pytest.mark.parametrize("data", [b"", b"text\n", "ünï 🙂\r\n".encode(), bytes(range(256)) * 5])
def test_what_is_written_is_read(sandbox: SandboxBackend, data: bytes) -> None:
    sandbox.write_file("/tmp/file", data)
    assert sandbox.read_file("/tmp/file") == data
    assert sandbox.exec(["cat", "/tmp/file"]).stdout == data


@pytest.mark.inspect("write_50_mib", "read_50_mib")
def test_large_files(sandbox: SandboxBackend) -> None:
    data = bytes(range(256)) * (50 << 12)
    sandbox.write_file("/tmp/large", data)
    assert sandbox.read_file("/tmp/large") == data


@pytest.mark.case(57)
@pytest.mark.inspect("write_utf8_name", "write_space_name")
@pytest.mark.parametrize(
    "name", ["ünï∀🙂", "with space", "new\nline", "\udcff\udcfe", "-rf", "n" * 255, "'\"$(x)`"]
)
def test_names(sandbox: SandboxBackend, name: str) -> None:
    sandbox.write_file(f"/tmp/{name}", b"data")
    assert sandbox.read_file(f"/tmp/{name}") == b"data"
    (listed,) = [change for change in sandbox.changes() if change.type == "file"]
    assert listed.path == f"/tmp/{name}"


@pytest.mark.inspect("write_relative", "write_absolute", "write_missing_directory")
def test_paths(sandbox: SandboxBackend) -> None:
    home = sandbox.exec(["pwd"]).stdout.decode().strip()
    sandbox.write_file("relative/new/file", b"1")
    assert sandbox.read_file(f"{home}/relative/new/file") == b"1"
    sandbox.write_file(PurePosixPath("/opt/a/b/c"), b"2")
    assert sandbox.read_file("../opt/a/b/../b/c") == b"2"


@pytest.mark.inspect("write_existing")
def test_overwriting(sandbox: SandboxBackend) -> None:
    sandbox.write_file("/tmp/file", b"long content")
    sandbox.write_file("/tmp/file", b"short")
    assert sandbox.read_file("/tmp/file") == b"short"
    sandbox.write_file("/tmp/script", b"#!/bin/sh\necho ran\n", 0o755)
    assert sandbox.exec(["/tmp/script"]).stdout == b"ran\n"


@pytest.mark.inspect("read_not_found", "read_nonsense_name")
@pytest.mark.parametrize("path", ["/nope", "/nope/nope", "/etc/passwd\n", "", "/tmp/\u2603"])
def test_reading_what_is_not_there(sandbox: SandboxBackend, path: str) -> None:
    with pytest.raises((FileNotFoundError, IsADirectoryError)):
        sandbox.read_file(path)


@pytest.mark.case(54)
def test_a_nul_in_a_path(sandbox: SandboxBackend) -> None:
    with pytest.raises(ActionError):
        sandbox.read_file("/tmp/a\0b")
    with pytest.raises(ActionError):
        sandbox.write_file("/tmp/a\0b", b"")


@pytest.mark.case(78)
@pytest.mark.inspect("read_not_allowed", "write_not_allowed")
@pytest.mark.defends("host leak")
def test_what_the_user_may_not(sandbox: SandboxBackend, sh: Run) -> None:
    sh("echo secret > /tmp/file; chmod 0 /tmp/file; mkdir -m 0 /tmp/closed")
    with pytest.raises(PermissionError):
        sandbox.read_file("/tmp/file")
    with pytest.raises(PermissionError):
        sandbox.write_file("/tmp/file", b"")
    with pytest.raises(PermissionError):
        sandbox.write_file("/tmp/closed/file", b"")
    with pytest.raises(OSError, match=r"Read-only|Permission"):
        sandbox.write_file("/proc/sys/kernel/hostname", b"x")
    assert sandbox.exec(["true"]).ok


@pytest.mark.inspect("read_is_directory", "write_is_directory")
def test_directories(sandbox: SandboxBackend) -> None:
    with pytest.raises(IsADirectoryError):
        sandbox.read_file("/tmp")
    with pytest.raises(IsADirectoryError):
        sandbox.write_file("/tmp", b"")
    with pytest.raises(NotADirectoryError):
        sandbox.read_file("/etc/passwd/x")


@pytest.mark.inspect("read_limit")
@pytest.mark.defends("host DoS")
def test_the_read_limit(sandbox: SandboxBackend, sh: Run) -> None:
    sandbox.write_file("/tmp/file", b"x" * 1000)
    assert len(sandbox.read_file("/tmp/file", limit=1000)) == 1000
    with pytest.raises(OutputLimitError):
        sandbox.read_file("/tmp/file", limit=999)
    with pytest.raises(OutputLimitError):
        sandbox.read_file("/proc/kallsyms", limit=10)


@pytest.mark.case(64)
@pytest.mark.defends("host DoS")
def test_a_sparse_file_of_terabytes_is_not_read(start: Start) -> None:
    sandbox = start(disk=64 << 40)
    assert sandbox.exec(["truncate", "-s", "8T", "/tmp/sparse"]).ok
    with pytest.raises(OutputLimitError):
        sandbox.read_file("/tmp/sparse")


@pytest.mark.case(78)
@pytest.mark.defends("host DoS")
@pytest.mark.parametrize(
    "make",
    [
        "mkfifo /tmp/odd",
        "perl -MSocket -e 'socket S,AF_UNIX,SOCK_STREAM,0; bind S,sockaddr_un(\"/tmp/odd\")'",
        "ln -s /dev/zero /tmp/odd",
        "ln -s /dev/random /tmp/odd",
        "ln -s /dev/tty /tmp/odd",
        "ln -s odd /tmp/odd",
    ],
)
def test_what_is_no_regular_file_neither_blocks_nor_floods(
    sandbox: SandboxBackend, sh: Run, make: str
) -> None:
    assert sh(make).ok
    with pytest.raises(OSError):
        sandbox.read_file("/tmp/odd", limit=1000)
    with pytest.raises(OSError):
        sandbox.write_file("/tmp/odd", b"x")
    assert sandbox.exec(["true"]).ok


@pytest.mark.case(78)
@pytest.mark.defends("escape", "host leak")
def test_a_symlink_leads_nowhere_outside(
    sandbox: SandboxBackend, sh: Run, tmp_path: object
) -> None:
    sh(f"ln -s {tmp_path}/secret /tmp/link; ln -s /proc/1/root/etc/shadow /tmp/other")
    with pytest.raises(OSError):
        sandbox.read_file("/tmp/link")
    with pytest.raises(OSError):
        sandbox.read_file("/tmp/other")
