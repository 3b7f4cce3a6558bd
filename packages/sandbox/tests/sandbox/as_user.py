"""Run a command as an ordinary user, started as root: ``python as_user.py UID COMMAND…``.

What Python and the tests need may be in a folder that only root can enter (``/root/.pyenv``): in a
mount namespace of its own, such a folder is replaced by an empty one with the needed trees in it.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from intercode_sandbox.native import syscalls as sc

REPOSITORY = Path(__file__).parents[4]


def closed_folder(path: Path) -> Path | None:
    """The highest folder on the way that others cannot enter."""
    way = [*reversed(path.parents), path]
    return next((one for one in way if not one.stat().st_mode & stat.S_IXOTH), None)


def open_the_way(paths: list[Path]) -> None:
    closed = {path: folder for path in paths if (folder := closed_folder(path)) is not None}
    trees = {path: sc.open_tree(str(path), recursive=True) for path in closed}
    for folder in sorted(set(closed.values())):
        sc.mount("tmpfs", str(folder), "tmpfs", 0, "mode=755")
    for path, tree in trees.items():
        path.mkdir(parents=True, exist_ok=True)
        sc.move_mount(tree, str(path))


def main() -> None:
    uid, *command = sys.argv[1:]
    sc.unshare(sc.CLONE_NEWNS)
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    needed = {Path(name).resolve() for name in (sys.base_prefix, sys.prefix, REPOSITORY)}
    open_the_way(sorted(needed))
    os.chdir(REPOSITORY)
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
