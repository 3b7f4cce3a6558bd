"""Names that lead to other files: symbolic links, and several names of one file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname, join, normpath

from intercode.episode import decode, encode
from intercode_sandbox.base import Change, Completed, SandboxBackend
from intercode_sandbox.scripts import SHELL

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders in which a grader may write files of any name."""
_ELSEWHERE = ("/proc", "/sys", "/dev", *TEMPORARY)
"""Folders whose names mean something else to each process, or each time."""

READ = """
paths=()
while IFS= read -rd '' path; do paths+=("$path"); done
each() { [ ${#paths[@]} = 0 ] || printf '%s\\0' "${paths[@]}" | xargs -0 "$@"; }
"""
"""The beginning of a script that reads paths, and can run a program on all of them."""
_THERE = 'for path in "${paths[@]}"; do [ -e "$path" ]; printf \'%d\\0\' $?; done\n'
_EXAMINE = f"{READ}each readlink -z -- && each realpath -m -z -- && {_THERE}"
_EXAMINE_EACH = f"""{READ}
for path in "${{paths[@]}}"; do readlink -n -- "$path"; printf '\\0'; done
for path in "${{paths[@]}}"; do readlink -fn -- "$path"; printf '\\0'; done
{_THERE}"""
_SEPARATE = f"""{READ}
for path in "${{paths[@]}}"; do
    [ -e "$path" ] || continue
    new=$(mktemp -d /var/tmp/XXXXXXXXXX) && cp -a -- "$(readlink -f -- "$path")" "$new/copy" &&
        rm -- "$path" && mv -- "$new/copy" "$path" && rmdir -- "$new" || exit
done
"""
_MOST = 1 << 26
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    path: str
    target: str
    """The text of the link."""
    end: str
    """The path at the end of all links; empty if the image's tools cannot tell."""
    leads: bool
    """Whether there is a file or folder at the end."""

    @property
    def escapes(self) -> bool:
        """Whether it leads out of the files."""
        direct = normpath(join(dirname(self.path), self.target))
        return lies_in(direct, _ELSEWHERE) or lies_in(self.end, _ELSEWHERE)


def examine(
    sandbox: SandboxBackend, paths: Sequence[str], env: Mapping[str, str]
) -> list[Link] | None:
    """Follow symbolic links of a sandbox; return None if they cannot be followed."""
    if not paths:
        return []
    for script in (_EXAMINE, _EXAMINE_EACH):  # the second for images without GNU's tools
        found = run(sandbox, script, paths, env)
        if found is not None and len(found) == 3 * len(paths) and all(found[: len(paths)]):
            break
    else:
        return None
    count = len(paths)
    thirds = (found[:count], found[count : 2 * count], found[2 * count :])
    return [
        Link(path, target, end, status == "0")
        for path, target, end, status in zip(paths, *thirds, strict=True)
    ]


def names_of_files(
    sandbox: SandboxBackend,
    left: Mapping[str, Change],
    own: Collection[str],
    env: Mapping[str, str],
) -> list[set[str]]:
    """Return the names of each file that has several, one of them the agent's.

    Args:
        sandbox: A sandbox in which no program of the agent's runs.
        left: How it differs from the image.
        own: The regular files that the agent has changed.
        env: The variables of the programs that look.
    """
    # A file with one name stays so in a copy; a count of 0 is unknown.
    candidates = [path for path in own if left[path].links != 1]
    several = {path for path, (_, count) in _inodes(sandbox, candidates, env).items() if count > 1}
    if not several:
        return []
    digests = {left[path].digest for path in several}
    alike = [path for path, one in left.items() if one.type == "file" and one.digest in digests]
    named: dict[str, set[str]] = defaultdict(set)
    for path, (inode, _) in _inodes(sandbox, alike, env).items():
        named[inode].add(path)
    return [names for names in named.values() if names & several]


def names_counted(
    sandbox: SandboxBackend, paths: Collection[str], env: Mapping[str, str]
) -> dict[str, int]:
    """Map path to the count of its file's names, for those that can be seen."""
    return {path: count for path, (_, count) in _inodes(sandbox, paths, env).items()}


def _inodes(
    sandbox: SandboxBackend, paths: Collection[str], env: Mapping[str, str]
) -> dict[str, tuple[str, int]]:
    """Map path to its file's number and the count of its names, for those that can be seen."""
    found: dict[str, tuple[str, int]] = {}
    listed = [*paths]
    for start in range(0, len(listed), _AT_ONCE):
        argv = ["stat", "-c", "%d:%i %h %n", "--", *listed[start : start + _AT_ONCE]]
        done = as_root(sandbox, argv, env=env, output_limit=_MOST)
        for line in decode(done.stdout).split("\n"):
            inode, _, rest = line.partition(" ")
            count, _, path = rest.partition(" ")
            if count.isdecimal():
                found[path] = inode, int(count)
    return found


def separate(sandbox: SandboxBackend, paths: Iterable[str], env: Mapping[str, str]) -> bool:
    """Put a copy of what they lead to in the place of other names; return whether that worked."""
    return run(sandbox, _SEPARATE, sorted(paths), env) is not None


def run(
    sandbox: SandboxBackend, script: str, paths: Sequence[str], env: Mapping[str, str]
) -> list[str] | None:
    """Run a script that reads paths; return what it prints, each with a NUL; None if it fails."""
    given = encode("".join(f"{path}\0" for path in paths))
    done = as_root(sandbox, [*SHELL, script], stdin=given, env=env, output_limit=_MOST)
    return decode(done.stdout).split("\0")[:-1] if done.ok else None


def as_root(
    sandbox: SandboxBackend,
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str],
    output_limit: int | None = None,
) -> Completed:
    """Run a program as root, where the sandbox has more users than one."""
    try:
        return sandbox.exec(
            argv, cwd="/", user="0", stdin=stdin, env=env, output_limit=output_limit
        )
    except LookupError:
        return sandbox.exec(argv, cwd="/", stdin=stdin, env=env, output_limit=output_limit)


def within(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or lies in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def lies_in(path: str, folders: Collection[str]) -> bool:
    """Return whether a path is one of these folders, or lies in one."""
    return any(within(path, folder) for folder in folders)
