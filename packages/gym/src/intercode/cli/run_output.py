"""Terminal output of runs: progress, finished episodes, summaries, costs, errors and charts."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from intercode.cli.episode_rendering import render
from intercode.cli.terminal import (
    DelayedMessages,
    ProgressLine,
    dollars,
    duration,
    one_line,
    percent,
    print_message,
    safe,
    table,
    terminal_width,
)
from intercode.episode import Episode
from intercode.evaluate import Progress
from intercode.evaluate.statistics import IntervalEstimate, wilson
from intercode.evaluate.summary import (
    by_failure_mode,
    by_tag,
    by_turn,
    errors_by_type,
    summarize,
)
from intercode.records import JudgeSummary, Outcome
from intercode.report.runs import RecordedRun, as_data, benchmark, count_judgements, rate_name
from intercode.report.tables import ReportTable, group_table, judge_tables
from intercode.report.text import MIN_WIDTH, chart
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.task import Task

MAX_LISTED_ERRORS = 5
"""The maximum number of episodes in the list of those without a result."""
TURN_LIMITS = (1, 2, 4, 8)
"""Numbers of turns for which the summary of a run contains the success rate."""
LOW_SUCCESS_RATE = 0.5
"""The success rate below which the summary of a run lists the failure modes."""
MAX_CHART_WIDTH = 80
"""The maximum width of a chart in characters."""


# Progress


class ProgressPrinter(Progress):
    """Progress of a run, printed to standard error.

    On a terminal, a live line is updated; elsewhere, a line is printed from time to time.
    """

    def __init__(
        self, *, show: TextIO | None = None, quiet: bool = False, rate: str = "success"
    ) -> None:
        """Start the clock of a run.

        Args:
            show: The stream to which each finished episode is printed; None: no episode is printed.
            quiet: Whether to print no progress.
            rate: The label of the success rate.
        """
        self._rate = rate
        self._show = show
        self._quiet = quiet
        self._line = ProgressLine(quiet)
        self._total = self._finished_count = self._resumed_count = self._successes = (
            self._errors
        ) = 0
        self._cost, self._tokens = 0.0, 0
        self._has_calls, self._priced, self._clustered = False, True, False
        self._start = time.monotonic()
        self._current_action = ""
        self._nodes = 0
        self._note = ""
        self._tenth = 0
        """The number of completed tenths of the episodes at the last update, 0 to 10."""
        self._delayed_messages = DelayedMessages(
            lambda text: None if quiet else print_message(text)
        )

    def warn(self, text: str) -> None:
        """Print a warning, even with the option ``quiet``."""
        print_message(f"intercode: {text}")

    def announce(self, text: str) -> None:
        """Report a step of an image's build. The step is printed only if the build takes long."""
        self._delayed_messages(text)

    def end_preparation(self) -> None:
        """Discard the delayed messages about the build, which has ended."""
        self._delayed_messages.discard()

    def begin(self, total: int, finished_outcomes: Sequence[Outcome]) -> None:
        """Count the episodes that earlier sessions of the run have finished, and start the clock.

        Args:
            total: The number of requested episodes.
            finished_outcomes: The summaries of the finished episodes.
        """
        self._total, self._finished_count, self._resumed_count = (
            total,
            len(finished_outcomes),
            len(finished_outcomes),
        )
        self._successes = sum(outcome.success for outcome in finished_outcomes)
        for outcome in finished_outcomes:
            self._add(outcome)
        self._start = time.monotonic()
        if finished_outcomes and not self._quiet:
            self._line.announce(
                f"resuming a run: {len(finished_outcomes)} of {total} episodes are done"
            )

    def action(self, task: Task, action: str) -> None:
        """Store an agent's action for the live line.

        Any thread may call the method, because a single assignment needs no lock.
        """
        if action != "submit":
            self._current_action = f"{task.task_id}: {action[:200]}"

    def episode(self, episode: Episode) -> None:
        """Count a finished episode, and print it if `show` was given."""
        self._finished_count += 1
        self._successes += episode.success
        self._errors += episode.status == "error"
        self._add(Outcome.from_episode(episode))
        if self._show is not None:
            self._line.clear()
            print(render(episode), file=self._show, flush=True)
        is_milestone = 10 * self._finished_count // max(1, self._total) > self._tenth
        if self._line.is_due(milestone=is_milestone) or (
            self._show is not None and self._line.live
        ):
            self._refresh()

    def tick(self) -> None:
        """Update the live line, which shows the remaining time, if an update is due."""
        if self._line.is_due():
            self._refresh()

    def nodes(self, count: int, change: str) -> None:
        """Print a change of the machines of a distributed run; from now on, show their number.

        Args:
            count: The number of machines (nodes) that take episodes.
            change: The text of the change.
        """
        self._nodes = count
        if not self._quiet:
            self._line.announce(f"intercode: {safe(change)}")

    def report_wait(self, text: str) -> None:
        """Print a text about a wait for a model's server, even with the option ``quiet``."""
        self._line.announce(f"intercode: {safe(text)}")

    def report_interrupt(self, running_count: int) -> None:
        """Print that the run stops after Ctrl-C, with the number of episodes that still run."""
        self._note = "stopping"
        self._line.report_interrupt(running_count)

    def end(self) -> None:
        """Remove the live line; without a terminal, print the final state."""
        if self._line.live:
            self._line.clear()
        elif not self._quiet and self._finished_count > self._resumed_count:
            self._line.announce(self.status())

    def status(self, width: int | None = None) -> str:
        """Return the progress as a line of text.

        The line contains the number of episodes, the success rate, episodes per second, nodes,
        cost, errors and the remaining time.

        Args:
            width: The maximum length in characters; None: no limit. To fit, the line omits less
                important parts.
        """
        entries = self._progress_entries()
        line = "  ".join(text for text, _ in entries)
        while (
            width is not None
            and len(line) > width
            and any(omission_rank for _, omission_rank in entries)
        ):
            entries.remove(max(entries, key=lambda entry: entry[1]))
            line = "  ".join(text for text, _ in entries)
        return line

    def _progress_entries(self) -> list[tuple[str, int]]:
        """Return the parts of the progress line, each with its rank of omission.

        If the line is too long, the part with the highest rank is omitted first. A part with rank 0
        is never omitted.
        """
        finished_count = self._finished_count - self._resumed_count
        elapsed_seconds = time.monotonic() - self._start
        rate = finished_count / elapsed_seconds if elapsed_seconds > 0 else 0.0
        entries = [(f"{self._finished_count}/{self._total}", 0), (self.result(), 0)]
        entries.append((f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s", 2))
        if self._nodes:
            entries.append((format_count(self._nodes, "node"), 1))
        if bill := self._bill():
            entries.append((bill, 0))
        if self._errors:
            entries.append((f"errors {self._errors}", 0))
        if rate and self._finished_count < self._total:
            remaining_seconds = max(1.0, (self._total - self._finished_count) / rate)
            entries.append((f"{duration(remaining_seconds)} left", 1))
        if self._note:
            entries.append((self._note, 0))
        return entries

    def result(self) -> str:
        """Return the success rate so far, with a 95 % Wilson interval if each task has one episode.

        Several episodes of the same task are not independent, as the Wilson interval requires. For
        these, only the final table has an interval, with the tasks as clusters.
        """
        scored_count = self._finished_count - self._errors
        if not scored_count:
            return f"{self._rate} {percent(None)}"
        if self._clustered:
            return f"{self._rate} {percent(self._successes / scored_count)}"
        low, high = wilson(self._successes, scored_count)
        # The bounds are rounded outwards, so the interval does not look narrower than it is.
        interval_text = f"{math.floor(100 * low)}-{math.ceil(100 * high)}"
        return f"{self._rate} {percent(self._successes / scored_count)} ({interval_text})"

    def _add(self, outcome: Outcome) -> None:
        """Add the tokens and the cost of an episode, and of its judge, to the sums of the run."""
        self._clustered = self._clustered or outcome.epoch > 0 or bool(outcome.branch)
        for model_usage in (outcome, outcome.judged):
            if (
                model_usage is None
                or model_usage.tokens_in is None
                or model_usage.tokens_out is None
            ):
                continue
            self._has_calls = True
            self._tokens += model_usage.tokens_in + model_usage.tokens_out
            self._priced = self._priced and model_usage.cost is not None
            self._cost += model_usage.cost or 0.0

    def _bill(self) -> str:
        """Return the models' cost in dollars, or the tokens if a price is unknown.

        The text is empty if no model was called.
        """
        if not self._has_calls:
            return ""
        if self._priced:
            return dollars(self._cost)
        count = self._tokens
        if count < 10_000:
            return format_count(count, "token")
        return f"{count / 1e3:.0f}k tokens" if count < 1e6 else f"{count / 1e6:.1f}M tokens"

    def _refresh(self) -> None:
        self._tenth = 10 * self._finished_count // max(1, self._total)
        if self._quiet:
            return
        if not self._line.live:
            self._line.announce(self.status())
            return
        status = self.status(self._line.width)
        if (available_width := self._line.width - len(status) - 3) >= 20 and self._current_action:
            status += " │ " + one_line(self._current_action, available_width)
        self._line.show(status)


# Summaries


def facts(manifest: Mapping[str, Any]) -> str:
    """Return one line with the environment, agent, dataset, images and settings of a run."""
    env, dataset = manifest.get("env", {}), manifest.get("dataset", {})
    tasks = format_count(dataset.get("tasks", 0), "task")
    gold_note = ", shown gold" if manifest.get("needs_gold") else ""
    fact_texts = [
        *dict.fromkeys((benchmark(manifest), str(env.get("env", "")))),
        f"agent {manifest.get('agent', {}).get('name')}{gold_note}",
        f"{dataset.get('name')} ({tasks}, {str(dataset.get('digest'))[:8]})",
        _images(list(env.get("images", {}))),
        f"protocol {env.get('protocol')}",
        "with history" if env.get("history") == "full" else "",
        f"judged by {env['judge']['model']}" if "judge" in env else "",
        f"seed {manifest.get('seed')}",
        _exclusion_text(manifest),
    ]
    return safe(" · ".join(fact_text for fact_text in fact_texts if fact_text))


def as_json(outcomes: Sequence[Outcome], judge: str | None = None) -> dict[str, Any]:
    """Return the statistics of episodes as JSON data.

    Args:
        outcomes: The episodes.
        judge: The judge model that may have decided some successes; None: no judge.
    """
    judge_statistics = count_judgements(judge, outcomes)
    return {
        **({} if judge_statistics is None else {"judge": asdict(judge_statistics)}),
        "statistics": as_data(summarize(outcomes), judge),
        "tags": {tag: as_data(stats, judge) for tag, stats in by_tag(outcomes).items()},
        "failure_modes": by_failure_mode(outcomes),
        "errors": [
            {
                "task_id": outcome.task_id,
                "epoch": outcome.epoch,
                "type": outcome.error_type,
                "error": outcome.error,
            }
            for outcome in outcomes
            if outcome.failed
        ],
    }


def as_text(
    outcomes: Sequence[Outcome], tags: int, judge: str | None = None, known_error: str | None = None
) -> str:
    """Return a summary of episodes: tables of success by tag and of the judge, remarks, errors.

    Args:
        outcomes: The episodes.
        tags: The maximum number of tags in the table, the most frequent first.
        judge: The judge model that may have decided some successes; None: no judge.
        known_error: An error's message that the caller prints, so the summary omits it.
    """
    tag_groups = list(by_tag(outcomes).items())
    rows = {
        "all": summarize(outcomes),
        **{f"  {tag}": section for tag, section in tag_groups[:tags]},
    }
    text = table_text(group_table("", rows, rate=rate_name(judge))).rstrip("\n")
    if len(tag_groups) > tags:
        text += f"\n  … {format_count(len(tag_groups) - tags, 'more tag')}: see 'intercode report'"
    for section in judge_tables({judge or "": count_judgements(judge, outcomes)}):
        text += f"\n\n{table_text(section)}".rstrip("\n")
    if remarks := _remarks(outcomes):
        text += "\n\n" + "\n".join(remarks)
    if errors_text := errors(outcomes, known_error).rstrip("\n"):
        text += f"\n\n{errors_text}"
    return text


def table_text(result_table: ReportTable) -> str:
    """Return a table as terminal text, with its title above and its note below."""
    rows = [[safe(cell) for cell in row] for row in result_table.cells()]
    width = terminal_width()
    text = (
        table(
            [safe(name) for name, _ in result_table.columns], rows, result_table.left_count, width
        )
        + "\n"
    )
    title = f"{result_table.title}\n" if result_table.title else ""
    note = [
        textwrap.fill(line, width) if width else line
        for line in safe(result_table.note).splitlines()
    ]
    return title + text + "".join(f"{line}\n" for line in note)


def _remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """Return sentences about turns, failure modes, unusual successes, outcomes, forks, restarts."""
    statistics = summarize(outcomes)
    lines = [*_by_turns(outcomes), *_failure_modes(outcomes, statistics.success_rate)]
    lines += statistics.remarks()
    kinds = {kind: count for kind, count in statistics.outcomes.items() if count}
    if kinds.keys() - {"solved", "not-solved"}:
        lines.append(f"Outcomes: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}.")
    if resubmission_count := sum(outcome.submissions > 1 for outcome in outcomes):
        lines.append(f"Submitted several times, in separate forks: {resubmission_count}.")
    if statistics.restarts:
        lines.append(
            f"Restarted after the loss of a sandbox: {format_count(statistics.restarts, 'time')}."
        )
    return lines


def _by_turns(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a sentence with a language model's success rate within 1, 2, 4 and 8 turns.

    The increase of these rates shows the value of feedback from the environment. The list is empty
    if no model was called, or no episode has a second turn.
    """
    has_model_calls = any(outcome.calls for outcome in outcomes)
    points = by_turn(outcomes) if has_model_calls else []
    if len(points) < 2:
        return []
    turn_limits = [turn for turn in TURN_LIMITS if turn < len(points)]
    rate_texts = [f"{percent(points[turn - 1].value)} within {turn}" for turn in turn_limits]
    return [f"Success by turns: {', '.join([*rate_texts, f'{percent(points[-1].value)} in all'])}."]


def _failure_modes(outcomes: Sequence[Outcome], rate: float | None) -> list[str]:
    """Return a sentence with the failure modes of a language model, with the most frequent first.

    The list is empty if the success rate is at least `LOW_SUCCESS_RATE`.
    """
    modes = by_failure_mode(outcomes)
    if not modes or rate is None or rate >= LOW_SUCCESS_RATE:
        return []
    unsolved_count = sum(not outcome.failed and not outcome.success for outcome in outcomes)
    frequent = sorted(modes.items(), key=lambda mode_count: -mode_count[1])
    counts = ", ".join(f"{mode} {count}" for mode, count in frequent)
    return [
        f"What went wrong in the {format_count(unsolved_count, 'episode')} not solved: {counts}."
    ]


def bill(outcomes: Sequence[Outcome]) -> str:
    """Return the calls, tokens and costs of models as text.

    A line describes the agent's model, and another line the judge's model. The text is empty if no
    model was called. A line omits the cost if the price of any call is unknown.
    """
    judges = [outcome.judged for outcome in outcomes if outcome.judged is not None]
    outcomes_by_role: dict[str, Sequence[Outcome | JudgeSummary]] = {
        "model": outcomes,
        "judge": judges,
    }
    return "\n".join(
        line
        for role, role_outcomes in outcomes_by_role.items()
        if (line := _bill_line(role, role_outcomes))
    )


def _bill_line(role: str, outcomes: Sequence[Outcome | JudgeSummary]) -> str:
    reported_outcomes = [
        outcome
        for outcome in outcomes
        if outcome.tokens_in is not None and outcome.tokens_out is not None
    ]
    calls = sum(outcome.calls for outcome in outcomes)
    if not reported_outcomes and not calls:
        return ""
    amount_texts = [format_count(calls, "call")]
    if reported_outcomes:
        amount_texts.append(
            f"{sum(outcome.tokens_in or 0 for outcome in reported_outcomes):,} tokens in"
        )
        amount_texts.append(
            f"{sum(outcome.tokens_out or 0 for outcome in reported_outcomes):,} out"
        )
    unreported_count = sum(outcome.tokens_in is None and outcome.calls > 0 for outcome in outcomes)
    if unreported_count:
        count_text = f" of {format_count(unreported_count, 'episode')}" if reported_outcomes else ""
        amount_texts.append(f"tokens{count_text} not reported")
    if reported_outcomes and all(outcome.cost is not None for outcome in reported_outcomes):
        amount_texts.append(dollars(sum(outcome.cost or 0.0 for outcome in reported_outcomes)))
    return f"{role}: {', '.join(amount_texts)}"


def errors(outcomes: Sequence[Outcome], known_error: str | None = None) -> str:
    """Return text about the episodes without a result: their number for each type of error.

    The text lists the errors of the first `MAX_LISTED_ERRORS` episodes.

    Args:
        outcomes: The episodes.
        known_error: An error's message that the caller prints, so the text omits it.

    Returns:
        The lines; empty if every episode has a result.
    """
    kinds = errors_by_type(outcomes)
    if not kinds:
        return ""
    counts_text = ", ".join(f"{count} {safe(kind)}" for kind, count in kinds.items())
    failed_outcomes = [
        outcome for outcome in outcomes if outcome.failed and outcome.error != known_error
    ]
    lines = [f"Episodes without a result: {counts_text}. Rates and means exclude them."]
    lines += [
        f"  {safe(o.task_id)}: {one_line(o.error or '', 200)}"
        for o in failed_outcomes[:MAX_LISTED_ERRORS]
    ]
    if len(failed_outcomes) > MAX_LISTED_ERRORS:
        lines.append(f"  … and {len(failed_outcomes) - MAX_LISTED_ERRORS} more")
    return "\n".join(lines) + "\n"


def page_line(page: Path) -> str:
    """Return the line that ends a demonstration: the address of a report's page."""
    return f"every episode, in a browser: {safe(page.resolve().as_uri())}"


def _exclusion_text(manifest: Mapping[str, Any]) -> str:
    """Return the number of excluded tasks as text; empty if no task is excluded."""
    count = len(manifest.get("excluded", {}))
    return f"{format_count(count, 'task')} excluded" if count else ""


def _images(names: Sequence[str]) -> str:
    return f"image {names[0]}" if len(names) == 1 else format_count(len(names), "image")


# Charts


def for_terminal(series: Mapping[str, Sequence[IntervalEstimate]]) -> str:
    """Return a chart of success rates by number of turns, for the terminal.

    If standard output is not UTF-8, the curves are drawn with ASCII characters.

    Args:
        series: Name of a curve → success rates (0 to 1) within 1, 2, … turns.
    """
    width = shutil.get_terminal_size((MAX_CHART_WIDTH, 24)).columns
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return chart(
        {safe(name): points for name, points in series.items()},
        width=max(MIN_WIDTH, min(MAX_CHART_WIDTH, width) - 1),
        ascii_only=encoding != "utf8",
    )


def charts_by_environment(runs: Sequence[RecordedRun]) -> str:
    """Return a chart for each environment, with a curve of success by turns for each run."""
    texts = []
    for environment in dict.fromkeys(run.env_label for run in runs):
        series = {run.label: by_turn(run.outcomes) for run in runs if run.env_label == environment}
        chart_text = for_terminal(series) or "no episode has a result yet\n"
        # A note names the judge, because the chart shortens long names of curves.
        judges = dict.fromkeys(
            run.judge for run in runs if run.env_label == environment and run.judge
        )
        notes = "".join(f"successes judged by {safe(judge)} are among them\n" for judge in judges)
        title = f"{safe(environment)}: success within a number of turns"
        texts.append(f"{title}\n\n{chart_text}{notes}")
    return "\n".join(texts)
