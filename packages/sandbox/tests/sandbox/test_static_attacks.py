"""Attacks on process 1 itself, from what runs beside it: on its memory, its rights and its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from intercode_sandbox import Limits, SandboxBackend
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.privileges import is_root
from open_resources import children
from restless import RESTLESS
from waiting import eventually

pytestmark = pytest.mark.ordinary


@pytest.fixture(scope="module")
def native() -> Iterator[NativeProvider]:
    with closing(NativeProvider()) as provider:
        yield provider


@pytest.fixture
def box(native: NativeProvider) -> Iterator[NativeSandbox]:
    with closing(native.start()) as sandbox:
        yield sandbox
        assert sandbox.exec(["echo", "it serves"]).stdout == b"it serves\n"
        peak = sandbox.memory_peak()
        assert peak is None or peak > 0


def python(box: SandboxBackend, program: str) -> str:
    """What a program prints."""
    done = box.exec(["python3", "-c", f"import os, ctypes, socket, struct, sys\n{program}"])
    assert done.ok, done.stderr.decode()
    return done.stdout.decode()


def attempt(box: SandboxBackend, expression: str) -> str:
    """What an expression comes to, or how it was refused."""
    refused = "except OSError as error:\n    print('refused', error)"
    return python(box, f"try:\n    print('done', {expression})\n{refused}")


# -- what /proc tells of it ----------------------------------------------------------------------

OPENED = (
    *("mem", "environ", "maps", "smaps", "smaps_rollup", "numa_maps", "pagemap", "auxv"),
    *("syscall", "stack", "io", "personality", "clear_refs", "map_files", "fd", "fdinfo"),
    *("task/1/mem", "task/1/environ", "task/1/maps", "task/1/fd", "root/etc/passwd"),
    *("cwd/etc/passwd", "exe", "seccomp_cache", "task/1/stack"),
)
LINKS = (
    *("exe", "cwd", "root", "ns/net", "ns/user", "ns/mnt", "ns/pid", "fd/0", "fd/3", "task/1/exe"),
)
WRITTEN = (
    *("oom_score_adj", "oom_adj", "comm", "coredump_filter", "uid_map", "gid_map", "setgroups"),
    *("attr/current", "autogroup", "timerslack_ns", "clear_refs", "mem", "loginuid", "sched"),
)


@pytest.mark.defends("escape", "host leak")
@pytest.mark.parametrize("name", OPENED)
def test_it_is_not_read(box: NativeSandbox, name: str) -> None:
    path = f"/proc/1/{name}"
    read = f"os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}, 'rb').read(9)"
    found = attempt(box, read)
    numbers = not is_root() and name.endswith("fd")  # an ordinary user's has the same user
    assert numbers or found.startswith("refused") or found in ("done b''\n", "done []\n"), found


@pytest.mark.defends("escape", "host leak")
@pytest.mark.parametrize("name", LINKS)
def test_its_links_lead_nowhere(box: NativeSandbox, name: str) -> None:
    found = attempt(box, f"os.readlink('/proc/1/{name}')")
    assert found.startswith("refused"), found


@pytest.mark.defends("escape", "self DoS")
@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_not_written(box: NativeSandbox, name: str) -> None:
    found = attempt(box, f"os.write(os.open('/proc/1/{name}', os.O_WRONLY), b'1')")
    assert found.startswith("refused"), found


@pytest.mark.defends("host leak")
def test_what_it_is_called_tells_nothing(box: NativeSandbox) -> None:
    said = box.exec(["cat", "/proc/1/cmdline", "/proc/1/comm", "/proc/1/wchan"]).stdout
    assert said.startswith(b"init\0init\n") and b"/" not in said


# -- calls that name it --------------------------------------------------------------------------

CALLS = {
    "ptrace attach": "libc.ptrace(16, 1, 0, 0)",
    "ptrace seize": "libc.ptrace(0x4206, 1, 0, 0)",
    "process_vm_readv": "libc.process_vm_readv(1, vector, 1, vector, 1, 0)",
    "process_vm_writev": "libc.process_vm_writev(1, vector, 1, vector, 1, 0)",
    "its descriptors": "libc.syscall(438, libc.syscall(434, 1, 0), 0, 0)",
    "its mounts": "libc.setns(libc.syscall(434, 1, 0), 0x20000)",
    "its users": "libc.setns(libc.syscall(434, 1, 0), 0x10000000)",
    "kcmp": "libc.syscall(312 if x86 else 272, 1, os.getpid(), 0, 0, 0)",
    "prlimit": "libc.prlimit(1, 7, limit, None)",
    "get prlimit": "libc.prlimit(1, 7, None, limit)",
    "affinity": "libc.sched_setaffinity(1, 8, limit)",
    "scheduler": "libc.sched_setscheduler(1, 3, limit)",
    "priority": "libc.setpriority(0, 1, 19)",
    "io priority": "libc.syscall(251 if x86 else 30, 1, 1, 0)",
    "move_pages": "libc.syscall(279 if x86 else 239, 1, 0, 0, 0, 0, 0)",
    "migrate_pages": "libc.syscall(256 if x86 else 238, 1, 8, limit, limit)",
    "process_mrelease": "libc.syscall(448, libc.syscall(434, 1, 0), 0)",
    "robust list": "libc.syscall(274 if x86 else 100, 1, limit, limit)",
    "perf": "libc.syscall(298 if x86 else 241, limit, 1, -1, -1, 0)",
    "process group": "libc.setpgid(1, 0)",
    "wait": "libc.waitpid(1, None, 1)",
    "keys": "libc.syscall(250 if x86 else 219, 0, -1, 1)",
    "adopt": "libc.prctl(0x59616D61, 1, 0, 0, 0)",
}


@pytest.mark.defends("escape", "self DoS")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_it_is_refused(box: NativeSandbox, name: str) -> None:
    found = python(
        box,
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "x86 = os.uname().machine == 'x86_64'\n"
        "memory = ctypes.create_string_buffer(64)\n"
        "vector = struct.pack('QQ', ctypes.addressof(memory), 8)\n"
        "limit = ctypes.create_string_buffer(struct.pack('QQ', 3, 3), 64)\n"
        f"result = {CALLS[name]}\n"
        "print('refused' if result < 0 else 'done', result, ctypes.get_errno())",
    )
    harmless = {"affinity", "scheduler", "priority", "io priority", "get prlimit", "robust list"}
    if not is_root() and name in harmless:
        return  # an ordinary user's process 1 has the same user
    assert found.startswith("refused"), found


@pytest.mark.defends("self DoS")
@pytest.mark.parametrize("send", ["kill", "tgkill", "sigqueue", "pidfd", "group", "all at once"])
def test_no_signal_reaches_it(box: NativeSandbox, send: str) -> None:
    """Each one, many times, from a program that is tracked, too."""
    ways = {
        "kill": "os.kill(1, n)",
        "tgkill": "libc.syscall(234 if x86 else 131, 1, 1, n)",
        "sigqueue": "libc.sigqueue(1, n, 7)",
        "pidfd": "libc.syscall(424, libc.syscall(434, 1, 0), n, 0, 0)",
        "group": "os.killpg(1, n)",
        "all at once": "n in (9, 19) or os.kill(-1, n)",
    }
    program = (
        "import signal\n"
        "libc, x86 = ctypes.CDLL(None), os.uname().machine == 'x86_64'\n"
        "for n in signal.valid_signals() - {9, 19}:\n"
        "    signal.signal(n, signal.SIG_IGN)\n"
        "for _ in range(40):\n"
        "    for n in range(1, 65):\n"
        "        try:\n"
        f"            {ways[send]}\n"
        "        except OSError:\n"
        "            pass\n"
    )
    first = box.popen(["sleep", "60"], channels={})
    python(box, program)
    assert box.processes() in ([first.pid], [])
    first.close()


# -- paths that it opens for others --------------------------------------------------------------

READ = {
    "its memory": "/proc/self/mem",
    "its maps": "/proc/self/maps",
    "its environment": "/proc/self/environ",
    "a thread's": "/proc/thread-self/maps",
    "its descriptor": "/dev/fd/3",
    "its standard input": "/dev/stdin",
    "its root": "/proc/self/root/etc/hostname",
    "its folder": "/proc/self/cwd/etc/hostname",
    "the kernel's settings": "/proc/sys/kernel/hostname",
    "a device": "/dev/zero",
    "a terminal": "/dev/tty",
    "a link to its maps": "/tmp/maps",
    "a link to its descriptor": "/tmp/descriptor",
    "links without end": "/tmp/loop",
    "a pipe": "/tmp/pipe",
    "a socket": "/tmp/socket",
    "a name that is too long": "/tmp/" + "n" * 256,
    "a path that is too long": "/tmp" + "/n" * 2100,
}
TRAPS = """
cd /tmp; ln -s /proc/self/maps maps; ln -s /proc/self/fd/3 descriptor; ln -s loop loop; mkfifo pipe
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
"""


@pytest.mark.defends("host leak", "self DoS")
@pytest.mark.parametrize("name", READ)
def test_nothing_of_its_own_is_read_for_others(box: NativeSandbox, name: str) -> None:
    box.exec(["bash", "-c", TRAPS])
    with pytest.raises((OSError, SandboxError)):
        box.read_file(READ[name])
    with pytest.raises((OSError, SandboxError)):
        box.exec(["true"], cwd=READ[name])


@pytest.mark.defends("escape", "self DoS")
@pytest.mark.parametrize(
    "name", [*READ, "/proc/self/oom_score_adj", "/proc/self/comm", "/proc/1/x"]
)
def test_nothing_of_its_own_is_written_for_others(box: NativeSandbox, name: str) -> None:
    box.exec(["bash", "-c", TRAPS])
    path = READ.get(name, name)
    with pytest.raises((OSError, SandboxError)):
        box.write_file(path, b"-1000")


@pytest.mark.defends("host leak")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_path_that_changes_while_it_is_opened(box: NativeSandbox, what: str) -> None:
    """Swapped with links all the time: what is read is one of the agent's files, or nothing."""
    box.exec(["bash", "-c", "mkdir /a /b; echo mine > /a/f; echo other > /b/f"])
    swap = {
        "folder": "mv /a /c; ln -s /proc/self/root/b /a; rm /a; mv /c /a",
        "file": "ln -sf /proc/self/environ /a/g; mv /a/g /a/f; echo mine > /a/h; mv /a/h /a/f",
    }
    swapper = box.popen(["bash", "-c", f"while :; do {swap[what]}; done"], channels={})
    seen = set()
    for _ in range(300):
        with suppress(OSError, SandboxError):
            seen.add(box.read_file("/a/f"))
            box.write_file("/a/new/deep/file", b"x")
    swapper.close()
    assert seen and seen <= {b"mine\n", b"other\n", b""}, seen


# -- programs that it starts ---------------------------------------------------------------------

STARTED = {
    "a loop of interpreters": ("printf '#!/x\\n' > /x; chmod +x /x", ["/x"]),
    "an interpreter that is not there": ("printf '#!/nowhere\\n' > /x; chmod +x /x", ["/x"]),
    "half a program": ("head -c 100 /bin/true > /x; chmod +x /x", ["/x"]),
    "a program of noise": ("head -c 5000 /dev/urandom > /x; chmod +x /x", ["/x"]),
    "an empty one": (": > /x; chmod +x /x", ["/x"]),
    "a folder": ("mkdir /x", ["/x"]),
    "a device": (":", ["/dev/null"]),
    "process 1's own": (":", ["/proc/1/exe"]),
    "its own": (":", ["/proc/self/exe"]),
    "a descriptor": (":", ["/proc/self/fd/3"]),
    "a very long name": (":", ["n" * 5000]),
    "more arguments than there can be": (":", ["true", *["a" * 100_000] * 40]),
    "one that is too long": (":", ["true", "a" * (1 << 20)]),
}


@pytest.mark.defends("self DoS", "escape")
@pytest.mark.parametrize("name", STARTED)
def test_what_cannot_be_executed(box: NativeSandbox, name: str) -> None:
    setup, argv = STARTED[name]
    assert box.exec(["bash", "-c", setup]).ok
    with suppress(OSError, SandboxError):
        assert not box.exec(argv).ok
    assert box.processes() == []


STATE = "grep -v '^\\(P*Pid\\|Tgid\\|NS\\|Vm\\|Rss\\|.*ctxt\\|State\\|Huge\\)' /proc/self/status"
LEFT = """
import os, resource, signal, ctypes
os.umask(0o777); os.nice(5); os.chdir("/tmp"); os.setsid() if os.getsid(0) != os.getpid() else 0
signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))
for number in signal.valid_signals() - {9, 19}: signal.signal(number, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
ctypes.CDLL(None).personality(0x0040000); signal.setitimer(signal.ITIMER_REAL, 1000)
try: os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
except OSError: pass
"""


@pytest.mark.defends("escape")
def test_a_program_begins_as_the_one_before_it_did(box: NativeSandbox) -> None:
    more = "umask; ulimit -a; nice; pwd; cat /proc/self/personality; ls -l /proc/self/fd | wc -l"
    look = ["bash", "-c", f"{STATE}; {more}"]
    before = box.exec(look).stdout
    for _ in range(20):
        assert box.exec(["python3", "-c", LEFT]).ok
    assert box.exec(look).stdout == before
    assert b"Seccomp:\t2" in before and b"NoNewPrivs:\t1" in before


@pytest.mark.defends("lateral")
def test_no_program_says_how_another_ended(box: NativeSandbox) -> None:
    """Exit codes come by a pipe that only process 1 has."""
    held = "for fd in $(ls /proc/self/fd); do [ $fd -gt 2 ] && printf '\\0\\0\\0\\0' >&$fd; done"
    done = box.exec(["bash", "-c", f"({held}) 2>/dev/null; ({held}; sleep 60) & exit 7"])
    assert done.exit_code == 7
    box.kill()


# -- its time, and what it has room for ----------------------------------------------------------

BEGIN = "import ctypes, os, sys, threading, time\nprint('begun', flush=True)\n"
FLOODS = {
    "zombies": """
for _ in range(40):
    os.fork() or os._exit(0)
time.sleep(60)
""",
    "orphans": """
for _ in range(400):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
""",
    "forks that outrun a kill": """
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "stopped ones": """
for _ in range(30):
    if os.fork() == 0:
        os.kill(os.getpid(), 19)
os.kill(os.getpid(), 19)
""",
    "threads": """
for _ in range(40):
    threading.Thread(target=time.sleep, args=(60,)).start()
""",
    "names": """
os.makedirs("/m")
for n in range(20_000):
    os.symlink("x" * 200, "/m/" + str(n).rjust(200, "n"))
""",
    "depth": """
os.chdir("/tmp")
for _ in range(900):
    os.mkdir("d")
    os.chdir("d")
""",
    "queues": """
for n in range(60):
    ctypes.CDLL(None).msgget(0, 0o1600)
""",
    "renames": """
while True:
    for n in range(50):
        open(f"/r{n}", "w").close()
        os.rename(f"/r{n}", f"/s{n}")
""",
    "writes": """
while True:
    open("/w", "w").write("w" * 100_000)
""",
    "links": """
open("/l", "w").close()
for n in range(3000):
    os.link("/l", f"/l{n}")
""",
    "a sparse file": """
open("/s", "w").truncate(1 << 26)
os.truncate("/s", 1 << 20)
""",
    "memory": """
held = bytearray(200 << 20)
held[::4096] = b"x" * len(held[::4096])
time.sleep(60)
""",
    "descriptors": """
try:
    while True:
        os.dup(0)
except OSError:
    time.sleep(60)
""",
}


@pytest.mark.defends("self DoS", "host DoS")
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood(native: NativeProvider, name: str) -> None:
    """Beside it files are compared and saved, and at its end nothing of it is left."""
    limits = Limits(memory=256 << 20, processes=60)
    with closing(native.start("host", limits)) as box:
        program = BEGIN + FLOODS[name]
        flood = box.popen(["python3", "-c", program], channels={1: "r"})
        assert os.read(flood.fds[1], 5) == b"begun"
        for _ in range(3):
            with suppress(SandboxError):
                assert isinstance(box.changes(), list)
        box.write_file("/beside", b"it")
        with suppress(SandboxError):
            box.snapshot().delete()
        box.kill()
        assert box.processes() == []
        assert box.read_file("/beside") == b"it"
        assert box.exec(["echo", "it serves"]).stdout == b"it serves\n"
        flood.close()


FAMILY = "for (1 .. 50) { if (!fork) { my $x = 'x' x 2e6; sleep 1000 } } print 'begun'; sleep 1000"


@pytest.mark.defends("self DoS")
def test_a_large_family_is_ended_beside_others(box: NativeSandbox) -> None:
    """Its first is reaped while the last are still being killed."""
    other = box.popen(["sleep", "1000"], channels={})
    for _ in range(8):
        family = box.exec(["perl", "-e", FAMILY], timeout=0.3)  # allow limit: it has no end
        assert family.timed_out
        assert box.processes() == [other.pid]
    other.close()


@pytest.mark.defends("self DoS")
@pytest.mark.parametrize("argv", [["/nowhere"], ["/etc/passwd"], ["true"]])
def test_what_cannot_begin_is_stopped_all_the_time(box: NativeSandbox, argv: list[str]) -> None:
    """Also between the moment that it has told why, and its end."""
    stop = "while (1) { kill STOP => grep { $_ > 1 && $_ != $$ } map { m{(\\d+)} } </proc/[0-9]*> }"
    stopper = box.popen(["perl", "-e", stop], channels={})
    for _ in range(40):
        with suppress(OSError):
            box.popen(argv, channels={}).close()
    assert stopper.pid in box.processes()
    stopper.close()


@pytest.mark.skipif(not is_root(), reason="an ordinary user has no groups to take")
@pytest.mark.defends("self DoS")
def test_a_restless_program_of_many_groups(native: NativeProvider) -> None:
    """Its status file is longer than what is read at once."""
    many = f"import os; os.setgroups(range(1000, 5000))\n{RESTLESS}"
    with closing(native.start("host", Limits(capabilities=("setgid",)))) as box:
        assert box.exec(["bash", "-c", "touch /tmp/{1..2000}"]).ok
        program = box.popen(["python3", "-c", many], channels={})
        assert os.read(program.fds[1], 6) == b"ready\n"
        assert len(box.read_file(f"/proc/{program.pid}/status")) > 8192

        def ended() -> bool:
            box.changes()
            return program.poll() is not None

        assert eventually(ended)
        program.close()


@pytest.mark.defends("self DoS")
def test_a_caller_of_many_threads(box: NativeSandbox) -> None:
    """Requests come one by one, whoever asks: none gets the answer to another one."""
    failures: list[object] = []

    def ask(number: int) -> None:
        for turn in range(20):
            text = f"{number} {turn}\n".encode()
            box.write_file(f"/t{number}", text)
            found = box.exec(["cat", f"/t{number}"]).stdout, box.read_file(f"/t{number}")
            if found != (text, text):
                failures.append(found)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


DEEP = """
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from intercode_sandbox import get_provider
base = get_provider().image("host")
image = replace(base, layers=(*base.layers, Path(sys.argv[1])), digest="deep")
nest = "for n in range(290): os.mkdir('d'), os.chdir('d'), open('f', 'w').close()"
with closing(get_provider().start(image)) as box:
    assert box.exec(["rm", "-r", "/old"]).ok
    assert box.exec(["python3", "-c", f"import os\\n{nest}"]).ok
    print(len(box.changes()))
    box.snapshot().delete()
"""


@pytest.mark.defends("self DoS")
def test_its_stack_is_not_as_large_as_its_callers(tmp_path: Path) -> None:
    """Whoever calls has a small one, and an agent, whose work counts, nested folders."""
    folder = tmp_path / "old"
    for _ in range(600):
        folder.mkdir()
        folder = folder / "d"
    command = ["sh", "-c", 'ulimit -s 512; exec "$@"', "sh", sys.executable, "-c", DEEP]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1180\n", 0), done.stderr


@pytest.mark.defends("host DoS")
def test_a_zygote_that_is_killed_is_replaced() -> None:
    """Its sandboxes live on."""
    with closing(NativeProvider()) as provider, closing(provider.start()) as box:
        assert provider._spawner is not None
        spawner = provider._spawner.process.pid
        zygote = next(children(spawner))  # the eldest
        os.kill(zygote, signal.SIGKILL)
        with closing(provider.start()) as other, closing(provider.start()) as third:
            for each in (box, other, third):
                assert each.exec(["echo", "x"]).stdout == b"x\n"
            assert zygote not in children(spawner)  # nor is it left as a zombie


# -- what it waits for and lists -------------------------------------------------------------------

TRACED = """
libc = ctypes.CDLL(None)
assert libc.ptrace(0, 0, 0, 0) == 0
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
os.kill(os.getpid(), signal.SIGUSR1)
os.execvp("sh", ["sh", "-c", "echo executed; exit 7"])
"""


def test_the_stop_of_a_traced_program_is_no_end(native: NativeProvider) -> None:
    """A debugger's capability lets it ask for its parent as tracer, and that is process 1."""
    with closing(native.start(limits=Limits(debugger=True))) as sandbox:
        done = sandbox.exec(["python3", "-c", f"import ctypes, os\n{TRACED}"])
        assert (done.stdout, done.exit_code) == (b"heard\nexecuted\n", 7)
        assert not sandbox.processes()


FILES = """
import time
name = "/tmp/" + "/".join(["x" * 200] * 15)
os.makedirs(name, exist_ok=True)
for _ in range(400):
    os.open(name, os.O_RDONLY)
os.mkdir(f"/root/open-{os.getpid()}")
time.sleep(600)
"""


def test_what_programs_have_open_is_listed_up_to_a_limit(box: NativeSandbox) -> None:
    """Each program has 400 descriptors, each with a path of 3,000 bytes."""
    for _ in range(8):
        box.popen(["python3", "-c", f"import os\n{FILES}"], channels={})
    assert eventually(lambda: len(box.exec(["ls", "/root"]).stdout.split()) == 8)
    programs = box.programs()
    counts = [len(program.descriptors) for program in programs]
    assert len(programs) == 8 and max(counts) == 256
    paths = [path for program in programs for path in program.descriptors.values()]
    assert 3 << 20 < sum(map(len, paths)) <= 4 << 20
    box.kill()
