"""The files that configure tools, and a copy of the sandbox in which they are as before.

Tools read them unasked: ``~/.gitconfig``, ``~/.sqliterc``, ``/etc/magic``. No list of them is
complete, so this one is by place: ``/etc``, the hidden files of home folders, the settings of a
repository, the folders that an image has in ``/opt``. What the agent left is not judged by its
settings if it is right in that copy, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from intercode.sandbox.base import MIB, Change, Sandbox

_FOLDERS = r"/etc|/usr/local/etc|/var/lib/(gems|misc|vim)"
_HOMES = r"/root|/home/[^/]+|/var/lib/[^/]+"
_NO_SETTINGS = r"\w+_history|lesshst|viminfo|wget-hsts|git(ignore|attributes|modules|hub)?"
"""Hidden names that no tool takes settings from when a verification runs it: records of what was
typed, and parts of a repository."""
_MARKS = ("HEAD", "refs", "objects")
_OF_A_REPOSITORY = r"/(config(\.worktree)?|hooks|info)(/|$)"
_PROGRAM = re.compile(r"/opt/[^/]+")
_MOST = 256 * MIB


def settings_of(changes: Sequence[Change], home: str) -> set[str]:
    """Choose the changed paths that may configure a tool.

    Args:
        changes: All.
        home: The home folder of the image's user.
    """
    homes = rf"({_HOMES}|{re.escape(home.rstrip('/'))})"
    settings = re.compile(
        rf"({_FOLDERS})(/|$)|{homes}/\.(?!({_NO_SETTINGS})(/|$))|.*\.git{_OF_A_REPOSITORY}"
        rf"|.*/\.git/(modules|worktrees)/.*{_OF_A_REPOSITORY}",
        re.DOTALL,
    )
    above = {home, *map(str, PurePosixPath(home).parents), "/var", "/var/lib", "/opt"}
    own = {change.path for change in changes if change.kind == "added"}
    folders = re.compile(rf"/home|{homes}")
    in_repository = re.compile(_OF_A_REPOSITORY)
    # Folders of another name, which a file may name: .git, or commondir in there.
    places = [change.path.rpartition("/") for change in changes]
    heads, refs, objects = (
        {folder for folder, _, name in places if name == mark} for mark in _MARKS
    )
    repositories = heads | refs & objects

    def is_setting(change: Change) -> bool:
        path = change.path
        if settings.match(path):
            return True
        if (program := _PROGRAM.match(path)) and program[0] not in own:
            return True
        if any(path[: m.start()] in repositories for m in in_repository.finditer(path)):
            return True
        # A link in the place of such a folder leads to the settings in another one.
        return change.type == "symlink" and (path in above or folders.fullmatch(path) is not None)

    return {change.path for change in changes if is_setting(change)}


def put_back(
    copy: Sandbox,
    original: Sandbox,
    paths: Collection[str],
    found: Mapping[str, Change],
    before: Mapping[str, Change],
    env: Mapping[str, str],
) -> bool:
    """Make these paths of a copy as they are in the original; whether that could be done.

    Args:
        copy: A copy of the agent's sandbox.
        original: A sandbox as the agent got it.
        paths: Those at which the two differ.
        found: By path, how the copy differs from the image.
        before: The same for the original.
        env: The environment of the programs that do it.
    """
    known = {path: found.get(path) or before[path] for path in sorted(paths)}
    folders = [path for path, change in known.items() if change.type == "dir"]
    kept = [path for path in known if _was_there(path, found, before)]
    files = {path for path, change in known.items() if change.type != "dir"}

    def each(names: Collection[str], *program: str) -> bool:
        given = "\0".join(names).encode("utf-8", "surrogateescape")
        return not names or copy.exec(["xargs", "-0", *program, "--"], stdin=given, env=env).ok

    @cache
    def is_there(folder: str) -> bool:
        return copy.exec(["test", "-e", folder], env=env).ok

    each(folders, "chmod", "u+rwx")
    if not each(files.difference(kept), "rm", "-f"):
        return False
    each(files.intersection(kept), "rm", "-f")  # but Docker's mounts, such as /etc/hosts
    each(folders[::-1], "rmdir")  # but those that hold others, which stay
    names: dict[str, None] = {}
    for path in kept:
        folder = path.rpartition("/")[0]
        # A repository that is gone has no settings.
        if f".{folder}" in names or is_there(folder or "/"):
            names[f".{path}"] = None
    if not names:
        return True
    argv = ["tar", "-C", "/", "-cf", "-", "--no-recursion", "--", *names]
    packed = original.exec(argv, env=env, output_limit=_MOST)
    unpack = ["tar", "-C", "/", "--numeric-owner", "--overwrite", "-xpf", "-"]
    return packed.ok and copy.exec(unpack, stdin=packed.stdout, env=env).ok


def _was_there(path: str, found: Mapping[str, Change], before: Mapping[str, Change]) -> bool:
    return before[path].kind != "deleted" if path in before else found[path].kind != "added"
