"""The export of InterCode tasks as task folders for Harbor.

The scripts of a folder score an agent's final state. If the score compares this state with gold's
outcome, the exporter runs gold once, and stores the outcome as data. The scripts (`checks`) need
only Bash and the common tools of the image, or the Python that the task needs anyway.
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
from intercode.envs.dockerfile_export import (
    ImageStartSettings,
    WorkspaceRecipe,
    WorkspaceRecipeWriter,
)
from intercode.envs.stage import SandboxStage
from intercode.episode import encode
from intercode.errors import TaskError, UsageError
from intercode.rewards.python_plan import has_tests, make_plan, stdio_cases
from intercode.rewards.sql_run import SqlGrader
from intercode.task import Task
from intercode_integrations.harbor.checks import query
from intercode_integrations.harbor.file_checks import FileCheckFactory
from intercode_integrations.harbor.writer import (
    ANSWER,
    TaskCheckFiles,
    folder_name,
    read_check,
    write,
)
from intercode_sandbox import Limits
from intercode_sandbox.host_files import sha256
from intercode_sandbox.images.base import parse

HOST = "host"
_FOLDER = "/data"
_SECONDS = 30.0


class HarborExporter:
    """An exporter that writes an environment's tasks as Harbor's task folders.

    Args:
        env: The environment.
        output_folder: The folder in which each task gets a folder.
        base: The image for the line ``FROM``, for tasks whose image consists of this machine's own
            programs.
    """

    def __init__(self, env: InterCodeEnv[Any], output_folder: Path, base: str = HOST) -> None:
        self._env = env
        self._output_folder = output_folder
        self._base = base
        self._files = FileCheckFactory(env)

    def export(self, task: Task) -> Path:
        """Write a task's folder, and return its path.

        Raises:
            UsageError: The folder already exists.
            TaskError: The task has a property that a task folder cannot express.
            RewardError: Gold could not be run.
        """
        if task.depends_on_clock:
            raise TaskError(
                f"task {task.task_id!r} depends on the clock: its gold must run at each score, "
                "but a folder contains the result of a single run"
            )
        folder = self._output_folder / folder_name(task)
        recipe = self._recipe(task)
        write(folder, self._env.name, task, recipe, self._make_checks(task, recipe))
        return folder

    def _recipe(self, task: Task) -> WorkspaceRecipe:
        if isinstance(stage := self._env.stage, SandboxStage):
            has_own_image = parse(stage.image(task)).scheme != HOST
            return stage.recipe(task, None if has_own_image else self._base)
        writer = WorkspaceRecipeWriter(HOST, ImageStartSettings(workdir=_FOLDER), self._base)
        database_files = {f"{task.db}.sqlite": _database(self._env, task)}
        return writer.finish(".", database_files, None, Limits(), False, None)

    def _make_checks(self, task: Task, recipe: WorkspaceRecipe) -> TaskCheckFiles:
        env_name = self._env.name
        if task.verification is not None and not (env_name == "python" and has_tests(task)):
            return _command_checks(self._env, task, recipe)
        if env_name == "bash":
            return self._files.make_checks(task)
        if env_name not in _CHECK_MAKERS:
            raise TaskError(
                f"task {task.task_id!r} is scored by its environment's own reward: give it a "
                "'verification', which a folder can contain"
            )
        return _CHECK_MAKERS[env_name](self._env, task, recipe)


def _command_checks(env: InterCodeEnv[Any], task: Task, recipe: WorkspaceRecipe) -> TaskCheckFiles:
    solution_script = _steps(env, task)
    if env.name == "python":
        solution_script = (
            f"cd {shlex.quote(recipe.workdir)} && python3 - {_here_document(solution_script)}"
        )
    test_files = {
        "test.sh": read_check("command.sh"),
        "verify.sh": encode(f"{task.verification}\n"),
        "folder": encode(recipe.workdir),
    }
    return TaskCheckFiles(test_files, solution_script)


def _program_checks(env: InterCodeEnv[Any], task: Task, recipe: WorkspaceRecipe) -> TaskCheckFiles:
    metadata, cases = task.metadata, stdio_cases(task)
    if metadata.get("cases"):
        raise TaskError(f"task {task.task_id!r}: only InterCode's own grader reads its 'cases'")
    imports = () if cases else make_plan(task).imports
    setup_code, test_setup = (metadata.get(name) for name in ("setup_code", "test_setup_code"))
    check_plan = {
        "before": [setup_code] if setup_code else [],
        "setup": [*([test_setup] if test_setup else []), *imports],
        "tests": task.tests,
        "stdio": [dict(case) for case in cases],
        "seconds": task.timeout or _SECONDS,
    }
    test_files = {
        "test.sh": read_check("python.sh"),
        "check.py": read_check("program.py"),
        "plan.json": json.dumps(check_plan).encode(),
        "folder": encode(recipe.workdir),
    }
    prompt = f"Write the Python source that solves it, and nothing else, to {ANSWER}."
    return TaskCheckFiles(test_files, f"cat > {ANSWER} {_here_document(_steps(env, task))}", prompt)


def _flag_checks(env: InterCodeEnv[Any], task: Task, recipe: WorkspaceRecipe) -> TaskCheckFiles:
    flag_hashes = [sha256("".join(flag.split())) for flag in task.gold]
    test_files = {
        "test.sh": read_check("flag.sh"),
        "flags": "".join(f"{flag_hash}\n" for flag_hash in flag_hashes).encode(),
    }
    answer_command = f"printf '%s\\n' {shlex.quote(task.gold[0])} > {ANSWER}"
    prompt = f"Write the flag, and nothing else, to {ANSWER}."
    return TaskCheckFiles(test_files, f"{_steps(env, task)}\n{answer_command}", prompt)


def _query_checks(env: InterCodeEnv[Any], task: Task, recipe: WorkspaceRecipe) -> TaskCheckFiles:
    stage: Any = env.stage
    grader, database_source = SqlGrader(stage), stage.source(task)
    golds: list[dict[str, Any]] = []
    for gold in task.gold:
        if grader.facts(task, gold).changes:
            changed_tables = grader.change(task, gold, database_source).gold_state
            golds.append(
                {
                    "tables": {
                        name: query.hash_rows(table.rows) for name, table in changed_tables.items()
                    }
                }
            )
            continue
        gold_result = grader.gold(task, gold, database_source)
        gold_rows = gold_result.result.rows
        tie_groups = [(gold_rows, len(gold_rows))]
        if gold_result.groups is not None:
            tie_groups = [(group.rows, group.take) for group in gold_result.groups]
        elif gold_result.ordered:
            tie_groups = [([row], 1) for row in gold_rows]
        row_groups = [
            {
                "take": row_count,
                "rows": [[query.to_json_value(value) for value in row] for row in group_rows],
            }
            for group_rows, row_count in tie_groups
        ]
        golds.append({"columns": len(gold_result.result.columns), "groups": row_groups})
    test_files = {
        "test.sh": read_check("python.sh"),
        "check.py": read_check("query.py"),
        "golds.json": json.dumps(golds).encode(),
        "database.sqlite": _database(env, task),
        "folder": encode(recipe.workdir),
    }
    prompt = (
        f"The database is {_FOLDER}/{task.db}.sqlite, of SQLite. Write the SQL that solves it, and "
        f"nothing else, to {ANSWER}: it is run on a fresh copy."
    )
    return TaskCheckFiles(test_files, f"cat > {ANSWER} {_here_document(task.gold[0])}", prompt)


def _database(env: InterCodeEnv[Any], task: Task) -> bytes:
    """Return the database of a task as the bytes of an SQLite file.

    Raises:
        UsageError: The engine is not SQLite.
        TaskError: The task has a setup, which no database file can express.
    """
    stage: Any = env.stage
    if stage.engine.name != "sqlite":
        raise UsageError(f"only databases of SQLite are exported, not of {stage.engine.name}")
    if task.setup is not None:
        raise TaskError(f"task {task.task_id!r}: its 'setup' runs in a separate session")
    return as_sqlite(stage.source(task)).read_bytes()


def _repository_checks(
    env: InterCodeEnv[Any], task: Task, recipe: WorkspaceRecipe
) -> TaskCheckFiles:
    stage: Any = env.stage
    plan = stage.plan(task)
    with closing(stage.open(task)) as workspace:
        git_results = [
            workspace.exec(["git", *git_arguments], cwd=plan.directory)
            for git_arguments in (["rev-parse", "HEAD"], ["ls-files", "-z"])
        ]
    if not all(result.ok for result in git_results):
        raise TaskError(f"task {task.task_id!r}: {plan.directory} is not a repository of git")
    tracked_paths = [
        name.decode("utf-8", "surrogateescape") for name in git_results[1].stdout.split(b"\0")
    ]
    fixed_paths = [path for path in tracked_paths if path and not plan.takes(path)]
    absent_paths = sorted(plan.fixed_paths - {*tracked_paths})
    python_command, test_arguments = shlex.quote(plan.python), shlex.join(plan.tests)
    run_scripts = {
        "unittest": f"exec {python_command} -m unittest {test_arguments}\n",
        "pytest": f"exec {python_command} -m pytest -q {test_arguments}\n",
        # The files are restored after each command, because InterCode runs each command in its
        # own sandbox.
        "command": 'kept=$(mktemp -d) && cp -a . "$kept" || exit 1\n'
        + "".join(
            f'bash -c {shlex.quote(name)} && cp -a "$kept/." . || exit 1\n' for name in plan.tests
        ),
    }
    test_files = {
        "test.sh": read_check("repository.sh"),
        "run.sh": encode(run_scripts[plan.runner]),
        "test.patch": encode(plan.test_patch and f"{plan.test_patch.rstrip()}\n"),
        "commit": git_results[0].stdout.strip(),
        "fixed": encode("".join(f"{path}\0" for path in fixed_paths)),
        "absent": encode("".join(f"{path}\0" for path in absent_paths)),
        "folder": encode(plan.directory),
    }
    return TaskCheckFiles(test_files, f"cd {shlex.quote(plan.directory)}\n{_steps(env, task)}")


_CHECK_MAKERS: Mapping[
    str, Callable[[InterCodeEnv[Any], Task, WorkspaceRecipe], TaskCheckFiles]
] = {
    "python": _program_checks,
    "ctf": _flag_checks,
    "sql": _query_checks,
    "swe": _repository_checks,
}


def _steps(env: InterCodeEnv[Any], task: Task) -> str:
    """Return the actions of gold as a script, without the final ``submit``."""
    if not task.gold:
        return "false  # the task has no solution with it"
    return "\n".join(env.solution(task)[:-1])


def _here_document(text: str) -> str:
    """Return a text as a here-document of Bash, with an end marker that the text lacks."""
    delimiter = "END"
    while delimiter in text.split("\n"):
        delimiter += "_"
    return f"<<'{delimiter}'\n{text}\n{delimiter}"
