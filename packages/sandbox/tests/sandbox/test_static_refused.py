"""Each system call refused in turn, by a filter around sandboxes: none of their promises is broken.

Either no sandbox starts, or an operation of one fails, with an error of ours; or all that runs has
what it has without a filter. That is seen from outside, where nothing is refused.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from intercode_sandbox import Limits
from intercode_sandbox.errors import InterCodeError
from intercode_sandbox.native import process_start, provider
from intercode_sandbox.native.process import NativeProcess
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from mutation.mutants import hatch_build
from waiting import becomes_readable

from .test_static_walk import STATIC

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or os.geteuid() != 0,
    reason="needs gcc and, to look at processes from outside, root",
)

NATIVE = STATIC.parent
PACKAGE = NATIVE.parent
SPAWNER = (
    *("spawner", "zygote", "user_ids", "frozen_mounts"),
    *("cgroup", "wire", "pipes", "syscalls"),
)
"""The modules of the process that starts process 1."""
VARIANTS = ("{}", "{}at", "{}2", "{}3", "{}4", "{}64", "{}at2", "new{}at")
"""How a call of the kernel's is named that has come to stand for another one."""
NONE = 1023
"""No call has this number: what is refused where nothing is."""
WORKER = "worker_probe"
SILENT = re.compile("the other end closed|reset by peer|Broken pipe|died")
CHANNEL = ("execve", "recvmsg", "sendmsg")
"""The calls that the zygote needs to begin, to hear and to tell."""
SETTINGS = "msgmni shmmni shmall sem ../fs/mqueue/queues_max ../user/max_user_namespaces"


def numbers() -> dict[str, int]:
    """The machine's system calls, by the kernel's header."""
    header = "#include <asm/unistd.h>"
    if shutil.which("gcc") is None:
        return {}
    command = ["gcc", "-E", "-dM", "-"]
    said = subprocess.run(command, input=header, capture_output=True, text=True, check=True).stdout
    return {name: int(at) for name, at in re.findall(r"^#define __NR_(\w+) (\d+)$", said, re.M)}


def calls_of(paths: Sequence[Path], pattern: str) -> dict[str, int]:
    """The system calls that these sources name."""
    known = numbers()
    named = {name for path in paths for name in re.findall(pattern, path.read_text())}
    variants = {form.format(name.lower()) for name in named for form in VARIANTS}
    return {name: known[name] for name in sorted(variants & known.keys())}


OF_PROCESS_1 = calls_of([*STATIC.glob("*.[ch]")], r"\b__NR_(\w+)")
OF_SPAWNER = calls_of(
    [NATIVE / f"{name}.py" for name in SPAWNER],
    r"\b(?:(?:os|sc|_libc|signal|socket|fcntl|resource)\.|_NR_)(\w+)",
)
ERRORS = (errno.ENOSYS, errno.EPERM)


@dataclass
class Machine:
    """A machine whose filter refuses a call."""

    folder: Path

    def refuse(self, number: int, error: int) -> None:
        (self.folder / "refused").write_bytes(struct.pack("=II", number, error))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """With a program that a filter is installed by."""
    folder = tmp_path_factory.mktemp("machine")
    source = Path(__file__).parent / "static/refusing.c"
    paths = [f'-DFOLDER="{folder}"', f'-DPROGRAM="{process_start.PROGRAM}"']
    output = ["-o", str(folder / "refusing")]
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", *paths, *output, str(source)], check=True)
    # A copy of the package in which it has the place of process 1.
    copy = shutil.copytree(PACKAGE, folder / PACKAGE.name, copy_function=os.symlink)
    program = copy / Path(process_start.PROGRAM).relative_to(PACKAGE)
    program.unlink()
    program.symlink_to(folder / "refusing")
    return Machine(folder)


def confine(machine: Machine, extent: str, patch: pytest.MonkeyPatch) -> None:
    """Put the filter around what the zygote is and starts, or around the spawner, too."""
    if extent == "process 1":
        root = str(machine.folder / PACKAGE.name)
        patch.setattr(process_start, "_ROOT", root)
    else:
        wrapped = [str(machine.folder / "refusing")]
        patch.setattr(provider, "command", lambda *a: [*wrapped, *process_start.command(*a)])


PROCESSES = ("program", "worker")

# -- what there is to see ------------------------------------------------------------------------

STATUS = ("Umask", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters")


def look(pid: int) -> dict[str, Any]:
    """The promises that a process of a sandbox keeps, as the machine sees it."""
    folder = Path("/proc", str(pid))
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    first = int((folder / "uid_map").read_text().split()[1])
    found: dict[str, Any] = {name: status[name] for name in STATUS}
    found |= {name: status[name] for name in status if name.startswith("Cap")}
    found["ids"] = [int(number) - first for number in status["Uid"].split()]
    found["same namespaces"] = [
        each.name
        for each in Path("/proc/self/ns").iterdir()
        if each.readlink() == (folder / "ns" / each.name).readlink()
    ]
    found["limits"] = (folder / "limits").read_text()
    found["mounts"] = sorted(mounts((folder / "mountinfo").read_text()))  # allow shared: its own
    found["score"] = (folder / "oom_score_adj").read_text()
    found["cgroups"] = re.sub(r"intercode[-\w]*/\w+", "its own", (folder / "cgroup").read_text())
    return found


def mounts(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        before, after = line.split(" - ")
        options = re.sub(r"gid=\d+", "gid=", after)  # of process 1
        yield [*before.split()[4:6], *options.split()]


def descriptors(pid: int, of_caller: bool = True) -> list[str]:
    """What a process has open, without what has numbers: they differ from sandbox to sandbox."""
    fds = Path(f"/proc/{pid}/fd").iterdir()
    links = (each.readlink() for each in fds if of_caller or each.name != "2")
    return sorted(re.sub(r"[\w-]*\d[\w-]*", "#", str(link)) for link in links)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def answers(program: NativeProcess) -> bool:
    """Whether a `cat` runs: what is refused may be what any program needs."""
    with suppress(BrokenPipeError):
        os.write(program.fds[0], b"1")
    assert becomes_readable(program.fds[1])
    return os.read(program.fds[1], 9) == b"1"


def see(sandbox: NativeSandbox, worker: bool) -> dict[str, Any]:
    """All that a sandbox's process 1, a program and a worker have."""
    process = sandbox._process
    assert process is not None
    one = process.pid
    settings = [f"/proc/sys/kernel/{name}" for name in SETTINGS.split()]
    done = sandbox.exec(["cat", *settings])
    found: dict[str, Any] = {"settings": done.stdout} if done.ok else {}
    sandbox.write_file("/tmp/folder/file", b"1")
    found["file"] = sandbox.read_file("/tmp/folder/file")
    sandbox.processes()  # when it answers, it has closed what it had of that program
    found["of process 1"] = descriptors(one, of_caller=False)
    with closing(sandbox.popen(["cat"], channels={0: "r"})) as program:
        if answers(program):
            (pid,) = children(one)
            found["program"] = {**look(pid), "descriptors": descriptors(pid)}
    if worker:
        sandbox.kill()
        with closing(sandbox.worker(WORKER)) as probe:
            probe.socket.sendall(b"1 + 1")
            assert becomes_readable(probe.socket.fileno())
            if probe.socket.recv(9) == b"2":
                (pid,) = children(one)
                found["worker"] = {**look(pid), "descriptors": descriptors(pid)}
    found["changes"] = sandbox.changes()
    sandbox.kill()
    found["left"] = children(one)
    return found


def start(extent: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a sandbox shows on the machine, and the facts that a run records of it."""
    workers: dict[str, Any] = {}
    if extent == "all":
        workers = {"preload": (WORKER,), "path": (str(Path(__file__).parent),)}
    limits = Limits(private=True)
    with (
        closing(NativeProvider(**workers)) as sandboxes,
        closing(sandboxes.start("host", limits)) as sandbox,
    ):
        return see(sandbox, bool(workers)), sandboxes.facts()


def python_runs(machine: Machine) -> bool:
    """Whether Python can do what the spawner begins with."""
    program = "import signal, spawner_imports; signal.pthread_sigmask(signal.SIG_SETMASK, ())"
    program = program.replace("spawner_imports", "ctypes, json, select, socket, subprocess")
    command = [str(machine.folder / "refusing"), sys.executable, "-I", "-S", "-c", program]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


_expected: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}


def expected(machine: Machine, extent: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What it shows where nothing is refused."""
    if extent not in _expected:
        machine.refuse(NONE, errno.EPERM)
        _expected[extent] = start(extent)
    return _expected[extent]


def without_cgroups(seen: dict[str, Any]) -> dict[str, Any]:
    """What is seen of a sandbox, but for its cgroups."""
    processes = {name: {**seen[name], "cgroups": ""} for name in PROCESSES if name in seen}
    ours = [path for path in seen["of process 1"] if "/memory." not in path]
    return {**seen, **processes, "of process 1": ours}


def check(machine: Machine, extent: str, number: int, error: int) -> str:
    """Refuse a call: the error's text, or empty where all promises are kept."""
    whole, facts = expected(machine, extent)
    machine.refuse(number, error)
    try:
        found, told = start(extent)
    except (InterCodeError, OSError) as refused:
        return f"{type(refused).__name__}: {refused}"
    if told != facts:  # the record says so: there is no limit by a cgroup
        assert len(told["controllers"]) < len(facts["controllers"])
        found, whole = without_cgroups(found), without_cgroups(whole)
    for part in whole:  # a program that cannot run shows nothing
        assert found.get(part, whole[part]) == whole[part], part
    return ""


@pytest.mark.parametrize("extent", ["process 1", "all"])
def test_the_filter_is_in_the_way(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, extent: str
) -> None:
    confine(machine, extent, monkeypatch)
    assert "pivot_root" in check(machine, extent, OF_PROCESS_1["pivot_root"], errno.EPERM)


def test_the_sources_name_their_calls() -> None:
    assert {"dup3", "close_range", "openat2", "prctl", "landlock_restrict_self"} < {*OF_PROCESS_1}
    assert {"pidfd_open", "unshare", "mkdir", "socketpair", "fspick"} < {*OF_SPAWNER}


def test_a_result_that_is_dropped_does_not_compile(tmp_path: Path) -> None:
    copy = shutil.copytree(STATIC, tmp_path / "static")
    with (copy / "user.c").open("a") as source:
        source.write("void drop(void);\nvoid drop(void) { CALL0(__NR_setsid); }\n")
    with pytest.raises(RuntimeError, match="unused-result"):
        hatch_build.build(tmp_path / "process1", os.uname().machine, folder=copy)


def test_a_result_that_is_ignored_has_a_reason() -> None:
    """In a comment behind it, or right before its statement."""
    lines = [line for path in sorted(STATIC.glob("*.c")) for line in path.read_text().splitlines()]
    bare = [
        line
        for before, last, line in zip(lines, lines[1:], lines[2:], strict=False)
        if " ignore(" in line and not any("*/" in each for each in (before, last, line))
    ]
    assert bare == []


CASES = [
    *(("process 1", call, error) for call in OF_PROCESS_1 for error in ERRORS),
    *(("all", call, error) for call in OF_SPAWNER for error in ERRORS),
    # With workers, which there are in this one only; what process 1 does with an error is above.
    *(("all", call, errno.ENOSYS) for call in OF_PROCESS_1 if call not in OF_SPAWNER),
]


@pytest.mark.defends("escape", "host leak")
@pytest.mark.parametrize(("extent", "call", "error"), CASES)
def test_a_call_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, extent: str, call: str, error: int
) -> None:
    confine(machine, extent, monkeypatch)
    number = (OF_SPAWNER | OF_PROCESS_1)[call]
    if SILENT.search(check(machine, extent, number, error)):  # it could not even be told
        assert extent != "process 1" or call in CHANNEL
        assert extent != "all" or not python_runs(machine)
