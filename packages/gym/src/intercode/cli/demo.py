"""Execution of ``intercode demo``: scripted agents or a language model on the bundled tasks."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode.agents.base import AgentFactory
from intercode.agents.noisy_oracle import NAME, NoisyOracleAgents
from intercode.cli import run_output
from intercode.cli.demo_model import demonstrate
from intercode.cli.episode_rendering import render
from intercode.cli.run import fresh_folder
from intercode.cli.terminal import duration, percent, print_json, safe
from intercode.errors import InterCodeError, SandboxUnavailableError
from intercode.evaluate import Outcome, Progress, RunResult, evaluate
from intercode.evaluate.run_setup import RunPlan, find_secret, load, narrow_dataset, resolve_setting
from intercode.evaluate.statistics import IntervalEstimate
from intercode.evaluate.summary import by_turn
from intercode.evaluate.task_selection import select_tasks
from intercode.models import api_keys
from intercode.report.recorded_tasks import task_finder
from intercode.report.runs import RecordedRun, read_runs
from intercode.report.tables import by_agent, matrix
from intercode.report.viewer_page import CompressedEpisodes, write_page
from intercode.spec import RunSpec
from intercode_console import INTERRUPT_EXIT_CODE
from intercode_sandbox.units import format_count

ENVS = ("bash", "sql", "python", "ctf", "swe")
SCRIPTED_AGENT = NoisyOracleAgents()
AGENTS: Mapping[str, tuple[str, str | AgentFactory]] = {
    "oracle": ("oracle", "oracle"),
    NAME: (f"{SCRIPTED_AGENT.name} ({NAME})", SCRIPTED_AGENT),
    "random": ("random", "random"),
}
"""Last part of a run folder's name → the agent's label in reports, and the agent. The agents are
sorted by their success rates, the best first."""
SHOWN_LINES = 6
"""The maximum number of lines for each observation in the printed episode."""
LOCAL_MODEL = "local/qwen2.5-coder-1.5b"
"""The model that the demo suggests if no environment variable has an API key or a server's URL."""
INTRODUCTION = (
    "An agent reads a task, acts, observes the real output of each action, and submits.\nHere is "
    "one episode, in a fresh sandbox:\n"
)
AGENT_NOTE = (
    "'scripted' is not a language model: it knows gold, and makes random errors.\n"
    "Its rate says nothing about any model.\n"
)


def execute(args: argparse.Namespace) -> int:
    """Run the scripted agents in all environments, or a language model, and print the results.

    Returns:
        The exit code: 0 if every episode of every environment has a result; 1 if not, or if an
        environment was skipped; 130 after Ctrl-C.

    Raises:
        UsageError: The value of a variable cannot be a key or a URL.
        InterCodeError: No environment can run.
    """
    output_folder = args.out or fresh_folder(time.strftime("demo-%Y%m%d-%H%M%S"))
    if args.model is not None:
        return demonstrate(
            args.model, output_folder, args.limit, args.workers, quiet=args.quiet, as_json=args.json
        )
    # The call comes first, because it raises an error for a malformed key, before any run.
    reason, command = suggest_model_command()
    start_time = time.monotonic()
    demo = DemoRuns(
        output_folder, args.workers, args.limit, quiet=args.quiet, should_show=not args.json
    )
    try:
        demo.run()
    except KeyboardInterrupt:
        demo.interrupted = True
    if demo.interrupted:
        limit = f" --limit {args.limit}" if args.limit else ""
        print(f"stopped; the finished episodes are in {output_folder}. To resume:", file=sys.stderr)
        print(
            f"{_program_command()} demo --out {shlex.quote(str(output_folder))}{limit}",
            file=sys.stderr,
        )
        return INTERRUPT_EXIT_CODE
    if len(demo.skip_reasons) == len(ENVS):
        reasons = "; ".join(f"{env}: {reason}" for env, reason in demo.skip_reasons.items())
        raise InterCodeError(f"no environment could run: {reasons}")
    page = output_folder / "report.html"
    runs = _write_page(page, demo.folders)
    if args.json:
        seconds = time.monotonic() - start_time
        report = {
            "out": str(output_folder),
            "page": str(page),
            "seconds": seconds,
            **_as_json(runs),
        }
        print_json({**report, "left_out": demo.skip_reasons, "next": command})
    else:
        _print_summary(runs, demo.skip_reasons)
        print(f"an episode in the terminal: {_program_command()} show {demo.episode_arguments}")
        print(f"a real model, {reason}:\n{command}")
        print(run_output.page_line(page))
    return 0 if demo.complete and not demo.skip_reasons else 1


class DemoProgress(run_output.ProgressPrinter):
    """Progress of the runs of all agents in one environment.

    A live line shows the current counts; the final line is printed when the runs have ended.
    """

    def __init__(self, title: str, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.title = title
        self.agent = ""
        self._finished_rates: list[str] = []
        self._start_time = time.monotonic()
        self._line.show(f"{title}  preparing …")

    def begin(self, total: int, finished_outcomes: Sequence[Outcome]) -> None:
        """Start to count the episodes of the next agent's run."""
        self._total, self._finished_count, self._errors = total, len(finished_outcomes), 0
        self._successes = sum(outcome.success for outcome in finished_outcomes)

    def end(self) -> None:
        """Add the agent's success rate to the live and the final line, after the agent's run."""
        scored_count = self._finished_count - self._errors
        errors = f" ({format_count(self._errors, 'error')})" if self._errors else ""
        rate = percent(self._successes / scored_count if scored_count else None)
        self._finished_rates.append(f"{self.agent} {rate}{errors}")

    def clear(self) -> None:
        """Remove the live line."""
        self._line.clear()

    def close(self) -> None:
        """Print the final line, if any run has ended."""
        self.clear()
        if self._finished_rates and not self._quiet:
            elapsed_text = duration(time.monotonic() - self._start_time)
            self._line.announce(safe("  ".join([self.title, *self._finished_rates, elapsed_text])))

    def _refresh(self) -> None:
        counts = f"{self.agent} {self._finished_count}/{self._total}"
        self._line.show(safe("  ".join([self.title, *self._finished_rates, counts])))


class DemoRuns:
    """The runs of all agents in all environments.

    Args:
        output_folder: The folder for the runs' folders.
        workers: The number of parallel episodes.
        limit: The maximum number of tasks in each environment, beginning with the first; None: all.
        quiet: Whether to print no progress.
        should_show: Whether to print the text of an episode before the progress.
    """

    def __init__(
        self,
        output_folder: Path,
        workers: int,
        limit: int | None,
        *,
        quiet: bool,
        should_show: bool,
    ) -> None:
        self.interrupted = False
        self.complete = True
        """Whether every episode of the finished runs has a result."""
        self.skip_reasons: dict[str, str] = {}
        """Skipped environment → the reason."""
        self.folders: list[Path] = []
        self.episode_arguments = ""
        """The arguments of ``intercode show`` for the episode that the demo has printed."""
        self._output_folder, self._workers, self._limit, self._quiet = (
            output_folder,
            workers,
            limit,
            quiet,
        )
        self._should_show = should_show

    def run(self) -> None:
        """Run all agents in each environment in sequence; skip an environment that cannot run.

        Raises:
            SandboxUnavailableError: The machine permits no sandbox.
            RecordError: The runs cannot be written.
        """
        for env in ENVS:
            row = DemoProgress(env, quiet=self._quiet)
            try:
                self._run_environment(env, row)
            finally:
                row.close()
            if self.interrupted:
                return

    def _run_environment(self, env: str, row: DemoProgress) -> None:
        folders = {agent: self._output_folder / f"{env}-{agent}" for agent in AGENTS}
        try:
            plan, task_count = _plan_environment(env, folders.values(), self._limit, row)
            env_setting = resolve_setting(plan, Progress())
            context = env_setting.context()
        except SandboxUnavailableError:
            raise
        except InterCodeError as error:
            self.skip_reasons[env] = str(error)
            return
        count_prefix = f"{len(plan.tasks)} of " * (len(plan.tasks) < task_count)
        row.title = f"{env:7} {count_prefix + format_count(task_count, 'task'):8}"

        def run(agent: str, progress: Progress, limit: int | None) -> RunResult:
            label, factory = AGENTS[agent]
            result = evaluate(
                plan.dataset,
                factory,
                env_setting.make,
                progress=progress,
                workers=self._workers,
                out=folders[agent],
                limit=limit,
                settings=env_setting.facts,
                context={**_agent_plan(plan, factory, label).context(), **context},
            )
            self.interrupted = result.interrupted
            return result

        if self._should_show and env == ENVS[0]:
            # With the default seed, the scripted agent fails once in this episode, and recovers.
            first_result = run(NAME, Progress(), 1)
            row.clear()
            self._show(first_result, plan.tasks[0].task_id, folders[NAME])
        for agent, (row.agent, _) in AGENTS.items():
            if not self.interrupted:
                self.complete &= run(agent, row, self._limit).complete
                self.folders.append(folders[agent])

    def _show(self, result: RunResult, task_id: str, folder: Path) -> None:
        for episode in result.episodes():
            if episode.task_id == task_id:
                self.episode_arguments = f"{shlex.quote(str(folder))} --task {task_id}"
                tasks_text = "all bundled tasks"
                if self._limit is not None:
                    tasks_text = f"the first {format_count(self._limit, 'bundled task')}"
                print(INTRODUCTION, render(episode, SHOWN_LINES), sep="\n")
                print(f"Three agents, all scripted, on {tasks_text}:\n", flush=True)
                return


def _plan_environment(
    env: str, folders: Iterable[Path], limit: int | None, progress: Progress
) -> tuple[RunPlan, int]:
    """Load the bundled tasks of an environment, and select those of the demo.

    Args:
        env: The environment's name.
        folders: The folders of the runs. If one exists, the tasks use its recorded secret.
        limit: The maximum number of tasks, beginning with the first; None: all tasks.
        progress: The progress, which reports excluded tasks.

    Returns:
        The plan of the runs, and the number of all bundled tasks.
    """
    spec, full_dataset = load(RunSpec.from_layers({"env": env, "secret": find_secret(*folders)}))
    dataset = narrow_dataset(spec, full_dataset, progress)
    return RunPlan(spec, dataset, select_tasks(dataset, None, limit)), len(full_dataset)


def _agent_plan(plan: RunPlan, factory: str | AgentFactory, label: str) -> RunPlan:
    """Return a copy of the plan whose spec names the agent, as the run's record requires."""
    return replace(plan, spec=plan.spec.merge(agent=factory if isinstance(factory, str) else label))


def _write_page(page: Path, folders: Sequence[Path]) -> list[RecordedRun]:
    """Read the recorded runs, write the HTML page of their report, and return the runs."""
    episodes = CompressedEpisodes(find_task=task_finder(folders))
    runs = read_runs(folders, episodes.add)
    write_page(page, runs, episodes)
    return runs


def _as_json(runs: Sequence[RecordedRun]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "run": str(run.folder),
                "env": run.env_label,
                "agent": run.label,
                **run_output.as_json(run.outcomes),
            }
            for run in runs
        ],
        "turns": {
            name: [asdict(estimate) for estimate in curve] for name, curve in _curves(runs).items()
        },
    }


def _print_summary(runs: Sequence[RecordedRun], skip_reasons: Mapping[str, str]) -> None:
    """Print the table of results, the errors, the skipped environments and the success curves."""
    print(f"\n{run_output.table_text(matrix(runs))}")
    for run in runs:
        if errors_text := run_output.errors(run.outcomes):
            print(f"{safe(str(run.folder))}: {errors_text}")
    for env, reason in skip_reasons.items():
        print(f"{env} was skipped: {safe(reason)}\n")
    print("Success within a number of turns, all environments together:\n")
    print(run_output.for_terminal(_curves(runs)))
    print(AGENT_NOTE)


def _curves(runs: Sequence[RecordedRun]) -> dict[str, list[IntervalEstimate]]:
    """Return the curve of each agent: its success rate within 1, 2, 3 … turns.

    The curves end one turn after the last turn in which a task was solved.

    Returns:
        Agent → estimate of the success rate for each number of turns.
    """
    outcomes_by_agent = by_agent(runs)
    solved_turns = [
        o.solved_at for outcomes in outcomes_by_agent.values() for o in outcomes if o.solved_at
    ]
    turns = max(solved_turns, default=1) + 1
    return {agent: by_turn(outcomes, turns) for agent, outcomes in outcomes_by_agent.items()}


def suggest_model_command() -> tuple[str, str]:
    """Return a command with which the user can run a language model after the demo.

    The model depends on the environment variables with keys and URLs.

    Returns:
        The reason for the choice of the model, and the command, which contains no secret.

    Raises:
        UsageError: The value of a variable cannot be a key or a URL.
    """
    openai, anthropic = api_keys.find("OPENAI_API_KEY"), api_keys.find("ANTHROPIC_API_KEY")
    if url := api_keys.find("OPENAI_BASE_URL"):
        url = api_keys.check_url(url)
        reason = "as OPENAI_BASE_URL is set (replace NAME by the server's name of the model)"
        if openai:
            return reason, _run_command("openai/NAME", "--max-tokens 1000000")
        options = f"--base-url {shlex.quote(url)} --max-tokens 1000000"
        return reason, _run_command("openai-compatible/NAME", options)
    # The suggested models are cheap, and InterCode knows their prices, which --max-cost needs.
    if openai:
        return "as OPENAI_API_KEY is set", _run_command("openai/gpt-5-mini", "--max-cost 1")
    if anthropic:
        model = "anthropic/claude-haiku-4-5"
        return "as ANTHROPIC_API_KEY is set", _run_command(model, "--max-cost 1", "anthropic")
    reason = "on this machine (or set OPENAI_API_KEY or ANTHROPIC_API_KEY)"
    return reason, _prepend_installation(
        "xllamacpp", f"{_program_command()} demo --model {LOCAL_MODEL}", "'intercode-gym[local]'"
    )


def _run_command(model: str, options: str, package: str = "openai") -> str:
    run = f"{_program_command()} run bash --agent try-again --model {model} {options} --limit 20"
    return _prepend_installation(package, run, package)


def _prepend_installation(imported_module: str, command: str, requirement: str) -> str:
    """Return a command; if a package is missing, a ``pip install`` precedes it.

    Args:
        imported_module: The module that the command imports.
        command: The command.
        requirement: The argument of ``pip install``.
    """
    is_missing = find_spec(imported_module) is None
    return (
        f"{_shell_path(sys.executable)} -m pip install {requirement} && {command}"
        if is_missing
        else command
    )


def _program_command() -> str:
    """Return the shell command that runs this program again in the same working directory."""
    program_path = Path(sys.argv[0])
    if program_path.name != "intercode":
        return f"{_shell_path(sys.executable)} -m intercode.cli"
    executable = shutil.which("intercode")
    is_same = executable is not None and Path(executable).resolve() == program_path.resolve()
    return "intercode" if is_same else _shell_path(program_path)


def _shell_path(path: str | Path) -> str:
    """Return a path quoted for a shell; a path in the working directory becomes relative."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a virtual environment's python is a link
    working_directory = Path.cwd()
    return shlex.quote(
        str(
            absolute.relative_to(working_directory)
            if absolute.is_relative_to(working_directory)
            else path
        )
    )
