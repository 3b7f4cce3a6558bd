"""Registries: for each kind of name that a user writes, the object that the name denotes.

Names in command lines, files and calls denote datasets, environments, models, rewards and so on.
An entry is ``module:attribute``, which is imported when the name is used. The class
`intercode_sandbox.lazy_imports.LazyRegistry` describes how other packages register entries.
"""

from __future__ import annotations

from typing import Any

from intercode.errors import UsageError
from intercode_sandbox.lazy_imports import OR_YOUR_OWN, LazyRegistry
from intercode_sandbox.spelling_suggestions import hint_text

PAPER = "intercode-paper"
"""The package with the protocol of 2023."""
INTEGRATIONS = "intercode-integrations"
"""The package with adapters to other frameworks, servers, and external agents."""
DATASETS = LazyRegistry(
    "dataset",
    {
        "apps": "intercode.datasets.apps:load",
        "bash": "intercode.datasets.builtin:load",
        "bash-hard": "intercode.datasets.builtin:load_hard_bash",
        "bash-starter": "intercode.datasets.builtin:load_starter_bash",
        "bird": "intercode.datasets.bird:load",
        "bird-mini-dev": "intercode.datasets.bird:load_mini_dev",
        "ctf": "intercode.datasets.puzzles:load",
        "generated-bash": "intercode.datasets.generated:load_bash",
        "generated-python": "intercode.datasets.generated:load_python",
        "generated-sql": "intercode.datasets.generated:load_sql",
        "ic-ctf": "intercode.datasets.ic_ctf:load",
        "mbpp": "intercode.datasets.mbpp:load",
        "nl2bash": "intercode.datasets.nl2bash:load",
        "nl2sh-alfa": "intercode.datasets.nl2sh_alfa:load",
        "python": "intercode.datasets.builtin:load_python",
        "python-hard": "intercode.datasets.builtin:load_hard_python",
        "python-starter": "intercode.datasets.builtin:load_starter_python",
        "spider": "intercode.datasets.spider:load",
        "sql": "intercode.datasets.builtin:load_sql",
        "sql-hard": "intercode.datasets.builtin:load_hard_sql",
        "sql-starter": "intercode.datasets.builtin:load_starter_sql",
        "swe": "intercode.datasets.builtin:load_swe",
        "swe-bench": "intercode.datasets.swe_bench:load",
        "swe-bench-lite": "intercode.datasets.swe_bench:load_lite",
        "swe-bench-verified": "intercode.datasets.swe_bench:load_verified",
        "swe-hard": "intercode.datasets.builtin:load_hard_swe",
        "wikisql": "intercode.datasets.wikisql:load",
    },
    "intercode.datasets",
)
"""Name of a dataset → a function that returns the `Dataset`."""

ENVS = LazyRegistry(
    "environment",
    {
        "bash": "intercode.envs.bash:BashEnv",
        "ctf": "intercode.envs.ctf:CtfEnv",
        "python": "intercode.envs.python:PythonEnv",
        "sql": "intercode.envs.sql:SqlEnv",
        "swe": "intercode.envs.swe:SweEnv",
    },
    "intercode.environments",
    {f"{env}:paper": PAPER for env in ("bash", "ctf", "python", "sql")},
)
"""Name of an environment, or ``name:protocol`` → the environment's class."""


SOURCES = LazyRegistry(
    "kind of source",
    group="intercode.sources",
    homes=dict.fromkeys(("harbor", "inspect", "openenv", "verifiers"), INTEGRATIONS),
)
"""Scheme of an address of tasks, such as ``harbor`` in ``harbor:FOLDER`` → the class of the
environment for these tasks. The class method ``tasks(rest)`` returns the tasks as a `Dataset`;
``rest`` is the address without the scheme."""

MODELS = LazyRegistry(
    "provider of models",
    {
        "anthropic": "intercode.models.anthropic:anthropic",
        "litellm": "intercode.models.litellm:litellm",
        "llama.cpp": "intercode.models.openai:llama_cpp",
        "local": "intercode.models.local.client:local",
        "ollama": "intercode.models.openai:ollama",
        "openai": "intercode.models.openai:openai",
        "openai-compatible": "intercode.models.openai:compatible",
        "openai-completions": "intercode.models.openai:openai_completions",
        "scripted": "intercode.models.scripted:scripted",
        "vllm": "intercode.models.openai:vllm",
    },
    "intercode.models",
)
"""Name of a model provider → a function that returns an `intercode.models.base.ModelClient`."""

EXECUTORS = LazyRegistry(
    "place to run on", group="intercode.executors", homes={"ray": INTEGRATIONS}
)
"""Scheme in ``--on SCHEME[://ADDRESS]`` → the executor (`intercode.evaluate.executor`), which runs
the episodes there. The executor receives the whole value of ``--on``."""

VECTORS = LazyRegistry("backend of vectors", group="intercode.vectors", homes={"ray": INTEGRATIONS})
"""Name of a backend for vectors of environments → a function that makes a vector. The function
receives the arguments of `intercode.project.create_vec`."""


def parse_scheme(address: object) -> str | None:
    """Return the scheme of an address ``scheme:rest``; None if `SOURCES` has no such scheme."""
    scheme, colon, remainder = address.partition(":") if isinstance(address, str) else ("", "", "")
    return (
        scheme if colon and remainder and (scheme in SOURCES.homes or scheme in SOURCES) else None
    )


def environment(name: str, protocol: str = "default") -> Any:
    """Import an environment's class.

    Args:
        name: The environment's short name, such as ``"bash"``, or a scheme of `SOURCES`.
        protocol: ``"default"``, ``"paper"``, or the name of a registered protocol of the user.

    Raises:
        UsageError: The environment or protocol is unknown.
        ImportError: The environment's module, or one of its requirements, is not installed.
    """
    entry = name if protocol == "default" else f"{name}:{protocol}"
    if entry not in ENVS and (entry in SOURCES.homes or entry in SOURCES):
        return SOURCES.get(entry)
    if name in ENVS and entry not in ENVS and entry not in ENVS.homes:
        protocols = [
            "default",
            *(
                env_name[len(name) + 1 :]
                for env_name in ENVS.names()
                if env_name.startswith(f"{name}:")
            ),
        ]
        suggestion = f"{hint_text(protocol, protocols)}{OR_YOUR_OWN}"
        raise UsageError(f"environment {name!r} has no protocol {protocol!r}{suggestion}")
    return ENVS.get(entry)


MESSAGES = LazyRegistry(
    "style of messages",
    {name: f"intercode.agents.transcripts:{name}" for name in ("chat", "plain", "tools")},
)
"""Name of a message style → a function that converts an episode and its task to the messages of a
dialogue."""

REWARDS = LazyRegistry(
    "reward",
    {
        "bash:judge": "intercode.rewards.judge:Judge",
        "sql:default": "intercode.rewards.sql:SqlReward",
        "sql:bird-ex": "intercode.rewards.bird:ExReward",
        "sql:bird-soft-f1": "intercode.rewards.bird:SoftF1Reward",
        "sql:bird-r-ves": "intercode.rewards.bird:RVesReward",
        "sql:spider-test-suite": "intercode.rewards.spider_test_suite:SqlTestSuiteReward",
    },
    "intercode.rewards",
)
"""``env:name`` → a reward function (see `intercode.rewards.custom`), or a reward class. The
parameters of the class's constructor name the objects that the environment passes to it. SQL has
the objects ``databases``, ``cache``, ``permute_columns`` and ``columns``. The judge of Bash
receives a model."""

RULES = LazyRegistry(
    "rule",
    {
        "answer": "intercode.rewards.answer_types:AnswerType.VERSION",
        "bash": "intercode.rewards.bash:BashReward.VERSION",
        "command": "intercode.rewards.verification:CommandReward.VERSION",
        "flag": "intercode.rewards.flag:FlagReward.VERSION",
        "judge": "intercode.rewards.judge:Judge.VERSION",
        "python": "intercode.rewards.python:PythonReward.VERSION",
        "sql": "intercode.rewards.sql:SqlReward.VERSION",
        "swe": "intercode.rewards.swe:SweReward.VERSION",
    },
    "intercode.rules",
    {"harbor": INTEGRATIONS, "paper": PAPER},
)
"""Name of a grading rule → version of the rule, a constant of the rule's class or module. The
traits of an environment (`intercode.envs.traits`) name the rules of its default reward. A run
records the versions, and reports do not compare scores by different versions."""

TASK_EXPORTERS = LazyRegistry(
    "framework", group="intercode.task_exporters", homes={"harbor": INTEGRATIONS}
)
"""Name of a framework → a class that exports tasks to it, each as a folder in the framework's
format. The constructor takes an environment, a folder and a base image; the method
``export(task)`` returns the task's folder."""

EXPORTS = LazyRegistry("form of exports", group="intercode.exports", homes={"paper": PAPER})
"""Name of an export format → a function of scored episodes and their ``run.json``. The command
`intercode export` writes the function's result as JSON."""

PRESETS = LazyRegistry("family of presets", group="intercode.presets", homes={"paper": PAPER})
"""Prefix in the names of presets → a module with two functions: `get` returns a preset by name, and
`names` lists the names. A preset is a dataclass with options of ``intercode run``, such as
``env``."""

NOTEBOOK = LazyRegistry(
    "part of notebooks",
    {
        **{
            name: f"intercode.report.notebook:{name}_html"
            for name in ("baseline", "comparison", "dataset", "env", "episode", "run")
        },
        "data frame": "intercode.report.export:to_frame",
        "progress": "intercode.report.notebook:NotebookProgress",
    },
)
"""Name of a part of notebooks → the function or class that makes the part.

The name of a kind of object, such as ``run``, denotes a function that returns the object's HTML.
``data frame`` is a function that converts episodes to a pandas data frame, and ``progress`` is the
class that draws the progress of a run."""

TABLES = LazyRegistry("kind of tables", group="intercode.tables", homes={"paper": PAPER})
"""Kind of tables → a module with two functions: `rates` reads recorded files, and `tables` makes
tables from the result."""
