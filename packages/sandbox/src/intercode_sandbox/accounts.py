"""Users and groups of an image, looked up in its ``/etc/passwd`` and ``/etc/group``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MAX_ID_DIGITS = 10
"""Maximum of digits of a user or group id: the largest 32-bit number has ten."""
MAX_TABLE_BYTES = 1 << 20
"""Maximum of bytes read from an image's table of users or groups."""

FileReader = Callable[[str], str]
"""A function from a path in an image to the file's text; empty: the file does not exist."""


@dataclass(frozen=True)
class User:
    """The user id and group ids with which a program of a sandbox runs."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Account:
    """A user of an image, with ids, home folder and name."""

    uid: int
    gid: int
    home: str
    name: str
    groups: tuple[int, ...] = ()
    """Supplementary groups."""

    def __str__(self) -> str:
        """Return the account's ids as ``UID:GID``, with ``,GID`` for each supplementary group.

        The text is empty if the user id and the group id are both 0.
        """
        if not self.uid and not self.gid:
            return ""
        return f"{self.uid}:{','.join(map(str, (self.gid, *self.groups)))}"


def resolve_account(text: str, read: FileReader) -> Account:
    """Resolve the user that an image's ``USER`` instruction names.

    If the text names no group, the group id is that of ``/etc/passwd``, or 0 for a user without an
    entry. A user other than root then also has its supplementary groups of ``/etc/group``.

    If the text names a group, the account has that group, and those whose numbers follow after
    commas.

    Args:
        text: ``NAME`` or ``UID``, with an optional ``:GROUP`` or ``:GROUP,GID,…``. A missing user
            is root. A number is valid without an entry in the image.
        read: Reads a file of the image.

    Raises:
        LookupError: The image has no user or group of that name.
    """
    name, _, group = text.partition(":")
    name = name or "0"
    group, *other_groups = group.split(",")
    users = [u for u in _parse_table(read("/etc/passwd")) if len(u) > 5 and u[3].isdecimal()]
    user_fields = next((user for user in users if name in (user[0], user[2])), None)
    if user_fields is None and not name.isdecimal():
        raise LookupError(f"the image has no user {name!r}")
    uid, gid = (int(user_fields[2]), int(user_fields[3])) if user_fields else (int(name), 0)
    home, login = (user_fields[5] or "/", user_fields[0]) if user_fields else ("/", name)
    groups = _parse_table(read("/etc/group"))
    if not group:
        group_ids = [g[2] for g in groups if login in g[-1].split(",")] if uid else []
        return Account(uid, gid, home, login, tuple(map(int, group_ids)))
    group_text = next((g[2] for g in groups if group in (g[0], g[2])), group)
    for group_id in (group_text, *other_groups):
        if not group_id.isdecimal():
            raise LookupError(f"the image has no group {group_id!r}")
    return Account(uid, int(group_text), home, login, tuple(map(int, other_groups)))


def _parse_table(text: str) -> list[list[str]]:
    """Split the lines of an account table into fields; drop lines without an id as third field."""
    lines = [line.split(":") for line in text.splitlines()]
    return [line for line in lines if len(line) > 2 and line[2].isdecimal()]


def look_up_user(user: str, ids: int, users: Callable[[], str]) -> User:
    """Resolve the user of a program, by a name in the sandbox or by ``uid[:gid]``.

    Args:
        user: The name, or the numbers. ``root`` is always 0; a missing gid is equal to the uid.
        ids: The number of user ids that the sandbox has: valid ids are below this number.
        users: A function that returns the text of the sandbox's ``/etc/passwd``.

    Raises:
        LookupError: The user does not exist, or has an id that the sandbox does not have.
    """
    if user in ("root", "0"):
        return User()
    name, _, group = user.partition(":")
    uid, gid = (name, group) if name.isdecimal() else _find_ids(name, users())
    if not uid.isdecimal():
        raise LookupError(f"the sandbox has no user {user!r}")
    if not gid.isdecimal():
        gid = uid
    if max(len(uid), len(gid)) > _MAX_ID_DIGITS or int(uid) >= ids or int(gid) >= ids:
        limit_text = f"ids 0 to {ids - 1} are all that it has"
        raise LookupError(f"the sandbox cannot have user {user!r}: {limit_text}")
    return User(int(uid), int(gid))


def _find_ids(name: str, users: str) -> tuple[str, str]:
    for line in users.split("\n"):
        fields = line.split(":")
        if len(fields) > 3 and fields[0] == name:
            return fields[2], fields[3]
    return "", ""
