"""The traces of an agent by which a grader's own names would lead elsewhere.

A verification names files: ``sort in > expected; cmp expected out``. The names are its author's,
but what stands there is the agent's. A link to ``/proc/self/cmdline`` has ``grep`` find its own
pattern; one to ``/dev/stdin`` has ``cmp`` compare a file with itself; so has ``expected``, if it is
another name of ``out``, or cannot be written. A variable of the image's may name a file of the
agent's.

So a grader begins with temporary folders in which nothing is the agent's (`temporary`), and with
few variables (`cleanly`). All else that may mislead it, `Leftovers`, proves nothing. But the work
must be right without it, too: in a copy in which it is undone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename

from intercode.rewards import words
from intercode.rewards.aliases import (
    READ,
    TEMPORARY,
    Link,
    examine,
    lies_in,
    names_counted,
    names_of_files,
    run,
    separate,
    within,
)
from intercode.task import Task
from intercode_sandbox.base import Change, SandboxBackend

# -- the environment -------------------------------------------------------------------------------

ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "AWKPATH": "/usr/share/awk:.",
}
"""Variables of all a grader's programs: ``/usr/local``, to which an agent may add, is last."""
_HARMLESS = re.compile(r"HOME|USER|LOGNAME|SHELL|TERM|HOSTNAME|PWD|TZ|LANG|LANGUAGE|LC_[A-Z]+")
"""Variables of an image that name nothing to load or to run."""


def variables(sandbox: SandboxBackend) -> dict[str, str]:
    """Return the variables of a grader's own tools: of the image's, those that steer are empty."""
    return {**dict.fromkeys(_steering(sandbox), ""), **ENVIRONMENT}


def cleanly(
    sandbox: SandboxBackend, argv: Sequence[str], more: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return a program and variables to run it with, so that it finds none of the image's.

    Args:
        sandbox: Where it will run.
        argv: The program and its arguments.
        more: Its variables beside `ENVIRONMENT`.
    """
    known = {**ENVIRONMENT, **more}
    if not _steering(sandbox):
        return [*argv], known
    kept = {name: value for name, value in sandbox.env.items() if _HARMLESS.fullmatch(name)}
    told = (f"{name}={value}" for name, value in {**kept, **known}.items())
    return ["env", "-i", *told, *argv], variables(sandbox)


def _steering(sandbox: SandboxBackend) -> list[str]:
    return [n for n in sandbox.env if not _HARMLESS.fullmatch(n) and n not in ENVIRONMENT]


# -- temporary folders -----------------------------------------------------------------------------

_EMPTY = f"""{READ}
for path in "${{paths[@]}}"; do
    # a folder may be read before it is entered, also where root has no rights over modes
    [ ! -d "$path" ] || find "$path" -type d ! -perm -700 -exec chmod u+rwx {{}} ';'
done
each rm -rf -- || exit
[ -x /var ] || chmod 755 /var
for folder in {" ".join(TEMPORARY)}; do
    [ -d $folder ] && [ ! -L $folder ] || {{ rm -f $folder; mkdir $folder; }}
    [ "$(stat -c %a $folder)" = 1777 ] || chmod 1777 $folder
done
"""


def temporary(task: Task, sandbox: SandboxBackend, changed: Mapping[str, Change]) -> set[str]:
    """Return what an agent has left in temporary folders, and those folders if it changed them.

    What the task's words, files or setup name there is left out: the answer may be there.

    Args:
        task: The task.
        sandbox: The sandbox.
        changed: The agent's changes, by path.
    """
    names = words.temporary_names(task, sandbox)
    return {
        path
        for path in changed
        if lies_in(path, TEMPORARY) and (path in TEMPORARY or not words.is_named(path, names))
    }


def empty_temporary(sandbox: SandboxBackend, paths: Collection[str]) -> bool:
    """Remove what `temporary` has found, and return whether all of it is gone.

    Args:
        sandbox: A sandbox in which no program of the agent's runs.
        paths: What is to go.
    """
    highest: list[str] = []
    for path in sorted(paths):
        if path not in TEMPORARY and not (highest and within(path, highest[-1])):
            highest.append(path)
    return not paths or run(sandbox, _EMPTY, highest, variables(sandbox)) is not None


# -- what may mislead ------------------------------------------------------------------------------

_OPEN = f"{READ}each chmod u+rwX --"
_MOVE = f"""{READ}
for ((n = 0; n < ${{#paths[@]}}; n += 2)); do
    path=${{paths[n]}} end=${{paths[n+1]}}
    [ -L "$path" ] && [ -e "$end" ] || continue
    rm -- "$path" && mv -- "$end" "$path" || exit
done
"""
# Not through a pipe: what is not read yet would have lost its other names to what is written.
_REWRITE = f"""{READ}
kept=$(mktemp) || exit
each printf '%s\\0' | tar -cPf "$kept" --no-recursion --null -T - && tar -xPpf "$kept"
rm "$kept"
"""
_OPTION = re.compile(r"-|[A-Za-z_]\w*=")
"""Names that a program may take for an option, or for the value of a variable."""
_OBJECT = re.compile(r".*/objects/(pack/|[0-9a-f]{2}/)")
"""Files of a git repository, which git makes so that none can write them."""


@dataclass(slots=True)
class Leftovers:
    """The parts of an agent's work that may mislead a verification, and how each is undone."""

    task: Task
    own: Mapping[str, Change]
    """The agent's changes, by path."""
    env: Mapping[str, str]
    """The variables of the programs that look and undo."""
    as_before: set[str]
    """The paths that are put back as they were before the agent came."""
    closed: list[str]
    """The paths that are made readable and writable."""
    links: list[Link]
    """The links that are not asked for."""
    moved: dict[str, str]
    """Link → its end: it stands where a file or folder stood, and that is moved back."""
    groups: list[set[str]]
    """The names of each file that has several."""
    objects: list[str]
    """The objects of repositories."""

    @classmethod
    def of(
        cls,
        task: Task,
        sandbox: SandboxBackend,
        own: Mapping[str, Change],
        left: Mapping[str, Change],
        before: Mapping[str, Change],
    ) -> Leftovers:
        """Find the leftovers in a sandbox.

        Args:
            task: The task.
            sandbox: A sandbox in which no program of the agent's runs.
            own: The agent's changes, by path.
            left: How the sandbox differs from the image.
            before: How it did before the agent came.
        """
        env = variables(sandbox)
        there = {path: one for path, one in own.items() if one.kind != "deleted"}
        paths = [path for path, one in there.items() if one.type == "symlink"]
        links = examine(sandbox, paths, env)
        written = words.written_paths(task, sandbox)
        others = [*_special(task, there), *_in_the_way(written, there), *_odd(task, there, before)]
        suspects = {path for path in others if not task.expects(path)}
        suspects.update(paths if links is None else _suspects(task, links, before))
        free = [one for one in links or () if not words.asks_for(task, one)]
        files = [path for path, one in there.items() if one.type == "file"]
        return cls(
            task,
            own,
            env,
            suspects,
            _closed(task, there),
            [one for one in free if not within(one.path, one.end)],
            {one.path: one.end for one in free if _stood(one.path, own, before)},
            names_of_files(sandbox, left, files, env),
            [path for path, one in left.items() if _OBJECT.match(path) and one.type == "file"],
        )

    def __bool__(self) -> bool:
        """Whether there may be any, so that a copy is needed."""
        return bool(self.certain or self.links or self.groups)

    @property
    def certain(self) -> set[str]:
        """The paths that are undone whatever the verification writes."""
        return {*self.as_before, *self.closed, *self.moved}

    def written_through(self, left: Mapping[str, Change], after: Mapping[str, Change]) -> set[str]:
        """Return the agent's other names of files that a verification has written.

        Args:
            left: How the sandbox differed from the image when the verification began.
            after: How it does now.
        """
        written = {path for path in left.keys() | after.keys() if left.get(path) != after.get(path)}
        written = {path for path in written if path not in TEMPORARY}
        through = {one.path for one in self.links if any(within(path, one.end) for path in written)}
        for names in self.groups if not words.speaks_of_links(self.task) else ():
            if names & written:
                through |= names & self.own.keys()
        return through - self.as_before - self.moved.keys()

    def join(self, copy: SandboxBackend) -> None:
        """Make several names of one file that again in a copy, as they were.

        The names of a file of a lower layer part when it is written; and it gets another number
        when it is linked, so that `git clone` takes it for another file. Where a name is as it was
        in the image, and so is not known here, the others are left as they are.
        """
        counts = names_counted(copy, [path for names in self.groups for path in names], self.env)
        again = sorted(p for names in self.groups for p in names if counts.get(p) == len(names))
        if "git" in (self.task.verification or ""):
            again += self.objects
        if again:
            run(copy, _REWRITE, again, self.env)

    def undo(
        self, copy: SandboxBackend, original: SandboxBackend, through: Collection[str]
    ) -> bool:
        """Undo in a copy what is not put back, and return whether that was possible.

        Args:
            copy: A copy of the sandbox as the agent left it.
            original: A sandbox as the agent got it.
            through: What `written_through` has found.
        """
        self.join(copy)
        if self.closed and run(copy, _OPEN, self.closed, self.env) is None:
            return False
        paths = [path for path in self.moved if path not in self.as_before]
        were_links = examine(original, paths, self.env) if paths else []
        kept = {link.path for link in were_links or () if link.target}
        moved = [path for one in paths if one not in kept for path in (one, self.moved[one])]
        if moved and run(copy, _MOVE, moved, self.env) is None:
            return False
        return not through or separate(copy, through, self.env)


def _suspects(task: Task, links: Collection[Link], before: Mapping[str, Change]) -> Iterator[str]:
    """Yield the links that lead out of the files, to nothing, or to the task's own files.

    Those that are asked for are left out. What `may_change` names may lead to the task's own files.
    """
    text = f"{task.query}\n{task.verification}"
    for link in links:
        path, is_asked_for = link.path, words.asks_for(task, link)
        if link.escapes or not link.leads:
            if not (is_asked_for and link.target in text):
                yield path
            continue
        to_own = not within(path, link.end) and any(within(one, link.end) for one in before)
        if to_own and not is_asked_for and not task.expects(path):
            yield path


def _stood(path: str, own: Mapping[str, Change], before: Mapping[str, Change]) -> bool:
    """Return whether a file or folder stood where a link is now."""
    if path in before:
        return before[path].type != "symlink"
    return own[path].kind == "modified"


def _special(task: Task, own: Mapping[str, Change]) -> Iterator[str]:
    if not words.speaks_of_pipes(task):
        yield from (path for path, one in own.items() if one.type in ("fifo", "socket", "device"))


def _in_the_way(written: Collection[str], own: Mapping[str, Change]) -> Iterator[str]:
    """Yield what stands where the verification writes."""
    # A module is not found where a folder has its name.
    folders = {path.removesuffix(".py") for path in written if path.endswith(".py")}
    places = {*written, *folders}
    yield from (path for path in own if lies_in(path, places)) if places else ()


def _odd(task: Task, own: Mapping[str, Change], before: Mapping[str, Change]) -> Iterator[str]:
    """Yield what has a name that a command may take for an option, if the task does not have it."""
    text = "\n".join([task.query, str(task.verification), str(task.setup), *task.files.values()])
    known = {basename(path) for path in before}
    for path, change in own.items():
        name = basename(path)
        is_new = change.kind == "added" and change.type != "dir" and name not in known
        if is_new and _OPTION.match(name) and name not in text:
            yield path


def _closed(task: Task, own: Mapping[str, Change]) -> list[str]:
    """Return what the agent has made unreadable or not writable, folders first."""
    if words.speaks_of_modes(task):
        return []

    def is_closed(change: Change) -> bool:
        needed = {"file": 0o600, "dir": 0o700}.get(change.type, 0)
        return change.mode & needed != needed

    return sorted(
        path
        for path, one in own.items()
        if is_closed(one) and not _OBJECT.match(path) and not task.expects(path)
    )
