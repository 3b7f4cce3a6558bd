"""The verification reward: a command of the task decides whether the task is solved.

The command must judge the files that the agent *left*, and these files must not steer the command.
The reward therefore proceeds in this order:

1. All processes of the agent are killed, because they could change files during the check, trace
   the command, or wait for it. In a running episode (with a reward in every turn) the processes
   continue. The command then runs in another sandbox, started from a snapshot of the files.
2. Some files decide how *any* command runs: programs, libraries, the loader's configuration
   (`SYSTEM_PATHS`). If the agent changed such a file, no command's result is trustworthy. The score
   is 0, with the paths in its detail. Changes by the task's own setup do not count.
3. The command runs in a new process, not in the agent's shell. Functions, aliases, variables,
   ``BASH_ENV`` and the working directory of that shell do not reach the command. The command gets
   few environment variables. Except for ``PYTHONPATH``, the image's variables that could steer the
   command are removed. No start-up file is read. ``PATH`` is fixed, with the system's directories
   first. ``/usr/local/bin`` is the only directory of ``PATH`` in which the agent may add programs,
   and comes last, so it hides no program of the image. Python's modules are protected in the same
   way (see the end of this module). The limits are those of a fresh sandbox, because no program can
   change the limits of process 1. An agent that has filled the disk gets 0.
4. If the provider supports privacy (`SupportsPrivateExec`), no program that the command starts can
   inspect another program. The expected values, in the command's own text or in the arguments of
   ``grep``, then stay hidden.
5. The agent's files in temporary folders are removed, except those that the task names.
6. The agent may have changed files that may configure a tool, or left links that redirect file
   names (see `agent_leftovers`). The command must then succeed a second time. The second run uses
   a copy in which these files are as before: see `restore_paths`. Honest work also passes in the
   copy.

If the answer of a task is a file of these kinds, the task names the file in `may_change`. The
author of the command is responsible for the files that the command opens. The command should not
run a program of the agent, unless that program is under judgement. The exit code of the command
comes from the kernel, not from the command's output.
"""

from __future__ import annotations

import io
import re
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from intercode.episode import Episode, Score, decode
from intercode.errors import InterCodeError, TaskError
from intercode.rewards import agent_leftovers
from intercode.rewards.agent_leftovers import AgentLeftovers
from intercode.rewards.base import quiesce_sandbox, start_copy
from intercode.rewards.gold import differing_paths
from intercode.task import Task
from intercode_sandbox.base import (
    Change,
    Completed,
    FreeSpace,
    Provider,
    SandboxBackend,
    SupportsFreeSpace,
    SupportsPrivateExec,
)
from intercode_sandbox.network import Network
from intercode_sandbox.script_arguments import script
from intercode_sandbox.units import MIB

SYSTEM_PATHS = re.compile(
    r"/(bin|sbin|lib(32|64|x32)?|usr(?!/local/etc(/|$))|etc/(alternatives|ld\.so\.(cache|preload)|ld-musl-[^/]*|perl"
    r"|python3[^/]*|ssl/openssl\.cnf))(/|$)"
)
"""Files, and directories with all their content, that decide how any command runs."""

OPEN_PATHS = re.compile(r"/usr/(local/(bin|src)|src)(/|$)")
"""Exceptions in `SYSTEM_PATHS`: an agent may add files in these folders.

``PATH`` lists ``/usr/local/bin`` last, so a new program there hides no other program.
"""

_QUOTED_BYTES = 2000
"""The most bytes of the command's output that a score's detail quotes."""
_MAX_QUOTED_PATHS = 20
"""The most paths that a score's detail names."""
_RETRIES = 3
"""The most verifications of a task that run again after they reached the time limit."""
_retry_lock = threading.Lock()
_MIN_FREE_BYTES, _MIN_FREE_FILES = 16 * MIB, 64
"""The bytes and the number of files that a verification must be able to write."""
_DISK_FULL_REASON = (
    "the agent has left no room on the disk: nothing that writes a file could be believed"
)
_TAMPERED_REASON = "these files decide how any command runs, and are not in the task's may_change"
_STEERED_REASON = (
    "it fails with these files as before; if the answer is there, name it in may_change"
)


class CommandReward:
    """The reward that runs a task's verification: 1.0 if the command exits with 0, else 0.0.

    Args:
        provider: The provider that starts a copy of the sandbox of a running episode.
        start: Starts a sandbox with the task's files and setup applied.
        network: The command's network access.
    """

    VERSION = 2
    """The version of the scores: raise the number when any score can differ."""

    def __init__(
        self, provider: Provider, start: Callable[[Task], SandboxBackend], network: Network = False
    ) -> None:
        self._provider = provider
        self._start = start
        self._network = network
        self._changes_by_task: dict[Task, dict[str, Change]] = {}
        self._late_counts: dict[str, int] = {}

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score. A verification that reaches the time limit has not succeeded.

        Raises:
            TaskError: The task has no verification.
            SandboxError: The sandbox died.
        """
        if task.verification is None:
            raise TaskError(f"task {task.task_id!r}: field 'verification' is missing")
        changes: dict[str, Change] = {}

        def record_changes() -> None:
            changes.clear()
            changes.update(_changes_by_path(sandbox))

        try:
            with quiesce_sandbox(
                self._provider, self._network, episode, sandbox, record_changes, private=True
            ) as quiet_sandbox:
                return self._judge(
                    task, quiet_sandbox, changes, is_copy=quiet_sandbox is not sandbox
                )
        except OSError as error:
            if isinstance(error, InterCodeError):
                raise
            # The agent may have replaced the directory in which programs start.
            return _refusal_score(str(error))

    def _judge(
        self, task: Task, sandbox: SandboxBackend, changes: Mapping[str, Change], is_copy: bool
    ) -> Score:
        """Judge the agent's final state, and a copy in which files that could steer are as before.

        Args:
            task: The task.
            sandbox: A sandbox in which no program of the agent runs.
            changes: The differences between the sandbox and the image, by path.
            is_copy: Whether the sandbox is a copy of the agent's.
        """
        setup_changes = self._setup_changes(task)
        home = sandbox.env.get("HOME", "/")
        unexpected_changes, unexpected_setup_changes = (
            _unexpected_changes(task, change_map, home) for change_map in (changes, setup_changes)
        )
        changed_paths = differing_paths(unexpected_changes, unexpected_setup_changes)
        if tampered_paths := _tampered_paths(
            changed_paths, unexpected_changes, unexpected_setup_changes
        ):
            return _refusal_score(_TAMPERED_REASON, tampered_paths)
        agent_changes = {
            path: changes[path]
            for path in differing_paths(changes, setup_changes)
            if path in changes
        }
        scratch = agent_leftovers.temporary_paths(task, sandbox, agent_changes)
        if not agent_leftovers.empty_temporary_folders(sandbox, scratch):
            return _refusal_score(_TAMPERED_REASON, sorted(scratch))
        if not _has_room(sandbox):
            return _refusal_score(_DISK_FULL_REASON)
        agent_changes, changes = (
            {p: change for p, change in change_map.items() if p not in scratch}
            for change_map in (agent_changes, changes)
        )
        traces = AgentLeftovers.find(task, sandbox, agent_changes, changes, setup_changes)
        traces.restored_paths.update(
            path for path in changed_paths - scratch if not SYSTEM_PATHS.match(path)
        )
        with self._start_copy(sandbox) if traces else nullcontext(sandbox) as copy:
            if is_copy:
                traces.join(sandbox)
            result = self._verify(task, sandbox)
            if not result.ok:
                return _make_score(
                    result, {"removed": sorted(scratch)[:_MAX_QUOTED_PATHS]} if scratch else {}
                )
            if not traces:
                return _make_score(result)
            sandbox.kill()
            written_links = traces.find_written_links(changes, _changes_by_path(sandbox))
            reverted_paths = sorted(traces.certain_paths | written_links)
            if not reverted_paths:
                return _make_score(result)
            paths = sorted(traces.restored_paths)
            with closing(self._start(task)) as original:
                if not (
                    traces.undo(copy, original, written_links)
                    and restore_paths(copy, original, paths, changes, setup_changes, traces.env)
                ):
                    return _refusal_score(_TAMPERED_REASON, reverted_paths)
            result = self._verify(task, copy)
            steering_detail = {
                "reason": _STEERED_REASON,
                "as_before": reverted_paths[:_MAX_QUOTED_PATHS],
            }
            return _make_score(result, {} if result.ok else steering_detail)

    def _start_copy(self, sandbox: SandboxBackend) -> AbstractContextManager[SandboxBackend]:
        return start_copy(self._provider, self._network, sandbox.limits, sandbox.snapshot())

    def _setup_changes(self, task: Task) -> dict[str, Change]:
        """Return the changes by the task's files and setup, by path.

        A new sandbox without the agent is started to find them. The agent's sandbox may no longer
        contain these changes, because the agent may have replaced the files.
        """
        if not task.setup and not task.files:
            return {}
        if task not in self._changes_by_task:
            with closing(self._start(task)) as prepared_sandbox:
                self._changes_by_task[task] = _changes_by_path(prepared_sandbox)
        return self._changes_by_task[task]

    def _verify(self, task: Task, sandbox: SandboxBackend) -> Completed:
        """Run the verification; if it reaches the time limit, run it a second time.

        Other programs may have slowed the first run. Second runs of different verifications do not
        overlap. Only `_RETRIES` verifications of a task run again, so many agents whose programs
        never end cost no further time.
        """
        result = self._run(task, sandbox)
        if result.timed_out and (late_count := self._late_counts.get(task.task_id, 0)) < _RETRIES:
            self._late_counts[task.task_id] = late_count + 1
            with _retry_lock:
                result = self._run(task, sandbox)
        return result

    def _run(self, task: Task, sandbox: SandboxBackend) -> Completed:
        assert task.verification is not None
        path = f"{_FOLDER}/{secrets.token_hex(16)}"
        sandbox.write_file(path, _program_archive())
        python_path = ":".join(filter(None, (path, sandbox.env.get("PYTHONPATH"))))
        program = script(task.verification)
        argv, env = agent_leftovers.sanitise_command(
            sandbox, program.argv, {"PYTHONPATH": python_path}
        )
        run = sandbox.exec_private if isinstance(sandbox, SupportsPrivateExec) else sandbox.exec
        seconds = task.verification_timeout or task.timeout
        return run(argv, stdin=program.stdin, env=env, timeout=seconds)


def _changes_by_path(sandbox: SandboxBackend) -> dict[str, Change]:
    return {change.path: change for change in sandbox.changes()}


def _make_score(result: Completed, detail: Mapping[str, Any] | None = None) -> Score:
    value = 1.0 if result.ok else 0.0
    run_detail = {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "output": decode((result.stdout + result.stderr)[-_QUOTED_BYTES:]),
    }
    return Score(value, {"verification": value}, {**(detail or {}), **run_detail})


def _refusal_score(reason: str, tampered_paths: Sequence[str] = ()) -> Score:
    paths = {"tampered": [*tampered_paths[:_MAX_QUOTED_PATHS]]} if tampered_paths else {}
    return Score(0.0, {"verification": 0.0}, {"reason": reason, **paths})


def _has_room(sandbox: SandboxBackend) -> bool:
    """Return whether the command has enough free space to write.

    A tool that fails for want of space is silent, and silence may look like success.
    """
    space = _free_space(sandbox)
    if space is None:
        return True
    has_files = space.files is None or space.files >= _MIN_FREE_FILES
    return has_files and space.bytes >= min(_MIN_FREE_BYTES, sandbox.limits.disk // 16)


def _free_space(sandbox: SandboxBackend) -> FreeSpace | None:
    """Return a sandbox's free space; None if neither the sandbox nor its ``stat`` reports it."""
    if isinstance(sandbox, SupportsFreeSpace):
        return sandbox.free_space()
    env = agent_leftovers.variables(sandbox)
    result = sandbox.exec(["stat", "-f", "-c", "%a %S %c %d", "/"], env=env)
    counts = [int(word) for word in result.stdout.split() if word.isdigit()]
    if not result.ok or len(counts) != 4:
        return None
    blocks, size, files, free_files = counts
    return FreeSpace(blocks * size, free_files if files else None)


def _unexpected_changes(task: Task, changes: Mapping[str, Change], home: str) -> dict[str, Change]:
    """Return the changes of system files and settings that the task does not allow, by path."""
    settings = _setting_paths([*changes.values()], home)
    return {
        path: change
        for path, change in changes.items()
        if (path in settings or SYSTEM_PATHS.match(path)) and not task.expects(path)
    }


def _tampered_paths(
    changed_paths: Collection[str],
    changes: Mapping[str, Change],
    setup_changes: Mapping[str, Change],
) -> list[str]:
    """List the changed system paths after which no command's result is trustworthy.

    Paths in the image's original state, and new programs that hide no other program, are omitted.

    Args:
        changed_paths: The paths at which the next two arguments differ.
        changes: The differences between the sandbox and the image, by path.
        setup_changes: The same differences before the agent started.
    """
    system = [path for path in changed_paths if SYSTEM_PATHS.match(path)]
    # A new program that has the name of a removed program of the setup replaces that program.
    removed_names = {_name(path) for path in system if path not in changes}
    return sorted(
        path
        for path in system
        if path in changes
        and (
            path in setup_changes
            or not _hides_nothing(changes[path])
            or _name(path) in removed_names
        )
    )


def _hides_nothing(change: Change) -> bool:
    return change.kind == "added" and OPEN_PATHS.match(change.path) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


# -- settings of tools -----------------------------------------------------------------------------

# Tools read their configuration files unasked: ``~/.gitconfig``, ``~/.sqliterc``, ``/etc/magic``.
# No list of such files is complete, so this selection is by folder. The folders are ``/etc``, home
# folders (their hidden files), git folders (their settings), and the image's folders in ``/opt``. A
# second run without the agent's settings decides, so work that needs no settings loses nothing.

_FOLDERS = r"/etc|/usr/local/etc|/var/lib/(gems|misc|vim)"
_HOMES = r"/root|/home/[^/]+|/var/lib/[^/]+"
_NO_SETTINGS = r"\w+_history|lesshst|viminfo|wget-hsts|git(ignore|attributes|modules|hub)?"
"""Hidden names from which no tool reads settings in a verification.

These names belong to records of input, and to parts of a repository.
"""
_MARKS = ("HEAD", "refs", "objects")
_REPOSITORY_SETTINGS = r"/(config(\.worktree)?|hooks|info|shallow)(/|$)"
_PROGRAM = re.compile(r"/opt/[^/]+")
_MAX_ARCHIVE_BYTES = 256 * MIB


def _setting_paths(changes: Sequence[Change], home: str) -> set[str]:
    """Return the changed paths that may configure a tool.

    Args:
        changes: All changes.
        home: The home folder of the image's user.
    """
    homes = rf"({_HOMES}|{re.escape(home.rstrip('/'))})"
    settings = re.compile(
        rf"({_FOLDERS})(/|$)|{homes}/\.(?!({_NO_SETTINGS})(/|$))|.*\.git{_REPOSITORY_SETTINGS}"
        rf"|.*/\.git/(modules|worktrees)/.*{_REPOSITORY_SETTINGS}|.*/\.mailmap$",
        re.DOTALL,
    )
    ancestors = {home, *map(str, PurePosixPath(home).parents), "/var", "/var/lib", "/opt"}
    added_paths = {change.path for change in changes if change.kind == "added"}
    folders = re.compile(rf"/home|{homes}")
    repository_pattern = re.compile(_REPOSITORY_SETTINGS)
    # A git folder may have any name: a file .git, or a file commondir in a git folder, can refer to
    # it.
    path_parts = [change.path.rpartition("/") for change in changes]
    heads, refs, objects = (
        {folder for folder, _, name in path_parts if name == marker} for marker in _MARKS
    )
    repositories = heads | refs & objects

    def is_setting(change: Change) -> bool:
        path = change.path
        if settings.match(path):
            return True
        if (program := _PROGRAM.match(path)) and program[0] not in added_paths:
            return True
        if any(path[: m.start()] in repositories for m in repository_pattern.finditer(path)):
            return True
        # A link in place of a home folder or of its parent leads to the settings of another folder.
        return change.type == "symlink" and (
            path in ancestors or folders.fullmatch(path) is not None
        )

    return {change.path for change in changes if is_setting(change)}


def restore_paths(
    copy: SandboxBackend,
    original: SandboxBackend,
    paths: Collection[str],
    changes: Mapping[str, Change],
    setup_changes: Mapping[str, Change],
    env: Mapping[str, str],
) -> bool:
    """Restore paths of a copy to their state in the original; return whether that succeeded.

    Args:
        copy: A copy of the agent's sandbox.
        original: A sandbox in the task's initial state.
        paths: The paths to restore.
        changes: The differences between the copy and the image, by path.
        setup_changes: The differences between the original and the image, by path.
        env: The environment variables of the programs that restore the paths.
    """
    effective_changes = {path: changes.get(path) or setup_changes[path] for path in sorted(paths)}
    folders = [path for path, change in effective_changes.items() if change.type == "dir"]
    original_paths = [
        path for path in effective_changes if _was_there(path, changes, setup_changes)
    ]
    files = {path for path, change in effective_changes.items() if change.type != "dir"}

    def run_program(names: Collection[str], *program: str) -> bool:
        stdin_data = "\0".join(names).encode("utf-8", "surrogateescape")
        return not names or copy.exec(["xargs", "-0", *program, "--"], stdin=stdin_data, env=env).ok

    @cache
    def is_there(folder: str) -> bool:
        return copy.exec(["test", "-e", folder], env=env).ok

    run_program(folders, "chmod", "u+rwx")
    if not run_program(files.difference(original_paths), "rm", "-f"):
        return False
    # This removal fails for Docker's mounts, such as /etc/hosts. Its result is therefore ignored.
    run_program(files.intersection(original_paths), "rm", "-f")
    run_program(folders[::-1], "rmdir")  # folders that hold other files remain
    names: dict[str, None] = {}
    for path in original_paths:
        folder = path.rpartition("/")[0]
        # A path is skipped if its folder neither exists in the copy nor is restored. For example,
        # the agent may have removed a whole repository: no tool then reads its settings.
        if f".{folder}" in names or is_there(folder or "/"):
            names[f".{path}"] = None
    if not names:
        return True
    argv = ["tar", "-C", "/", "-cf", "-", "--no-recursion", "--", *names]
    archive_result = original.exec(argv, env=env, output_limit=_MAX_ARCHIVE_BYTES)
    unpack_argv = ["tar", "-C", "/", "--numeric-owner", "--overwrite", "-xpf", "-"]
    return archive_result.ok and copy.exec(unpack_argv, stdin=archive_result.stdout, env=env).ok


def _was_there(
    path: str, changes: Mapping[str, Change], setup_changes: Mapping[str, Change]
) -> bool:
    return (
        setup_changes[path].kind != "deleted"
        if path in setup_changes
        else changes[path].kind != "added"
    )


# -- Python's modules ------------------------------------------------------------------------------

# A verification may import the agent's modules, but none may replace an installed module. Python
# first searches the program's folder or its working directory: an agent's ``json.py`` would replace
# the standard library's. ``PYTHONSAFEPATH`` excludes that folder, and with it the module that the
# task asks for. A ``sitecustomize`` therefore moves the folder to the end, even if a version before
# 3.11, or the program itself, has put the folder first.
#
# The last position is not enough: ``copy`` tries to import ``org``, and ``subprocess`` ``msvcrt``,
# which do not exist; ``pytest`` loads every registered plug-in. An import statement of a library
# therefore finds libraries only, and so does a search for installed distributions.
#
# The module lies in an archive under a random name, which no program of the agent can predict.

_FOLDER = "/dev/shm"
_SITECUSTOMIZE = """\
import os, sys

try:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from opcode import opmap
except ImportError:
    PathFinder = None  # Python 2

given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
places = [place for place in sys.path if place not in given]
libraries = ("<frozen ",) + tuple(os.path.join(place, "") for place in places)


def asked_by_a_library():
    frame = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "").startswith("importlib._bootstrap"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_code[frame.f_lasti] != IMPORT_NAME:
        return False  # by name, as unittest does with tests
    return frame.f_code.co_filename.startswith(libraries)


class PlacesFirst:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is not None:
            return None
        spec = PathFinder.find_spec(name, places)
        if spec is None and asked_by_a_library():
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
        if spec is not None and spec.loader is None:  # a namespace, which has no place of its own
            other = PathFinder.find_spec(name)
            more = list(other.submodule_search_locations or ()) if other else []
            mine = list(spec.submodule_search_locations)
            spec.submodule_search_locations = mine + [one for one in more if one not in mine]
        return spec


def of_libraries(*context):
    found = list(all_distributions(*context))
    if context and "path" in vars(context[0]):
        return found
    return [one for one in found if os.path.join(one.locate_file(""), "").startswith(libraries)]


if PathFinder:
    all_distributions = getattr(PathFinder, "find_distributions", list)
    PathFinder.find_distributions = of_libraries
    IMPORT_NAME = opmap["IMPORT_NAME"]
    if getattr(sys.flags, "safe_path", False):  # from Python 3.11, it has not been put in front
        begun = sys.argv[0]
        here = begun in ("", "-", "-c", "-m")
        sys.path.append("" if here else os.path.dirname(os.path.realpath(begun)))
    sys.meta_path.insert(sys.meta_path.index(PathFinder), PlacesFirst)
    next_one = PathFinder.find_spec(__name__, places)
    if next_one and next_one.loader:
        next_one.loader.exec_module(module_from_spec(next_one))
"""


@cache
def _program_archive() -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("sitecustomize.py", _SITECUSTOMIZE)
    return buffer.getvalue()
