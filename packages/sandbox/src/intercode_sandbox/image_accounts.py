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
class ProgramUser:
    """The user id and group ids with which a program of a sandbox runs."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageAccount:
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


def resolve_account(user_spec: str, read_file: FileReader) -> ImageAccount:
    """Resolve the user that an image's ``USER`` instruction names.

    If the text names no group, the group id is that of ``/etc/passwd``, or 0 for a user without an
    entry. A user other than root then also has its supplementary groups of ``/etc/group``.

    If the text names a group, the account has that group, and those whose numbers follow after
    commas.

    Args:
        user_spec: ``NAME`` or ``UID``, with an optional ``:GROUP`` or ``:GROUP,GID,…``. A missing
            user is root. A number is valid without an entry in the image.
        read_file: Reads a file of the image.

    Raises:
        LookupError: The image has no user or group of that name.
    """
    user_name, _, primary_group = user_spec.partition(":")
    user_name = user_name or "0"
    primary_group, *other_group_ids = primary_group.split(",")
    user_rows = [
        user_row
        for user_row in _parse_table(read_file("/etc/passwd"))
        if len(user_row) > 5 and user_row[3].isdecimal()
    ]
    user_fields = next((user for user in user_rows if user_name in (user[0], user[2])), None)
    if user_fields is None and not user_name.isdecimal():
        raise LookupError(f"the image has no user {user_name!r}")
    uid, gid = (int(user_fields[2]), int(user_fields[3])) if user_fields else (int(user_name), 0)
    home, login = (user_fields[5] or "/", user_fields[0]) if user_fields else ("/", user_name)
    group_rows = _parse_table(read_file("/etc/group"))
    if not primary_group:
        group_ids = (
            [group_row[2] for group_row in group_rows if login in group_row[-1].split(",")]
            if uid
            else []
        )
        return ImageAccount(uid, gid, home, login, tuple(map(int, group_ids)))
    primary_group_id = next(
        (group_row[2] for group_row in group_rows if primary_group in (group_row[0], group_row[2])),
        primary_group,
    )
    for group_id_text in (primary_group_id, *other_group_ids):
        if not group_id_text.isdecimal():
            raise LookupError(f"the image has no group {group_id_text!r}")
    return ImageAccount(uid, int(primary_group_id), home, login, tuple(map(int, other_group_ids)))


def _parse_table(text: str) -> list[list[str]]:
    """Split the lines of an account table into fields; drop lines without an id as third field."""
    rows = [row.split(":") for row in text.splitlines()]
    return [row for row in rows if len(row) > 2 and row[2].isdecimal()]


def look_up_user(user: str, id_count: int, read_passwd: Callable[[], str]) -> ProgramUser:
    """Resolve the user of a program: ``NAME`` or ``UID``, with an optional ``:GID``.

    Args:
        user: The user. ``root`` is always 0. If the gid is missing, a name has the group of its
            entry, and a number has the group of the same number.
        id_count: The number of user ids that the sandbox has: valid ids are below this number.
        read_passwd: A function that returns the text of the sandbox's ``/etc/passwd``.

    Raises:
        LookupError: The user does not exist, the group is not a number, or an id is one that the
            sandbox does not have.
    """
    user_text, _, gid_text = user.partition(":")
    if user_text in ("root", "0"):
        uid = gid = "0"
    elif user_text.isdecimal():
        uid = gid = user_text
    else:
        uid, gid = _find_ids(user_text, read_passwd())
    if not uid.isdecimal():
        raise LookupError(f"the sandbox has no user {user!r}")
    gid = gid_text or (gid if gid.isdecimal() else uid)
    if not gid.isdecimal():
        raise LookupError(f"the group of user {user!r} must be a number, such as {uid}:100")
    if max(len(uid), len(gid)) > _MAX_ID_DIGITS or int(uid) >= id_count or int(gid) >= id_count:
        limit_text = f"ids 0 to {id_count - 1} are all that it has"
        raise LookupError(f"the sandbox cannot have user {user!r}: {limit_text}")
    return ProgramUser(int(uid), int(gid))


def _find_ids(name: str, passwd_text: str) -> tuple[str, str]:
    for line in passwd_text.split("\n"):
        fields = line.split(":")
        if len(fields) > 3 and fields[0] == name:
            return fields[2], fields[3]
    return "", ""
