"""What one sandbox may use: it runs into its limits, and is usable afterwards."""

from __future__ import annotations

import pytest

from intercode_sandbox import Completed, Limits, Provider, SandboxBackend
from intercode_sandbox.errors import UsageError

from . import Run, Start, not_for_docker

pytestmark = pytest.mark.ordinary
MIB = 1 << 20


def whole_sandbox_limited(provider: Provider) -> bool:
    """Whether there is a cgroup; without one `doctor` and a run's record say so."""
    facts = getattr(provider, "facts", dict)()
    return bool(facts.get("cgroup", True))


def assert_usable(sandbox: SandboxBackend) -> None:
    sandbox.kill()
    assert sandbox.exec(["bash", "-c", "(echo works)"]).stdout == b"works\n"


@pytest.mark.case(59)
@pytest.mark.defends("host DoS", "peer DoS")
@pytest.mark.parametrize(
    "bomb",
    [":(){ :|:& };:", "perl -e 'fork while 1'", "perl -e 'while (1) { fork; setpgrp }'",
     "while :; do setsid sleep 50 & done"],
)  # fmt: skip
def test_a_fork_bomb_is_capped(start: Start, bomb: str) -> None:
    sandbox, peer = start(processes=32), start(processes=32)
    done = sandbox.exec(
        ["bash", "-c", f"{bomb} 2>/dev/null"],
        timeout=0.5,  # allow limit: it may end, and need not
    )
    assert done.exit_code is not None
    assert len(sandbox.processes()) <= 32
    assert peer.exec(["bash", "-c", "for i in {1..20}; do sleep 0.1 & done; wait"]).ok
    assert_usable(sandbox)


@pytest.mark.case(59, 65)
@pytest.mark.defends("host DoS")
def test_the_number_of_processes_is_exact(start: Start) -> None:
    sandbox = start(processes=20)
    script = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 50 } $n++ } print $n"
    done = sandbox.exec(["perl", "-e", script], timeout=60)
    assert 17 <= int(done.stdout) <= 20
    assert_usable(sandbox)


@pytest.mark.case(65)
@pytest.mark.defends("host DoS", "self DoS")
def test_open_files(start: Start) -> None:
    sandbox = start(open_files=512)
    script = "while (open my $f, '<', '/dev/null') { push @f, $f } print scalar @f, qq( $!)"
    done = sandbox.exec(["perl", "-e", script])
    number, _, error = done.stdout.partition(b" ")
    assert 480 < int(number) < 512
    assert error == b"Too many open files"
    assert sandbox.exec(["bash", "-c", "ulimit -n 200000"]).exit_code != 0
    assert_usable(sandbox)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e7])
def test_a_time_limit_is_one_that_can_be_waited_for(
    provider: Provider, sandbox: SandboxBackend, seconds: float
) -> None:
    with pytest.raises(UsageError, match=r"seconds|above 0"):
        provider.start("host", Limits(timeout=seconds))
    with pytest.raises(UsageError, match="at most 1000000 seconds"):
        sandbox.exec(["true"], timeout=seconds)


@pytest.mark.case(60)
@pytest.mark.defends("host DoS", "peer DoS")
def test_a_memory_bomb_in_one_process(start: Start) -> None:
    sandbox = start(memory=64 * MIB)
    script = "my @x; push @x, 'x' x 1048576 for 1 .. 4000; print 'done'"
    done = sandbox.exec(["perl", "-e", script], timeout=60)
    assert not done.ok
    assert b"done" not in done.stdout
    assert sandbox.exec(["perl", "-e", "my $x = 'x' x 10000000; print length $x"]).ok
    assert_usable(sandbox)


@pytest.mark.case(60, 61)
@pytest.mark.defends("host DoS", "peer DoS")
def test_a_memory_bomb_of_many_processes(provider: Provider, start: Start) -> None:
    if not whole_sandbox_limited(provider):
        pytest.skip("no cgroup: memory is limited for each process (doctor says so)")
    sandbox = start(memory=64 * MIB, disk=16 * MIB)
    # Each holds its memory until all have theirs, or have been killed for want of it.
    script = """
        for (1 .. 10) {
            pipe(my $r, my $w); my $p = fork;
            if (!$p) { my $x = "x" x ((50 << 20) + $$ - $$); syswrite($w, "y"); sleep 100; exit }
            close $w; push @r, $r; push @p, $p;
        }
        sysread($_, my $y, 1) for @r;
        waitpid($_, 1) == 0 and print "x" for @p;
    """
    done = sandbox.exec(["perl", "-e", script], timeout=60)
    assert not done.timed_out
    assert len(done.stdout) < 5
    assert_usable(sandbox)


@pytest.mark.case(61)
@pytest.mark.defends("host DoS", "peer DoS")
@pytest.mark.parametrize("where", ["memfd", "shm"])
def test_memory_that_belongs_to_no_process(provider: Provider, start: Start, where: str) -> None:
    if not whole_sandbox_limited(provider):
        pytest.skip("no cgroup: memory files are not limited (doctor says so)")
    sandbox = start(memory=32 * MIB, disk=16 * MIB)
    memfd = (
        "my $n = `uname -m` =~ /x86/ ? 319 : 279; my $f = syscall($n, 'm', 0); open F, '>&=', $f;"
    )
    shm = "my $id = shmget(0, 500 << 20, 0600); defined $id or die $!;"
    fill = {
        "memfd": memfd + "$| = 1; for (1 .. 500) { syswrite(F, 'x' x 1048576) or exit }",
        "shm": shm + "for (0 .. 499) { shmwrite($id, 'x' x 1048576, $_ << 20, 1 << 20) or exit }",
    }[where]
    done = sandbox.exec(["perl", "-e", fill + "print 'all'"], timeout=60)
    assert b"all" not in done.stdout
    assert sandbox.exec(["true"]).ok


@pytest.mark.case(62)
@pytest.mark.defends("host DoS", "peer DoS")
@pytest.mark.parametrize("folder", ["/tmp", "/root", "/var/tmp", "/opt"])
def test_the_disk_is_full(provider: Provider, start: Start, folder: str) -> None:
    not_for_docker(provider, "its storage driver has no quotas here, which doctor says")
    sandbox = start(disk=8 * MIB)
    fill = f"for i in 1 2 3; do head -c 6M /dev/zero > {folder}/$i || exit; done"
    done = sandbox.exec(["bash", "-c", fill])
    assert not done.ok
    assert b"No space left" in done.stderr
    with pytest.raises(OSError, match="No space left"):
        sandbox.write_file(f"{folder}/more", b"x" * (6 * MIB))
    assert len(sandbox.changes()) > 1
    sandbox.exec(["bash", "-c", f"rm {folder}/1"])
    sandbox.write_file(f"{folder}/more", b"x" * MIB)


@pytest.mark.case(62)
@pytest.mark.defends("host DoS", "peer DoS")
def test_too_many_files(provider: Provider, start: Start) -> None:
    not_for_docker(provider, "no storage driver of its limits how many there are")
    sandbox = start(files=500)
    done = sandbox.exec(["bash", "-c", "mkdir /tmp/d; cd /tmp/d; touch {1..2000}"])
    assert b"No space left" in done.stderr
    assert 300 < len(sandbox.changes()) <= 500
    assert_usable(sandbox)


@pytest.mark.defends("self DoS")
def test_files_leave_memory_for_process_1(provider: Provider, start: Start) -> None:
    not_for_docker(provider, "no storage driver of its limits how many there are")
    sandbox = start(memory=64 * MIB, disk=64 * MIB)
    fill = "head -c 64M /dev/zero > /tmp/big; mkdir /tmp/d; cd /tmp/d; "
    fill += "echo {1..199000} | xargs touch"
    assert b"No space left" in sandbox.exec(["bash", "-c", fill]).stderr
    assert len(sandbox.changes()) > 16_000
    assert_usable(sandbox)


@pytest.mark.case(63)
@pytest.mark.defends("host DoS", "peer DoS")
def test_memory_file_systems_are_limited(start: Start) -> None:
    sandbox = start(disk=48 * MIB, files=4000)

    def sh(script: str) -> Completed:
        return sandbox.exec(["bash", "-c", script])

    fill = "for i in {1..8}; do head -c 40M /dev/zero > fill$i || break; done; cat fill* | wc -c"
    done = sh(f"cd /dev/shm; {fill}")
    assert b"No space left" in done.stderr
    assert int(done.stdout) <= 64 * MIB
    many = sh("cd /dev/shm; rm -f fill*; touch {1..9000}; ls | wc -l")
    assert int(many.stdout) < 5000


@pytest.mark.case(63)
def test_no_other_file_system_can_be_written_to(sandbox: SandboxBackend, sh: Run) -> None:
    mounts = sh("cut -d' ' -f5 /proc/self/mountinfo").stdout.decode().split()
    for point in set(mounts) - {"/", "/dev/pts", "/dev/shm"}:
        assert not sh(f"echo x > {point}/x").ok, point


@pytest.mark.case(64)
@pytest.mark.defends("host DoS")
def test_a_sparse_file_of_terabytes(sandbox: SandboxBackend) -> None:
    assert not sandbox.exec(["truncate", "-s", "8T", "/tmp/sparse"]).ok
    assert sandbox.exec(["truncate", "-s", "500M", "/tmp/sparse"]).ok
    assert len(sandbox.changes()) == 1


@pytest.mark.defends("host DoS")
def test_limits_cannot_be_raised(sandbox: SandboxBackend, sh: Run) -> None:
    for flag in ("-u", "-f", "-d", "-l", "-i", "-q", "-e", "-r"):
        assert not sh(f"ulimit {flag} unlimited").ok, flag
    assert not sh("echo -1000 > /proc/self/oom_score_adj").ok
    assert sh("nice -n -10 true 2>&1; ionice -c 1 true").stdout != b""


@pytest.mark.attack(23)
@pytest.mark.defends("host leak")
def test_no_core_is_left(provider: Provider, sh: Run) -> None:
    not_for_docker(provider, "its engine decides the limit")
    # With a limit of one byte nothing is left, and a pipe is not begun: see core(5).
    look = "grep 'core file size' /proc/self/limits"
    for limit in ("unlimited", "0", "1"):
        done = sh(f"cd /tmp; ulimit -c {limit}; {look}; sh -c 'kill -SEGV $$'")
        assert done.stdout.split()[-3:] == [b"1", b"1", b"bytes"], limit
    assert sh("cat /proc/self/coredump_filter").stdout == b"00000000\n"
    assert not sh("echo 1 > /proc/self/coredump_filter").ok
    both = "my $l = pack 'QQ', 0, 0; print syscall(302, 0, 4, $l, 0) if `uname -m` =~ /x86/;"
    sh(f"perl -e '{both}'")
    assert sh("ls /tmp").stdout == b""


@pytest.mark.attack(33)
@pytest.mark.defends("self DoS")
def test_what_outlives_programs_is_few(sandbox: SandboxBackend) -> None:
    """Each is removed by itself: tens of thousands would take as long as a question may."""
    made = sandbox.exec(["perl", "-e", r"""
        my @n = (0, 0, 0);
        $n[0]++ while defined semget(0, 1, 0600);
        $n[1]++ while defined shmget(0, 4096, 0600);
        $n[2]++ while defined msgget(0, 0600);
        print "@n";
    """])  # fmt: skip
    assert made.stdout == b"128 128 64"
    sandbox.kill()
    left = sandbox.exec(["bash", "-c", "cat /proc/sysvipc/* | grep -c '[0-9]$'"])
    assert left.stdout == b"0\n"


@pytest.mark.attack(41)
@pytest.mark.defends("peer DoS")
def test_no_program_goes_before_others(sh: Run) -> None:
    assert sh("ulimit -e; ulimit -r").stdout == b"0\n0\n"
    assert not sh("nice -n -1 true 2>&1 | grep -v cannot").ok
    assert sh("sync").ok


@pytest.mark.parametrize("name", ["timeout", "memory", "processes", "disk", "files", "output"])
def test_a_limit_must_be_positive(provider: Provider, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        provider.start("host", Limits(**{name: 0}))


def test_too_few_open_files(provider: Provider) -> None:
    with pytest.raises(ValueError, match="open_files"):
        provider.start("host", Limits(open_files=100))
