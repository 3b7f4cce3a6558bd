"""The rights of this process over the machine, and the user that owns sandboxes' files.

Standard library only: the spawner loads it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

STAND_IN = 0x7000_FFFF
"""The id of sandboxes where root may not make ranges of ids: no account has it, as it lies between
what systemd keeps for containers and its foreign ids."""

_CAP_SYS_ADMIN = 21


def permitted() -> int:
    """The capabilities that this process may make use of, as a bit mask."""
    with Path("/proc/self/status").open() as file:
        for line in file:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def is_root() -> bool:
    """Whether this process is the machine's root with its rights.

    Root of a user namespace, or of a restricted container, is not.
    """
    return os.geteuid() == 0 and _has_roots_rights()


@cache
def _has_roots_rights() -> bool:
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return False
    return bool(permitted() >> _CAP_SYS_ADMIN & 1)


def needs_stand_in() -> bool:
    """Whether this process has the machine's user 0, but not the rights of `is_root`.

    /proc belongs to the machine's user 0, whatever that is called here. A sandbox must never have
    this id: files of the machine that are for root alone would be its own.
    """
    return Path("/proc").stat().st_uid == os.geteuid() and not is_root()


@cache
def sandboxes_user() -> int | None:
    """The user that sandboxes' files must belong to; None: this process's own."""
    return STAND_IN if needs_stand_in() else None


def one_user() -> bool:
    """Whether a sandbox has a single user."""
    return not is_root()


def make_private(folder: Path) -> None:
    """Make a folder, if it is not there, that no other user of the machine can enter.

    Where sandboxes run as the stand-in, its group may pass through the folder.

    Raises:
        OSError: It cannot be made, or belongs to another.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    user = sandboxes_user()
    mode = 0o700 if user is None else 0o710
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if stat.S_IMODE(status.st_mode) != mode or user not in (None, status.st_gid):
        if user is not None:
            with suppress(OSError):  # there is no such id: sandboxes will be refused, and why
                os.chown(folder, -1, user)
        folder.chmod(mode)


def hand_over(folder: Path) -> None:
    """Give a folder and all that is in it to the user of sandboxes, where that is another."""
    user = sandboxes_user()
    if user is None:
        return
    for parent, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(parent, name)  # noqa: PTH118 - it is one of thousands
            mode = os.lstat(path).st_mode
            os.lchown(path, user, user)
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, mode & 0o7777)  # noqa: PTH101 - a change of owner clears some bits
