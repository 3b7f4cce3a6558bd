"""Who a sandbox is to the machine: ids that no other has, and a process 1 whom nobody can reach."""

from __future__ import annotations

import errno
import itertools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from intercode_sandbox import Provider, SandboxBackend
from intercode_sandbox.native import user_ids
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.privileges import STAND_IN_ID, is_root
from sandbox.fixtures import of_both_origins as pytest_generate_tests  # noqa: F401 - a hook
from waiting import eventually, new_marker

from . import Run, Start, not_for_docker

X86 = platform.machine() == "x86_64"
as_root = pytest.mark.skipif(not is_root(), reason="not for ordinary users: they have one id")
ordinary = pytest.mark.ordinary

# Sends this process's standard input to itself through a socket until the kernel refuses: as many
# descriptors are in flight then as its user may have.
IN_FLIGHT = f"""
$| = 1;
for (1 .. 40) {{
    socketpair(my $a, my $b, 1, 1, 0) or last; push @kept, $a, $b;
    my $fds = pack "i250", (0) x 250;
    my $control = pack("Q i i", 16 + length $fds, 1, 1) . $fds;
    my $data = "x"; my $iov = pack "P Q", $data, 1;
    my $header = pack "Q L x4 P Q P Q i x4", 0, 0, $iov, 1, $control, length $control, 0;
    for (1 .. 40) {{
        syscall({46 if X86 else 211}, fileno($a), $header, 0x40) < 0 ? last : ($sent += 250);
    }}
    last if $! == {errno.ETOOMANYREFS};
}}
print $sent, " ", $! + 0, "\\n"; sleep 60;
"""
# Makes pipes as large as its user may have them.
PIPES = """
$| = 1;
for (1 .. 200) { pipe(my $r, my $w) or last; push @k, $r, $w; fcntl($w, 1031, 1 << 20) or last }
print scalar(@k) / 2, "\\n"; sleep 60;
"""
WATCHERS = f"""
$n++ while $n < 200 and syscall({294 if X86 else 26}, 0) >= 0; $| = 1; print "$n\\n"; sleep 60;
"""


@pytest.fixture
def two_providers() -> Iterator[tuple[NativeProvider, NativeProvider]]:
    with closing(NativeProvider()) as one, closing(NativeProvider()) as two:
        yield one, two


def outside(sandbox: SandboxBackend) -> tuple[int, int]:
    """The machine's ids of a program of user 0, and of process 1."""
    marker = new_marker()
    sandbox.popen(["sleep", marker], channels={}, cwd="/")
    assert eventually(lambda: _pid_of(marker))
    status = _status(_pid_of(marker))
    return int(status["Uid"].split()[0]), int(_status(int(status["PPid"]))["Uid"].split()[0])


def _pid_of(marker: str) -> int:
    """The sleeper's; 0 if there is none."""
    wanted = f"sleep\0{marker}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if (folder / "cmdline").read_bytes() == wanted:
                return int(folder.name)
    return 0


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def held(sandbox: SandboxBackend, script: str) -> list[int]:
    """What a program prints that goes on holding what it has."""
    holder = sandbox.popen(["perl", "-e", script], channels={}, cwd="/")
    text = b""
    while not text.endswith(b"\n"):
        text += os.read(holder.fds[1], 100)
    return [int(word) for word in text.split()]


@as_root
@pytest.mark.attack(1, 4)
@pytest.mark.defends("escape", "peer DoS")
def test_each_has_ids_of_its_own(two_providers: tuple[NativeProvider, NativeProvider]) -> None:
    sandboxes = [provider.start("host") for provider in two_providers for _ in range(3)]
    found = [outside(sandbox) for sandbox in sandboxes]
    assert len({uid for pair in found for uid in pair}) == 2 * len(found)
    firsts = sorted(uid for uid, _ in found)
    assert all(b - a >= user_ids.ID_COUNT for a, b in itertools.pairwise(firsts))
    for _, own in found:
        assert not any(first <= own < first + user_ids.ID_COUNT for first in firsts)
    systemd = [(0, 65_536), (524_288, 1_879_048_191), (2_147_352_576, 1 << 32)]
    for uid in (uid for pair in found for uid in pair):
        assert not any(low <= uid <= high for low, high in systemd)


@as_root
def test_ranges_are_taken_back() -> None:
    with closing(NativeProvider()) as provider:
        ids = set()
        for _ in range(20):
            with closing(provider.start("host")) as sandbox:
                ids.add(sandbox.exec(["cat", "/proc/self/uid_map"]).stdout.split()[1])
    assert len(ids) < 10


@as_root
def test_accounts_of_the_machine_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, size = 0x7000_0000, user_ids.ID_COUNT
    (tmp_path / "passwd").write_text(
        f"a:x:1000:1000::/:/bin/sh\nb:x:{first + 5 * size + 7}:1::/:/bin/sh\n"
        f"of-a-process-1:x:{first + 3}:1::/:/bin/sh\n"
    )
    (tmp_path / "subuid").write_text(f"c:{first + 9 * size + 1}:{2 * size}\nd:100000:65536\n")
    monkeypatch.setattr(user_ids, "_ACCOUNTS", (str(tmp_path / "passwd"),))
    monkeypatch.setattr(user_ids, "_SUBORDINATE", (str(tmp_path / "subuid"), "/nope"))
    assert set(user_ids._taken_ranges()) == {3, 4, 8, 9, 10}


@as_root
@pytest.mark.attack(4)
def test_ranges_are_locked_for_the_machine() -> None:
    ask = "from intercode_sandbox.native import user_ids as i; print(i._free_range()[1]); input()"
    with subprocess.Popen(
        [sys.executable, "-c", ask], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        start = taken.to_bytes(4, "little")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(user_ids.os, "urandom", lambda _: start)
            lock, index = user_ids._free_range()
            os.close(lock)
            assert 0 < (index - taken) % user_ids._RANGES < 100  # the next ones may be others'
            other.communicate(b"\n")
            lock, index = user_ids._free_range()
            os.close(lock)
            assert index == taken


@as_root
@pytest.mark.attack(9, 10)
@pytest.mark.defends("escape", "self DoS")
def test_nobody_inside_can_be_process_1(provider: Provider, start: Start) -> None:
    not_for_docker(provider, "its process 1 has the engine's ids")
    sandbox = start(capabilities=("setuid", "setgid", "chown", "dac_override"))
    who = "print +(split ' ', (grep /^Uid/, `cat /proc/1/status`)[0])[1], ' '"
    become = f"syscall({117 if X86 else 147}, 65536, 65536, 65536); print $! + 0, ' '"
    signal = "print kill 0, 1"
    done = sandbox.exec(["perl", "-e", f"{who}; {become}; {signal}"])
    assert done.stdout.split() == [b"65534", str(errno.EINVAL).encode(), b"0"]
    mapped = sandbox.exec(["cat", "/proc/self/uid_map"]).stdout.split()
    assert (mapped[0], mapped[2:]) == (b"0", [str(user_ids.ID_COUNT).encode()])


@as_root
@pytest.mark.attack(4)
@pytest.mark.defends("peer DoS")
def test_descriptors_in_flight(provider: Provider, start: Start) -> None:
    not_for_docker(provider, "programs of all containers have one id outside")
    one, two = start(), start()
    sent, error = held(one, IN_FLIGHT)
    assert sent > 1000
    assert error == errno.ETOOMANYREFS
    two.write_file("/tmp/f", b"works")
    assert two.read_file("/tmp/f") == b"works"


@as_root
@pytest.mark.attack(27)
@pytest.mark.defends("peer DoS")
def test_pipes(provider: Provider, start: Start) -> None:
    not_for_docker(provider, "programs of all containers have one id outside")
    one, two = start(), start()
    assert held(one, PIPES)[0] < 200
    size = "pipe(my $r, my $w); print fcntl($w, 1032, 0)"
    assert two.exec(["perl", "-e", size]).stdout == b"65536"


@ordinary
@pytest.mark.attack(12)
@pytest.mark.defends("host DoS", "peer DoS")
def test_watchers(provider: Provider, start: Start) -> None:
    not_for_docker(provider, "programs of all containers have one id outside")
    for sandbox in (start(), start()):
        assert 4 <= held(sandbox, WATCHERS)[0] <= 16


@as_root
@pytest.mark.attack(17)
@pytest.mark.defends("host DoS")
def test_processes_of_all_users_together(start: Start) -> None:
    sandbox = start(processes=40, capabilities=("setuid",))
    script = f"""
        for (1 .. 120) {{
            my $p = fork; last unless defined $p;
            if (!$p) {{ syscall({117 if X86 else 147}, $_, $_, $_); sleep 60 }}
            $n++;
        }}
        print $n;
    """
    assert 20 < int(sandbox.exec(["perl", "-e", script]).stdout) <= 40
    assert sandbox.kill() > 20


@ordinary
@pytest.mark.attack(36)
@pytest.mark.defends("self DoS")
def test_who_is_ended_first_for_want_of_memory(provider: Provider, sh: Run) -> None:
    not_for_docker(provider, "its /proc is for writing")
    score = "until grep -x 1000 /proc/self/oom_score_adj; do :; done"  # 500 for its first moment
    assert sh(score).ok
    assert not sh("echo 0 > /proc/self/oom_score_adj").ok
    assert sh(score).ok


@as_root
def test_a_caller_that_is_ended_before_all_others() -> None:
    """As in a cluster's container of the lowest class, where the score may not be lowered."""
    script = (
        "open('/proc/self/oom_score_adj', 'w').write('1000')\n"
        "from intercode_sandbox import get_provider\n"
        "done = get_provider().start().exec(['cat', '/proc/self/oom_score_adj'])\n"
        "print(done.stdout)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.stdout == b"b'1000\\n'\n", done.stderr


@ordinary
@pytest.mark.defends("escape")
def test_a_debugger_where_it_is_asked_for(start: Start) -> None:
    trace = f"print syscall({101 if X86 else 117}, 0, 0, 0, 0)"
    assert start().exec(["perl", "-e", trace]).stdout == b"-1"
    assert start(debugger=True).exec(["perl", "-e", trace]).stdout == b"0"


@ordinary
@pytest.mark.defends("escape")
def test_the_memory_of_another_program(provider: Provider, sh: Run) -> None:
    """By ptrace and its like a test's program could be made to say that it passed."""
    not_for_docker(provider, "its /proc is for writing")
    script = 'open my $f, "+<", "/proc/" . getppid . "/mem" or print $! + 0'
    assert sh(f"perl -e '{script}'; true").stdout == str(errno.EROFS).encode()


# -- root without the rights of root ----------------------------------------------------------

ASK = """
import sys
from intercode_sandbox.errors import SandboxUnavailableError
from intercode_sandbox import get_provider
provider = get_provider()
try:
    sandbox = provider.start("host")
except SandboxUnavailableError as error:
    sys.exit(str(error))
sandbox.popen(["sleep", sys.argv[1]], channels={}, cwd="/")
done = sandbox.exec(["bash", "-c", "id -u; echo x >> /etc/passwd; mkdir /etc/new; id -u"])
snapshot = sandbox.snapshot()
again = provider.start(snapshot)
print(done.stdout.split(), [c.path for c in sandbox.changes()], again.exec(["ls", "/etc/new"]).ok)
print(sandbox.exec(["bash", "-c", "echo b > /proc/sysrq-trigger"]).ok, flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="not for ordinary users: they are not root")
@pytest.mark.attack(1)
@pytest.mark.defends("escape")
def test_root_without_its_rights_is_replaced() -> None:
    marker = new_marker()
    with subprocess.Popen(
        ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", ASK, marker],
        env={k: v for k, v in os.environ.items() if k != "INTERCODE_CACHE"} | {"HOME": "/root"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().decode(), process.stdout.readline().decode()
        uids = {_status(pid)["Uid"] for pid in (_pid_of(marker),) if pid}
        process.communicate(b"\n")
    assert said == ("[b'0', b'0'] ['/etc/new', '/etc/passwd'] True\n", "False\n")
    assert {uid for line in uids for uid in line.split()} == {str(STAND_IN_ID)}


@pytest.mark.skipif(os.geteuid() != 0, reason="not for ordinary users: they are not root")
@pytest.mark.attack(1)
@pytest.mark.defends("escape")
def test_where_there_is_only_root_it_is_refused() -> None:
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", ASK, "x"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "sandboxes never run as the machine's root" in done.stderr
    assert "`docker run --user 1000" in done.stderr


@ordinary
@pytest.mark.defends("peer DoS")
def test_processes_of_others_do_not_count(start: Start) -> None:
    fork = "for (1 .. 60) { my $p = fork; last unless defined $p; $n++; $p or sleep 60 } print $n"
    for _ in range(3):
        assert 20 < int(start(processes=40).exec(["perl", "-e", fork]).stdout) <= 41


@ordinary
def test_few_identities_are_kept() -> None:
    with closing(NativeProvider()) as provider:
        sandboxes = [provider.start("host") for _ in range(user_ids._MAX_IDLE_IDENTITIES + 8)]
        spawner = provider._running_spawner().process.pid

        def kept() -> int:
            found = 0
            for link in Path(f"/proc/{spawner}/fd").iterdir():
                with suppress(FileNotFoundError):  # it has just been closed
                    found += os.readlink(link).startswith("user:[")
            return found

        assert kept() >= len(sandboxes)
        for sandbox in sandboxes:
            sandbox.close()
        # And those that are made ahead.
        assert eventually(lambda: kept() <= user_ids._MAX_IDLE_IDENTITIES + 2)


@as_root  # of an ordinary user only a process without threads can have namespaces
@pytest.mark.parametrize("when", ["write_maps", "_await_helper"])
def test_nothing_is_left_of_a_spawner_that_is_killed_meanwhile(when: str) -> None:
    script = f"""
import os
from intercode_sandbox.native import spawner, user_ids
spawner.prepare_namespaces(True)
user_ids.{when} = lambda *_: os.kill(os.getpid(), 9)
user_ids.SandboxUserIdPool(True).take(10)
"""
    read, write = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", script], stderr=write, check=False)
    finally:
        os.close(write)
    with open(read, "rb") as file:
        assert file.read() == b""  # whoever is left has it open
    assert done.returncode == -9
