"""What a program inside can reach: the host's files, processes, network; other sandboxes."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode_sandbox import Provider, SandboxBackend
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native.zygote import MASKED_FILES
from intercode_sandbox.privileges import is_root
from sandbox.fixtures import of_both_origins as pytest_generate_tests  # noqa: F401 - a hook
from sources import ROOT
from waiting import eventually

from . import Run, Start, not_for_docker

LANDLOCK_CREATE_RULESET = 444

pytestmark = pytest.mark.ordinary
CANARY = f"intercode-canary-{os.getpid()}"


@pytest.fixture
def hosts_files(tmp_path: Path) -> Iterator[list[Path]]:
    """Files of the host's, in places that people keep theirs in."""
    places = [tmp_path, Path.home(), Path.cwd(), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    files = []
    for place in places:
        if os.access(place, os.W_OK):
            files.append(place / CANARY)
            files[-1].write_text(CANARY)
    yield files
    for file in files:
        file.unlink()


@pytest.mark.defends("host leak", "escape")
def test_the_hosts_files(sandbox: SandboxBackend, sh: Run, hosts_files: list[Path]) -> None:
    assert hosts_files
    for file in hosts_files:
        assert not sh(f"cat {file}").stdout
    assert not sh(f"find / -name '{CANARY}*' 2>/dev/null", timeout=50).stdout
    for file in hosts_files:
        sh(f"mkdir -p {file.parent}; echo x > {file}")
        assert file.read_text() == CANARY


@pytest.mark.defends("host leak")
def test_home_folders_and_the_working_tree(sh: Run) -> None:
    assert sh("ls -A /home /root /mnt /media /srv /opt | grep -v :").stdout.strip() == b""
    assert not sh(f"ls {ROOT}").ok
    assert not sh(f"ls {cache_root()}").ok
    assert sh("grep -c '[$]' /etc/shadow").stdout in (b"", b"0\n")
    assert not sh("ls /etc/ssh /etc/ssl/private /boot /lost+found /var/log/syslog").stdout


@pytest.mark.defends("host leak")
def test_the_hosts_environment(sh: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCODE_CANARY", CANARY)
    assert CANARY.encode() not in sh("env; cat /proc/*/environ; cat /proc/*/cmdline").stdout
    assert sh("hostname").stdout.decode().strip() != socket.gethostname()


@pytest.mark.case(80)
@pytest.mark.defends("host leak")
def test_the_hosts_paths_in_the_list_of_mounts(
    provider: Provider, start: Start, tmp_path: Path
) -> None:
    not_for_docker(provider, "a container's mounts name what they come from")
    sandbox = start("host")
    snapshot = sandbox.snapshot()
    again = start(snapshot)
    for one in (sandbox, again):
        listed = one.exec(["cat", "/proc/self/mountinfo", "/proc/mounts"]).stdout.decode()
        for path in (Path.home(), cache_root(), ROOT, tmp_path, Path.cwd()):
            assert str(path) not in listed
    snapshot.delete()


@pytest.mark.defends("host leak", "escape")
def test_no_descriptor_of_the_hosts(sandbox: SandboxBackend) -> None:
    listed = sandbox.exec(["ls", "-l", "/proc/self/fd"]).stdout.decode().splitlines()[1:]
    opened = {line.split()[-3]: line.split()[-1] for line in listed}
    assert set(opened) == {"0", "1", "2", "3"}  # 3 is that of the listing itself
    assert opened["0"] == "/dev/null"
    assert opened["1"].startswith("pipe:")


@pytest.mark.case(76)
@pytest.mark.defends("escape", "host leak")
def test_process_1_is_out_of_reach(sh: Run) -> None:
    for name in ("mem", "environ", "root/", "cwd/", "exe", "maps", "auxv", "stack", "io"):
        done = sh(f"if [ -d /proc/1/{name} ]; then ls /proc/1/{name}; else cat /proc/1/{name}; fi")
        assert not done.stdout, name
    # The names of its descriptors are numbers; where they lead is what is closed.
    assert not sh("readlink /proc/1/fd/*; for fd in /proc/1/fd/*; do ls $fd/; cat $fd; done").stdout
    attach = "my $n = `uname -m` =~ /x86/ ? 101 : 117; print syscall($n, 16, 1, 0, 0) + 0"
    assert sh(f"perl -e '{attach}'").stdout == b"-1"
    assert not sh("kill -9 1; kill -STOP 1; echo x > /proc/1/mem").ok
    assert sh("echo works").stdout == b"works\n"


@pytest.mark.defends("host leak", "lateral")
def test_only_the_own_processes(sandbox: SandboxBackend, sh: Run) -> None:
    listed = sh("cat /proc/[0-9]*/comm").stdout.decode().split()
    assert "cat" in listed and set(listed) <= {"init", "bash", "cat", "python3", "python"}
    assert len(listed) <= 3


@pytest.mark.case(71)
@pytest.mark.defends("exfiltration", "lateral", "escape")
@pytest.mark.parametrize("kind", ["unix", "abstract", "tcp", "udp"])
def test_the_hosts_sockets(sh: Run, tmp_path: Path, kind: str) -> None:
    family = socket.AF_INET if kind in ("tcp", "udp") else socket.AF_UNIX
    listener = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    name = {"unix": str(tmp_path / "s"), "abstract": f"\0{CANARY}"}.get(kind, ("127.0.0.1", 0))
    with listener:
        listener.setblocking(False)  # the program has ended: what it has sent is there
        listener.bind(name)
        if kind != "udp":
            listener.listen()
        port = listener.getsockname()[1]
        perl = {
            "unix": f'socket S,AF_UNIX,SOCK_STREAM,0; connect S,sockaddr_un("{name}") or exit 1',
            "abstract": "socket S,AF_UNIX,SOCK_STREAM,0; "
            f'connect S,pack("S a*",1,"\\0{CANARY}") or exit 1',
            "tcp": "socket S,AF_INET,SOCK_STREAM,6; "
            f'connect S,pack_sockaddr_in({port},inet_aton("127.0.0.1")) or exit 1',
            "udp": "socket S,AF_INET,SOCK_DGRAM,17; "
            f'send S,"x",0,pack_sockaddr_in({port},inet_aton("127.0.0.1")); exit 1',
        }[kind]
        assert sh(f"perl -MSocket -e '{perl}'").exit_code == 1
        with pytest.raises(BlockingIOError):
            listener.recv(1) if kind == "udp" else listener.accept()


@pytest.mark.attack(32)
@pytest.mark.defends("escape", "lateral")
def test_abstract_sockets_on_the_machines_network(provider: Provider) -> None:
    """They belong to the network, and know nothing of users and files."""
    not_for_docker(provider, "a container has a network of its own")
    if ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) < 6:  # the version
        pytest.skip("not for this kernel: its Landlock has no scopes")
    named = f'socket S,AF_UNIX,SOCK_STREAM,0; my $a = pack("S a*",1,"\\0{CANARY}"); '
    reach = ["perl", "-MSocket", "-e", named + 'print connect(S,$a) ? "reached" : "not"']
    listen = ["perl", "-MSocket", "-e", named + "bind S,$a; listen S,9; sleep"]
    with (
        closing(provider.start(network=True)) as peer,
        closing(provider.start(network=True)) as sandbox,
    ):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{CANARY}")
            listener.listen()
            assert sandbox.exec(reach).stdout == b"not"
        peer.popen(listen, channels={})
        assert eventually(lambda: peer.exec(reach).stdout == b"reached")
        assert sandbox.exec(reach).stdout == b"not"


@pytest.mark.case(71)
@pytest.mark.defends("exfiltration")
def test_no_network(sh: Run) -> None:
    assert sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").stdout == b"lo\n"
    for address in ("1.1.1.1", "10.0.0.1", "169.254.169.254"):
        done = sh(f"exec 3<>/dev/tcp/{address}/80", timeout=40)
        assert (done.exit_code, done.timed_out) == (1, False)
        assert b"unreachable" in done.stderr
    assert not sh("exec 3<>/dev/tcp/example.com/80", timeout=40).ok


def test_the_own_loopback_works(sh: Run) -> None:
    script = (
        "socket S,AF_INET,SOCK_STREAM,6; bind S,pack_sockaddr_in(0,INADDR_LOOPBACK); listen S,1; "
        "my $a = getsockname S; if (!fork) { socket C,AF_INET,SOCK_STREAM,6; connect C,$a; "
        'syswrite C,"hello" } else { accept N,S; sysread N,my $x,9; print $x }'
    )
    assert sh(f"perl -MSocket -e '{script}'").stdout == b"hello"


@pytest.mark.defends("lateral", "peer DoS")
def test_peers_do_not_see_each_other(start: Start) -> None:
    one, two = start(), start()
    one.exec(["bash", "-c", "exec -a canary sleep 60 >/dev/null 2>&1 & echo x > /dev/shm/canary; "
              "echo x > /tmp/canary"])  # fmt: skip
    one.exec(["perl", "-e", "shmget(0x1234, 100, 0x200 | 0600)"])
    listing = ["bash", "-c", "cat /proc/[0-9]*/cmdline"]
    assert b"canary\0" not in two.exec(listing).stdout
    assert not two.exec(["bash", "-c", "ls /tmp/canary || ls /dev/shm/canary"]).ok
    done = two.exec(["perl", "-e", "print defined shmget(0x1234, 100, 0600) ? 1 : 0"])
    assert done.stdout == b"0"
    two.exec(["bash", "-c", "kill -9 -1; hostname other"])
    assert eventually(lambda: b"canary\0" in one.exec(listing).stdout)


@pytest.mark.case(79)
@pytest.mark.defends("lateral", "peer DoS")
@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/tmp"])
def test_file_locks(provider: Provider, start: Start, path: str) -> None:
    if path.startswith("/dev") and not getattr(provider, "facts", dict)().get("root", True):
        pytest.skip("an ordinary user cannot make device nodes: locks on the machine's are shared")
    one, two = start(), start()
    # It says that it holds the lock, and goes on holding it.
    holder = one.popen(["flock", path, "bash", "-c", "echo y; exec sleep 60"], channels={})
    assert os.read(holder.fds[1], 1) == b"y"
    assert one.exec(["flock", "-n", path, "true"]).ok is False
    assert two.exec(["flock", "-n", path, "true"]).ok is True
    holder.close()


# Every place where something is mounted, every folder that has no others, and a sample of files.
PATHS = """
( cut -d' ' -f2 /proc/mounts | grep -v '^/dev'
  find / -path /proc -prune -o -path /dev -prune -o -path /sys -prune -o -type d -links 2 -print |
    head -n 200
  find / -path /proc -prune -o -path /dev -prune -o -path /sys -prune -o -type f -print |
    awk 'NR % 97 == 1' | head -n 400
  ls -d /proc/* | grep -v '[0-9]'
) 2>/dev/null | sort -u
"""
LOCK = """
$| = 1; open my $list, "<", "/tmp/paths"; my @kept;
while (my $path = <$list>) {
    chomp $path; sysopen(my $f, $path, 0x800) or next;
    flock($f, 6) ? push(@kept, $f) : print "$path\\n";
}
print "locked " . @kept . "\\n"; sleep shift;
"""


@pytest.mark.case(79)
@pytest.mark.attack(13, 14, 15)
@pytest.mark.defends("lateral", "host DoS", "peer DoS")
@pytest.mark.parametrize("image", ["host", "nl2bash"] if is_root() else ["host"])
def test_no_file_is_anybody_elses(start: Start, image: str) -> None:
    """A lock, a watch or a lease is on an inode: of each path a sandbox has one of its own."""
    one, two = start(image), start(image)
    paths = one.exec(["bash", "-c", PATHS], timeout=60).stdout
    for sandbox in (one, two):
        sandbox.write_file("/tmp/paths", paths)
    holder = one.popen(["perl", "-e", LOCK, "60"], channels={})
    text = b""
    while b"locked " not in text or not text.endswith(b"\n"):
        text += os.read(holder.fds[1], 1000)
    # Two paths may lead to the same file: that is no other sandbox's doing. The machine's files may
    # go meanwhile: so what could not be locked is compared, and not how much could.
    *refused, _, locked = text.split()
    *too, _, others = two.exec(["perl", "-e", LOCK, "0"]).stdout.split()
    assert min(int(locked), int(others)) > 200
    assert set(too) <= set(refused)
    for path in ("/usr/bin/env", "/usr/bin", "/usr"):
        done = subprocess.run(["flock", "-n", path, "true"], check=False)
        assert done.returncode == 0, f"{path} of the machine is locked"


@pytest.mark.attack(13)
@pytest.mark.defends("host leak", "lateral")
def test_what_the_machine_runs(start: Start) -> None:
    add, init = (254, 294) if platform.machine() == "x86_64" else (27, 26)
    script = f"""
        $| = 1; my $fd = syscall({init}, 0x800);
        for my $each ("/usr/bin", "/usr/bin/factor", "/usr") {{
            my $path = $each;
            syscall({add}, $fd, $path, 0xfff) >= 0 or die $!;
        }}
        print "ready\\n"; <STDIN>;
        open my $f, "<&=", $fd; print defined sysread($f, my $x, 4096) ? "seen" : "nothing";
    """
    watcher, peer = start("host"), start("host")
    process = watcher.popen(["perl", "-e", script], channels={0: "r"})
    assert os.read(process.fds[1], 100) == b"ready\n"
    subprocess.run(["/usr/bin/factor", "6"], check=True, stdout=subprocess.DEVNULL)
    assert peer.exec(["/usr/bin/factor", "6"]).ok
    os.write(process.fds[0], b"\n")
    assert os.read(process.fds[1], 100) == b"nothing"


@pytest.mark.attack(28)
@pytest.mark.defends("host leak")
def test_a_folder_that_becomes_private_later(
    provider: Provider, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access("/usr/local", os.W_OK):
        pytest.skip("not for ordinary users: they have no folder there")
    not_for_docker(provider, "a container's mounts are made with it")
    assert start("host").exec(["ls", "/usr/local"]).ok
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="intercode-test-") as name:
        Path(name, "secret").write_text(CANARY)
        Path(name).chmod(0o755)
        assert start("host").exec(["cat", f"{name}/secret"]).stdout == CANARY.encode()
        monkeypatch.chdir(name)
        assert not start("host").exec(["ls", f"{name}/secret"]).ok


@pytest.mark.attack(1, 29)
@pytest.mark.defends("host leak", "escape")
def test_what_proc_tells_of_the_machine(sh: Run) -> None:
    nothing = "cat /proc/{0} || ls -A /proc/{0}"
    for name in MASKED_FILES:
        assert not sh(nothing.format(name)).stdout, name
    for name in ("sysrq-trigger", "bus/x", "fs/x", "irq/default_smp_affinity", "mtrr"):
        assert not sh(f"echo 1 > /proc/{name}").ok, name


@pytest.mark.defends("escape")
@pytest.mark.parametrize("what", ["ln -s {} ", "mkfifo ", "mkdir ", "ln -s resolv.conf ", ":"])
def test_name_servers_in_the_place_of_a_link(
    provider: Provider, start: Start, tmp_path: Path, what: str
) -> None:
    not_for_docker(provider, "its engine mounts the file")
    before, file = start(), tmp_path / "made"
    tmp_path.chmod(0o777)
    put = f"rm -rf /etc/resolv.conf; {what.format(file)} /etc/resolv.conf"
    assert before.exec(["bash", "-c", put]).ok
    with closing(provider.start(before.snapshot(), network=True)) as after:
        assert after.exec(["true"]).ok
    assert not file.exists()


@pytest.mark.case(82)
def test_the_thread_that_started_it_ends(provider: Provider) -> None:
    started: list[SandboxBackend] = []
    thread = threading.Thread(target=lambda: started.append(provider.start("host")))
    thread.start()
    thread.join()
    try:
        assert started[0].exec(["sleep", "0.2"]).ok
        assert started[0].exec(["echo", "works"]).stdout == b"works\n"
    finally:
        started[0].close()
