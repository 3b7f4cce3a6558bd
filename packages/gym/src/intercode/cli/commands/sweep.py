r"""Run every agent with every model in every environment, and print one table.

Each combination is a run as by 'intercode run', in its own folder OUT/ENV-AGENT-MODEL below --out.
Agents that are not language models run once in each environment. --max-cost and --max-tokens limit
all runs together. The same command with the same --out resumes the missing episodes.

With several --skill, each agent runs with each skill. The run with the first skill is the baseline
for the agent's others, task by task, in success and cost. 'none' stands for no skill.

Examples:
  intercode sweep bash sql python --agent oracle noop
  intercode sweep bash sql --agent try-again react --model openai/gpt-4o openai/gpt-4o-mini \
      --max-cost 20 --workers 8 --out runs/sweep
  intercode sweep sql sql=spider ./my-benchmark --agent react --model vllm/NAME \
      --base-url http://localhost:8000/v1
  intercode sweep ./my-benchmark --agent try-again --model openai/gpt-4o \
      --skill none --skill skills/pdf-forms
  intercode report runs/sweep/* --html report.html

exit code: 0 if every episode of every run has a result; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse

from intercode.cli.commands.run import add_tasks
from intercode.spec import AgentSpec, ModelSpec, add_options, list_section_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options.

    Most options are those of ``run``. Agents, models, skills and environments may have several
    values.
    """
    parser.add_argument(
        "what",
        nargs="+",
        metavar="ENV[=DATA]",
        help="an environment, on its bundled tasks or on a file or dataset; or a folder that "
        "'intercode new' made",
    )
    agent_group = parser.add_argument_group("agents")
    agent_group.add_argument(
        "--agent",
        nargs="+",
        required=True,
        metavar="NAME",
        dest="agents",
        help="agents, as for 'intercode run'",
    )
    add_options(
        agent_group, list_section_options(AgentSpec), excluded_names="agent recording preset skill"
    )
    agent_group.add_argument(
        "--skill",
        action="append",
        default=[],
        metavar="FOLDER",
        dest="skills",
        help="a skill for the agents, or 'none'; with several, the first is the baseline",
    )
    model_group = parser.add_argument_group("language models")
    model_group.add_argument(
        "--model", nargs="+", default=[], metavar="NAME", dest="models", help="PROVIDER/NAME"
    )
    add_options(model_group, list_section_options(ModelSpec), excluded_names="model")
    add_tasks(parser, excluded_names="data split reviewed locked accept")
