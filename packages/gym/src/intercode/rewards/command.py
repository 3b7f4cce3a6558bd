"""The verification reward: a command that the task names decides whether it is solved.

It must judge the files that the agent *left*, and must not be steered by them. So, in this order:

1. All programs of the agent are killed: they could flip files while these are looked at, trace
   the command, or wait for it. An episode that still goes on (a reward in every turn) keeps
   its processes: the command then runs in another sandbox, begun from a snapshot of the files.
2. If the agent changed a file that decides how *any* command runs (programs, libraries, the
   loader's configuration: `SYSTEM_PATHS`), no command's word is worth anything, and the score is
   0 with the paths in its detail. Changes of the task's own setup do not count.
3. The command runs in a new process with few variables, and none of the image's that could steer
   it, not in the agent's shell: functions, aliases, variables, ``BASH_ENV`` and the working
   directory do not reach it. No start-up file is read. ``PATH`` is fixed, with the image's own
   directories first, so that nothing in ``/usr/local/bin``, the one place for programs that may be
   written, hides a program of the image. So it is with Python's modules (see the end).
   Limits are a fresh sandbox's: no program can change those of process 1, and an agent that has
   filled the disk gets 0.
4. No program that it starts can look at another one, for what this compares with: neither at the
   command's own text nor at the arguments of ``grep`` (`SupportsPrivacy`).
5. What the agent has left in temporary folders is removed, but for what the task names there.
6. If the agent changed files that may configure a tool, or left links that lead elsewhere (see
   `leftovers`), the command must succeed a second time, in a copy in which these are as before: see
   `put_back`. Honest work passes there as well.

A task whose answer is such a file names it in `may_change`. The files that the command itself opens
are its author's matter: it should not run a program of the agent's unless that program is being
judged. Its exit code comes from the kernel, not from its output.
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
from intercode.rewards import leftovers
from intercode.rewards.base import copied, quiesced
from intercode.rewards.gold import differing
from intercode.rewards.leftovers import Leftovers
from intercode.task import Task
from intercode_sandbox.base import (
    Change,
    Completed,
    FreeSpace,
    Provider,
    SandboxBackend,
    SupportsFreeSpace,
    SupportsPrivacy,
)
from intercode_sandbox.network import Network
from intercode_sandbox.scripts import script
from intercode_sandbox.units import MIB

SYSTEM_PATHS = re.compile(
    r"/(bin|sbin|lib(32|64|x32)?|usr(?!/local/etc(/|$))|etc/(alternatives|ld\.so\.(cache|preload)|ld-musl-[^/]*|perl"
    r"|python3[^/]*|ssl/openssl\.cnf))(/|$)"
)
"""Files, and directories with all their content, that decide how any command runs."""

OPEN_PATHS = re.compile(r"/usr/(local/(bin|src)|src)(/|$)")
"""Exceptions to them, for new files: a program there is found only if no other has its name."""

_OUTPUT = 2000
"""Bytes of the command's output that a score's detail quotes."""
_PATHS = 20
"""The number of paths that a score's detail names."""
_RETRIES = 3
"""Verifications of a task that are tried once more when they are late."""
_alone = threading.Lock()
_ROOM, _FILES = 16 * MIB, 64
"""The bytes and the number of files that a verification must be able to write."""
_NO_ROOM = "the agent has left no room on the disk: nothing that writes a file could be believed"
_TAMPERED = "these files decide how any command runs, and are not in the task's may_change"
_STEERED = "it fails with these files as before; if the answer is there, name it in may_change"


class CommandReward:
    """Runs a task's verification: 1.0 if it exits with 0, else 0.0.

    Args:
        provider: Starts the sandbox for an episode that still goes on.
        start: Starts a sandbox in which the task's files and setup are done.
        network: Whether the command may use the network.
    """

    VERSION = 1
    """Raise it when any score can differ."""

    def __init__(
        self, provider: Provider, start: Callable[[Task], SandboxBackend], network: Network = False
    ) -> None:
        self._provider = provider
        self._start = start
        self._network = network
        self._prepared: dict[Task, dict[str, Change]] = {}
        self._late: dict[str, int] = {}

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score. A verification that runs into the time limit has not succeeded.

        Raises:
            TaskError: The task has no verification.
            SandboxError: The sandbox died.
        """
        if task.verification is None:
            raise TaskError(f"task {task.task_id!r}: field 'verification' is missing")
        left: dict[str, Change] = {}

        def look() -> None:
            left.clear()
            left.update(_by_path(sandbox))

        try:
            with quiesced(
                self._provider, self._network, episode, sandbox, look, private=True
            ) as quiet:
                return self._judge(task, quiet, left, is_copy=quiet is not sandbox)
        except OSError as error:
            if isinstance(error, InterCodeError):
                raise
            # In the place of the directory where everything starts is now something else.
            return _refused(str(error))

    def _judge(
        self, task: Task, sandbox: SandboxBackend, left: Mapping[str, Change], is_copy: bool
    ) -> Score:
        """Judge the sandbox as the agent left it, and a copy without what could steer a judge.

        Args:
            task: The task.
            sandbox: A sandbox in which no program of the agent's runs.
            left: Its differences to the image.
            is_copy: Whether it is a copy of the agent's sandbox.
        """
        before = self._before(task)
        home = sandbox.env.get("HOME", "/")
        unexpected, known = (_unexpected(task, each, home) for each in (left, before))
        changed = differing(unexpected, known)
        if tampered := _tampered(changed, unexpected, known):
            return _refused(_TAMPERED, tampered)
        own = {path: left[path] for path in differing(left, before) if path in left}
        scratch = leftovers.temporary(task, sandbox, own)
        if not leftovers.empty_temporary(sandbox, scratch):
            return _refused(_TAMPERED, sorted(scratch))
        if not _has_room(sandbox):
            return _refused(_NO_ROOM)
        own, left = (
            {p: one for p, one in each.items() if p not in scratch} for each in (own, left)
        )
        found = Leftovers.of(task, sandbox, own, left, before)
        found.as_before.update(path for path in changed - scratch if not SYSTEM_PATHS.match(path))
        with self._copied(sandbox) if found else nullcontext(sandbox) as copy:
            if is_copy:
                found.join(sandbox)
            done = self._verify(task, sandbox)
            if not done.ok:
                return _score(done, {"removed": sorted(scratch)[:_PATHS]} if scratch else {})
            if not found:
                return _score(done)
            sandbox.kill()
            through = found.written_through(left, _by_path(sandbox))
            undone = sorted(found.certain | through)
            if not undone:
                return _score(done)
            paths = sorted(found.as_before)
            with closing(self._start(task)) as original:
                if not (
                    found.undo(copy, original, through)
                    and put_back(copy, original, paths, left, before, found.env)
                ):
                    return _refused(_TAMPERED, undone)
            done = self._verify(task, copy)
            steered = {"reason": _STEERED, "as_before": undone[:_PATHS]}
            return _score(done, {} if done.ok else steered)

    def _copied(self, sandbox: SandboxBackend) -> AbstractContextManager[SandboxBackend]:
        return copied(self._provider, self._network, sandbox.limits, sandbox.snapshot())

    def _before(self, task: Task) -> dict[str, Change]:
        """Return the changes by the task's files and setup.

        Needed also where the agent has none of it left: it may have put something in its place.
        """
        if not task.setup and not task.files:
            return {}
        if task not in self._prepared:
            with closing(self._start(task)) as prepared:
                self._prepared[task] = _by_path(prepared)
        return self._prepared[task]

    def _verify(self, task: Task, sandbox: SandboxBackend) -> Completed:
        """Run the verification; where it is late, once more, with no other such one beside it.

        But not for each of many agents whose programs never end.
        """
        done = self._run(task, sandbox)
        if done.timed_out and (late := self._late.get(task.task_id, 0)) < _RETRIES:
            self._late[task.task_id] = late + 1
            with _alone:
                done = self._run(task, sandbox)
        return done

    def _run(self, task: Task, sandbox: SandboxBackend) -> Completed:
        assert task.verification is not None
        path = f"{_FOLDER}/{secrets.token_hex(16)}"
        sandbox.write_file(path, _archive())
        places = ":".join(filter(None, (path, sandbox.env.get("PYTHONPATH"))))
        program = script(task.verification)
        argv, env = leftovers.cleanly(sandbox, program.argv, {"PYTHONPATH": places})
        run = sandbox.exec_private if isinstance(sandbox, SupportsPrivacy) else sandbox.exec
        seconds = task.verification_timeout or task.timeout
        return run(argv, stdin=program.stdin, env=env, timeout=seconds)


def _by_path(sandbox: SandboxBackend) -> dict[str, Change]:
    return {change.path: change for change in sandbox.changes()}


def _score(done: Completed, detail: Mapping[str, Any] | None = None) -> Score:
    value = 1.0 if done.ok else 0.0
    ran = {
        "exit_code": done.exit_code,
        "timed_out": done.timed_out,
        "output": decode((done.stdout + done.stderr)[-_OUTPUT:]),
    }
    return Score(value, {"verification": value}, {**(detail or {}), **ran})


def _refused(reason: str, tampered: Sequence[str] = ()) -> Score:
    paths = {"tampered": [*tampered[:_PATHS]]} if tampered else {}
    return Score(0.0, {"verification": 0.0}, {"reason": reason, **paths})


def _has_room(sandbox: SandboxBackend) -> bool:
    """Return whether the command can write: else it would judge the little that it could.

    Every tool that fails for want of room is silent, and silence may be a good sign.
    """
    space = _free_space(sandbox)
    if space is None:
        return True
    has_files = space.files is None or space.files >= _FILES
    return has_files and space.bytes >= min(_ROOM, sandbox.limits.disk // 16)


def _free_space(sandbox: SandboxBackend) -> FreeSpace | None:
    """Return a sandbox's free space; None if neither the sandbox nor the image can measure it."""
    if isinstance(sandbox, SupportsFreeSpace):
        return sandbox.free_space()
    env = leftovers.variables(sandbox)
    done = sandbox.exec(["stat", "-f", "-c", "%a %S %c %d", "/"], env=env)
    numbers = [int(word) for word in done.stdout.split() if word.isdigit()]
    if not done.ok or len(numbers) != 4:
        return None
    blocks, size, files, free = numbers
    return FreeSpace(blocks * size, free if files else None)


def _unexpected(task: Task, changes: Mapping[str, Change], home: str) -> dict[str, Change]:
    """Map path to change, of system files and settings that were not expected to change."""
    settings = _settings_of([*changes.values()], home)
    return {
        path: change
        for path, change in changes.items()
        if (path in settings or SYSTEM_PATHS.match(path)) and not task.expects(path)
    }


def _tampered(
    changed: Collection[str], found: Mapping[str, Change], before: Mapping[str, Change]
) -> list[str]:
    """List the system paths that the agent changed. A path that is as in the image is allowed.

    Args:
        changed: The paths at which the next two differ.
        found: How the sandbox differs from the image.
        before: How it differed from it before the agent came.
    """
    system = [path for path in changed if SYSTEM_PATHS.match(path)]
    # Where a program of the setup's is gone, a new one of its name is found in its place.
    undone = {_name(path) for path in system if path not in found}
    return sorted(
        path
        for path in system
        if path in found
        and (path in before or not _hides_nothing(found[path]) or _name(path) in undone)
    )


def _hides_nothing(change: Change) -> bool:
    return change.kind == "added" and OPEN_PATHS.match(change.path) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


# -- settings of tools -----------------------------------------------------------------------------

# Tools read the files that configure them unasked: ``~/.gitconfig``, ``~/.sqliterc``,
# ``/etc/magic``. No list of them is complete, so this one is by place: ``/etc``, the hidden files
# of home folders, the settings of a repository, the folders that an image has in ``/opt``. An
# agent's work is not judged by its settings if it is right without them, too.

_FOLDERS = r"/etc|/usr/local/etc|/var/lib/(gems|misc|vim)"
_HOMES = r"/root|/home/[^/]+|/var/lib/[^/]+"
_NO_SETTINGS = r"\w+_history|lesshst|viminfo|wget-hsts|git(ignore|attributes|modules|hub)?"
"""Hidden names that no tool takes settings from when a verification runs it: records of input, and
parts of a repository."""
_MARKS = ("HEAD", "refs", "objects")
_OF_A_REPOSITORY = r"/(config(\.worktree)?|hooks|info|shallow)(/|$)"
_PROGRAM = re.compile(r"/opt/[^/]+")
_MOST = 256 * MIB


def _settings_of(changes: Sequence[Change], home: str) -> set[str]:
    """Choose the changed paths that may configure a tool.

    Args:
        changes: All.
        home: The home folder of the image's user.
    """
    homes = rf"({_HOMES}|{re.escape(home.rstrip('/'))})"
    settings = re.compile(
        rf"({_FOLDERS})(/|$)|{homes}/\.(?!({_NO_SETTINGS})(/|$))|.*\.git{_OF_A_REPOSITORY}"
        rf"|.*/\.git/(modules|worktrees)/.*{_OF_A_REPOSITORY}|.*/\.mailmap$",
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
    copy: SandboxBackend,
    original: SandboxBackend,
    paths: Collection[str],
    found: Mapping[str, Change],
    before: Mapping[str, Change],
    env: Mapping[str, str],
) -> bool:
    """Make these paths of a copy as they are in the original; return whether that was possible.

    Args:
        copy: A copy of the agent's sandbox.
        original: A sandbox as the agent got it.
        paths: Those at which the two differ.
        found: By path, how the copy differs from the image.
        before: By path, how the original differs from it.
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


# -- Python's modules ------------------------------------------------------------------------------

# A verification finds the agent's modules, but none in the place of another. Python looks first
# where a program lies, or where it was started: an agent's ``json.py`` would be taken for the
# standard library's. ``PYTHONSAFEPATH`` leaves that folder out, and with it the module that the
# agent was asked for. So Python is given a ``sitecustomize`` that puts the folder last, also where
# a version before 3.11, or the program itself, has put it first.
#
# To be last is not enough: ``copy`` tries to import ``org``, and ``subprocess`` ``msvcrt``, which
# do not exist; ``pytest`` loads every plug-in that says so. An import statement of a library's
# therefore finds libraries only, and so does a search for installed distributions.
#
# The module lies in an archive, under a name that could not be known before.

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
def _archive() -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("sitecustomize.py", _SITECUSTOMIZE)
    return buffer.getvalue()
