"""Errors that name the rule of the machine that prevents a sandbox, and the command that fixes it.

Each command is meant for the machines on which InterCode prints it. Tests try the commands there.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import Any

from intercode_sandbox.errors import ImageError, SandboxError, SandboxUnavailableError, UsageError
from intercode_sandbox.native.process import read_if_there
from intercode_sandbox.native.process_start import PROGRAM
from intercode_sandbox.native.restrictions import (
    APPARMOR,
    active_restrictions,
    apparmor_remedy,
    container_remedy,
    filter_remedy,
    find_restriction,
    is_restricted_by_apparmor,
    masking_remedy,
)
from intercode_sandbox.privileges import (
    as_root,
    has_machines_id,
    in_container,
    read_permitted_capabilities,
)

_USER_OPTIONS = "--user 1000:1000 -e HOME=/tmp"
_POD_USER = "in the container's securityContext runAsUser: 1000, and HOME=/tmp"
_OPEN_FILES = 20_000
"""The limit of open descriptors that the advice proposes."""
_CAP_SYS_RESOURCE = 24
_CHROOT = "this process is in a chroot, where the kernel permits no user namespaces"
_PIVOT = (
    """unshare --mount sh -c 'mount --rbind "$0" "$0" && cd "$0" && pivot_root . . && """
    """umount --lazy . && exec bash' /the/chroot  # in place of chroot, as root"""
)
"""A command that makes a folder the root of a mount namespace. In such a root, unlike in a chroot,
the kernel permits user namespaces."""


def load_error(reply: dict[str, Any]) -> UsageError:
    """Return the error for a module of workers that could not be imported.

    Args:
        reply: The message that `intercode_sandbox.native.worker.preload` has sent.
    """
    return UsageError(
        f"preload: the worker's module {reply['unloaded']!r} cannot be imported: "
        f"{reply['error']}. Workers can import Python's standard library and the folders of "
        f"path=\n{reply['traceback'].rstrip()}"
    )


def missing_program_error() -> SandboxUnavailableError:
    """Return the error for an installation that lacks the C program of process 1."""
    return SandboxUnavailableError(
        "intercode was installed without the sandbox program, which exists for Linux on x86-64 "
        f"and aarch64: {PROGRAM}",
        "pip install --force-reinstall --no-deps intercode-sandbox  # or -e packages/sandbox",
    )


def missing_folder_error(path: str) -> ImageError:
    """Return the error for an image that lacks a folder on which a sandbox mounts a file system.

    Args:
        path: The path of the folder in the image.
    """
    return ImageError(
        f"the image has no folder {path}, but a symbolic link, another file, or nothing. A "
        "sandbox mounts its own folder there: create an empty folder in the image"
    )


def unavailable_error(reply: dict[str, Any]) -> SandboxError | ImageError:
    """Return the error for a sandbox or a spawner that did not start.

    If the cause is known, the message names the rule of the machine that has refused a system call,
    and the error has the fix.

    Args:
        reply: The message of the spawner or of process 1. Its ``failed`` is the failed call with
            the kernel's text, and its ``errno`` the error number.
    """
    failure, error_number = str(reply["failed"]), int(reply.get("errno", 0))
    call = failure.removeprefix(f"[Errno {error_number}] ").partition(":")[0]
    is_refused = error_number in (errno.EPERM, errno.EACCES)
    if call.startswith("image "):
        return missing_folder_error(call.removeprefix("image "))
    if call in ("unshare", "clone") and error_number == errno.ENOSPC:
        reason, fix = "user.max_user_namespaces is 0 or used up", _max_namespaces_command()
    elif call in ("unshare", "clone") and is_refused:
        reason, fix = _namespace_problem(error_number)
    elif call.startswith("write ") and is_refused:
        reason, fix = _id_map_problem()
    elif call == "setuid":
        reason = "sandboxes never run as the machine's root, which cannot become another user here"
        fix = container_remedy(_USER_OPTIONS, _POD_USER) or f"docker run {_USER_OPTIONS} …"
    elif call == "open_tree" and error_number == errno.EACCES and not is_restricted_by_apparmor():
        reason, fix = _folder_problem()
    elif call == "mount proc" and error_number == errno.EPERM:
        reason, fix = "this container's /proc is masked", masking_remedy()
    elif call == "mount bind" and error_number == errno.EINVAL and failure.endswith(": '/'"):
        reason, fix = _CHROOT, _PIVOT  # the chroot's folder is not a mount point
    elif restriction := find_restriction(
        _name(call), error_number, _unrestricted_namespaces_command()
    ):
        reason, fix = restriction.reason, restriction.fix
    elif call == "mount overlay":
        reason = "overlayfs refused; as an ordinary user it needs Linux 6.6 for files in memory"
        fix = as_root("modprobe overlay") if error_number == errno.ENODEV else ""
    elif call == "mount_setattr":
        reason = "the image cache's file system cannot be id-mapped (ext4, xfs, btrfs, Linux 5.19)"
        fix = "export INTERCODE_CACHE=/a/folder/on/such/a/file/system"
    else:
        return SandboxError(f"a sandbox did not start: {failure}{active_rules_text()}")
    return SandboxUnavailableError(f"sandboxes are not permitted here: {reason} ({failure})", fix)


def open_files_command() -> str:
    """Return the command that raises the limit of open descriptors for processes of this shell.

    The text is empty if no command can do so.
    """
    if in_container():
        return container_remedy(
            f"--ulimit nofile={_OPEN_FILES}", "a higher limit of the node's engine"
        )
    if os.geteuid() == 0:
        return (
            f"ulimit -n {_OPEN_FILES}"
            if read_permitted_capabilities() >> _CAP_SYS_RESOURCE & 1
            else ""
        )
    return as_root(f"prlimit --pid $$ --nofile={_OPEN_FILES}")


def kernel_setting_command(name: str, value: int) -> str:
    """Return the command that changes a kernel setting.

    Args:
        name: The path of the setting below /proc/sys.
        value: The new value.
    """
    command = f"sysctl -w {name.replace('/', '.')}={value}"
    return f"{command}  # on the machine: no container can" if in_container() else as_root(command)


def apparmor_profile(python: str) -> str:
    """Return an AppArmor profile that permits user namespaces to one Python alone.

    Args:
        python: The path of the Python.
    """
    escaped_path = re.sub(r'(["*?^{}\[\]\\])', r"\\\1", os.path.realpath(python))
    return f"""\
# Lets InterCode make sandboxes as an ordinary user, where AppArmor restricts user namespaces.
# It is for one Python, and holds for all programs that this runs: make an environment that has a
# Python of its own by `python3 -m venv --copies`.
abi <abi/4.0>,
include <tunables/global>

profile intercode "{escaped_path}" flags=(unconfined) {{
  userns,

  include if exists <local/intercode>
}}
"""


def _max_namespaces_command() -> str:
    return kernel_setting_command("user/max_user_namespaces", 65_536)


def _name(call: str) -> str:
    """Return the name of a system call from the text of an error.

    An error of a function of Python does not name the call. `syscalls.with_line` has added the
    source line in brackets, which takes the name's place.
    """
    match = re.search(r"\((.+)\)$", call)
    return match[1] if match else call


def caller_error(error: OSError, call: str) -> SandboxError:
    """Return the error for a system call of this process that failed before any sandbox existed.

    Args:
        error: The kernel's error.
        call: The name of the call, or its purpose.
    """
    error_number = error.errno or 0
    if restriction := find_restriction(call, error_number, _unrestricted_namespaces_command()):
        error_text = f"{call}: {os.strerror(error_number)}"
        message = f"sandboxes are not permitted here: {restriction.reason} ({error_text})"
        return SandboxUnavailableError(message, restriction.fix)
    return SandboxError(f"a sandbox did not start: {call}: {error}{active_rules_text()}")


def active_rules_text() -> str:
    """Return a text on the machine's active rules, to append to the message of an error.

    The rules may have caused the error.
    """
    reasons = [restriction.reason for restriction in active_restrictions()]
    return f"; on this machine {', '.join(reasons)}" if reasons else ""


def _unrestricted_namespaces_command() -> str:
    return kernel_setting_command(APPARMOR, 0)


def _namespace_problem(error_number: int) -> tuple[str, str]:
    if not _has_root_mount():
        return _CHROOT, _PIVOT
    if is_restricted_by_apparmor():
        return "AppArmor restricts user namespaces", apparmor_remedy(
            _unrestricted_namespaces_command()
        )
    if read_if_there("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are off", kernel_setting_command(
            "kernel/unprivileged_userns_clone", 1
        )
    if read_if_there("/proc/sys/user/max_user_namespaces") == "0":
        return "user namespaces are off", _max_namespaces_command()
    if error_number == errno.EPERM and "Seccomp:\t0\n" in read_if_there("/proc/self/status"):
        # No other rule is active. So this process is in a chroot whose folder is a mount point,
        # which `_has_root_mount` cannot distinguish from a root.
        return _CHROOT, _PIVOT
    return "a seccomp profile forbids namespaces, as Docker's default does", filter_remedy()


def _has_root_mount() -> bool:
    """Return whether the root of this process is a mount point.

    False only in a chroot whose folder is not a mount point.
    """
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        return any(line.split()[4] == b"/" for line in file)
    return True


def _id_map_problem() -> tuple[str, str]:
    if is_restricted_by_apparmor():
        return "AppArmor restricts user namespaces", apparmor_remedy(
            _unrestricted_namespaces_command()
        )
    return (
        "root of this user namespace may not hand on its own id, without CAP_SETFCAP",
        container_remedy(
            "--cap-add SETFCAP", "capabilities: {add: [SETFCAP]} in its securityContext"
        ),
    )


def _folder_problem() -> tuple[str, str]:
    reason = "the sandboxes' user cannot enter a folder on the way to an image"
    return reason, "export INTERCODE_CACHE=/var/cache/intercode" if has_machines_id() else ""
