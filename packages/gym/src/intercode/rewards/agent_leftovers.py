"""Files that an agent leaves and that mislead a verification, and how a copy is freed from them.

A verification names files: ``sort in > expected; cmp expected out``. The names are chosen by the
task's author, but the files are the agent's. A link to ``/proc/self/cmdline`` makes ``grep`` find
its own pattern. A link to ``/dev/stdin`` makes ``cmp`` compare a file with itself. The same holds
if ``expected`` is a hard link to ``out``, or is not writable. A variable of the image may name a
file of the agent.

A verification therefore starts with temporary folders without files of the agent
(`temporary_paths`), and with few environment variables (`sanitise_command`). All other misleading
traces (`AgentLeftovers`) prove no intention. The verification must therefore also succeed in a copy
in which these traces are undone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename

from intercode.rewards import instruction_words
from intercode.rewards.file_links import (
    PATHS_PROLOGUE,
    TEMPORARY_FOLDERS,
    SymbolicLink,
    count_names,
    find_hard_links,
    find_symbolic_links,
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
"""Environment variables of a verification. ``/usr/local``, where agents may add files, comes last.
"""
_HARMLESS_VARIABLES = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|HOSTNAME|PWD|TZ|LANG|LANGUAGE|LC_[A-Z]+"
)
"""Variables of an image whose values name no file that a program loads or runs."""


def variables(sandbox: SandboxBackend) -> dict[str, str]:
    """Return the environment variables of InterCode's own programs in a graded sandbox.

    Variables of the image that could steer a program are set to an empty value.
    """
    return {**dict.fromkeys(_steering_variables(sandbox), ""), **ENVIRONMENT}


def sanitise_command(
    sandbox: SandboxBackend, argv: Sequence[str], extra_variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return a command, and its environment variables, without the image's steering variables.

    A variable that is not known to be harmless counts as a steering variable, such as
    ``LD_PRELOAD``, which could load a file of the agent.

    Args:
        sandbox: The sandbox in which the command runs.
        argv: The command: a program and its arguments.
        extra_variables: The command's variables in addition to `ENVIRONMENT`.
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
    """Return the agent's paths in temporary folders, and the folders that the agent changed.

    Paths that the task's words, files or setup name are excluded: they may hold the answer.

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
    """Remove paths in temporary folders, and restore the folders; return whether that succeeded.

    Args:
        sandbox: A sandbox in which no program of the agent runs.
        paths: The paths to remove: the result of `temporary_paths`.
    """
    top_paths: list[str] = []
    for path in sorted(paths):
        if path not in TEMPORARY_FOLDERS and not (top_paths and is_within(path, top_paths[-1])):
            top_paths.append(path)
    return (
        not paths or run_script(sandbox, _EMPTY_SCRIPT, top_paths, variables(sandbox)) is not None
    )


# -- misleading traces -----------------------------------------------------------------------------

_OPEN_SCRIPT = f"{PATHS_PROLOGUE}each chmod u+rwX --"
_MOVE_SCRIPT = f"""{PATHS_PROLOGUE}
for ((n = 0; n < ${{#paths[@]}}; n += 2)); do
    path=${{paths[n]}} end=${{paths[n+1]}}
    [ -L "$path" ] && [ -e "$end" ] || continue
    rm -- "$path" && mv -- "$end" "$path" || exit
done
"""
# The archive is a file, not a pipe. Extraction replaces files, so a reader at the other end of a
# pipe would find the names of one file separated.
_REWRITE_SCRIPT = f"""{PATHS_PROLOGUE}
kept=$(mktemp) || exit
each printf '%s\\0' | tar -cPf "$kept" --no-recursion --null -T - && tar -xPpf "$kept"
rm "$kept"
"""
_OPTION = re.compile(r"-|[A-Za-z_]\w*=")
"""Names that a program may take for an option, or for the assignment of a variable."""
_OBJECT = re.compile(r".*/objects/(pack/|[0-9a-f]{2}/)")
"""Object files of a git repository, which git itself makes read-only."""


@dataclass(slots=True)
class AgentLeftovers:
    """Traces of an agent that may mislead a verification, and operations that undo them."""

    task: Task
    agent_changes: Mapping[str, Change]
    """The agent's changes, by path."""
    env: Mapping[str, str]
    """The environment variables of the programs that inspect and undo the traces."""
    restored_paths: set[str]
    """The paths that are restored to their state before the agent started."""
    closed_paths: list[str]
    """Files and folders that the agent closed to reads or writes, and that are opened again."""
    links: list[SymbolicLink]
    """The links that the task does not ask for, except links to a folder above themselves."""
    moved_links: dict[str, str]
    """Link → path at its end. The agent put the link in place of a former file or folder.

    The file at the end is moved back to the path of the link.
    """
    groups: list[set[str]]
    """Sets of paths; the paths of a set are hard links to one file."""
    objects: list[str]
    """The object files of git repositories."""

    @classmethod
    def find(
        cls,
        task: Task,
        sandbox: SandboxBackend,
        agent_changes: Mapping[str, Change],
        changes: Mapping[str, Change],
        setup_changes: Mapping[str, Change],
    ) -> AgentLeftovers:
        """Find the traces of the agent in a sandbox.

        Args:
            task: The task.
            sandbox: A sandbox in which no program of the agent runs.
            agent_changes: The agent's changes, by path.
            changes: The differences between the sandbox and the image, by path.
            setup_changes: The same differences before the agent started.
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
        suspect_paths = {path for path in candidates if not task.expects(path)}
        suspect_paths.update(paths if links is None else _suspect_links(task, links, setup_changes))
        unrequested_links = [
            entry for entry in links or () if not instruction_words.is_link_requested(task, entry)
        ]
        files = [path for path, entry in present_changes.items() if entry.type == "file"]
        return cls(
            task,
            agent_changes,
            env,
            suspect_paths,
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
        """Return whether traces may exist, in which case the verification may also need a copy."""
        return bool(self.certain_paths or self.links or self.groups)

    @property
    def certain_paths(self) -> set[str]:
        """The paths that are undone even if the verification writes no file through them."""
        return {*self.restored_paths, *self.closed_paths, *self.moved_links}

    def find_written_links(
        self, changes_before_verification: Mapping[str, Change], final_changes: Mapping[str, Change]
    ) -> set[str]:
        """Return the agent's links and hard links to files that a verification has written.

        Links in `restored_paths` and `moved_links`, which are undone in any case, are omitted.

        Args:
            changes_before_verification: The differences between the sandbox and the image before
                the verification.
            final_changes: The same differences after it.
        """
        written_paths = {
            path
            for path in changes_before_verification.keys() | final_changes.keys()
            if changes_before_verification.get(path) != final_changes.get(path)
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
        """Make the hard links of one file lead to the same file again in a copy.

        In a copy, a write to a file of a lower layer separates the file's names. A link to such a
        file gets another inode, so ``git clone`` takes the link for another file. If one of the
        names is unchanged from the image, `find` does not know that name, and the other names stay
        as they are.
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
        """Undo the traces in a copy, except `restored_paths`; return whether that succeeded.

        Args:
            copy: A copy of the sandbox in the agent's final state.
            original: A sandbox in the task's initial state.
            written_links: The result of `find_written_links`.
        """
        self.join(copy)
        if (
            self.closed_paths
            and run_script(copy, _OPEN_SCRIPT, self.closed_paths, self.env) is None
        ):
            return False
        paths = [path for path in self.moved_links if path not in self.restored_paths]
        original_links = find_symbolic_links(original, paths, self.env)
        if original_links is None:
            return False
        moved_paths = [
            path
            for link_path in paths
            if link_path not in original_links
            for path in (link_path, self.moved_links[link_path])
        ]
        if moved_paths and run_script(copy, _MOVE_SCRIPT, moved_paths, self.env) is None:
            return False
        return not written_links or materialise_links(copy, written_links, self.env)


def _suspect_links(
    task: Task, links: Collection[SymbolicLink], setup_changes: Mapping[str, Change]
) -> Iterator[str]:
    """Yield the links that lead to volatile folders, to no file, or to the task's own files.

    A link that the task requests is excluded if the task's words contain its target, or if the link
    leads to the task's own files. A link whose path `may_change` names may lead to the task's own
    files, too.
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
    """Return whether a link may stand in place of a former file or folder."""
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
    """Yield the agent's paths at, or below, paths that the verification writes."""
    # Python imports a folder rather than a module of the same name.
    folders = {path.removesuffix(".py") for path in written_paths if path.endswith(".py")}
    obstructed_paths = {*written_paths, *folders}
    yield from (
        (path for path in agent_changes if is_within_any(path, obstructed_paths))
        if obstructed_paths
        else ()
    )


def _option_like_paths(
    task: Task, agent_changes: Mapping[str, Change], setup_changes: Mapping[str, Change]
) -> Iterator[str]:
    """Yield new paths whose names look like a command's options, if the task does not name them."""
    text = "\n".join([task.query, str(task.verification), str(task.setup), *task.files.values()])
    setup_names = {basename(path) for path in setup_changes}
    for path, change in agent_changes.items():
        name = basename(path)
        is_new = change.kind == "added" and change.type != "dir" and name not in setup_names
        if is_new and _OPTION.match(name) and name not in text:
            yield path


def _closed_paths(task: Task, agent_changes: Mapping[str, Change]) -> list[str]:
    """Return the paths that the agent has made unreadable or unwritable, parent folders first."""
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
