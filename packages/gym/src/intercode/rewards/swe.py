"""The SWE reward: whether the tests of the issue pass, and all others still.

That is decided in a sandbox where the agent has never been, made like the agent's was:

1. The test patch is applied to the repository as the agent got it.
2. The agent's changes in the repository are taken over, save those that do not count: of tests and
   their configuration, of git's own files, of anything that Python would run unasked
   (`swe_plan`). Changes outside of the repository do not count either.
3. The named tests run, and report (`swe_run`). Where they are commands, each has a sandbox of its
   own: one cannot change the tests of the next.
4. Tests of FAIL_TO_PASS that have passed run again among twins that must fail (`swe_twins`).

**1.0** means that every test of FAIL_TO_PASS and of PASS_TO_PASS has passed. Else the score is
`NOT_SOLVED` times the share of the one times the share of the other; it is 0 if a twin has passed.

Code under test shares its process with its tests, as it must. Where a test has no twin, tampering
cannot be seen; a file that names what tampering would need is recorded as ``suspect``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from intercode.episode import Episode, Score, decode, encode
from intercode.errors import (
    CausedInsideError,
    InterCodeError,
    OutputLimitError,
    SandboxTimeoutError,
    TaskError,
)
from intercode.rewards.aliases import examine
from intercode.rewards.gold import GoldCache
from intercode.rewards.leftovers import variables
from intercode.rewards.swe_names import collect, is_cut, resolved
from intercode.rewards.swe_plan import APPLY, Plan, make_plan
from intercode.rewards.swe_run import Run, check_runner, run
from intercode.rewards.swe_twins import Twins, confront, find
from intercode.task import Task
from intercode_sandbox.base import Change, Completed, SandboxBackend
from intercode_sandbox.scripts import SHELL
from intercode_sandbox.units import MIB

NOT_SOLVED = 0.99
"""The highest value of an episode in which a test fails."""
_SHOWN = 20


class SweReward:
    """Runs a task's tests on the agent's work, as the module's docstring says.

    Args:
        start: Starts a sandbox with the task's repository in it.
        plan: Makes the plan of how a task is graded.
        identify: Names all that such a sandbox depends on.
        cache: The cache of twins; None: they are not kept.
    """

    VERSION = 1
    """Raise it when any score can differ."""

    def __init__(
        self,
        start: Callable[[Task], SandboxBackend],
        plan: Callable[[Task], Plan] = make_plan,
        identify: Callable[[Task], str] = lambda task: task.task_id,
        cache: GoldCache | None = None,
    ) -> None:
        self._start = start
        self._plan = plan
        self._identify = identify
        self._cache = cache or GoldCache(0)

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score of an episode.

        Raises:
            TaskError: The task is malformed, its test patch does not apply, or its image cannot
                run its tests.
            SandboxError: A sandbox died.
        """
        plan = self._plan(task)
        if any(is_cut(name) for name in plan.tests) and plan.runner == "pytest":
            plan = self._named(task, plan)
        result, taken = self._run(task, plan, sandbox)
        if taken.too_much:
            return _nothing("more files were changed than are taken over")
        if result.why:
            with closing(self._start(task)) as pristine:
                check_runner(pristine, task, plan)
        passed, without = result.passed, frozenset[str]()
        if not passed.isdisjoint(plan.fail_to_pass):
            twins = self._twins(task, plan)
            without = frozenset(plan.fail_to_pass) - twins.tests
            work = partial(self._with_work, task, plan, sandbox)
            draw = random.Random(f"{self._key('twins', task)} {taken.digest}")
            verdict = confront(plan, twins, passed, lambda: work()[0], draw)
            if verdict.tampered:
                return _nothing("tests that assert something wrong pass", verdict.tampered)
            passed -= verdict.failed
        failing = _share(plan.fail_to_pass, passed)
        passing = _share(plan.pass_to_pass, passed)
        failed = [name for name in plan.tests if name not in passed]
        detail = {
            "failed": failed[:_SHOWN],
            "not_found": sorted(result.missing)[:_SHOWN],
            "left_out": taken.left_out,
            "suspect": taken.suspect,
            "without_twin": sorted(without)[:_SHOWN],
            "reason": result.why,
            "output": result.output if failed else "",
        }
        return Score(
            NOT_SOLVED * failing * passing if failed else 1.0,
            {"fail_to_pass": failing, "pass_to_pass": passing},
            {name: value for name, value in detail.items() if value},
        )

    def _run(self, task: Task, plan: Plan, agent: SandboxBackend) -> tuple[Run, Taken]:
        """Run the tests; return their outcomes, and the changes that were carried over."""
        plans = [plan]
        if plan.runner == "command":
            plans = [replace(plan, fail_to_pass=(one,), pass_to_pass=()) for one in plan.tests]
        runs: list[Run] = []
        for one in plans:
            fresh, taken = self._with_work(task, plan, agent)
            with closing(fresh):
                if taken.too_much:
                    return Run(frozenset()), taken
                runs.append(run(fresh, one))
        if len(runs) == 1:
            return runs[0], taken
        passed = frozenset[str]().union(*(one.passed for one in runs))
        return Run(passed, output="\n".join(one.output for one in runs if one.output)), taken

    def _with_work(
        self, task: Task, plan: Plan, agent: SandboxBackend
    ) -> tuple[SandboxBackend, Taken]:
        """Start a sandbox with the tests and the agent's work; return also how that went."""
        fresh = self._with_tests(task, plan)
        try:
            return fresh, take_over(agent, fresh, plan)
        except BaseException:
            fresh.close()
            raise

    def _named(self, task: Task, plan: Plan) -> Plan:
        """Return the plan with the full names of tests, if gold shows which there are."""

        def made() -> list[str]:
            with closing(self._with_tests(task, plan, *task.gold[:1])) as fresh:
                return collect(fresh, plan)

        return resolved(task, plan, self._cache.get(self._key("names", task), made))

    def _key(self, kind: str, task: Task) -> str:
        """Name what is made of a task's tests and gold, for the cache."""
        facts = json.dumps([self._identify(task), task.gold[:1], dict(task.metadata)], default=str)
        return hashlib.blake2b(f"{kind} {facts}".encode(), digest_size=16).hexdigest()

    def _with_tests(self, task: Task, plan: Plan, *more: str) -> SandboxBackend:
        """Start a sandbox with the test patch, and others, applied."""
        fresh = self._start(task)
        try:
            _apply(fresh, task, plan, "metadata.test_patch", plan.test_patch)
            for patch in more:
                _apply(fresh, task, plan, "gold", patch)
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _twins(self, task: Task, plan: Plan) -> Twins:
        """Return the twins of the task; none where gold does not show which there are."""
        if plan.runner == "command" or not task.gold:
            return Twins()

        def made() -> Twins:
            gold = partial(self._with_tests, task, plan, task.gold[0])
            try:
                return find(plan, gold, random.Random(self._key("twins", task)))
            except (TaskError, CausedInsideError):  # gold's own trouble, which `validate` reports
                return Twins()

        return self._cache.get(self._key("twins", task), made)


def _nothing(reason: str, tampered: frozenset[str] = frozenset()) -> Score:
    detail: dict[str, object] = {"reason": reason}
    if tampered:
        detail["tampered"] = sorted(tampered)[:_SHOWN]
    return Score(0.0, {"fail_to_pass": 0.0, "pass_to_pass": 0.0}, detail)


def _apply(sandbox: SandboxBackend, task: Task, plan: Plan, field: str, text: str) -> None:
    if not text.strip():
        return
    patch = encode(text.rstrip("\n") + "\n")
    done = sandbox.exec(APPLY.split(), stdin=patch, cwd=plan.directory, timeout=60.0)
    if not done.ok:
        said = decode(done.stderr).strip()[-500:] or f"exit code {done.exit_code}"
        raise TaskError(f"task {task.task_id!r}: '{field}' does not apply: {said}")


def _share(names: tuple[str, ...], passed: frozenset[str]) -> float:
    return sum(name in passed for name in names) / len(names) if names else 1.0


# -- the agent's work ------------------------------------------------------------------------------

# An agent's work is taken over into a sandbox where the agent has never been. Only paths that lie
# in the repository, and count there (`Plan.takes`), are carried: files, links, their modes. They
# are read and written through the sandboxes' own interfaces; no program that the agent left is run
# for that but ``readlink``, once, which can only lie about the agent's own links.

MOST_FILES = 20_000
LARGEST = 64 * MIB
MOST_BYTES = 256 * MIB
_SUSPECT = re.compile(rb"\b(_?pytest|unittest|_getframe|gc\.get_\w+|settrace|setprofile)\b")
_SECONDS = 120.0
_LINK = """
while IFS= read -rd '' target && IFS= read -rd '' path; do
    ln -sT -- "$target" "$path" && printf '%s\\0' "$path"
done
"""


@dataclass(slots=True)
class Taken:
    """The outcome of taking an agent's work over."""

    left_out: list[str] = field(default_factory=list)
    """The first few paths that do not count, or could not be carried."""
    too_much: bool = False
    """Whether more was changed than is carried: then nothing was."""
    digest: str = ""
    """A digest of the changes that count."""
    suspect: list[str] = field(default_factory=list)
    """Modules that name something that runs tests; few fixes have a reason to."""

    def leave(self, path: str) -> None:
        """Remember a path that was not carried."""
        if len(self.left_out) < _SHOWN:
            self.left_out.append(path)


def take_over(agent: SandboxBackend, fresh: SandboxBackend, plan: Plan) -> Taken:
    """Make the changes of one sandbox's repository in another's.

    Raises:
        SandboxError: One of them failed.
    """
    taken = Taken()
    changes = list(_counted(agent.changes(), plan, taken))
    facts = repr([(change.path, change.kind, change.mode, change.digest) for change in changes])
    taken.digest = hashlib.blake2b(facts.encode("utf-8", "surrogateescape")).hexdigest()
    size = sum(change.size for change in changes if change.size <= LARGEST)
    if len(changes) > MOST_FILES or size > MOST_BYTES:
        taken.too_much = True
        return taken
    folders = [change for change in changes if change.type == "dir" and change.kind != "deleted"]
    others = [change for change in changes if change.type != "dir" or change.kind == "deleted"]
    # A path that has another type now must go first. A folder goes only if nothing is left in it:
    # paths that do not count stay, and so do the folders that they are in.
    _each(fresh, ["rm", "-f", "--"], [c.path for c in changes if c.content_changed])
    _each(fresh, ["rmdir", "--"], [c.path for c in reversed(others) if c.content_changed])
    _each(fresh, ["mkdir", "-p", "--"], [c.path for c in folders])
    for change in others:
        if change.kind != "deleted" and change.type == "file" and change.content_changed:
            _carry(agent, fresh, change, taken)
    modes = [change for change in others if not change.content_changed]
    for mode in sorted({change.mode for change in modes if change.type == "file"}):
        paths = [change.path for change in modes if change.mode == mode]
        _each(fresh, ["chmod", f"{mode & 0o777:o}", "--"], paths)
    # Links last: no file is written through one.
    links = [c for c in others if c.type == "symlink" and c.kind != "deleted" and c.content_changed]
    _link(agent, fresh, [change.path for change in links], taken)
    return taken


def _counted(changes: Iterable[Change], plan: Plan, taken: Taken) -> Iterable[Change]:
    prefix = f"{plan.directory}/"
    for change in changes:
        if change.path.startswith(prefix):
            if plan.takes(change.path[len(prefix) :]):
                yield change
            elif change.type != "dir" and "/.git/" not in change.path:
                taken.leave(change.path)


def _carry(agent: SandboxBackend, fresh: SandboxBackend, change: Change, taken: Taken) -> None:
    try:
        data = agent.read_file(change.path, LARGEST)
        if change.path.endswith(".py") and _SUSPECT.search(data) and len(taken.suspect) < _SHOWN:
            taken.suspect.append(change.path)
        fresh.write_file(change.path, data, change.mode & 0o777)
    except (OSError, OutputLimitError) as error:  # or where there is a folder that stays
        if isinstance(error, SandboxTimeoutError):
            raise
        taken.leave(change.path)


def _link(agent: SandboxBackend, fresh: SandboxBackend, paths: Sequence[str], taken: Taken) -> None:
    """Make links, but for those that have a test read what is its own: its input, for instance."""
    if not paths:
        return
    targets: list[bytes] = []
    try:
        read = _on_all(agent, ["readlink", "-z", "--"], paths, output_limit=MOST_BYTES)
        targets = read.stdout.split(b"\0")[:-1] if read.ok else []
    except OSError as error:  # the agent has left no such program
        if isinstance(error, InterCodeError):
            raise
    pairs = b""
    if len(targets) == len(paths):
        known = zip(targets, map(os.fsencode, paths), strict=True)
        pairs = b"".join(target + b"\0" + path + b"\0" for target, path in known)
    argv = [*SHELL, _LINK]
    made = fresh.exec(argv, stdin=pairs, cwd="/", timeout=_SECONDS, output_limit=MOST_BYTES)
    done = {os.fsdecode(path) for path in made.stdout.split(b"\0")[:-1]}
    found = examine(fresh, sorted(done), variables(fresh))
    escapes = done if found is None else {link.path for link in found if link.escapes}
    _each(fresh, ["rm", "-f", "--"], sorted(escapes))
    for path in paths:
        if path not in done - escapes:
            taken.leave(path)


def _each(sandbox: SandboxBackend, command: Sequence[str], paths: Sequence[str]) -> None:
    """Run a command on paths; where it does not apply to one, it does nothing."""
    if paths:
        _on_all(sandbox, command, paths)


def _on_all(
    sandbox: SandboxBackend,
    command: Sequence[str],
    paths: Sequence[str],
    output_limit: int | None = None,
) -> Completed:
    listed = b"".join(os.fsencode(path) + b"\0" for path in paths)
    # In the root: an agent may have removed the folder in which programs start otherwise.
    return sandbox.exec(
        ["xargs", "-0", *command],
        stdin=listed,
        cwd="/",
        timeout=_SECONDS,
        output_limit=output_limit,
    )
