"""Machines that forbid sandboxes: the error names the rule and the command that fixes it.

The commands are tried where they are printed; those for `docker run` in tests/first_hour.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode_sandbox import doctor, privileges
from intercode_sandbox.errors import SandboxUnavailableError
from intercode_sandbox.native import preflight, restrictions
from intercode_sandbox.native.provider import NativeProvider
from ordinary import UID, OrdinaryUser, ordinary_user
from waiting import PATIENCE

ASK = """
from intercode_sandbox.errors import SandboxUnavailableError
from intercode_sandbox import get_provider
try:
    get_provider().start("host").close()
except SandboxUnavailableError as error:
    print(error)
    print("fix:", error.fix)
else:
    print("started")
"""
FOLLOW = """
said=$("$0" -c "$1"); echo "$said"
eval "$(echo "$said" | sed -n 's/^fix: //p')" >/dev/null
exec "$0" -c "$1"
"""
"""Do what is said, and ask again."""
# Our own filter forbids namespaces as Docker's default profile does.
UNDER_SECCOMP = """
import os, sys
from intercode_sandbox.native import seccomp, syscalls
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.set_seccomp(seccomp.build())
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


Ask = Callable[..., str]


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    """The machine's root is refused in a user namespace of its own; an ordinary user is not."""
    with ordinary_user() as found:
        yield found


@pytest.fixture
def ask(user: OrdinaryUser) -> Ask:
    """Tells what a process says that is started under a restriction."""

    def ask(*prefix: str, command: str = '"$0" -c "$1"') -> str:
        shell = ["sh", "-c", command, sys.executable, ASK]
        done = subprocess.run(
            [*user.prefix, *prefix, *shell],
            env=user.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    return ask


def test_permitted_in_a_user_namespace_of_ones_own(ask: Ask) -> None:
    assert ask("unshare", "-Urm") == "started\n"


def test_no_user_namespaces(ask: Ask) -> None:
    command = f"echo 0 > /proc/sys/user/max_user_namespaces; {FOLLOW}"
    said = ask("unshare", "-Urm", command=command)
    assert "max_user_namespaces is 0 or used up" in said
    assert "fix: sysctl -w user.max_user_namespaces=" in said and said.endswith("\nstarted\n")


def as_root(*arguments: str, **env: str) -> str:
    done = subprocess.run(
        arguments,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout + done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not for ordinary users: it is root's")


@needs_root
def test_a_cache_that_cannot_map_ids(tmp_path: Path) -> None:
    (cache := tmp_path / "cache").mkdir()
    follow = FOLLOW.replace("s/^fix: //p", f"s#^fix: \\(.*\\)/a/.*#\\1{tmp_path}/disk#p")
    command = f'mount -t ramfs none "$INTERCODE_CACHE"; {follow}'
    argv = ("unshare", "-m", "sh", "-c", command, sys.executable, ASK)
    said = as_root(*argv, INTERCODE_CACHE=str(cache))
    assert "cannot be id-mapped" in said and "fix: export INTERCODE_CACHE=/a/folder" in said
    assert said.endswith("\nstarted\n"), said


@needs_root
def test_too_few_open_files(user: OrdinaryUser) -> None:
    may_raise = bool(privileges.read_permitted_capabilities() >> preflight._CAP_SYS_RESOURCE & 1)
    few = f"ulimit -n 512; {FOLLOW}"
    said = as_root("sh", "-c", few, sys.executable, ASK)
    assert said.endswith("\nstarted\n") if may_raise else "fix: \n" in said, said

    # An ordinary user's limit is root's to raise: for the shell that they have.
    script = 'ulimit -n 512; "$0" -c "$1"; echo $$; read done; "$0" -c "$1"; echo end'
    with subprocess.Popen(
        [*user.prefix, "sh", "-c", script, sys.executable, ASK],
        env=user.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdin and shell.stdout
        lines = []
        while not (lines and lines[-1].isdigit()):
            lines.append(shell.stdout.readline().strip())
        found = re.fullmatch(r"fix: (?:sudo |su -c ')(prlimit --pid \$\$ [^']+)'?", lines[-2])
        assert found, lines
        if not may_raise:
            return
        as_root("sh", "-c", found[1].replace("$$", lines[-1]))
        shell.stdin.write("done\n")
        shell.stdin.flush()
        assert shell.stdout.read() == "started\nend\n"


def test_an_installation_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("provider", "preflight"):
        monkeypatch.setattr(f"intercode_sandbox.native.{module}.PROGRAM", "/nowhere/process1")
    with closing(NativeProvider()) as provider, pytest.raises(SandboxUnavailableError) as raised:
        provider.start()
    assert "/nowhere/process1" in str(raised.value) and "pip install" in str(raised.value)


STATUS, SWITCH = "/proc/self/status", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
PROFILE = "/proc/self/attr/current"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files by which a machine tells of its rules: this one has none, and an ordinary user."""
    files: dict[str, str] = {}
    for module in (preflight, restrictions):
        monkeypatch.setattr(module, "read_if_there", lambda path: files.get(path, ""))
    for module in (preflight, restrictions):
        monkeypatch.setattr(module, "read_permitted_capabilities", lambda: 0)
        monkeypatch.setattr(module, "in_container", lambda: bool(files.get("container")))
    monkeypatch.setattr(restrictions, "in_pod", lambda: files.get("container") == "pod")
    monkeypatch.setattr(privileges.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privileges, "_has_program", lambda program: True)
    return files


def fix_of(failed: str, number: int) -> tuple[str, str]:
    """The cause and the remedy of a failed start."""
    error = preflight.unavailable_error(
        {"failed": f"{failed}: {os.strerror(number)}", "errno": number}
    )
    assert isinstance(error, SandboxUnavailableError), error
    return error.reason, error.fix


def test_apparmor(machine: dict[str, str]) -> None:
    machine[SWITCH] = "1"
    # Ubuntu 24.04 permits the namespace, and nothing in it.
    for call, number in (("unshare", 1), ("mount", 13), ("pivot_root", 13), ("write uid_map", 1)):
        why, fix = fix_of(call, number)
        assert "AppArmor restricts user namespaces" in why, call
        assert fix == (
            "intercode doctor --apparmor | sudo tee /etc/apparmor.d/intercode"
            " && sudo apparmor_parser -r /etc/apparmor.d/intercode"
        )
    # Where a container cannot change the machine, it does not offer to.
    machine["container"] = "docker"
    assert fix_of("unshare", 1)[1].endswith("# on the machine: no container can")
    # A profile that permits them is none that restricts them.
    machine[PROFILE] = "intercode (unconfined)"
    assert "AppArmor" not in fix_of("unshare", 1)[0]


CALLS = (
    *("mount", "move_mount", "umount2", "pivot_root", "socket", "sethostname", "prctl", "setns"),
    *("landlock_restrict_self", "openat2", "statx", "symlinkat", "mount_setattr", "open_tree"),
)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_a_filter_refuses_is_named_with_what_lifts_the_filter(
    machine: dict[str, str], call: str
) -> None:
    machine[STATUS] = "NoNewPrivs:\t0\nSeccomp:\t2\n"
    for number in (errno.EPERM, errno.ENOSYS):
        machine["container"] = "docker"
        why, fix = fix_of(call, number)
        assert f"a seccomp profile forbids {call}" in why
        assert fix.startswith("docker run --security-opt seccomp=unconfined ")
        machine["container"] = "pod"
        fix = fix_of(call, number)[1]
        assert "hostUsers: false" in fix and "procMount: Unmasked" in fix and "docker" not in fix
        machine["container"] = ""
        machine["/proc/self/cgroup"] = "0::/system.slice/trainer.service"
        assert fix_of(call, number)[1].startswith("systemctl edit trainer.service")
        del machine["/proc/self/cgroup"]
        assert fix_of(call, number)[1].startswith("start this from a shell that is not below")


def test_a_kernel_without_a_call(machine: dict[str, str]) -> None:
    why, fix = fix_of("landlock_restrict_self", errno.ENOSYS)
    assert f"Linux {os.uname().release}, has no landlock_restrict_self" in why and "newer" in fix


def test_a_profile_of_a_container(machine: dict[str, str]) -> None:
    machine.update({PROFILE: "docker-default (enforce)", "container": "docker"})
    why, fix = fix_of("mount", errno.EACCES)
    assert "the AppArmor profile 'docker-default' forbids mount" in why
    assert fix == "docker run --security-opt apparmor=unconfined …"


def test_a_failure_that_no_rule_explains_is_none_of_the_machines(machine: dict[str, str]) -> None:
    error = preflight.unavailable_error({"failed": "pivot_root: busy", "errno": errno.EBUSY})
    assert not isinstance(error, SandboxUnavailableError)  # another attempt may succeed


def test_pods_are_told_from_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    privileges.in_pod.cache_clear()
    privileges.in_container.cache_clear()
    try:
        assert (
            privileges.in_container()
            and restrictions.container_remedy("--x", "a pod's") == "a pod's"
        )
        assert "hostUsers: false" in restrictions.masking_remedy()
        assert "docker" not in preflight.open_files_command()
    finally:
        privileges.in_pod.cache_clear()
        privileges.in_container.cache_clear()


@needs_root
def test_cgroups_that_are_mounted_for_reading_only() -> None:
    points = "awk '$9 ~ /^cgroup/ || $10 ~ /^cgroup/ {print $5}' /proc/self/mountinfo"
    ask = f"{sys.executable} -m intercode_sandbox doctor | grep -A 1 '  memory limit '"
    follow = f'said=$({ask}); echo "$said"; eval "${{said#*to fix it: }}"; {ask}'
    script = f"for p in $({points}); do mount -o remount,bind,ro $p; done; {follow}"
    said = as_root("unshare", "-m", "sh", "-c", script, DOCKER_HOST="unix:///no/docker.sock")
    first, _, second = said.partition("to fix it: mount -o remount,bind,rw ")
    assert re.match("note +memory limit +no cgroup can be written", first)
    assert re.search("\nok +memory limit +for whole sandboxes", second)


def test_a_user_gets_a_cgroup_by_systemd_only_where_it_runs_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(doctor, "in_container", lambda: False)
    monkeypatch.setattr(doctor, "is_root", lambda: False)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor.cgroup, "is_unified", lambda: True)
    assert doctor._memory_advice() == ("what there is", "")
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/private").touch()
    assert doctor._memory_advice()[1].startswith("systemd-run --user --scope -p Delegate=yes ")
    monkeypatch.setattr(doctor.cgroup, "is_unified", lambda: False)  # version 1 is not handed on
    assert doctor._memory_advice() == ("what there is", "")


def test_seccomp_profile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNDER_SECCOMP, ASK], capture_output=True, text=True, timeout=60
    )
    said = done.stdout + done.stderr
    assert "seccomp profile forbids namespaces" in said
    in_docker = "docker run --security-opt seccomp=unconfined"
    assert f"fix: {in_docker if privileges.in_container() else 'start this from a shell'}" in said


CHROOTS = {
    "a folder": """
        mount -t tmpfs none "$0"; root=$0/root; mkdir "$root"
        for path in /*; do
            if [ -L "$path" ]; then cp -a "$path" "$root"
            elif [ -d "$path" ]; then mkdir "$root$path"; mount --rbind "$path" "$root$path"; fi
        done
    """,
    "a mount": 'root=$0; mount --rbind / "$root"',
}
"""Roots for chroot, of this machine's files: a plain folder, and a mounted one."""
FOLLOW_OUTSIDE = """
message=$(chroot "$root" "$@"); echo "$message"
fix=$(echo "$message" | sed -n 's/^fix: //p')
# The shell in which the command ends gives way to the next question.
eval "$(echo "$fix" | sed 's#exec bash#exec "$@"#; s#/the/chroot#"$root" "$@"#')"
"""


@needs_root
@pytest.mark.parametrize("kind", CHROOTS)
def test_a_chroot(tmp_path: Path, kind: str) -> None:
    script = f"set -e; {CHROOTS[kind]}\n{FOLLOW_OUTSIDE}"
    said = as_root(*("unshare", "-m", "sh", "-c", script, str(tmp_path)), sys.executable, "-c", ASK)
    assert "this process is in a chroot" in said and "seccomp" not in said
    assert said.endswith("\nstarted\n"), said


@needs_root
@pytest.mark.parametrize("kind", CHROOTS)
def test_a_chroot_of_an_ordinary_user(user: OrdinaryUser, tmp_path: Path, kind: str) -> None:
    script = f'set -e; {CHROOTS[kind]}\nexec chroot "$root" "$@"'
    # A capability opens the folder of Python, which may be root's: what else does, mounts.
    ids = (f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    caps = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    prefix = ("unshare", "-m", "sh", "-c", script, str(tmp_path), "setpriv", *ids, *caps)
    said = as_root(*prefix, sys.executable, "-c", ASK, **user.env)
    assert "this process is in a chroot" in said and "seccomp" not in said, said


def test_masked_proc(ask: Ask) -> None:
    command = 'mount -t tmpfs none /proc/fs; "$0" -c "$1"'
    said = ask("unshare", "-Urmpf", "--mount-proc", command=command)
    assert "/proc is masked" in said
    assert "systempaths=unconfined" in said


def test_doctor_says_the_same(user: OrdinaryUser) -> None:
    command = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" -m intercode_sandbox doctor'
    done = subprocess.run(
        [*user.prefix, "unshare", "-Urm", "sh", "-c", command, sys.executable],
        env=user.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout.count("sysctl -w user.max_user_namespaces=") == 1
    assert "tells more" not in done.stdout


def test_without_cgroups_it_still_starts(ask: Ask) -> None:
    said = ask("unshare", "-Urm", command='mount -t tmpfs none /sys; "$0" -c "$1"')
    assert said == "started\n", "a missing /sys only costs the memory limit"


@pytest.mark.parametrize(
    ("mount_point", "is_masked"),
    [("/proc/kcore", True), ("/proc/sys/fs/binfmt_misc", False), ("/proc", False)],
)
def test_mounts_that_hide_a_part_of_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_point: str, is_masked: bool
) -> None:
    (tmp_path / "mountinfo").write_text(f"30 23 0:28 / {mount_point} rw,relatime - tmpfs x rw\n")
    monkeypatch.setattr(
        restrictions, "open", lambda _, mode: (tmp_path / "mountinfo").open(mode), raising=False
    )
    assert restrictions.is_masked() is is_masked
