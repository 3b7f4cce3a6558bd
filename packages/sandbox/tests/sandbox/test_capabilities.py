"""What each capability permits, where it is granted, and that it stays inside.

`test_privileges` has what root can do with none of them, and with all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.errors import UsageError
from intercode_sandbox.linux_capabilities import CAPABILITIES, mask
from waiting import becomes_readable

from . import Start, not_for_docker

TESTS = Path(__file__).parent
ALL = tuple(CAPABILITIES)
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for an ordinary user: there is no other user"
)
ordinary = pytest.mark.ordinary

LISTEN = "IO::Socket::INET->new(Listen => 1, LocalPort => 80) or exit 13; "
SIGNAL = "my $p = `cat /tmp/theirs` + 0; kill 0, $p or exit 1"
TRIES = {
    "chown": "chown 33, 33, '/tmp/mine' or exit 1",
    "dac_override": "open my $f, '<', '/tmp/closed' or exit 1",
    "fowner": "chmod 0744, '/tmp/theirs' or exit 1",
    "kill": SIGNAL,
    "net_bind_service": f"use IO::Socket::INET; {LISTEN}",
    "setgid": "$( = $) = '33 33'; exit 1 if $) != 33",
    "setuid": "$< = $> = 33; exit 1 if $> != 33",
    "sys_chroot": "chroot '/tmp' or exit 1",
}


def ready(sandbox: SandboxBackend) -> SandboxBackend:
    """With files and a process of root's and of another user's."""
    assert sandbox.exec(["bash", "-c", "touch /tmp/{mine,closed}; chmod 0 /tmp/closed"]).ok
    theirs = "umask 022; setsid sleep 600 > /dev/null 2>&1 & echo $! > /tmp/theirs"
    assert sandbox.exec(["bash", "-c", theirs], user="33").ok
    return sandbox


def perl(sandbox: SandboxBackend, script: str) -> bool:
    return sandbox.exec(["perl", "-e", script]).ok


@as_root
@pytest.mark.defends("escape")
def test_each_permits_what_it_says_and_no_other_does(provider: Provider, start: Start) -> None:
    mighty = ready(start(capabilities=ALL))
    for name, script in TRIES.items():
        assert perl(mighty, script), name
    if isinstance(provider, DockerProvider):  # where it takes long: none of them
        plain = ready(start())
        assert not [name for name, script in TRIES.items() if perl(plain, script)]
        return
    for name, script in TRIES.items():
        others = tuple(other for other in ALL if other != name)
        assert not perl(ready(start(capabilities=others)), script), name


@as_root
@pytest.mark.defends("escape")
def test_who_becomes_another_user_loses_them(start: Start) -> None:
    sandbox = start(capabilities=ALL)
    become = "$( = $) = '33 33'; $< = $> = 33; "
    show = "open my $f, '/proc/self/status'; print grep /^Cap(Prm|Eff|Amb)/, <$f>; "
    back = "$< = $> = 0; print $>"
    lines = sandbox.exec(["perl", "-e", become + show + back]).stdout.split()
    assert lines[1:6:2] == [b"0000000000000000"] * 3
    assert lines[-1] == b"33"
    # As in a service whose worker a request has taken over.
    taken_over = "open my $f, '<', '/tmp/closed' and exit 1; kill 0, 1 and exit 1"
    assert perl(ready(sandbox), become + taken_over)
    kept = sandbox.exec(["grep", "CapEff", "/proc/self/status"]).stdout.split()[1]
    assert int(kept, 16) == mask(ALL)


@ordinary
@pytest.mark.defends("escape", "host leak")
def test_out_of_a_chroot_one_is_in_the_sandbox(start: Start, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    script = """
        mkdir '/jail'; opendir my $root, '/'; opendir my $proc, '/proc/1' or 1;
        my @before = (stat '/')[0, 1];
        chroot '/jail' or die 'chroot'; chdir '/'; -e '/usr' and die 'not in it';
        chdir $root or die 'chdir'; chdir '..' for 1 .. 99; chroot '.' or die 'out';
        my @after = (stat '/')[0, 1];
        "@before" eq "@after" or die "@before, @after";
        -e $ARGV[0] and die 'outside'; -d '/jail' or die 'elsewhere'; print 'inside'
    """
    sandbox = start(capabilities=ALL)
    done = sandbox.exec(["perl", "-e", script, str(outside)])
    assert done.stdout == b"inside", done.stderr
    # Where a program has its root is its own matter: what starts next has the sandbox's.
    assert sandbox.exec(["test", "-d", "/jail"]).ok
    assert [change.path for change in sandbox.changes()] == ["/jail"]


@ordinary
@pytest.mark.defends("lateral", "escape")
def test_low_ports_are_the_sandbox_s_own(start: Start) -> None:
    setting = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    before = setting.read_text()
    one, other, plain = (start(capabilities=names) for names in (ALL, ("net_bind_service",), ()))
    listen = f"$| = 1; my $held = {LISTEN} print 'listens'; sleep 600"
    for sandbox in (one, other):  # the same port at once
        process = sandbox.popen(["perl", "-MIO::Socket::INET", "-e", listen], channels={})
        assert becomes_readable(process.fds[1])
        assert os.read(process.fds[1], 100) == b"listens"
    assert not perl(plain, TRIES["net_bind_service"])
    assert setting.read_text() == before


@as_root
@pytest.mark.defends("host DoS")
def test_low_ports_of_the_machine_s_network_stay_the_machine_s(provider: Provider) -> None:
    """In a network of the test's own, which stands for the machine's."""
    not_for_docker(provider, "its containers have a network of their own")
    script = f"""if True:
        from intercode_sandbox import Limits, get_provider
        limits = Limits(capabilities="net_bind_service")
        sandbox = get_provider().start("host", limits, network=True)
        done = sandbox.exec(["perl", "-MIO::Socket::INET", "-e", {LISTEN!r}])
        print(done.exit_code, open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read())
    """
    unshare = ["unshare", "--net", "sh", "-c", 'mount -t proc p /proc; exec "$@"', "-"]
    done = subprocess.run(
        [*unshare[:2], "--mount", *unshare[2:], sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["13", "1024"], done.stderr


@ordinary
@pytest.mark.defends("escape", "self DoS")
def test_process_1_takes_no_signal(provider: Provider, start: Start) -> None:
    sandbox = start(capabilities=ALL)
    for number in (*range(1, 32), 34, 64):
        sandbox.exec(["perl", "-e", f"kill {number}, 1 for 1 .. 3"])
    assert sandbox.exec(["echo", "here"]).stdout == b"here\n"
    sandbox.exec(["perl", "-e", "kill 'STOP', -1"], timeout=0.3)  # allow limit: it stops itself
    assert sandbox.kill() >= 0
    assert sandbox.exec(["echo", "here"]).stdout == b"here\n"
    look = "cat /proc/1/environ /proc/1/maps /proc/1/fd/*; ls /proc/1/root /proc/1/cwd/"
    assert not sandbox.exec(["bash", "-c", look]).stdout
    assert not sandbox.exec(["bash", "-c", "echo x > /usr/bin/x"]).ok


def test_other_names_are_refused() -> None:
    for wrong in ("sys_admin", ["chown", "CAP_CHOWN"], 7):
        with pytest.raises(UsageError, match="capabilities"):
            Limits(capabilities=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"among chown, dac_override, .*, not .mknod"):
        Limits(capabilities=("mknod",))
    assert Limits(capabilities="setuid, chown").capabilities == ("chown", "setuid")  # type: ignore[arg-type]


def test_a_container_has_no_other_either(provider: Provider, start: Start) -> None:
    """Its process 1 has some for itself, of which programs get none."""
    sandbox = start(capabilities=("chown",))
    kept = sandbox.exec(["grep", "-E", "Cap(Prm|Bnd)", "/proc/self/status"]).stdout.split()[1::2]
    assert [int(one, 16) for one in kept] == [1, 1]
    if isinstance(provider, DockerProvider):
        start_of_free_ports = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
        assert sandbox.exec(["cat", start_of_free_ports]).stdout == b"1024\n"


@as_root
def test_the_attacks_of_a_root_with_every_one() -> None:
    """All that `start` gives tests of attacks has them: see `sandbox.fixtures`."""
    chosen = ["-m", "attack", "-k", "not docker", "--ignore", str(TESTS / "test_container.py")]
    quiet = ["-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *chosen, str(TESTS)],
        env={**os.environ, "INTERCODE_TESTS_GRANT": ",".join(ALL)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-15000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 50, done.stdout
