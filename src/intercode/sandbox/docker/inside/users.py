"""The user whom an image names for its programs."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

_BYTES = 1 << 20


@dataclass(frozen=True)
class User:
    """Who programs are, unless their caller asks for another."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def find(text: str) -> User:
    """Who an image's ``USER`` is: ``NAME``, ``UID``, and a ``:GROUP`` behind it.

    Without a group they are in all of theirs; else in that one, and in those after a comma.

    Raises:
        LookupError: The image has no such user or group.
    """
    user, _, group = text.partition(":")
    group, *others = group.split(",")
    user = user or "0"
    accounts = _table("/etc/passwd")
    account = next((a for a in accounts if len(a) > 5 and user in (a[0], a[2])), None)
    if account is None and not user.isdigit():
        raise LookupError(f"the image's USER is {text!r}, whom its /etc/passwd does not have")
    uid, gid = (int(account[2]), int(account[3])) if account else (int(user), 0)
    name, home = (account[0], account[5]) if account else (user, "/")
    groups = [g for g in _table("/etc/group") if len(g) > 3]
    if group:
        known = next((g[2] for g in groups if group in (g[0], g[2])), group)
        if not known.isdigit():
            raise LookupError(f"the image's USER is {text!r}, whose group it does not have")
        gid = int(known)
    own = [g[2] for g in groups if name in g[3].split(",")] if uid else []
    also = tuple(map(int, others if group else own))
    return User(uid, gid, also, name, home or "/")


def _table(path: str) -> list[list[str]]:
    """The lines of such a file of the image's, in fields."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        lines = file.read(_BYTES).decode(errors="replace").splitlines()
    fields = [line.split(":") for line in lines]
    return [f for f in fields if len(f) > 2 and f[2].isdigit()]
