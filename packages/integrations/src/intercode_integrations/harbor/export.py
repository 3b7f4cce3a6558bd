"""Export to Harbor: each task as a folder that judges by itself what an agent has left.

Gold is run once, and its outcome written down as data. The checks are scripts (`checks`) that need
of the image only Bash and the usual tools, or the Python that the task needs, too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from intercode.databases.convert.build import as_sqlite
from intercode.envs.base import InterCodeEnv
from intercode.envs.recipe import Recipe, Start, Writer
from intercode.envs.stage import SandboxStage
from intercode.episode import encode
from intercode.errors import TaskError, UsageError
from intercode.rewards.python_plan import has_tests, make_plan, stdio_cases
from intercode.rewards.sql_run import Grader
from intercode.task import Task
from intercode_integrations.harbor.checks import query
from intercode_integrations.harbor.files import Files
from intercode_integrations.harbor.writer import ANSWER, Judged, check, name_of, write
from intercode_sandbox import Limits
from intercode_sandbox.files import sha256
from intercode_sandbox.images.base import parse

HOST = "host"
_FOLDER = "/data"
_SECONDS = 30.0


class Exporter:
    """Exports the tasks of an environment.

    Args:
        env: The environment.
        out: The folder for the tasks' folders.
        base: The image after ``FROM`` where a task has this machine's programs for one.
    """

    def __init__(self, env: InterCodeEnv[Any], out: Path, base: str = HOST) -> None:
        self._env = env
        self._out = out
        self._base = base
        self._files = Files(env)

    def export(self, task: Task) -> Path:
        """Write a task's folder; return its path.

        Raises:
            UsageError: It exists already.
            TaskError: The task needs what no folder can carry.
            RewardError: Gold could not be run.
        """
        if task.depends_on_clock:
            raise TaskError(
                f"task {task.task_id!r} depends on the clock: its gold runs at each score, and a "
                "folder carries the result of one run"
            )
        folder = self._out / name_of(task)
        recipe = self._recipe(task)
        write(folder, self._env.name, task, recipe, self._judged(task, recipe))
        return folder

    def _recipe(self, task: Task) -> Recipe:
        if isinstance(stage := self._env.stage, SandboxStage):
            own = parse(stage.image(task)).scheme != HOST
            return stage.recipe(task, None if own else self._base)
        writer = Writer(HOST, Start(workdir=_FOLDER), self._base)
        copied = {f"{task.db}.sqlite": _database(self._env, task)}
        return writer.finish(".", copied, None, Limits(), False, None)

    def _judged(self, task: Task, recipe: Recipe) -> Judged:
        name = self._env.name
        if task.verification is not None and not (name == "python" and has_tests(task)):
            return _by_command(self._env, task, recipe)
        if name == "bash":
            return self._files.judged(task)
        if name not in _JUDGED:
            raise TaskError(
                f"task {task.task_id!r} is judged by a reward of its environment's own: give it a "
                "'verification', which a folder can carry"
            )
        return _JUDGED[name](self._env, task, recipe)


def _by_command(env: InterCodeEnv[Any], task: Task, recipe: Recipe) -> Judged:
    solve = _steps(env, task)
    if env.name == "python":
        solve = f"cd {shlex.quote(recipe.workdir)} && python3 - {_quoted(solve)}"
    tests = {
        "test.sh": check("command.sh"),
        "verify.sh": encode(f"{task.verification}\n"),
        "folder": encode(recipe.workdir),
    }
    return Judged(tests, solve)


def _program(env: InterCodeEnv[Any], task: Task, recipe: Recipe) -> Judged:
    facts, cases = task.metadata, stdio_cases(task)
    if facts.get("cases"):
        raise TaskError(f"task {task.task_id!r}: only InterCode's own grader reads its 'cases'")
    imports = () if cases else make_plan(task).imports
    before, setup = (facts.get(name) for name in ("setup_code", "test_setup_code"))
    plan = {
        "before": [before] if before else [],
        "setup": [*([setup] if setup else []), *imports],
        "tests": task.tests,
        "stdio": [dict(case) for case in cases],
        "seconds": task.timeout or _SECONDS,
    }
    tests = {
        "test.sh": check("python.sh"),
        "check.py": check("program.py"),
        "plan.json": json.dumps(plan).encode(),
        "folder": encode(recipe.workdir),
    }
    ask = f"Write the Python source that solves it, and nothing else, to {ANSWER}."
    return Judged(tests, f"cat > {ANSWER} {_quoted(_steps(env, task))}", ask)


def _flag(env: InterCodeEnv[Any], task: Task, recipe: Recipe) -> Judged:
    flags = [sha256("".join(flag.split())) for flag in task.gold]
    tests = {"test.sh": check("flag.sh"), "flags": "".join(f"{f}\n" for f in flags).encode()}
    said = f"printf '%s\\n' {shlex.quote(task.gold[0])} > {ANSWER}"
    ask = f"Write the flag, and nothing else, to {ANSWER}."
    return Judged(tests, f"{_steps(env, task)}\n{said}", ask)


def _statements(env: InterCodeEnv[Any], task: Task, recipe: Recipe) -> Judged:
    stage: Any = env.stage
    grader, source = Grader(stage), stage.source(task)
    golds: list[dict[str, Any]] = []
    for gold in task.gold:
        if grader.facts(task, gold).changes:
            after = grader.change(task, gold, source).gold_state
            golds.append({"tables": {name: query.state_of(t.rows) for name, t in after.items()}})
            continue
        found = grader.gold(task, gold, source)
        rows = found.result.rows
        groups = [(rows, len(rows))]
        if found.groups is not None:
            groups = [(group.rows, group.take) for group in found.groups]
        elif found.ordered:
            groups = [([row], 1) for row in rows]
        plain = [
            {"take": take, "rows": [[query.plain(value) for value in row] for row in some]}
            for some, take in groups
        ]
        golds.append({"columns": len(found.result.columns), "groups": plain})
    tests = {
        "test.sh": check("python.sh"),
        "check.py": check("query.py"),
        "golds.json": json.dumps(golds).encode(),
        "database.sqlite": _database(env, task),
        "folder": encode(recipe.workdir),
    }
    ask = (
        f"The database is {_FOLDER}/{task.db}.sqlite, of SQLite. Write the SQL that solves it, and "
        f"nothing else, to {ANSWER}: it is run on a fresh copy."
    )
    return Judged(tests, f"cat > {ANSWER} {_quoted(task.gold[0])}", ask)


def _database(env: InterCodeEnv[Any], task: Task) -> bytes:
    """Return a task's database as a file of SQLite's."""
    stage: Any = env.stage
    if stage.engine.name != "sqlite":
        raise UsageError(f"only databases of SQLite are exported, not of {stage.engine.name}")
    if task.setup is not None:
        raise TaskError(f"task {task.task_id!r}: its 'setup' runs in a session of its own")
    return as_sqlite(stage.source(task)).read_bytes()


def _repository(env: InterCodeEnv[Any], task: Task, recipe: Recipe) -> Judged:
    stage: Any = env.stage
    plan = stage.plan(task)
    with closing(stage.open(task)) as place:
        told = [
            place.exec(["git", *words], cwd=plan.directory)
            for words in (["rev-parse", "HEAD"], ["ls-files", "-z"])
        ]
    if not all(done.ok for done in told):
        raise TaskError(f"task {task.task_id!r}: {plan.directory} is not a repository of git")
    tracked = [name.decode("utf-8", "surrogateescape") for name in told[1].stdout.split(b"\0")]
    fixed = [path for path in tracked if path and not plan.takes(path)]
    absent = sorted(plan.fixed_paths - {*tracked})
    python, names = shlex.quote(plan.python), shlex.join(plan.tests)
    run = {
        "unittest": f"exec {python} -m unittest {names}\n",
        "pytest": f"exec {python} -m pytest -q {names}\n",
        # Each begins with the same files, as in a sandbox of its own.
        "command": 'kept=$(mktemp -d) && cp -a . "$kept" || exit 1\n'
        + "".join(
            f'bash -c {shlex.quote(name)} && cp -a "$kept/." . || exit 1\n' for name in plan.tests
        ),
    }
    tests = {
        "test.sh": check("repository.sh"),
        "run.sh": encode(run[plan.runner]),
        "test.patch": encode(plan.test_patch and f"{plan.test_patch.rstrip()}\n"),
        "commit": told[0].stdout.strip(),
        "fixed": encode("".join(f"{path}\0" for path in fixed)),
        "absent": encode("".join(f"{path}\0" for path in absent)),
        "folder": encode(plan.directory),
    }
    return Judged(tests, f"cd {shlex.quote(plan.directory)}\n{_steps(env, task)}")


_JUDGED: Mapping[str, Callable[[InterCodeEnv[Any], Task, Recipe], Judged]] = {
    "python": _program,
    "ctf": _flag,
    "sql": _statements,
    "swe": _repository,
}


def _steps(env: InterCodeEnv[Any], task: Task) -> str:
    """Return the actions of a solution, without the submit at its end."""
    if not task.gold:
        return "false  # the task has no solution with it"
    return "\n".join(env.solution(task)[:-1])


def _quoted(text: str) -> str:
    """Return a here-document."""
    end = "END"
    while end in text.split("\n"):
        end += "_"
    return f"<<'{end}'\n{text}\n{end}"
