"""Execution of ``intercode play``: tasks that a person solves in the terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from intercode.agents.human import HumanAgent, TaskConsole, continuation_test
from intercode.cli.episode_rendering import ending
from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import DelayedMessages, print_json
from intercode.envs.traits import resolve_traits
from intercode.episode import Episode
from intercode.evaluate import run_episode
from intercode.evaluate.episode_loop import PlayableEnv
from intercode.evaluate.run_setup import RunPlan, environment, load, narrow_dataset, resolve_setting
from intercode.evaluate.task_selection import select_tasks
from intercode.interpreters.base import IS_INTERACTIVE
from intercode.spec import (
    RunSpec,
    read_arguments,
)
from intercode.task import Task

_DELAY_SECONDS = 2.0
"""Seconds until the terminal shows a hint that the entered action still runs."""


def execute(args: argparse.Namespace) -> int:
    """Let a person try the tasks in sequence, until the last task or until the person leaves.

    Returns:
        The exit code 0.
    """
    watcher = ProgressPrinter()
    spec, full_dataset = load(RunSpec.from_layers(read_arguments(args)))
    environment(spec)
    dataset = narrow_dataset(spec, full_dataset, watcher)
    tasks = select_tasks(dataset, spec.tasks, spec.limit)
    env = resolve_setting(RunPlan(spec, dataset, tasks), watcher).make()
    with suppress(ImportError):  # with `readline`, `input` has line editing and a history
        import readline  # noqa: F401
    context_token = IS_INTERACTIVE.set(True)
    output_stream = sys.stderr if args.json else sys.stdout
    episodes: list[Episode] = []
    try:
        for task_number, task in enumerate(tasks, 1):
            prompt = getattr(env, "prompt", "$ ")
            terminal = TaskConsole(
                task.query,
                output_stream,
                prompt,
                continuation_test(resolve_traits(env).language),
                read=_ask_aside if args.json else input,
            )
            terminal.show(f"── {task.task_id} ({task_number} of {len(tasks)}) ── :help for help")
            episode = _play_task(env, task, terminal)
            if terminal.left:
                break
            episodes.append(episode)
    finally:
        IS_INTERACTIVE.reset(context_token)
        env.close()
    if args.json:
        print_json([episode.to_dict() for episode in episodes])
    return 0


def _ask_aside(prompt: str) -> str:
    """Read a line of input after a prompt on standard error.

    Standard output is reserved for the JSON result.
    """
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _play_task(env: PlayableEnv, task: Task, terminal: TaskConsole) -> Episode:
    """Let the person try a task until the episode ends, print the end, and return the episode."""
    delayed_messages = DelayedMessages(terminal.show, _DELAY_SECONDS)
    can_stop = resolve_traits(env).language != "sql"
    hint = "running … Ctrl-C interrupts it" if can_stop else "running …"

    def show(observation: str) -> None:
        delayed_messages.discard()
        terminal.show(observation)

    def ask() -> str | None:
        action = terminal.ask()
        delayed_messages(hint)
        return action

    agent = HumanAgent(show, ask)
    try:
        episode = run_episode(env, lambda task: agent, task, name="human")
    finally:
        delayed_messages.discard()
    # After the last permitted turn, the agent is not asked again, so it receives no observation.
    if episode.status == "truncated":
        terminal.show(episode.turns[-1].observation)
    terminal.show("left" if terminal.left else f"{ending(episode)}\n")
    return episode
