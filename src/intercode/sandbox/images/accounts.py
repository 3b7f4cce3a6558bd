"""Users and groups by the names that an image gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from intercode.errors import ImageError
from intercode.sandbox.images.tree import Tree

_BYTES = 1 << 20
_HIGHEST = 65535


@dataclass(frozen=True, slots=True)
class Account:
    """Who a program runs as."""

    uid: int
    gid: int
    home: str
    name: str
    groups: tuple[int, ...] = ()
    """Its other groups."""

    def __str__(self) -> str:
        """Its numbers; nothing for root."""
        if not self.uid and not self.gid:
            return ""
        return f"{self.uid}:{','.join(map(str, (self.gid, *self.groups)))}"


def user(layers: Sequence[Path], text: str) -> Account:
    """Who ``USER`` means: ``NAME`` or ``UID``, and a ``:GROUP`` behind it.

    Raises:
        ImageError: The image has no such user or group.
    """
    name, _, group = text.partition(":")
    name = name or "0"
    lines = _table(layers, "etc/passwd")
    found = next((line for line in lines if len(line) > 5 and name in (line[0], line[2])), None)
    if found is None and not name.isdigit():
        raise ImageError(f"the image has no user {name!r}")
    uid, gid = (_number(found[2]), _number(found[3])) if found else (_number(name), 0)
    home, login = (found[5] or "/", found[0]) if found else ("/", name)
    if group:
        return Account(uid, _group(layers, group), home, login)
    also = [g for g in _table(layers, "etc/group") if login in g[-1].split(",")] if uid else []
    return Account(uid, gid, home, login, tuple(int(line[2]) for line in also))


def owner(layers: Sequence[Path], text: str) -> tuple[int, int]:
    """Whom ``--chown`` means: user and group id; a number alone is that of both.

    Raises:
        ImageError: The image has no such user or group.
    """
    name, _, group = text.partition(":")
    if not name.isdigit():
        found = user(layers, text)
        return found.uid, found.gid
    return _number(name), _group(layers, group) if group else _number(name)


def _group(layers: Sequence[Path], name: str) -> int:
    found = next((line[2] for line in _table(layers, "etc/group") if line[0] == name), name)
    if not found.isdigit():
        raise ImageError(f"the image has no group {name!r}")
    return _number(found)


def _number(text: str) -> int:
    if int(text) > _HIGHEST:
        raise ImageError(f"sandboxes have users and groups up to {_HIGHEST}, and not {text}")
    return int(text)


def _table(layers: Sequence[Path], path: str) -> list[list[str]]:
    tree = Tree(layers)
    parts = tree.resolve(path)
    found = tree.look(parts) if parts is not None else None
    if found is None or not found.path.is_file():
        return []
    with found.path.open(encoding="utf-8", errors="replace") as file:
        lines = [line.split(":") for line in file.read(_BYTES).splitlines()]
    numeric = (2, 3) if path.endswith("passwd") else (2,)
    return [
        line
        for line in lines
        if len(line) > numeric[-1] and all(line[index].isdigit() for index in numeric)
    ]
