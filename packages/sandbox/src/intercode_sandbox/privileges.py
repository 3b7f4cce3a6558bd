"""The privileges of this process over the machine, and the user that owns the files of sandboxes.

A process with all privileges of the machine's root gives each sandbox unique user ids. Root with
fewer privileges runs all sandboxes as one unused id, the stand-in user. Any other user runs
sandboxes with the user's own id.

This module imports the standard library only, because the spawner loads it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

STAND_IN_ID = 0x7000_FFFF
"""The id of the stand-in user: the machine's user id of all sandboxes if root cannot map ranges of
ids. No account has this id: the number lies between systemd's ranges for containers and for foreign
ids."""

_CONTAINER = (
    "a container (docker run --security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined …)"
)
_SYSTEMS = {
    "win32": ("Windows", f"WSL 2 (wsl --install), or in {_CONTAINER}"),
    "darwin": ("macOS", f"a virtual machine with Linux, or in {_CONTAINER}"),
}
_STAND_IN_CAPABILITIES = {"chown": 0, "setgid": 6, "setuid": 7}
_ROOT_CAPABILITIES = {
    **_STAND_IN_CAPABILITIES,
    **{"dac_override": 1, "fowner": 3, "kill": 5},
    **{"net_admin": 12, "sys_ptrace": 19, "sys_admin": 21, "mknod": 27},
}
"""The capabilities that this process needs to start sandboxes with unique ids: name → bit.

`_STAND_IN_CAPABILITIES` are those that sandboxes of the stand-in user need.
"""


def unsupported_system() -> str:
    """Return a sentence on a system that cannot run sandboxes, and alternatives; "" on Linux."""
    if sys.platform == "linux":
        return ""
    system, alternative = _SYSTEMS.get(sys.platform, (sys.platform, "a virtual machine with Linux"))
    return f"sandboxes need Linux, and this is {system}. InterCode works in {alternative}"


def read_permitted_capabilities() -> int:
    """Return the capabilities that this process is permitted to use, as a bit mask."""
    with Path("/proc/self/status").open() as file:
        for line in file:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def is_root() -> bool:
    """Return whether this process is the machine's root, and can give each sandbox unique ids.

    False for root of a user namespace or of a restricted container, or if the cache folder lies on
    an overlay.
    """
    return os.geteuid() == 0 and _has_root_privileges()


@cache
def _has_root_privileges() -> bool:
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return False
    return not missing_capabilities() and not _on_overlay(cache_folder())


def missing_capabilities(stand_in: bool = False) -> list[str]:
    """Return the names of required capabilities that this process lacks, such as ``CAP_CHOWN``.

    Args:
        stand_in: Whether sandboxes are to run as the stand-in user, which requires fewer
            capabilities than sandboxes with unique ids.
    """
    permitted_mask = read_permitted_capabilities()
    required_capabilities = _STAND_IN_CAPABILITIES if stand_in else _ROOT_CAPABILITIES
    return [
        f"CAP_{name.upper()}"
        for name, bit in required_capabilities.items()
        if not permitted_mask >> bit & 1
    ]


def cache_folder() -> Path:
    """Return the cache folder that the environment configures, or else one in the user's home.

    Raises:
        SandboxUnavailableError: The environment names no folder, and this user has no home.
    """
    if configured_path := os.environ.get("INTERCODE_CACHE"):
        return Path(configured_path).expanduser().absolute()
    if (xdg_folder := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        return Path(xdg_folder) / "intercode"
    try:
        return Path.home() / ".cache" / "intercode"
    except RuntimeError as error:
        from intercode_sandbox.errors import (
            SandboxUnavailableError,  # containers load this module without `errors`
        )

        reason = (
            f"user {os.geteuid()} has no home folder, and HOME is not set: images have no place"
        )
        raise SandboxUnavailableError(
            reason, "export INTERCODE_CACHE=/a/folder/of/yours"
        ) from error


def _on_overlay(folder: Path) -> bool:
    """Return whether a folder lies on an overlay file system, such as the root of a container.

    The kernel cannot map the user ids of files on an overlay.
    """
    existing_folder = next(
        existing_folder
        for existing_folder in (folder, *folder.parents)
        if os.access(existing_folder, os.F_OK)
    )
    return _mounted_file_system(existing_folder)[1] == "overlay"


def _mounted_file_system(path: Path) -> tuple[str, str]:
    """Return two facts on the mount that holds a path: its root folder, and its type.

    The root folder is the folder of the file system that the mount shows. Both facts are "" on
    btrfs, because no mount has the device numbers of btrfs's subvolumes.
    """
    device = path.stat().st_dev
    with Path("/proc/self/mountinfo").open() as file:
        for line in file:
            fields = line.split()
            if fields[2] == f"{os.major(device)}:{os.minor(device)}":
                return fields[3], fields[fields.index("-") + 1]
    return "", ""


@cache
def in_pod() -> bool:
    """Return whether this process runs in a container of a Kubernetes pod, with any engine."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    mark_by_path = {"/proc/self/cgroup": "kubepods", "/proc/self/mountinfo": "/kubelet/pods/"}
    for path, mark in mark_by_path.items():
        with suppress(OSError):
            if mark in Path(path).read_text(errors="replace"):
                return True
    return False


@cache
def in_container() -> bool:
    """Return whether this process runs in a container of Docker, Podman or a Kubernetes pod."""
    if in_pod():
        return True
    if not (Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()):
        return False
    # A virtual machine may be created from a container's image, with these files. Its root is a
    # whole file system, and no overlay.
    mount_root, file_system_type = _mounted_file_system(Path("/"))
    return file_system_type == "overlay" or mount_root != "/"


def as_root(command: str) -> str:
    """Return a command line that runs `command` as root: by sudo, su, or unchanged for root."""
    if os.geteuid() == 0:
        return command
    return f"sudo {command}" if _has_program("sudo") else f"su -c '{command}'"


def install_command(package: str) -> str:
    """Return the command that installs a system package; other systems than Debian get a sentence.

    Args:
        package: The package's name in Debian.
    """
    if _has_program("apt-get"):
        return as_root(f"apt-get install {package}")
    return f"install the system's package of {package}"


def _has_program(program: str) -> bool:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(Path(folder, program), os.X_OK) for folder in folders)


def has_machines_id() -> bool:
    """Return whether this process runs as the machine's user 0, also from a user namespace.

    The process's own number may differ in the namespace. The owner of /proc is always the machine's
    user 0. A sandbox must never run with this id, because the sandbox could then access files that
    only the machine's root may access.
    """
    return Path("/proc").stat().st_uid == os.geteuid()


def needs_stand_in() -> bool:
    """Return whether sandboxes must run as the stand-in user.

    True if this process runs as the machine's user 0, but cannot give sandboxes unique ids: see
    `is_root`.
    """
    return has_machines_id() and not is_root()


def stand_in_reason() -> str:
    """Return the reason why `needs_stand_in` is True, as a phrase."""
    if missing_names := missing_capabilities():
        return f"root has no {', '.join(missing_names)} here"
    return f"{cache_folder()} is on an overlay, whose ids cannot be mapped"


@cache
def sandboxes_user() -> int | None:
    """Return the id of the user that must own the files of sandboxes; None: this process's user."""
    return STAND_IN_ID if needs_stand_in() else None


def has_single_user() -> bool:
    """Return whether a sandbox has only one user id, rather than a range of ids."""
    return not is_root()


def make_private(folder: Path) -> None:
    """Make a folder inaccessible to other users of the machine; create the folder if missing.

    If sandboxes run as the stand-in user, the group of that user may pass through the folder.

    Raises:
        OSError: The folder cannot be created, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stand_in_id = sandboxes_user()
    mode = 0o700 if stand_in_id is None else 0o710
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if stat.S_IMODE(status.st_mode) != mode or stand_in_id not in (None, status.st_gid):
        if stand_in_id is not None:
            # The call fails if this namespace does not map the id. The start of a sandbox then
            # raises an error with the reason.
            with suppress(OSError):
                os.chown(folder, -1, stand_in_id)
        folder.chmod(mode)


def transfer_ownership(folder: Path) -> None:
    """Give a folder and its content to the stand-in user, if sandboxes run as the stand-in user."""
    stand_in_id = sandboxes_user()
    if stand_in_id is None:
        return
    for current_folder, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(current_folder, name)  # noqa: PTH118 - it is one of thousands
            mode = os.lstat(path).st_mode
            os.lchown(path, stand_in_id, stand_in_id)
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, mode & 0o7777)  # noqa: PTH101 - a change of owner clears some bits
