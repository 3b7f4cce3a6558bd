"""The SWE reward: the tests of the issue must pass, and all other named tests must still pass.

Grading uses a fresh sandbox in which the agent has never been. The sandbox is prepared like the
agent's; then:

1. The test patch is applied to the original repository.
2. The agent's changes in the repository are copied to the fresh sandbox. Changes of tests and their
   configuration, of git's own files, and of files that Python would run unasked are not copied
   (`swe_plan`). Changes outside the repository are not copied either.
3. The named tests run, and report (`swe_run`). Each test that is a command has a separate sandbox,
   so no command can change the tests of the next.
4. Tests of FAIL_TO_PASS that have passed, and that have twins, run again, mixed with their twins:
   changed copies of tests, which must fail (`mutated_tests`).

**1.0**: every test of FAIL_TO_PASS and of PASS_TO_PASS has passed. Otherwise the score is a
product: `MAX_UNSOLVED_VALUE`, the passed share of FAIL_TO_PASS, and the passed share of
PASS_TO_PASS. The score is 0 if a twin has passed.

The tested code necessarily shares its process with its tests, so it can manipulate them. If a test
has no twin, manipulation cannot be detected. A changed file that names functions useful for
manipulation is recorded as ``suspect``.
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
from intercode.rewards.agent_leftovers import variables
from intercode.rewards.file_links import resolve_links
from intercode.rewards.gold import GoldCache
from intercode.rewards.mutated_tests import MutatedTests, detect_tampering, find_twins
from intercode.rewards.swe_names import collect_names, is_cut, resolve_names
from intercode.rewards.swe_plan import APPLY, SweGradingPlan, make_plan
from intercode.rewards.swe_run import SweTestOutcome, check_runner, run
from intercode.task import Task
from intercode_sandbox.base import Change, Completed, SandboxBackend
from intercode_sandbox.script_arguments import SHELL
from intercode_sandbox.units import MIB

MAX_UNSOLVED_VALUE = 0.99
"""The highest value of an episode in which a test fails."""
_QUOTE_LIMIT = 20


class SweReward:
    """The reward that runs a task's tests on the agent's work (see the module's docstring).

    Args:
        start: Starts a sandbox that holds the task's repository.
        plan: Makes the grading plan of a task.
        identify: Returns a key for everything that determines a sandbox of `start`.
        cache: The cache of twins and of tests' full names; None: no cache.
    """

    VERSION = 2
    """The version of the scores: raise the number when any score can differ."""

    def __init__(
        self,
        start: Callable[[Task], SandboxBackend],
        plan: Callable[[Task], SweGradingPlan] = make_plan,
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
            TaskError: The task is malformed, its test patch does not apply, or its image cannot run
                its tests.
            SandboxError: A sandbox died.
        """
        plan = self._plan(task)
        if any(is_cut(name) for name in plan.tests) and plan.runner == "pytest":
            plan = self._resolve_names(task, plan)
        result, transfer = self._run(task, plan, sandbox)
        if transfer.is_too_large:
            return _zero_score("more files were changed than are taken over")
        if result.reason:
            with closing(self._start(task)) as pristine_sandbox:
                check_runner(pristine_sandbox, task, plan)
        passed_tests, twinless_tests = result.passed_tests, frozenset[str]()
        if not passed_tests.isdisjoint(plan.fail_to_pass):
            twins = self._twins(task, plan)
            twinless_tests = frozenset(plan.fail_to_pass) - twins.tests
            start_work = partial(self._start_with_work, task, plan, sandbox)
            draw = random.Random(f"{self._key('twins', task)} {transfer.digest}")
            verdict = detect_tampering(plan, twins, passed_tests, lambda: start_work()[0], draw)
            if verdict.tampered_tests:
                return _zero_score("tests that assert something wrong pass", verdict.tampered_tests)
            passed_tests -= verdict.failed_tests
        fail_to_pass_share = _passed_share(plan.fail_to_pass, passed_tests)
        pass_to_pass_share = _passed_share(plan.pass_to_pass, passed_tests)
        failed_tests = [name for name in plan.tests if name not in passed_tests]
        detail = {
            "failed": failed_tests[:_QUOTE_LIMIT],
            "not_found": sorted(result.missing_tests)[:_QUOTE_LIMIT],
            "left_out": transfer.omitted_paths,
            "suspect": transfer.suspect_paths,
            "without_twin": sorted(twinless_tests)[:_QUOTE_LIMIT],
            "reason": result.reason,
            "output": result.output if failed_tests else "",
        }
        return Score(
            MAX_UNSOLVED_VALUE * fail_to_pass_share * pass_to_pass_share if failed_tests else 1.0,
            {"fail_to_pass": fail_to_pass_share, "pass_to_pass": pass_to_pass_share},
            {name: value for name, value in detail.items() if value},
        )

    def _run(
        self, task: Task, plan: SweGradingPlan, agent_sandbox: SandboxBackend
    ) -> tuple[SweTestOutcome, AgentWorkTransfer]:
        """Run the tests; return their outcomes, and the transfer of the agent's changes."""
        plans = [plan]
        if plan.runner == "command":
            plans = [replace(plan, fail_to_pass=(entry,), pass_to_pass=()) for entry in plan.tests]
        runs: list[SweTestOutcome] = []
        for entry in plans:
            fresh_sandbox, transfer = self._start_with_work(task, plan, agent_sandbox)
            with closing(fresh_sandbox):
                if transfer.is_too_large:
                    return SweTestOutcome(frozenset()), transfer
                runs.append(run(fresh_sandbox, entry))
        if len(runs) == 1:
            return runs[0], transfer
        passed_tests = frozenset[str]().union(*(entry.passed_tests for entry in runs))
        return SweTestOutcome(
            passed_tests, output="\n".join(entry.output for entry in runs if entry.output)
        ), transfer

    def _start_with_work(
        self, task: Task, plan: SweGradingPlan, agent_sandbox: SandboxBackend
    ) -> tuple[SandboxBackend, AgentWorkTransfer]:
        """Start a sandbox with the tests and the agent's work; also return what was transferred."""
        fresh_sandbox = self._start_with_tests(task, plan)
        try:
            return fresh_sandbox, transfer_work(agent_sandbox, fresh_sandbox, plan)
        except BaseException:
            fresh_sandbox.close()
            raise

    def _resolve_names(self, task: Task, plan: SweGradingPlan) -> SweGradingPlan:
        """Return the plan with full names of tests, as pytest lists them in a sandbox with gold."""

        def compute_names() -> list[str]:
            with closing(self._start_with_tests(task, plan, *task.gold[:1])) as fresh_sandbox:
                return collect_names(fresh_sandbox, plan)

        return resolve_names(task, plan, self._cache.get(self._key("names", task), compute_names))

    def _key(self, kind: str, task: Task) -> str:
        """Return the cache key of facts that depend on a task's tests and gold.

        Args:
            kind: The kind of the facts, a part of the key.
            task: The task.
        """
        facts = json.dumps([self._identify(task), task.gold[:1], dict(task.metadata)], default=str)
        return hashlib.blake2b(f"{kind} {facts}".encode(), digest_size=16).hexdigest()

    def _start_with_tests(
        self, task: Task, plan: SweGradingPlan, *extra_patches: str
    ) -> SandboxBackend:
        """Start a sandbox of the task; apply the test patch, and then further patches."""
        fresh_sandbox = self._start(task)
        try:
            _apply_patch(fresh_sandbox, task, plan, "metadata.test_patch", plan.test_patch)
            for patch in extra_patches:
                _apply_patch(fresh_sandbox, task, plan, "gold", patch)
        except BaseException:
            fresh_sandbox.close()
            raise
        return fresh_sandbox

    def _twins(self, task: Task, plan: SweGradingPlan) -> MutatedTests:
        """Return the twins of the task; none if the task has no gold or its tests are commands."""
        if plan.runner == "command" or not task.gold:
            return MutatedTests()

        def compute_twins() -> MutatedTests:
            gold = partial(self._start_with_tests, task, plan, task.gold[0])
            try:
                return find_twins(plan, gold, random.Random(self._key("twins", task)))
            except (TaskError, CausedInsideError):
                # Gold or its tests are faulty. The command `validate` reports this error.
                return MutatedTests()

        return self._cache.get(self._key("twins", task), compute_twins)


def _zero_score(reason: str, tampered_tests: frozenset[str] = frozenset()) -> Score:
    detail: dict[str, object] = {"reason": reason}
    if tampered_tests:
        detail["tampered"] = sorted(tampered_tests)[:_QUOTE_LIMIT]
    return Score(0.0, {"fail_to_pass": 0.0, "pass_to_pass": 0.0}, detail)


def _apply_patch(
    sandbox: SandboxBackend, task: Task, plan: SweGradingPlan, field: str, text: str
) -> None:
    if not text.strip():
        return
    patch = encode(text.rstrip("\n") + "\n")
    result = sandbox.exec(APPLY.split(), stdin=patch, cwd=plan.directory, timeout=60.0)
    if not result.ok:
        message = decode(result.stderr).strip()[-500:] or f"exit code {result.exit_code}"
        raise TaskError(f"task {task.task_id!r}: '{field}' does not apply: {message}")


def _passed_share(names: tuple[str, ...], passed_tests: frozenset[str]) -> float:
    return sum(name in passed_tests for name in names) / len(names) if names else 1.0


# -- the agent's work ------------------------------------------------------------------------------

# The agent's work is copied into a sandbox in which the agent has never been. Only paths in the
# repository that count (`SweGradingPlan.takes`) are copied: files, links, and their modes.
# InterCode reads them without programs of the agent's sandbox, which the agent could have replaced.
# The only exceptions are ``xargs`` and ``readlink``, which can only misreport the targets of links.

MAX_FILES = 20_000
MAX_FILE_BYTES = 64 * MIB
MAX_BYTES = 256 * MIB
_SUSPECT_PATTERN = re.compile(rb"\b(_?pytest|unittest|_getframe|gc\.get_\w+|settrace|setprofile)\b")
_SECONDS = 120.0
_LINK_SCRIPT = """
while IFS= read -rd '' target && IFS= read -rd '' path; do
    ln -sT -- "$target" "$path" && printf '%s\\0' "$path"
done
"""


@dataclass(slots=True)
class AgentWorkTransfer:
    """The outcome of the transfer of an agent's work to a fresh sandbox."""

    omitted_paths: list[str] = field(default_factory=list)
    """The first `_QUOTE_LIMIT` paths that do not count, or could not be copied."""
    is_too_large: bool = False
    """Whether the changes exceed the limits; nothing is copied then."""
    digest: str = ""
    """A digest of the changes that count."""
    suspect_paths: list[str] = field(default_factory=list)
    """Changed modules that name test runners or functions for tracing; few honest fixes do."""

    def record_omission(self, path: str) -> None:
        """Record a path that was not copied."""
        if len(self.omitted_paths) < _QUOTE_LIMIT:
            self.omitted_paths.append(path)


def transfer_work(
    agent_sandbox: SandboxBackend, fresh_sandbox: SandboxBackend, plan: SweGradingPlan
) -> AgentWorkTransfer:
    """Apply the agent's changes of the repository to the repository of a fresh sandbox.

    Args:
        agent_sandbox: The sandbox that the agent left.
        fresh_sandbox: The sandbox to change.
        plan: The plan, which determines the changes that count.

    Raises:
        SandboxError: A sandbox failed.
    """
    transfer = AgentWorkTransfer()
    changes = list(_countable_changes(agent_sandbox.changes(), plan, transfer))
    facts = repr([(change.path, change.kind, change.mode, change.digest) for change in changes])
    transfer.digest = hashlib.blake2b(facts.encode("utf-8", "surrogateescape")).hexdigest()
    size = sum(change.size for change in changes if change.size <= MAX_FILE_BYTES)
    if len(changes) > MAX_FILES or size > MAX_BYTES:
        transfer.is_too_large = True
        return transfer
    folders = [change for change in changes if change.type == "dir" and change.kind != "deleted"]
    other_changes = [
        change for change in changes if change.type != "dir" or change.kind == "deleted"
    ]
    # Paths with new content are removed first, because their type may have changed. Only empty
    # folders are removed, because a folder may hold paths that do not count and must stay.
    _run_command(
        fresh_sandbox,
        ["rm", "-f", "--"],
        [agent_change.path for agent_change in changes if agent_change.content_changed],
    )
    _run_command(
        fresh_sandbox,
        ["rmdir", "--"],
        [
            agent_change.path
            for agent_change in reversed(other_changes)
            if agent_change.content_changed
        ],
    )
    _run_command(
        fresh_sandbox, ["mkdir", "-p", "--"], [agent_change.path for agent_change in folders]
    )
    for change in other_changes:
        if change.kind != "deleted" and change.type == "file" and change.content_changed:
            _carry_file(agent_sandbox, fresh_sandbox, change, transfer)
    # A link is left out: `chmod` would change the file that the link leads to.
    modes = [
        change for change in other_changes if change.type == "file" and not change.content_changed
    ]
    for mode in sorted({change.mode for change in modes}):
        paths = [change.path for change in modes if change.mode == mode]
        _run_command(fresh_sandbox, ["chmod", f"{mode & 0o777:o}", "--"], paths)
    # Links are created last, so no file is written through a link.
    links = [
        agent_change
        for agent_change in other_changes
        if agent_change.type == "symlink"
        and agent_change.kind != "deleted"
        and agent_change.content_changed
    ]
    _carry_links(agent_sandbox, fresh_sandbox, [change.path for change in links], transfer)
    return transfer


def _countable_changes(
    changes: Iterable[Change], plan: SweGradingPlan, transfer: AgentWorkTransfer
) -> Iterable[Change]:
    prefix = f"{plan.directory}/"
    for change in changes:
        if change.path.startswith(prefix):
            if plan.takes(change.path[len(prefix) :]):
                yield change
            elif change.type != "dir" and "/.git/" not in change.path:
                transfer.record_omission(change.path)


def _carry_file(
    agent_sandbox: SandboxBackend,
    fresh_sandbox: SandboxBackend,
    change: Change,
    transfer: AgentWorkTransfer,
) -> None:
    try:
        content = agent_sandbox.read_file(change.path, MAX_FILE_BYTES)
        if (
            change.path.endswith(".py")
            and _SUSPECT_PATTERN.search(content)
            and len(transfer.suspect_paths) < _QUOTE_LIMIT
        ):
            transfer.suspect_paths.append(change.path)
        fresh_sandbox.write_file(change.path, content, change.mode & 0o777)
    except (OSError, OutputLimitError) as error:  # for example, a folder is at the path
        if isinstance(error, SandboxTimeoutError):
            raise
        transfer.record_omission(change.path)


def _carry_links(
    agent_sandbox: SandboxBackend,
    fresh_sandbox: SandboxBackend,
    paths: Sequence[str],
    transfer: AgentWorkTransfer,
) -> None:
    """Create links, except links into volatile folders, where a test could read its own files."""
    if not paths:
        return
    targets: list[bytes] = []
    try:
        readlink_result = _run_on_paths(
            agent_sandbox, ["readlink", "-z", "--"], paths, output_limit=MAX_BYTES
        )
        # Without xargs or readlink, which the agent may have removed, the exit code is not 0.
        targets = readlink_result.stdout.split(b"\0")[:-1] if readlink_result.ok else []
    except OSError as error:
        # No link is created, unless the sandbox itself has failed.
        if isinstance(error, InterCodeError):
            raise
    pairs = b""
    if len(targets) == len(paths):
        target_pairs = zip(targets, map(os.fsencode, paths), strict=True)
        pairs = b"".join(target + b"\0" + path + b"\0" for target, path in target_pairs)
    argv = [*SHELL, _LINK_SCRIPT]
    result = fresh_sandbox.exec(
        argv, stdin=pairs, cwd="/", timeout=_SECONDS, output_limit=MAX_BYTES
    )
    linked_paths = {os.fsdecode(path) for path in result.stdout.split(b"\0")[:-1]}
    links = resolve_links(fresh_sandbox, sorted(linked_paths), variables(fresh_sandbox))
    escapes = linked_paths if links is None else {link.path for link in links if link.escapes}
    _run_command(fresh_sandbox, ["rm", "-f", "--"], sorted(escapes))
    for path in paths:
        if path not in linked_paths - escapes:
            transfer.record_omission(path)


def _run_command(sandbox: SandboxBackend, command: Sequence[str], paths: Sequence[str]) -> None:
    """Run a command on paths. A failure for single paths is ignored."""
    if paths:
        _run_on_paths(sandbox, command, paths)


def _run_on_paths(
    sandbox: SandboxBackend,
    command: Sequence[str],
    paths: Sequence[str],
    output_limit: int | None = None,
) -> Completed:
    stdin_data = b"".join(os.fsencode(path) + b"\0" for path in paths)
    # The command runs in the root, because the agent may have removed the default working
    # directory.
    return sandbox.exec(
        ["xargs", "-0", *command],
        stdin=stdin_data,
        cwd="/",
        timeout=_SECONDS,
        output_limit=output_limit,
    )
