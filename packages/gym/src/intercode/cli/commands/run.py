"""Run an agent over tasks, each in a fresh sandbox, and record every episode.

A run is a folder: run.json describes its conditions, episodes.jsonl contains the episodes.
'intercode resume FOLDER' resumes a run that was interrupted or has errors. The first Ctrl-C waits
for the episodes in flight, the second stops at once.

agents:
  oracle                 runs the reference solution (gold): checks the tasks (the default)
  noop                   submits at once: the reward for no action
  random                 acts at random: the reward for luck
  replay                 repeats actions of --recording (a run's folder, or JSON: task → actions)
  human                  you, at the terminal, one task after the other
  path/to/file.py:make   your own: make(task) returns an object with act(observation, history)

agents that are language models, with --model PROVIDER/NAME:
  single-turn            one reply, whose code is executed
  try-again              observes the output of its code, and tries again until it submits
  react                  thought, action, observation; react-zero-shot without examples
  plan-solve             a plan, then its steps; plan-solve-refine also refines the solution
  tree-search            several actions in each state, each in a fork; best-of-n: several endings
  tool-calling           the model's native function calls
  try-again-oracle, plan-solve-refine-oracle   with the true reward of every turn, as in 2023

command-line agents in the sandbox, with --model PROVIDER/NAME and no network:
  cli:COMMAND            a command, with {query}; its model is at $OPENAI_BASE_URL
  path/to/profile.toml   your own profile of a command-line agent

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
  intercode run --locked runs/mine                           (only under the same conditions)

exit code: 0 if every episode has a result, solved or not; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse

from intercode.cli.recorded_spec import add_trust
from intercode.spec import (
    AgentSpec,
    EnvSpec,
    ModelSpec,
    RunOptions,
    RunSpec,
    add_environment,
    add_named,
    add_options,
    group_by_environment,
    group_options,
    list_section_options,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_environment(parser)
    for title, options in group_options("agent", list_section_options(AgentSpec)).items():
        add_options(parser.add_argument_group(title), options)
    add_options(parser.add_argument_group("language model"), list_section_options(ModelSpec))
    add_tasks(parser)


def add_tasks(parser: argparse.ArgumentParser, excluded_names: str = "") -> None:
    """Add the options of ``run``, without the options of agent and model.

    Args:
        parser: The command's parser.
        excluded_names: Names of further options to omit, separated by spaces.
    """
    add_options(
        parser.add_argument_group("tasks"),
        list_section_options(RunSpec),
        excluded_names=excluded_names,
    )
    task_group = parser.add_argument_group("data, protocol and judge")
    add_options(task_group, list_section_options(EnvSpec), excluded_names=excluded_names)
    for title, options in group_by_environment().items():
        add_options(parser.add_argument_group(title), options, excluded_names=excluded_names)
    add_named(task_group)
    run_group = parser.add_argument_group("execution")
    add_options(run_group, list_section_options(RunOptions), excluded_names=excluded_names)
    if "locked" not in excluded_names.split():
        add_trust(run_group)
