"""The traces of an agent by which a grader's own names would lead elsewhere.

A verification names files: ``sort in > expected; cmp expected out``. The names are its author's,
but what stands there is the agent's. A link to ``/proc/self/cmdline`` has ``grep`` find its own
pattern; one to ``/dev/stdin`` has ``cmp`` compare a file with itself; so has ``expected``, if it is
another name of ``out``, or cannot be written. A variable of the image's may name a file of the
agent's.

So a grader begins with temporary folders in which nothing is the agent's (`temporary_paths`), and
with few variables (`sanitise_command`). All else that may mislead it, `Leftovers`, proves nothing.
But the work must be right without it, too: in a copy in which it is undone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename

from intercode.rewards import instruction_words
from intercode.rewards.aliases import (
    PATHS_PROLOGUE,
    TEMPORARY_FOLDERS,
    Link,
    count_names,
    find_hard_links,
    is_within,
    is_within_any,
    materialise_links,
    resolve_links,
    run_script,
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
_HARMLESS_VARIABLES = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|HOSTNAME|PWD|TZ|LANG|LANGUAGE|LC_[A-Z]+"
)
"""Variables of an image that name nothing to load or to run."""


def variables(sandbox: SandboxBackend) -> dict[str, str]:
    """Return the variables of a grader's own tools: of the image's, those that steer are empty."""
    return {**dict.fromkeys(_steering_variables(sandbox), ""), **ENVIRONMENT}


def sanitise_command(
    sandbox: SandboxBackend, argv: Sequence[str], extra_variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return a program and variables to run it with, so that it finds none of the image's.

    Args:
        sandbox: Where it will run.
        argv: The program and its arguments.
        extra_variables: Its variables beside `ENVIRONMENT`.
    """
    grader_variables = {**ENVIRONMENT, **extra_variables}
    if not _steering_variables(sandbox):
        return [*argv], grader_variables
    retained_variables = {
        name: value for name, value in sandbox.env.items() if _HARMLESS_VARIABLES.fullmatch(name)
    }
    assignments = (
        f"{name}={value}" for name, value in {**retained_variables, **grader_variables}.items()
    )
    return ["env", "-i", *assignments, *argv], variables(sandbox)


def _steering_variables(sandbox: SandboxBackend) -> list[str]:
    return [n for n in sandbox.env if not _HARMLESS_VARIABLES.fullmatch(n) and n not in ENVIRONMENT]


# -- temporary folders -----------------------------------------------------------------------------

_EMPTY_SCRIPT = f"""{PATHS_PROLOGUE}
for path in "${{paths[@]}}"; do
    # a folder may be read before it is entered, also where root has no rights over modes
    [ ! -d "$path" ] || find "$path" -type d ! -perm -700 -exec chmod u+rwx {{}} ';'
done
each rm -rf -- || exit
[ -x /var ] || chmod 755 /var
for folder in {" ".join(TEMPORARY_FOLDERS)}; do
    [ -d $folder ] && [ ! -L $folder ] || {{ rm -f $folder; mkdir $folder; }}
    [ "$(stat -c %a $folder)" = 1777 ] || chmod 1777 $folder
done
"""


def temporary_paths(
    task: Task, sandbox: SandboxBackend, agent_changes: Mapping[str, Change]
) -> set[str]:
    """Return what an agent has left in temporary folders, and those folders if it changed them.

    What the task's words, files or setup name there is left out: the answer may be there.

    Args:
        task: The task.
        sandbox: The sandbox.
        agent_changes: The agent's changes, by path.
    """
    names = instruction_words.temporary_names(task, sandbox)
    return {
        path
        for path in agent_changes
        if is_within_any(path, TEMPORARY_FOLDERS)
        and (path in TEMPORARY_FOLDERS or not instruction_words.is_named(path, names))
    }


def empty_temporary_folders(sandbox: SandboxBackend, paths: Collection[str]) -> bool:
    """Remove what `temporary_paths` has found, and return whether all of it is gone.

    Args:
        sandbox: A sandbox in which no program of the agent's runs.
        paths: What is to go.
    """
    top_paths: list[str] = []
    for path in sorted(paths):
        if path not in TEMPORARY_FOLDERS and not (top_paths and is_within(path, top_paths[-1])):
            top_paths.append(path)
    return (
        not paths or run_script(sandbox, _EMPTY_SCRIPT, top_paths, variables(sandbox)) is not None
    )


# -- what may mislead ------------------------------------------------------------------------------

_OPEN_SCRIPT = f"{PATHS_PROLOGUE}each chmod u+rwX --"
_MOVE_SCRIPT = f"""{PATHS_PROLOGUE}
for ((n = 0; n < ${{#paths[@]}}; n += 2)); do
    path=${{paths[n]}} end=${{paths[n+1]}}
    [ -L "$path" ] && [ -e "$end" ] || continue
    rm -- "$path" && mv -- "$end" "$path" || exit
done
"""
# Not through a pipe: what is not read yet would have lost its other names to what is written.
_REWRITE_SCRIPT = f"""{PATHS_PROLOGUE}
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
    agent_changes: Mapping[str, Change]
    """The agent's changes, by path."""
    env: Mapping[str, str]
    """The variables of the programs that look and undo."""
    restored_paths: set[str]
    """The paths that are put back as they were before the agent came."""
    closed_paths: list[str]
    """The paths that are made readable and writable."""
    links: list[Link]
    """The links that are not asked for."""
    moved_links: dict[str, str]
    """Link → its end: it stands where a file or folder stood, and that is moved back."""
    groups: list[set[str]]
    """The names of each file that has several."""
    objects: list[str]
    """The objects of repositories."""

    @classmethod
    def find(
        cls,
        task: Task,
        sandbox: SandboxBackend,
        agent_changes: Mapping[str, Change],
        changes: Mapping[str, Change],
        setup_changes: Mapping[str, Change],
    ) -> Leftovers:
        """Find the leftovers in a sandbox.

        Args:
            task: The task.
            sandbox: A sandbox in which no program of the agent's runs.
            agent_changes: The agent's changes, by path.
            changes: How the sandbox differs from the image.
            setup_changes: How it did before the agent came.
        """
        env = variables(sandbox)
        present_changes = {
            path: entry for path, entry in agent_changes.items() if entry.kind != "deleted"
        }
        paths = [path for path, entry in present_changes.items() if entry.type == "symlink"]
        links = resolve_links(sandbox, paths, env)
        written_paths = instruction_words.written_paths(task, sandbox)
        candidates = [
            *_special_files(task, present_changes),
            *_obstructing_paths(written_paths, present_changes),
            *_option_like_paths(task, present_changes, setup_changes),
        ]
        suspects = {path for path in candidates if not task.expects(path)}
        suspects.update(paths if links is None else _suspects(task, links, setup_changes))
        unrequested_links = [
            entry for entry in links or () if not instruction_words.is_link_requested(task, entry)
        ]
        files = [path for path, entry in present_changes.items() if entry.type == "file"]
        return cls(
            task,
            agent_changes,
            env,
            suspects,
            _closed_paths(task, present_changes),
            [entry for entry in unrequested_links if not is_within(entry.path, entry.end)],
            {
                entry.path: entry.end
                for entry in unrequested_links
                if _is_replacement(entry.path, agent_changes, setup_changes)
            },
            find_hard_links(sandbox, changes, files, env),
            [
                path
                for path, entry in changes.items()
                if _OBJECT.match(path) and entry.type == "file"
            ],
        )

    def __bool__(self) -> bool:
        """Whether there may be any, so that a copy is needed."""
        return bool(self.certain_paths or self.links or self.groups)

    @property
    def certain_paths(self) -> set[str]:
        """The paths that are undone whatever the verification writes."""
        return {*self.restored_paths, *self.closed_paths, *self.moved_links}

    def find_written_links(
        self, initial_changes: Mapping[str, Change], final_changes: Mapping[str, Change]
    ) -> set[str]:
        """Return the agent's other names of files that a verification has written.

        Args:
            initial_changes: How the sandbox differed from the image when the verification began.
            final_changes: How it does now.
        """
        written_paths = {
            path
            for path in initial_changes.keys() | final_changes.keys()
            if initial_changes.get(path) != final_changes.get(path)
        }
        written_paths = {path for path in written_paths if path not in TEMPORARY_FOLDERS}
        written_links = {
            link.path
            for link in self.links
            if any(is_within(path, link.end) for path in written_paths)
        }
        for names in self.groups if not instruction_words.mentions_links(self.task) else ():
            if names & written_paths:
                written_links |= names & self.agent_changes.keys()
        return written_links - self.restored_paths - self.moved_links.keys()

    def join(self, copy: SandboxBackend) -> None:
        """Make several names of one file that again in a copy, as they were.

        The names of a file of a lower layer part when it is written; and it gets another number
        when it is linked, so that `git clone` takes it for another file. Where a name is as it was
        in the image, and so is not known here, the others are left as they are.
        """
        counts = count_names(copy, [path for names in self.groups for path in names], self.env)
        relinked_paths = sorted(
            p for names in self.groups for p in names if counts.get(p) == len(names)
        )
        if "git" in (self.task.verification or ""):
            relinked_paths += self.objects
        if relinked_paths:
            run_script(copy, _REWRITE_SCRIPT, relinked_paths, self.env)

    def undo(
        self, copy: SandboxBackend, original: SandboxBackend, written_links: Collection[str]
    ) -> bool:
        """Undo in a copy what is not put back, and return whether that was possible.

        Args:
            copy: A copy of the sandbox as the agent left it.
            original: A sandbox as the agent got it.
            written_links: What `find_written_links` has found.
        """
        self.join(copy)
        if (
            self.closed_paths
            and run_script(copy, _OPEN_SCRIPT, self.closed_paths, self.env) is None
        ):
            return False
        paths = [path for path in self.moved_links if path not in self.restored_paths]
        were_links = resolve_links(original, paths, self.env) if paths else []
        original_links = {link.path for link in were_links or () if link.target}
        moved_paths = [
            path
            for link_path in paths
            if link_path not in original_links
            for path in (link_path, self.moved_links[link_path])
        ]
        if moved_paths and run_script(copy, _MOVE_SCRIPT, moved_paths, self.env) is None:
            return False
        return not written_links or materialise_links(copy, written_links, self.env)


def _suspects(
    task: Task, links: Collection[Link], setup_changes: Mapping[str, Change]
) -> Iterator[str]:
    """Yield the links that lead out of the files, to nothing, or to the task's own files.

    Those that are asked for are left out. What `may_change` names may lead to the task's own files.
    """
    text = f"{task.query}\n{task.verification}"
    for link in links:
        path, is_asked_for = link.path, instruction_words.is_link_requested(task, link)
        if link.escapes or not link.has_end:
            if not (is_asked_for and link.target in text):
                yield path
            continue
        to_own = not is_within(path, link.end) and any(
            is_within(setup_path, link.end) for setup_path in setup_changes
        )
        if to_own and not is_asked_for and not task.expects(path):
            yield path


def _is_replacement(
    path: str, agent_changes: Mapping[str, Change], setup_changes: Mapping[str, Change]
) -> bool:
    """Return whether a file or folder stood where a link is now."""
    if path in setup_changes:
        return setup_changes[path].type != "symlink"
    return agent_changes[path].kind == "modified"


def _special_files(task: Task, agent_changes: Mapping[str, Change]) -> Iterator[str]:
    if not instruction_words.mentions_pipes(task):
        yield from (
            path
            for path, change in agent_changes.items()
            if change.type in ("fifo", "socket", "device")
        )


def _obstructing_paths(
    written_paths: Collection[str], agent_changes: Mapping[str, Change]
) -> Iterator[str]:
    """Yield what stands where the verification writes."""
    # A module is not found where a folder has its name.
    folders = {path.removesuffix(".py") for path in written_paths if path.endswith(".py")}
    places = {*written_paths, *folders}
    yield from (path for path in agent_changes if is_within_any(path, places)) if places else ()


def _option_like_paths(
    task: Task, agent_changes: Mapping[str, Change], setup_changes: Mapping[str, Change]
) -> Iterator[str]:
    """Yield what has a name that a command may take for an option, if the task does not have it."""
    text = "\n".join([task.query, str(task.verification), str(task.setup), *task.files.values()])
    setup_names = {basename(path) for path in setup_changes}
    for path, change in agent_changes.items():
        name = basename(path)
        is_new = change.kind == "added" and change.type != "dir" and name not in setup_names
        if is_new and _OPTION.match(name) and name not in text:
            yield path


def _closed_paths(task: Task, agent_changes: Mapping[str, Change]) -> list[str]:
    """Return what the agent has made unreadable or not writable, folders first."""
    if instruction_words.mentions_modes(task):
        return []

    def is_closed(change: Change) -> bool:
        needed_mode = {"file": 0o600, "dir": 0o700}.get(change.type, 0)
        return change.mode & needed_mode != needed_mode

    return sorted(
        path
        for path, agent_change in agent_changes.items()
        if is_closed(agent_change) and not _OBJECT.match(path) and not task.expects(path)
    )
