"""Restrictions of this process that the machine reports, and the fix for each.

The error of a refused system call does not show which rule has refused it. EPERM, for instance, may
come from the kernel's own checks, a seccomp filter, AppArmor or a masked folder. Therefore this
module reads the active rules from /proc.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from intercode_sandbox.native import cgroup
from intercode_sandbox.native.process import read_if_there
from intercode_sandbox.privileges import as_root, in_container, in_pod, read_permitted_capabilities

APPARMOR = "kernel/apparmor_restrict_unprivileged_userns"
"""The kernel setting by which AppArmor restricts user namespaces of ordinary users."""
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""The errors of a system call that a rule does not permit. Some seccomp profiles return ENOSYS."""
_PROFILE = "/etc/apparmor.d/intercode"
_CAP_SYS_ADMIN = 21
_MIN_PROCESSES = 64
"""Limit of processes and threads below which the limit may prevent a sandbox. One sandbox with its
spawner and a busy action needs at most this many."""
_MIN_BYTES = 512 << 20
"""Limit of memory below which the limit may prevent a sandbox."""
_EMPTY_FOLDERS = {b"/proc/sys/fs/binfmt_misc", b"/proc/fs/nfsd"}
"""Folders that the kernel keeps empty for a mount, which therefore hides no file."""
_POD = (
    "in the pod's spec hostUsers: false, and in the container's securityContext "
    "procMount: Unmasked and seccompProfile: {type: Unconfined}"
)


@dataclass(frozen=True)
class HostRestriction:
    """A rule of the machine that may prevent sandboxes."""

    reason: str
    fix: str = ""
    """The command, or the setting, that lifts the rule; empty: no single command or setting."""


def has_filter() -> bool:
    """Return whether a seccomp filter restricts this process."""
    return "Seccomp:\t2" in read_if_there("/proc/self/status")


def is_masked() -> bool:
    """Return whether other mounts cover parts of /proc, as in Docker's containers.

    If these mounts hide any file, the kernel permits no new mount of /proc in a user namespace.
    """
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        mount_points = {line.split()[4] for line in file}
        return any(path.startswith(b"/proc/") for path in mount_points - _EMPTY_FOLDERS)
    return False


def apparmor_profile() -> str:
    """Return the name of the AppArmor profile that confines this process; "" for none."""
    name, _, mode = read_if_there("/proc/self/attr/current").rpartition(" (")
    return name if mode == "enforce)" else ""


def is_restricted_by_apparmor() -> bool:
    """Return whether AppArmor removes all capabilities from user namespaces of this process."""
    if (
        read_if_there(f"/proc/sys/{APPARMOR}") != "1"
        or read_permitted_capabilities() >> _CAP_SYS_ADMIN & 1
    ):
        return False
    # A profile with the flag "unconfined" permits user namespaces.
    return not read_if_there("/proc/self/attr/current").endswith(" (unconfined)")


def container_remedy(options: str, pod_settings: str = _POD) -> str:
    """Return the fix for a rule of the container in which this process runs; "" outside of one.

    Args:
        options: The options of ``docker run`` that lift the rule.
        pod_settings: The settings of a Kubernetes pod that lift the rule.
    """
    if in_pod():
        return pod_settings
    return f"docker run {options} …" if in_container() else ""


def masking_remedy() -> str:
    """Return the fix for a container's default restrictions.

    If this process cannot recognise its container, the text names Docker's options: other engines
    have similar options.
    """
    options = ["seccomp=unconfined", "systempaths=unconfined"]
    if apparmor_profile().startswith("docker-"):
        options.append("apparmor=unconfined")
    options_text = " ".join(f"--security-opt {option}" for option in options)
    return container_remedy(options_text) or f"docker run {options_text} …"


def apparmor_remedy(setting_command: str) -> str:
    """Return the fix by which AppArmor permits user namespaces.

    On a machine the fix installs a profile for this Python alone. In a container, which cannot
    install profiles, the fix is `setting_command`.

    Args:
        setting_command: The command that permits user namespaces to all programs.
    """
    if in_container():
        return setting_command
    save_command, load_command = (
        as_root(f"tee {_PROFILE}"),
        as_root(f"apparmor_parser -r {_PROFILE}"),
    )
    return f"intercode doctor --apparmor | {save_command} && {load_command}"


def find_restriction(call: str, error_number: int, setting_command: str) -> HostRestriction | None:
    """Return the active rule that has probably refused a system call; None: no rule is known.

    Args:
        call: The name of the call, for messages.
        error_number: The error number of the call.
        setting_command: See `apparmor_remedy`.
    """
    if error_number not in REFUSALS:
        return None
    if error_number != errno.ENOSYS and is_restricted_by_apparmor():
        return HostRestriction(
            "AppArmor restricts user namespaces", apparmor_remedy(setting_command)
        )
    if error_number == errno.EACCES and (profile := apparmor_profile()):
        fix = container_remedy("--security-opt apparmor=unconfined", _POD) or _profile_remedy()
        return HostRestriction(f"the AppArmor profile {profile!r} forbids {call}", fix)
    if has_filter():
        return HostRestriction(f"a seccomp profile forbids {call}", filter_remedy())
    if error_number == errno.ENOSYS:
        reason = f"this kernel, Linux {os.uname().release}, has no {call}"
        return HostRestriction(reason, "use a newer kernel, or one that has it built in")
    return None


def filter_remedy() -> str:
    """Return the way to start this process without a seccomp filter.

    A running process cannot remove its filter.
    """
    if in_container():
        return masking_remedy()
    if unit := _unit():
        return f"systemctl edit {unit}  # SystemCallFilter= and RestrictNamespaces=, both empty"
    return "start this from a shell that is not below the program that has set the filter"


def _profile_remedy() -> str:
    return as_root(f"aa-complain {apparmor_profile()}")


def _unit() -> str:
    """Return the name of the systemd service in which this process runs; "" for no service."""
    for line in read_if_there("/proc/self/cgroup").splitlines():
        name = line.rpartition("/")[2]
        if name.endswith(".service") and not name.startswith("user@"):
            return name
    return ""


def active_restrictions() -> Iterator[HostRestriction]:
    """Yield the rules that may prevent a sandbox from working, the most likely first."""
    process_limit = cgroup.own_process_limit()
    if process_limit is not None and process_limit < _MIN_PROCESSES:
        fix = container_remedy("--pids-limit -1", "a higher podPidsLimit of the kubelet")
        yield HostRestriction(f"a cgroup permits {process_limit} processes and threads", fix)
    memory_limit = cgroup.own_memory_limit()
    if memory_limit is not None and memory_limit < _MIN_BYTES:
        fix = container_remedy("--memory 8g", "resources: {limits: {memory: 8Gi}} of the container")
        yield HostRestriction(f"a cgroup permits {memory_limit >> 20} MiB of memory", fix)
    if has_filter():
        yield HostRestriction("a seccomp filter is in force", filter_remedy())
    if profile := apparmor_profile():
        fix = container_remedy("--security-opt apparmor=unconfined", _POD) or _profile_remedy()
        yield HostRestriction(f"the AppArmor profile {profile!r} is in force", fix)
    if is_masked():
        yield HostRestriction("parts of /proc are masked", masking_remedy())
    if os.statvfs("/").f_flag & os.ST_RDONLY:
        yield HostRestriction(
            "the root is read-only", container_remedy("--tmpfs /tmp --tmpfs /run", "")
        )
