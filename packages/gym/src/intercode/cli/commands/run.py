"""Run an agent over tasks, each in a fresh sandbox, and keep every episode.

The run is a folder: run.json says what was run, episodes.jsonl what happened. 'intercode resume
FOLDER' resumes a run that was interrupted, or has errors. One Ctrl-C waits for the episodes in
flight, a second one stops at once.

agents:
  oracle                 runs gold: checks the tasks (the default)
  noop                   submits at once: shows what doing nothing is worth
  random                 acts at random: shows what luck is worth
  replay                 repeats what --recording holds (a run's folder, or JSON: task → actions)
  human                  you, at the terminal: one task after the other
  path/to/file.py:make   your own: make(task) gives an object with act(observation, history)

agents that are language models, with --model PROVIDER/NAME:
  single-turn            one reply, which is run
  try-again              sees what came of its code, until it submits
  react                  thought, action, observation; react-zero-shot without examples
  plan-solve             a plan, then its steps; plan-solve-refine then refines it
  tree-search            several actions in each state, each in a fork; best-of-n: several ends
  tool-calling           the model's own function calls
  try-again-oracle, plan-solve-refine-oracle   with the true reward of every turn, as in 2023

agents that are programs of others, in the sandbox, with --model PROVIDER/NAME and no network:
  cli:COMMAND            a command, with {query}; its model is at $OPENAI_BASE_URL
  path/to/profile.toml   your own profile of one

Examples:
  intercode run bash
  intercode run bash --agent oracle --workers 4 --limit 10 --show
  intercode run bash --data tasks.json --agent my_agent.py:make --out runs/mine
  intercode run bash --data tasks.json --json | jq .statistics
  intercode run sql --agent oracle --engine mysql
  intercode run sql --data tasks.json --databases shop.sqlite --agent my_agent.py:make
  intercode run python --data mbpp --exclude broken.json     (see 'datasets validate')
  intercode run bash --agent try-again --model openai/gpt-4o --max-cost 5 --workers 8
  intercode run sql --agent react --model vllm/NAME --base-url http://localhost:8000/v1
  intercode run --preset paper-gpt-3.5-bash-try-again --protocol paper --data nl2bash
  intercode run --locked runs/mine                           (the same, or not at all)

exit code: 0 if every episode has a result, whatever it is; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse

from intercode.cli.recorded_spec import add_trust
from intercode.spec import (
    AgentSpec,
    EnvSpec,
    How,
    ModelSpec,
    RunSpec,
    add_environment,
    add_named,
    add_options,
    group_by_environment,
    group_options,
    list_part_options,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_environment(parser)
    for title, options in group_options("who acts", list_part_options(AgentSpec)).items():
        add_options(parser.add_argument_group(title), options)
    add_options(parser.add_argument_group("the language model"), list_part_options(ModelSpec))
    add_tasks(parser)


def add_tasks(parser: argparse.ArgumentParser, excluded_names: str = "") -> None:
    """Add the options that do not say who acts, but for some."""
    add_options(
        parser.add_argument_group("which tasks"),
        list_part_options(RunSpec),
        excluded_names=excluded_names,
    )
    task_group = parser.add_argument_group("their data, protocol and judge")
    add_options(task_group, list_part_options(EnvSpec), excluded_names=excluded_names)
    for title, options in group_by_environment().items():
        add_options(parser.add_argument_group(title), options, excluded_names=excluded_names)
    add_named(task_group)
    run_group = parser.add_argument_group("how it is run")
    add_options(run_group, list_part_options(How), excluded_names=excluded_names)
    if "locked" not in excluded_names.split():
        add_trust(run_group)
