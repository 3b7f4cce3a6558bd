"""Protection of tests against an agent that replaces the programs that the tests use.

Tests run in the workspace that an agent has left. Programs that the agent has installed stay.
Programs and libraries of the image are restored to their state before the agent. New files that
would be found in their place are removed. Otherwise an agent's own ``bash`` could claim that all
tests pass. Programs are in the system's folders, and in the folders of the image's ``PATH``. Paths
that the task's own solution changes are left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from posixpath import normpath

from intercode.rewards.agent_leftovers import variables
from intercode.rewards.verification import SYSTEM_PATHS, restore_paths
from intercode_sandbox.base import Change, SandboxBackend

_FOLDERS = frozenset(
    f"{prefix}/{name}".rstrip("/")
    for prefix in ("", "/usr", "/usr/local")
    for name in ("", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
)
_PROGRAM = re.compile(r"/(usr/)?(local/)?s?bin/[^/]+")
_LIBRARY = re.compile(r"/(usr/)?(local/)?lib[^/]*/.*\.so[^/]*")
_LOADER = re.compile(r"/etc/ld(-musl-[^/]*|\.so\.(conf|conf\.d/.*|preload|cache))")
_CACHE = "/etc/ld.so.cache"
_NAMES = (
    'ls -A /bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin "$@" 2>/dev/null; '
    "ls -A /lib* /usr/lib* /usr/local/lib /usr/lib/*-linux-* /lib/*-linux-* 2>/dev/null"
)
_MAX_SHOWN_PATHS = 20
_NAMES_BYTES = 1 << 24


class TamperedSystemError(Exception):
    """The files that decide how programs run cannot be restored.

    Therefore no result of a program in the workspace is trustworthy.

    Attributes:
        paths: The first `_MAX_SHOWN_PATHS` paths of these files, sorted.
    """

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__("these files decide how any program runs, and cannot be put back")
        self.paths = sorted(paths)[:_MAX_SHOWN_PATHS]


def restore_system_files(
    workspace: SandboxBackend,
    changes: Sequence[Change],
    start: Callable[[], SandboxBackend],
    expected_paths: Callable[[], Collection[str]],
) -> None:
    """Restore the programs, libraries and loader files that an agent has changed or replaced.

    Args:
        workspace: The workspace that the agent has left, without running processes.
        changes: All differences of the workspace from the image.
        start: A function that starts a workspace of the same task in its initial state.
        expected_paths: A function that returns the paths that the task's own solution changes.

    Raises:
        TamperedSystemError: The files cannot be restored.
    """
    program_folders = _search_folders(workspace)
    suspects = [change for change in changes if _is_suspect(change, program_folders)]
    if not suspects:
        return
    env = variables(workspace)
    with closing(start()) as original_workspace:
        has_added = any(suspect.kind == "added" for suspect in suspects)
        original_names = _names(original_workspace, program_folders) if has_added else frozenset()
        changes_by_path = {
            suspect.path: suspect
            for suspect in suspects
            if suspect.kind != "added"
            or _hides(suspect, original_names)
            or _replaces(suspect, program_folders)
        }
        if changes_by_path.keys() - {_CACHE}:
            changes_by_path = {
                path: changes_by_path[path]
                for path in changes_by_path.keys() - set(expected_paths())
            }
        protected_folders = (
            *_FOLDERS,
            *(suspect.path for suspect in suspects if _replaces(suspect, program_folders)),
        )
        if any(
            path in protected_folders or suspect.type == "dir"
            for path, suspect in changes_by_path.items()
        ):
            raise TamperedSystemError(changes_by_path)
        # First restore without any program, because the programs that restore the rest may
        # themselves be among the changed files.
        for path, suspect in changes_by_path.items():
            if suspect.kind != "added" or _LOADER.fullmatch(path):
                data = b""
                with suppress(FileNotFoundError, IsADirectoryError):
                    data = original_workspace.read_file(path)
                _write(workspace, path, data, changes_by_path)
        if changes_by_path and not restore_paths(
            workspace, original_workspace, sorted(changes_by_path), changes_by_path, {}, env
        ):
            raise TamperedSystemError(changes_by_path)
    if any(map(_LOADER.fullmatch, changes_by_path)):
        # A new cache lets programs find the libraries that the agent has installed.
        workspace.exec(["ldconfig"], cwd="/", env=env)


def _search_folders(workspace: SandboxBackend) -> frozenset[str]:
    """Return the folders in ``PATH`` of the workspace's image."""
    path_entries = workspace.env.get("PATH", "").split(":")
    return frozenset(normpath(folder) for folder in path_entries if folder.startswith("/"))


def _is_suspect(change: Change, program_folders: Collection[str]) -> bool:
    """Return whether a change may affect programs of the image, which the tests may use."""
    path = change.path
    if _LOADER.fullmatch(path):
        return change.type != "dir"
    if _replaces(change, program_folders):
        return True
    is_program = path.rpartition("/")[0] in program_folders
    if change.kind == "added":
        return change.type != "dir" and bool(
            is_program or _PROGRAM.fullmatch(path) or _LIBRARY.fullmatch(path)
        )
    return change.content_changed and (is_program or bool(SYSTEM_PATHS.match(path)))


def _names(original_workspace: SandboxBackend, program_folders: Collection[str]) -> frozenset[str]:
    """Return the names of all programs and libraries in the initial workspace."""
    argv = ["/bin/sh", "-c", _NAMES, "sh", *sorted(program_folders)]
    env = variables(original_workspace)
    result = original_workspace.exec(argv, cwd="/", env=env, output_limit=_NAMES_BYTES)
    return frozenset(result.stdout.decode("utf-8", "surrogateescape").split("\n"))


def _hides(change: Change, program_names: Collection[str]) -> bool:
    """Return whether a new file would be found in place of a file of the image."""
    return _name(change.path) in program_names or bool(_LOADER.fullmatch(change.path))


def _replaces(change: Change, program_folders: Collection[str]) -> bool:
    """Return whether a symbolic link replaces a folder of programs, and thereby its programs."""
    link_prefix = f"{change.path}/"
    return change.type == "symlink" and any(
        f"{folder}/".startswith(link_prefix) for folder in program_folders
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _write(
    workspace: SandboxBackend, path: str, data: bytes, tampered_paths: Collection[str]
) -> None:
    try:
        workspace.write_file(path, data, 0o755)
    except OSError as error:
        raise TamperedSystemError(tampered_paths) from error
