"""Aliases of files: symbolic links, and hard links to one file.

Scripts that run in the sandbox find and resolve aliases, and replace them by copies.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname, join, normpath

from intercode.episode import decode, encode
from intercode_sandbox.base import Change, Completed, SandboxBackend
from intercode_sandbox.script_arguments import SHELL

TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders for temporary files, in which every program may write."""
_VOLATILE_FOLDERS = ("/proc", "/sys", "/dev", *TEMPORARY_FOLDERS)
"""Folders in which one name may refer to different files, by process or by time."""

PATHS_PROLOGUE = """
paths=()
while IFS= read -rd '' path; do paths+=("$path"); done
each() { [ ${#paths[@]} = 0 ] || printf '%s\\0' "${paths[@]}" | xargs -0 "$@"; }
"""
"""The beginning of a script: read paths from standard input, and define ``each``.

``each`` runs a program on all paths.
"""
_EXISTENCE_CHECK = 'for path in "${paths[@]}"; do [ -e "$path" ]; printf \'%d\\0\' $?; done\n'
_RESOLVE_SCRIPT = (
    f"{PATHS_PROLOGUE}each readlink -z -- && each realpath -m -z -- && {_EXISTENCE_CHECK}"
)
_PORTABLE_RESOLVE_SCRIPT = f"""{PATHS_PROLOGUE}
for path in "${{paths[@]}}"; do readlink -n -- "$path"; printf '\\0'; done
for path in "${{paths[@]}}"; do readlink -fn -- "$path"; printf '\\0'; done
{_EXISTENCE_CHECK}"""
_MATERIALISE_SCRIPT = f"""{PATHS_PROLOGUE}
for path in "${{paths[@]}}"; do
    [ -e "$path" ] || continue
    new=$(mktemp -d /var/tmp/XXXXXXXXXX) && cp -a -- "$(readlink -f -- "$path")" "$new/copy" &&
        rm -- "$path" && mv -- "$new/copy" "$path" && rmdir -- "$new" || exit
done
"""
_LINK_SCRIPT = f"""{PATHS_PROLOGUE}
for path in "${{paths[@]}}"; do [ -L "$path" ] && printf '%s\\0' "$path"; done
true
"""
_INODES_SCRIPT = f"""{PATHS_PROLOGUE}
if stat --printf '' / 2> /dev/null; then
    each stat --printf '%d:%i %h %n\\0' --
else  # no GNU tools
    for path in "${{paths[@]}}"; do
        inode=$(stat -c '%d:%i %h' -- "$path") && printf '%s %s\\0' "$inode" "$path"
    done
fi
true
"""
_INODE = re.compile(r"([0-9]+:[0-9]+) ([0-9]+) (.*)", re.DOTALL)
_MAX_OUTPUT = 1 << 26
_BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link."""

    path: str
    target: str
    """The text of the link."""
    end: str
    """The path at the end of the chain of links; empty if the image's tools cannot resolve it."""
    has_end: bool
    """Whether a file or folder exists at `end`."""

    @property
    def escapes(self) -> bool:
        """Whether the link leads into a volatile folder, such as ``/proc`` or ``/tmp``."""
        direct = normpath(join(dirname(self.path), self.target))
        return is_within_any(direct, _VOLATILE_FOLDERS) or is_within_any(
            self.end, _VOLATILE_FOLDERS
        )


def resolve_links(
    sandbox: SandboxBackend, paths: Sequence[str], env: Mapping[str, str]
) -> list[SymbolicLink] | None:
    """Resolve symbolic links of a sandbox.

    The result is None if the image's tools cannot resolve the links, or if a path is not a link.

    Args:
        sandbox: The sandbox that holds the links.
        paths: The paths of the links.
        env: The environment variables of the programs that resolve.
    """
    if not paths:
        return []
    for script in (
        _RESOLVE_SCRIPT,
        _PORTABLE_RESOLVE_SCRIPT,  # for images without GNU tools
    ):
        fields = run_script(sandbox, script, paths, env)
        if fields is not None and len(fields) == 3 * len(paths) and all(fields[: len(paths)]):
            break
    else:
        return None
    count = len(paths)
    result_columns = (fields[:count], fields[count : 2 * count], fields[2 * count :])
    return [
        SymbolicLink(path, target, end, status == "0")
        for path, target, end, status in zip(paths, *result_columns, strict=True)
    ]


def find_symbolic_links(
    sandbox: SandboxBackend, paths: Sequence[str], env: Mapping[str, str]
) -> set[str] | None:
    """Return those of the paths that are symbolic links; None if the image's tools fail."""
    links = run_script(sandbox, _LINK_SCRIPT, paths, env) if paths else []
    return None if links is None else {*links}


def find_hard_links(
    sandbox: SandboxBackend,
    changes: Mapping[str, Change],
    agent_files: Collection[str],
    env: Mapping[str, str],
) -> list[set[str]]:
    """Return the files with several hard links, each as the set of its paths in `changes`.

    At least one path of each set is in `agent_files`. Paths that are unchanged are not found.

    Args:
        sandbox: A sandbox in which no program of the agent runs.
        changes: The differences between the sandbox and the image, by path.
        agent_files: The regular files that the agent has changed.
        env: The environment variables of the programs that inspect the files.
    """
    # A file with one name also has one name in a copy. A count of 0 is unknown, and is looked up.
    candidates = [path for path in agent_files if changes[path].links != 1]
    linked_paths = {
        path for path, (_, count) in _inodes(sandbox, candidates, env).items() if count > 1
    }
    if not linked_paths:
        return []
    digests = {changes[path].digest for path in linked_paths}
    equal_files = [
        path
        for path, change in changes.items()
        if change.type == "file" and change.digest in digests
    ]
    names_by_inode: dict[str, set[str]] = defaultdict(set)
    for path, (inode, _) in _inodes(sandbox, equal_files, env).items():
        names_by_inode[inode].add(path)
    return [names for names in names_by_inode.values() if names & linked_paths]


def count_names(
    sandbox: SandboxBackend, paths: Collection[str], env: Mapping[str, str]
) -> dict[str, int]:
    """Return the number of hard links of each file, by path; missing files are omitted."""
    return {path: count for path, (_, count) in _inodes(sandbox, paths, env).items()}


def _inodes(
    sandbox: SandboxBackend, paths: Collection[str], env: Mapping[str, str]
) -> dict[str, tuple[str, int]]:
    """Return the inode and the number of hard links of each file, by path; missing ones omitted."""
    inodes: dict[str, tuple[str, int]] = {}
    all_paths = [*paths]
    for start in range(0, len(all_paths), _BATCH_SIZE):
        batch = all_paths[start : start + _BATCH_SIZE]
        for field in run_script(sandbox, _INODES_SCRIPT, batch, env) or ():
            if match := _INODE.fullmatch(field):
                inodes[match[3]] = match[1], int(match[2])
    return inodes


def materialise_links(
    sandbox: SandboxBackend, paths: Iterable[str], env: Mapping[str, str]
) -> bool:
    """Replace links by copies of the files that they lead to; return whether that succeeded.

    Args:
        sandbox: The sandbox that holds the links.
        paths: The paths of symbolic links and hard links.
        env: The environment variables of the programs that copy.
    """
    return run_script(sandbox, _MATERIALISE_SCRIPT, sorted(paths), env) is not None


def run_script(
    sandbox: SandboxBackend, script: str, paths: Sequence[str], env: Mapping[str, str]
) -> list[str] | None:
    """Run a script that reads paths from standard input; return its output fields, split at NUL.

    The result is None if the script fails.
    """
    stdin_data = encode("".join(f"{path}\0" for path in paths))
    result = run_as_root(
        sandbox, [*SHELL, script], stdin=stdin_data, env=env, output_limit=_MAX_OUTPUT
    )
    return decode(result.stdout).split("\0")[:-1] if result.ok else None


def run_as_root(
    sandbox: SandboxBackend,
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str],
    output_limit: int | None = None,
) -> Completed:
    """Run a program as root; if the sandbox does not know that user, as the sandbox's user."""
    try:
        return sandbox.exec(
            argv, cwd="/", user="0", stdin=stdin, env=env, output_limit=output_limit
        )
    except LookupError:
        return sandbox.exec(argv, cwd="/", stdin=stdin, env=env, output_limit=output_limit)


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or lies in the folder."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def is_within_any(path: str, folders: Collection[str]) -> bool:
    """Return whether a path is one of these folders, or lies in one."""
    return any(is_within(path, folder) for folder in folders)
