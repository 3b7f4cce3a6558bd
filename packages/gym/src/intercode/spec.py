"""The spec of a run: a complete description in one frozen, typed value, `RunSpec`.

A spec has four parts: the environment and its tasks (`EnvSpec`), the agent (`AgentSpec`), the
language model (`ModelSpec`), and the execution of the run (`RunOptions`). The fields of these
classes, and of the classes in `intercode.envs.options`, declare all options. The declarations
determine the options of the command line with their help and defaults, and the keys of
``intercode.toml``. They also determine the options in a run's record, and all validation. A name
has the same meaning in all these forms. Each form is a flat object, option → value::

    spec = RunSpec.from_layers({"env": "bash", "agent": "oracle", "timeout": 5, "workers": 4})
    spec.env.options["timeout"], spec.run_options.workers
    spec.merge(seed=1).diff(spec)
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from intercode import project
from intercode.datasets import loader_name
from intercode.envs.options import (
    BashOptions,
    CtfOptions,
    OptionDescription,
    PythonOptions,
    SqlOptions,
    SweOptions,
    list_class_options,
    list_constructor_options,
    list_text_options,
)
from intercode.errors import ImageError, UsageError
from intercode.records import MANIFEST, ValueDifference, diff
from intercode.redaction import REDACTED
from intercode.registry import ENVS, MODELS, PAPER, PRESETS, environment, parse_scheme
from intercode.rewards.judge import VOTES
from intercode.trust import DATA_OPTIONS, UntrustedOption, check, effects
from intercode_sandbox import units
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.units import LIMITS
from intercode_sandbox.user_code import absolute, is_reference

Options = Mapping[str, Any]
"""A spec, or a part of a spec, as a flat object: option → value."""

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Amount = Annotated[float, Meta(gt=0)]


def _describe(metavar: str | None, text: str, **extra: Any) -> Meta:
    """Return the metadata of an option for its declaration.

    Args:
        metavar: The placeholder of the option's value in ``--help``; None: no placeholder.
        text: The purpose of the option, for ``--help``.
        extra: Further properties of an `intercode.envs.options.OptionDescription`.
    """
    return Meta(description=text, extra={"metavar": metavar, **extra})


_PROMPT_GROUP = "prompt of a language model"
_SEARCH_GROUP = "several replies for each turn: samples, tree-search, best-of-n"
_LIMITS_GROUP = "limits of each episode"


class _SpecPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a spec. An option that the caller has not set has its default, mostly None."""


class EnvSpec(_SpecPart, frozen=True, kw_only=True):
    """The environment, its tasks, its reward and its options."""

    name: Annotated[str, _describe("ENV", "an environment", flag=False)] = msgspec.field(
        name="env", default=""
    )
    data: Annotated[
        str | None,
        _describe(
            "FILE",
            "tasks (JSON, JSONL, CSV, TSV, YAML), a dataset's name, or your own loader, "
            "qa.py:load (default: the bundled tasks)",
            daily=True,
        ),
    ] = None
    split: Annotated[
        str | None,
        _describe(
            "NAME", "only this split of the data, such as train (default: the data's own, or all)"
        ),
    ] = None
    benchmark: Annotated[
        str | None, _describe("NAME", "the name of a benchmark that is a folder", flag=False)
    ] = None
    reviewed: Annotated[
        bool,
        _describe(
            None,
            "use our reviewed golds of the dataset, which are not the published protocol "
            "(nl2bash, spider of 2023, mbpp)",
        ),
    ] = False
    secret: Annotated[
        str | None,
        _describe(
            "TEXT",
            "the secret from which the flags of the bundled puzzles are derived (default: drawn "
            "at random for the run, and recorded)",
        ),
    ] = None
    protocol: Annotated[
        str,
        _describe(
            "NAME|FILE:NAME",
            "'paper' for the semantics of 2023, quirks included; or your own class",
        ),
    ] = "default"
    judge_model: Annotated[
        str | None,
        _describe(
            "NAME",
            "for --reward judge: PROVIDER/NAME of the model that compares the output with gold's "
            "if the files equal gold's",
        ),
    ] = None
    judge_url: Annotated[
        str | None, _describe("URL", "address of the judge's server, if it is your own")
    ] = None
    judge_votes: Annotated[
        Positive | None,
        _describe(
            "N", f"votes of the judge, each in both orders of the outputs (default: {VOTES})"
        ),
    ] = None
    options: Annotated[
        dict[str, Any], _describe(None, "the environment's own options, and limits", flag=False)
    ] = msgspec.field(default_factory=dict)


class AgentSpec(_SpecPart, frozen=True, kw_only=True):
    """The agent, the prompt options of a language model, and the limits of an episode."""

    name: Annotated[
        str,
        _describe(
            "AGENT",
            "oracle (runs gold), noop, random, replay or human; with a language model: "
            "single-turn, try-again, react, plan-solve, tool-calling, tree-search or best-of-n; "
            "file.py:make for your own agent; cli:COMMAND for a program in the sandbox",
            daily=True,
        ),
    ] = msgspec.field(name="agent", default="oracle")
    recording: Annotated[
        str | None,
        _describe("PATH", "recorded actions, for --agent replay and predictions", path=True),
    ] = None
    preset: Annotated[
        str | None, _describe("NAME", "settings of the paper, such as paper-gpt-3.5-bash-try-again")
    ] = None
    prompt: Annotated[
        str | None, _describe("FILE", "your own prompt template", path=True, group=_PROMPT_GROUP)
    ] = None
    setting: Annotated[
        str | None,
        _describe(
            "TEXT",
            "name of the setting in prompts (default: the environment's)",
            group=_PROMPT_GROUP,
        ),
    ] = None
    schema: Annotated[
        bool,
        _describe(
            None,
            "for SQL: add the tables and columns to the prompt, if the dataset lists them "
            "(2023's 'handicap')",
            group=_PROMPT_GROUP,
        ),
    ] = False
    context: Annotated[
        str | None,
        _describe(
            None,
            "add to the first observation the tables of the database, or the files of the "
            "shell's working directory",
            choices=("schema",),
            group=_PROMPT_GROUP,
        ),
    ] = None
    examples: Annotated[
        bool | None,
        _describe(
            None,
            "add worked examples to the prompt, if the agent supports it (default: for react, "
            "and for local models)",
            group=_PROMPT_GROUP,
        ),
    ] = None
    recap: Annotated[
        bool | None,
        _describe(
            None,
            "for try-again and react: ask the model once more if it repeats an action that "
            "failed (default: only local models)",
            group=_PROMPT_GROUP,
        ),
    ] = None
    skill: Annotated[
        tuple[str, ...],
        _describe(
            "FOLDER",
            "a skill for the agent: a folder with SKILL.md, scripts, …; may be given several times",
            path=True,
        ),
    ] = ()
    observation_limit: Annotated[
        Positive | None,
        _describe(
            "N", "maximum characters of an observation (default: 10000)", group=_PROMPT_GROUP
        ),
    ] = None
    observation_tail: Annotated[
        bool | None,
        _describe(None, "whether a cut observation keeps its end (set by presets)", flag=False),
    ] = None
    dialogue_limit: Annotated[
        Positive | None,
        _describe(
            "N", "only the last N messages after the first ones (default: all)", group=_PROMPT_GROUP
        ),
    ] = None
    samples: Annotated[
        Positive | None,
        _describe(
            "N",
            "replies for each turn (default: 1; 3 for tree-search and best-of-n)",
            group=_SEARCH_GROUP,
        ),
    ] = None
    choose: Annotated[
        str | None,
        _describe(
            None,
            "choose among the replies by majority vote (default), or by the model's own judgement",
            choices=("vote", "judge"),
            group=_SEARCH_GROUP,
        ),
    ] = None
    search: Annotated[
        str | None,
        _describe(
            None,
            "for tree-search: keep the best states of each turn (default), or continue from the "
            "best of all",
            choices=("beam", "best-first"),
            group=_SEARCH_GROUP,
        ),
    ] = None
    search_width: Annotated[
        Positive | None,
        _describe("N", "for beam: states kept at each turn (default: 2)", group=_SEARCH_GROUP),
    ] = None
    search_depth: Annotated[
        Positive | None,
        _describe(
            "N",
            "maximum turns of a branch (default: the environment's turn limit)",
            group=_SEARCH_GROUP,
        ),
    ] = None
    search_budget: Annotated[
        Positive | None,
        _describe(
            "N", "maximum actions of an episode in all branches (default: 40)", group=_SEARCH_GROUP
        ),
    ] = None
    search_test: Annotated[
        str | None,
        _describe(
            "CODE",
            "an action that tests each state, in a separate fork; a state is good if the action "
            "succeeds (default: the model judges)",
            group=_SEARCH_GROUP,
        ),
    ] = None
    search_from: Annotated[
        Natural | None,
        _describe(
            "N",
            "for best-of-n: branch after this number of turns (default: 0)",
            group=_SEARCH_GROUP,
        ),
    ] = None
    episode_cost: Annotated[
        Amount | None, _describe("USD", "maximum cost of an episode", group=_LIMITS_GROUP)
    ] = None
    episode_tokens: Annotated[
        Positive | None, _describe("N", "maximum tokens of an episode", group=_LIMITS_GROUP)
    ] = None
    episode_seconds: Annotated[
        Amount | None, _describe("S", "maximum duration of an episode", group=_LIMITS_GROUP)
    ] = None


class ModelSpec(_SpecPart, frozen=True, kw_only=True):
    """The agent's language model, and the budgets of all episodes together."""

    name: Annotated[
        str | None,
        _describe(
            "NAME",
            "PROVIDER/NAME, such as openai/gpt-4o; local/NAME runs on this machine, without a "
            "key; or your own client, my.py:make",
            daily=True,
        ),
    ] = msgspec.field(name="model", default=None)
    base_url: Annotated[str | None, _describe("URL", "address of your own model server")] = None
    temperature: Annotated[Number | None, _describe("T", "default: 0")] = None
    top_p: Annotated[Amount | None, _describe("P", "default: the model's")] = None
    reply_tokens: Annotated[Positive | None, _describe("N", "maximum tokens of a reply")] = None
    record_tokens: Annotated[
        bool,
        _describe(None, "record token ids and log-probabilities (from servers such as vLLM)"),
    ] = False
    cache: Annotated[str | None, _describe("DIR", "store and reuse replies", path=True)] = None
    prices: Annotated[
        str | None, _describe("FILE", "prices of models without a built-in price", path=True)
    ] = None
    max_cost: Annotated[Amount | None, _describe("USD", "maximum cost of all episodes")] = None
    max_tokens: Annotated[Positive | None, _describe("N", "maximum tokens of all episodes")] = None


class RunOptions(_SpecPart, frozen=True, kw_only=True):
    """The options of a run's execution, which may differ between the sessions of a run."""

    workers: Annotated[Positive, _describe("N", "parallel episodes", daily=True)] = 1
    max_connections: Annotated[
        Positive | None,
        _describe("N", "parallel calls to the model (default: as many as workers)"),
    ] = None
    model_timeout: Annotated[
        Amount | None,
        _describe(
            "SECONDS",
            "time without a response after which a call to the model is cancelled and retried "
            "(default: 300)",
        ),
    ] = None
    max_sandboxes: Annotated[
        Positive | None,
        _describe("N", "sandboxes that are busy in parallel (default: twice the cores)"),
    ] = None
    retries: Annotated[Natural, _describe("N", "retries of an episode after a sandbox failure")] = 2
    on: Annotated[
        str | None,
        _describe(
            "PLACE",
            "executor of the episodes: ray or ray://ADDRESS for the machines of a cluster; or "
            "your own, my.py:Executor (default: threads of this process)",
        ),
    ] = None
    show: Annotated[bool, _describe(None, "print each episode as it ends", daily=True)] = False
    quiet: Annotated[bool, _describe(None, "no progress, only the result")] = False
    json: Annotated[bool, _describe(None, "print the result as one JSON object", daily=True)] = (
        False
    )
    out: Annotated[
        str | None,
        _describe("DIR", "the run's folder (default: runs/TIME-ENV-AGENT)", path=True, daily=True),
    ] = None
    locked: Annotated[
        str | None,
        _describe(
            "RUN",
            "the folder of an earlier run: take missing options from its record, and refuse to "
            "run if tasks, images, tools, code or machine differ",
            path=True,
        ),
    ] = None
    accept: Annotated[
        tuple[str, ...],
        _describe(
            "NAME",
            "accept this difference, by its name or a prefix of it: host, tools.host.git",
        ),
    ] = ()


class RunSpec(_SpecPart, frozen=True, kw_only=True):
    """The complete description of a run: its four parts, its tasks, epochs and seed.

    Only the methods `from_layers`, `from_args`, `from_json`, `from_record` and `merge` validate the
    options. The constructor accepts any value.
    """

    env: EnvSpec = EnvSpec()
    agent: AgentSpec = AgentSpec()
    model: ModelSpec = ModelSpec()
    run_options: RunOptions = RunOptions()
    limit: Annotated[Positive | None, _describe("N", "only the first N tasks", daily=True)] = None
    tasks: Annotated[
        tuple[str, ...] | None,
        _describe("ID", "only this task; may be given several times", daily=True),
    ] = None
    exclude: Annotated[
        str | None,
        _describe(
            "FILE",
            "a list of tasks to exclude: the file of 'datasets validate --write-exclude', or "
            "lines with an id and a reason",
            path=True,
            fact="excluded",
        ),
    ] = None
    epochs: Annotated[Positive, _describe("N", "attempts at each task", daily=True)] = 1
    seed: Annotated[
        Natural,
        _describe("N", "seed of the run and of the bundled puzzles", fact="seed", daily=True),
    ] = 0

    @classmethod
    def from_layers(cls, *layers: Options) -> RunSpec:
        """Make a spec from layers of options; a later layer overrides an earlier layer.

        If the environment is a folder with an ``intercode.toml``, the file's options form the
        lowest layer. If the environment is a class in a user's file, such as ``maze.py:Maze``, the
        file is imported.

        Args:
            layers: Objects option → value. The value None removes the value of an earlier layer.
                The key ``options`` holds texts ``NAME=VALUE``; the environment's class declares
                their types.

        Raises:
            UsageError: An option's value is invalid, or the folder's file is malformed.
        """
        flat: dict[str, Any] = {}
        for layer in layers:
            flat |= layer
        if (scheme := parse_scheme(flat.get("env"))) and flat["env"] not in ENVS:
            flat = {"data": flat["env"], **_drop_none(flat), "env": scheme}
        elif (name := flat.get("env")) and str(name) not in ENVS and Path(name).is_dir():
            folder_options = from_toml(name)
            if flat.get("data") is not None:
                # The caller's data replaces the tasks that this split belongs to.
                folder_options.pop("split", None)
            flat = {**folder_options, **_drop_none(flat), "env": folder_options["env"]}
        elif name:
            if str(name) not in ENVS:
                project.refuse_lone_file(name)
            flat["env"] = project.admit(str(name))
        texts = flat.pop("options", None)
        if env := flat.get("env"):
            flat["protocol"] = protocol = project.admit_protocol(
                env, flat.get("protocol") or "default"
            )
            values = read_options(texts or (), env, protocol)
            for layer in layers:
                _refuse_twice(layer, values)
            flat |= values
        sections: dict[str, Any] = {section: {} for section in SECTIONS}
        env_options: dict[str, Any] = {}
        for option, value in _drop_none(flat).items():
            value = str(value) if isinstance(value, Path) else value
            if option in LIMITS:
                value = _limit(option, value)
            section = _section_by_option().get(option)
            (env_options if section is None else sections[section] if section else sections)[
                option
            ] = value
        sections["env"]["options"] = env_options
        return _convert(sections)

    @classmethod
    def from_args(cls, args: argparse.Namespace, *lower_layers: Options) -> RunSpec:
        """Make a spec from a parsed command line, which overrides lower layers of options."""
        return cls.from_layers(*lower_layers, read_arguments(args))

    @classmethod
    def from_json(cls, text: str | bytes) -> RunSpec:
        """Make a spec from a JSON object, option → value.

        Raises:
            UsageError: The text is not such an object, or an option is invalid.
        """
        try:
            return cls.from_layers(msgspec.json.decode(text, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            raise UsageError(f"not a spec: {error}") from None

    @classmethod
    def from_record(
        cls,
        manifest: Mapping[str, Any],
        overrides: Options | None = None,
        *,
        trust: bool = False,
        is_resume: bool = False,
        record: object = MANIFEST,
    ) -> RunSpec:
        """Make the spec of a recorded run, overridden by the caller's options.

        A record is untrusted data. Some recorded options have effects: InterCode would execute
        code, read a path or connect to an address. Such an option is accepted only if the caller
        repeats its value, or trusts the record. A key is never sent to an address that the caller
        has not named. See `intercode.trust`.

        If the caller names another agent, the recorded options of agent and model are dropped.

        Args:
            manifest: The run's ``run.json``.
            overrides: The caller's options. A locked run refuses differences from the record; a
                change of agent, seed or excluded tasks by these options is accepted.
            trust: Whether the caller trusts the record, so recorded options with effects count.
            is_resume: Whether the spec resumes the run. Then the execution options of the last
                session are inherited, and no difference is accepted.
            record: The record's location, for messages.

        Raises:
            TrustError: The record has options with effects, and the caller does not trust it.
            UsageError: The record omits a password, and the caller did not give it.
        """
        overrides = _add_folder(manifest, _read_given(overrides or {}, manifest, trust=trust))
        record_values = inherited_options(manifest, overrides, is_resume=is_resume)
        repeated_names = _repeated_names(record_values, overrides)
        check(
            record,
            effects(record_values, repeated_names),
            {**record_values, **overrides},
            trust=trust,
        )
        for name, value in record_values.items():
            if (
                isinstance(value, str)
                and ("***@" in value or REDACTED in value)
                and name not in overrides
            ):
                flag = name.replace("_", "-")
                raise UsageError(f"the record omits passwords and keys: give --{flag} again")
        differing_names = {
            fact
            for option in overrides
            if (fact := _changed_fact(option)) and option not in repeated_names and not is_resume
        }
        accepted_names = [*overrides.get("accept", ()), *sorted(differing_names)]
        # The environment is a benchmark's folder. Its intercode.toml may have changed since the
        # run, so the recorded environment and options count.
        if {"env", "data"} <= repeated_names:
            overrides = {name: value for name, value in overrides.items() if name != "env"}
        return cls.from_layers(record_values, overrides, {"accept": accepted_names})

    def check(self) -> None:
        """Validate the options, which the constructor has accepted without a check.

        Raises:
            UsageError: An option's value is invalid.
        """
        _convert(_values_by_option(self))

    def merge(self, **changes: Any) -> RunSpec:
        """Return a copy with some options changed; the value None removes an option."""
        return RunSpec.from_layers(self.flat(), changes)

    def flat(self) -> dict[str, Any]:
        """Return the options as a flat object option → value, including defaults.

        Options without a value are omitted: None, empty lists, and False for a flag.
        """
        options: dict[str, Any] = msgspec.to_builtins(self)
        env_options: dict[str, Any] = options["env"].pop("options")
        for section in SECTIONS:
            options |= options.pop(section)
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
        flags = _flag_options()
        return env_options | {
            k: v for k, v in options.items() if v is not None and v != [] and (v or k not in flags)
        }

    def recorded(self) -> dict[str, Any]:
        """Return the options in the form for a record.

        Paths are absolute, so they are valid in any working directory. Passwords in URLs are
        replaced. The execution options are omitted. The path of the file of excluded tasks is
        omitted, too, because the record holds the content of that file.
        """
        return {
            name: _PORTABLE.get(name, portable)(value)
            for name, value in sorted(self.flat().items())
            if _section_by_option().get(name) != "run_options" and name != "exclude"
        }

    def identity(self) -> dict[str, Any]:
        """Return the environment's options that identify a run.

        `intercode.envs.options.Role` defines which options identify a run. Options that are not
        set, or have their default, are omitted.
        """
        env = self.env
        return _identity(env.options, list_constructor_options(environment(env.name, env.protocol)))

    def diff(self, other_spec: RunSpec) -> list[ValueDifference]:
        """List the options whose values differ between this spec and another spec."""
        return diff(self.flat(), other_spec.flat())

    @property
    def reward(self) -> str | None:
        """The reward's name; None: the environment's default reward."""
        return self.env.options.get("reward")


SECTIONS: Mapping[str, type[_SpecPart]] = {
    "env": EnvSpec,
    "agent": AgentSpec,
    "model": ModelSpec,
    "run_options": RunOptions,
}
"""Field of `RunSpec` → the class of this part of a spec."""


def _values_by_option(part: _SpecPart) -> dict[str, Any]:
    values = {
        field.encode_name: getattr(part, field.name) for field in msgspec.structs.fields(part)
    }
    return {
        option: _values_by_option(value) if isinstance(value, _SpecPart) else value
        for option, value in values.items()
    }


def _convert(sections: Mapping[str, Any]) -> RunSpec:
    try:
        return msgspec.convert(sections, RunSpec)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        name = path.rpartition(".")[2].rstrip("`")
        text = re.sub(r"Expected `\w+` >= (.+)", r"must be at least \1", text)
        raise UsageError(f"{name}: {text}") from None


_EXCLUSIVE_GROUPS = ({"limit", "tasks"},)
"""Groups of options that exclude each other. If the caller gives an option of a group, the other
options of the group are not inherited from a record."""
_OLD_NAMES = {"provider": "sandbox"}
"""Name of an option in records of version 0.1.0 → its present name."""


def from_toml(folder: str | Path) -> dict[str, Any]:
    """Read the options of a benchmark's folder from its ``intercode.toml``.

    Raises:
        UsageError: The file is malformed.
    """
    benchmark = project.read(folder)
    facts = {
        "env": benchmark.env,
        "data": benchmark.tasks,
        "benchmark": benchmark.name,
        "split": benchmark.split,
    }
    return {**_drop_none(facts), **benchmark.options, **benchmark.limits}


def recorded_options(manifest: Mapping[str, Any], *, is_resume: bool = False) -> dict[str, Any]:
    """Return the options of a record's last session, without its execution options.

    Records of version 0.1.0 are converted: they had another name for ``sandbox``, and kept
    environment-specific options under ``more``. The path of the file of excluded tasks is omitted.

    Args:
        manifest: The run's ``run.json``.
        is_resume: Whether to add the session's execution options, if the record has them.
    """
    last_session: Mapping[str, Any] = (manifest.get("sessions") or [{}])[-1]
    options: dict[str, Any] = dict(last_session.get("options", {}))
    extra_options = options.pop("more", {})
    options = {**(extra_options if isinstance(extra_options, dict) else {}), **options}
    # The agent sets `reward_every_turn` again if it needs rewards at every turn.
    options.pop("reward_every_turn", None)
    # `read_manifest` has added the fact to older records, which lack the option `history`.
    if manifest.get("env", {}).get("history") == "full":
        options.setdefault("history", "full")
    options = {_OLD_NAMES.get(name, name): value for name, value in options.items()}
    for name in (*list_section_options(RunOptions), "exclude"):
        options.pop(name, None)
    if is_resume:
        settings = last_session.get("settings", {})
        options |= {name: settings.get(_SETTINGS.get(name, name)) for name in _CARRIED_OUT}
    return _drop_none(options)


def add_identity(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a ``run.json`` that has the environment's identifying options under ``env.options``.

    An option identifies a run if another value makes it a different run, whose results must not be
    mixed. Older records have some of these options among the facts of the environment, and the
    others among the options of a session. An option that is absent in both places had its default.
    """
    env = manifest.get("env") or {}
    if "options" in env:
        return manifest
    declared_options: dict[str, OptionDescription] = {}
    for kind in environment_kinds():
        declared_options |= list_class_options(kind)
    section_by_option = _section_by_option()
    options = recorded_options(manifest)
    env_options = {name: value for name, value in options.items() if name not in section_by_option}
    identity = _identity(env_options, declared_options)
    facts = {name: fact for name, fact in env.items() if name not in identity}
    return {**manifest, "env": {**facts, "options": identity}}


def _identity(
    options: Options, declared_options: Mapping[str, OptionDescription]
) -> dict[str, Any]:
    """Return the environment's options that identify a run and differ from their defaults.

    An option that `declared_options` lacks counts as identifying.
    """
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in sorted(options.items())
        if (option := declared_options.get(name)) is None
        or (option.role == "identifies" and value != option.default)
    }


_CARRIED_OUT = ("workers", "max_connections", "max_sandboxes", "model_timeout", "on", "retries")
"""Options of `RunOptions` that a resumed run inherits from its last session."""
_SETTINGS = {"retries": "max_retries"}
"""Name of an option → its name in the recorded settings of a session, if different."""


def inherited_options(
    manifest: Mapping[str, Any], overrides: Options, *, is_resume: bool = False
) -> dict[str, Any]:
    """Return the recorded options that the caller's options do not replace.

    See `RunSpec.from_record`.
    """
    record_values = recorded_options(manifest, is_resume=is_resume)
    repeated_names = _repeated_names(record_values, overrides)
    replaced_names = {name for name in overrides if name not in repeated_names}
    for group in _EXCLUSIVE_GROUPS:
        replaced_names |= group if replaced_names & group else set()
    if replaced_names & {"agent", "preset"}:
        replaced_names |= {
            name for name, section in _section_by_option().items() if section in ("agent", "model")
        }
    return {name: value for name, value in record_values.items() if name not in replaced_names}


def list_record_effects(
    manifest: Mapping[str, Any], overrides: Options, *, trust: bool = False, is_resume: bool = False
) -> list[UntrustedOption]:
    """List the effects of recorded options whose values the caller did not repeat.

    See `RunSpec.from_record` for the arguments and the meaning of effects.
    """
    overrides = _add_folder(manifest, _read_given(overrides, manifest, trust=trust))
    record_values = inherited_options(manifest, overrides, is_resume=is_resume)
    return effects(record_values, _repeated_names(record_values, overrides))


def _add_folder(manifest: Mapping[str, Any], overrides: Options) -> Options:
    """Add options of a benchmark's folder, if the caller names a folder, to the caller's options.

    The folder may have moved since the run, so the recorded paths of tasks, images and code may not
    exist any more. The folder's present paths replace these; digests verify that the contents are
    unchanged. All other options stay as recorded. An image from the caller replaces the image of
    the folder.
    """
    env, record_values = overrides.get("env"), recorded_options(manifest)
    if "image" in overrides and "default_image" in record_values and "image" not in record_values:
        overrides = {**overrides, "default_image": overrides["image"]}
        overrides = {name: value for name, value in overrides.items() if name != "image"}
    if env is None or env in ENVS or not Path(env).is_dir():
        return overrides
    folder_options = from_toml(env)
    moved_options = {
        name: folder_options[name]
        for name in record_values
        if name in folder_options.keys() - overrides.keys() - DATA_OPTIONS
    }
    if folder_options["env"] != record_values.get("env"):
        return {**moved_options, **overrides}
    return {**moved_options, **{name: value for name, value in overrides.items() if name != "env"}}


def _repeated_names(record_values: Options, overrides: Options) -> set[str]:
    """Return the names of the recorded options that the caller repeats with the same value.

    If the caller names a folder with an ``intercode.toml``, the file's options count as the
    caller's options.
    """
    spec = RunSpec.from_layers(overrides)
    option_sets = [
        json.loads(json.dumps(option_set)) for option_set in (spec.flat(), spec.recorded())
    ]
    is_source = "env" in overrides and overrides["env"] not in ENVS
    return {
        name
        for name, value in record_values.items()
        if any(option_set.get(name) == value for option_set in option_sets)
        and (name in overrides or is_source)
    }


def read_options(texts: Sequence[str], env: str, protocol: str = "default") -> dict[str, Any]:
    """Parse texts ``NAME=VALUE`` to options of an environment, whose class declares the types.

    Args:
        texts: The texts. An option whose value is a list may occur several times.
        env: The environment's name.
        protocol: The environment's protocol.

    Raises:
        UsageError: An option is unknown, occurs twice, or has an invalid value.
    """
    if not texts:
        return {}
    declared_options = {
        name: option
        for name, option in list_text_options(environment(env, protocol)).items()
        if name not in project.NO_TEXTS
    }
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"-o {text}: write NAME=VALUE")
        if name not in declared_options:
            raise UsageError(
                f"environment {env!r} has no option {name!r}{hint_text(name, declared_options)}"
            )
        if name in _section_by_option() and not any(
            name in list_class_options(kind) for kind in environment_kinds()
        ):
            raise UsageError(f"-o {name}: use --{name}, which is an option of every run")
        try:
            read = _limit(name, value) if name in LIMITS else declared_options[name].read(value)
        except ValueError as error:
            raise UsageError(f"-o {name}: {error}") from None
        if name in values and not declared_options[name].is_list:
            raise UsageError(f"-o {name} is given twice")
        values[name] = [*_as_list(values[name]), read] if name in values else read
    return values


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _refuse_twice(layer: Options, values: Options) -> None:
    """Refuse an option that the caller gives twice with different values.

    Args:
        layer: The caller's options. Their key ``options`` holds texts ``NAME=VALUE``.
        values: The options that were parsed from these texts.

    Raises:
        UsageError: `layer` and `values` have different values for the same option.
    """
    if layer.get("options"):
        for name in values:
            if layer.get(name) not in (None, values[name]):
                raise UsageError(f"{name} is given twice: {layer[name]!r} and {values[name]!r}")


def _read_given(overrides: Options, manifest: Mapping[str, Any], *, trust: bool) -> dict[str, Any]:
    """Parse the texts ``NAME=VALUE`` among the caller's options, by `read_options`.

    The texts are dropped if only an untrusted record names the environment or protocol, and its
    code is not InterCode's. To parse the texts, InterCode would have to import this code. `check`
    refuses such a record later.
    """
    overrides = _drop_none(overrides)
    texts = overrides.pop("options", ())
    record_values = recorded_options(manifest)
    env = overrides.get("env") or record_values.get("env")
    if not texts or not ("env" in overrides or trust or ENVS.is_trusted(str(env))):
        return overrides
    protocol = overrides.get("protocol") or record_values.get("protocol")
    if not (protocol in (None, "default", "paper") or "protocol" in overrides or trust):
        return overrides
    env_spec = RunSpec.from_layers({"env": env, "protocol": protocol}).env
    values = read_options(texts, env_spec.name, env_spec.protocol)
    _refuse_twice({**overrides, "options": texts}, values)
    return {**overrides, **values}


def _limit(name: str, value: object) -> Any:
    try:
        return LIMITS[name](value)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from None


def _drop_none(options: Options) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# The command line


@cache
def list_section_options(section: type[msgspec.Struct]) -> dict[str, OptionDescription]:
    """List the options of a part of a spec.

    Args:
        section: The class of the part, or `RunSpec` for the options of no part.

    Returns:
        Name of an option → option.
    """
    encoded_names = {field.name: field.encode_name for field in msgspec.structs.fields(section)}
    return {
        encoded_names[name]: msgspec.structs.replace(option, name=encoded_names[name])
        for name, option in list_class_options(section).items()
        if name not in SECTIONS
    }


def environment_kinds() -> tuple[type[msgspec.Struct], ...]:
    """Return the option classes of the environments that InterCode itself has."""
    return BashOptions, CtfOptions, PythonOptions, SqlOptions, SweOptions


def _environment_name(kind: type[msgspec.Struct]) -> str:
    """Return the name of the environment that an option class belongs to."""
    return kind.__name__.removesuffix("Options").lower()


@cache
def environment_options() -> dict[str, OptionDescription]:
    """List the command-line options of all InterCode's own environments, with the limits last."""
    options: dict[str, OptionDescription] = {}
    for kind in environment_kinds():
        for name, option in list_class_options(kind).items():
            if option.has_flag:
                options.setdefault(name, option)
    return dict(sorted(options.items(), key=lambda item: item[0] in LIMITS))


def group_options(
    title: str, options: Mapping[str, OptionDescription]
) -> dict[str, dict[str, OptionDescription]]:
    """Group options by the title under which ``--help`` lists them.

    Args:
        title: The title of options without a group, which comes first.
        options: Name → option.

    Returns:
        Title → options of the group by name.
    """
    groups: dict[str, dict[str, OptionDescription]] = {title: {}}
    for name, option in options.items():
        groups.setdefault(option.group or title, {})[name] = option
    return groups


def group_by_environment() -> dict[str, dict[str, OptionDescription]]:
    """Group the options of environments by the title under which ``--help`` lists them.

    Options of all environments come first, then options of some environments, then limits.

    Returns:
        Title → options of the group by name.
    """
    groups: dict[str, dict[str, OptionDescription]] = {}
    kinds = {_environment_name(kind): kind for kind in environment_kinds()}
    for name, option in environment_options().items():
        envs = [env for env, kind in kinds.items() if name in list_class_options(kind)]
        title = "environments" if len(envs) == len(kinds) else ", ".join(envs)
        title = "limits of each sandbox" if name in LIMITS else title
        groups.setdefault(title, {})[name] = option
    return dict(
        sorted(groups.items(), key=lambda item: (item[0] != "environments", "limits" in item[0]))
    )


@cache
def _section_by_option() -> dict[str, str]:
    """Return the part of a spec that each option belongs to.

    Returns:
        Option → a name of `SECTIONS`, or an empty text for an option of `RunSpec` itself.
    """
    section_by_option = dict.fromkeys(list_section_options(RunSpec), "")
    for section, kind in SECTIONS.items():
        section_by_option |= dict.fromkeys(list_section_options(kind), section)
    del section_by_option["options"]
    return section_by_option


def _changed_fact(option: str) -> str:
    """Return the name of the recorded fact that an option changes; empty if no fact changes."""
    section = _section_by_option().get(option)
    if section in ("agent", "model"):
        return "agent"
    return list_section_options(RunSpec)[option].fact if section == "" else ""


@cache
def _flag_options() -> set[str]:
    """Return the options whose default is False: for these, False means not set by the caller."""
    section_types = (*SECTIONS.values(), RunSpec)
    return {
        k
        for section in section_types
        for k, option in list_section_options(section).items()
        if option.default is False
    }


def read_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a parsed command line, with the options of its preset.

    An option on the command line overrides the same option of the preset.

    Raises:
        UsageError: The preset is unknown or of another environment, or two environments are named.
    """
    names = _section_by_option().keys() | environment_options().keys() | {"options"}
    options = _drop_none({name: value for name, value in vars(args).items() if name in names})
    env_option = getattr(args, "env_option", None)
    network = options.get("network")
    if (
        isinstance(network, str)
        and "env" not in options
        and env_option is None
        and _is_env(network)
    ):
        # `--network` had no value in an earlier version, so `--network ENV` may be two arguments.
        options |= {"env": network, "network": True}
    if env_option is not None and options.setdefault("env", env_option) != env_option:
        raise UsageError(f"two environments are given: {options['env']!r} and {env_option!r}")
    if "preset" not in options:
        return options
    preset = resolve_preset(str(options["preset"]))
    if options.get("env", preset.env) != preset.env:
        raise UsageError(
            f"preset {options['preset']} is for {preset.env}, not for {options['env']}"
        )
    return _drop_none(asdict(preset)) | options


def resolve_preset(name: str) -> Any:
    """Return a preset by name.

    Raises:
        UsageError: No preset has the name, or the preset's package is not installed.
    """
    family = name.partition("-")[0]
    if family in PRESETS or family in PRESETS.homes:
        return PRESETS.get(family).get(name)
    if names := [preset for family in PRESETS.names() for preset in PRESETS.get(family).names()]:
        raise UsageError(f"there is no preset {name!r}{hint_text(name, names)}")
    raise UsageError(
        f"there is no preset {name!r}: presets come with the package {PAPER}: pip install {PAPER}"
    )


def _is_env(name: str) -> bool:
    return name in ENVS or Path(name).is_dir()


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Add the arguments ``ENV`` and ``--env ENV`` to a parser."""
    description = (
        f"one of {', '.join(environments(packages=False))}; a folder that 'intercode new' made; "
        "or tasks of another framework, such as harbor:FOLDER"
    )
    parser.add_argument("env", nargs="?", metavar="ENV", help=description)
    parser.add_argument("--env", dest="env_option", metavar="ENV", help="the same as ENV")


def environments(*, packages: bool = True) -> list[str]:
    """List the names of the environments, without entries of the form ``name:protocol``."""
    return [name for name in ENVS.names(packages=packages) if ":" not in name]


def add_options(
    parser: argparse._ActionsContainer,
    options: Mapping[str, OptionDescription],
    *names: str,
    excluded_names: str = "",
) -> None:
    """Add options to an argparse parser. Each has the default None, which means not given.

    Args:
        parser: A parser, or an argument group of a parser.
        options: Name → option.
        names: The options to add; default: all options with a flag.
        excluded_names: Names of options to omit, separated by spaces.
    """
    for name in names or options:
        option = options[name]
        if option.has_flag and name not in excluded_names.split():
            flag = _REPEATABLE_FLAGS.get(name, option.flag)
            action = parser.add_argument(
                flag, dest=name, help=_help(option), **_argparse_keywords(option)
            )
            vars(action)["is_rare"] = not option.is_daily  # for `intercode.cli.parser`


def add_environment_options(
    parser: argparse._ActionsContainer, *, excluded_names: str = ""
) -> None:
    """Add the options of InterCode's environments, and ``-o`` for options of any environment."""
    add_options(parser, environment_options(), excluded_names=excluded_names)
    add_named(parser)


def add_named(parser: argparse._ActionsContainer) -> None:
    """Add the argument ``-o NAME=VALUE``."""
    action = parser.add_argument(
        "-o",
        action="append",
        dest="options",
        metavar="NAME=VALUE",
        help=(
            "an option of the environment, including your own environment's; may be given "
            "several times"
        ),
    )
    vars(action)["is_rare"] = True


_REPEATABLE_FLAGS = {"tasks": "--task", "accept": "--accept", "skill": "--skill"}
"""Name of an option that may be given several times → its flag on the command line."""


def _help(option: OptionDescription) -> str:
    shows_default = option.default not in (None, False, (), "") and "default" not in option.help
    shows_default_value = (
        shows_default and option.name in _section_by_option() and not option.choices
    )
    return f"{option.help} (default: {option.default})" if shows_default_value else option.help


def _argparse_keywords(option: OptionDescription) -> dict[str, Any]:
    """Return the keyword arguments of argparse's ``add_argument`` for an option's value."""
    if option.kinds == (bool,):
        has_negation = option.default is None
        return {
            "action": argparse.BooleanOptionalAction if has_negation else "store_true",
            "default": None,
        }
    if bool in option.kinds:  # the flag without a value means True
        return {"nargs": "?", "const": True, "metavar": option.metavar}
    if option.choices:
        return {"choices": option.choices}
    if option.name in _REPEATABLE_FLAGS:
        return {"action": "append", "metavar": option.metavar}
    if option.name in LIMITS and option.metavar != "N":
        return {"type": _reader(LIMITS[option.name]), "metavar": option.metavar}
    integer_reader = natural if option.minimum == 0 else positive
    default_reader = integer_reader if int in option.kinds else str
    return {"type": _READERS.get(option.metavar, default_reader), "metavar": option.metavar}


def positive(text: str) -> int:
    """Parse a whole number above 0; argparse reports the error."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def natural(text: str) -> int:
    """Parse a whole number, 0 or above; argparse reports the error."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """Parse the number of a TCP port, 0 to 65535; 0: any free port."""
    if (number := natural(text)) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port, at most 65535, not {text}")
    return number


def _reader(read: Callable[[object], Any]) -> Callable[[str], Any]:
    """Return a parser of values for argparse: a `ValueError` becomes argparse's own error."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reader


seconds = _reader(units.seconds)
size = _reader(units.size)


def _parse_number(text: str) -> float:
    """Parse a finite number, 0 or above."""
    if not 0 <= (value := _parse_float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or above, not {text!r}")
    return value


def _parse_amount(text: str) -> float:
    """Parse a finite number above 0."""
    if (value := _parse_number(text)) == 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


_READERS: dict[str | None, Callable[[str], Any]] = {
    **{"SIZE": size, "SECONDS": seconds, "S": seconds, "USD": _parse_amount, "P": _parse_amount},
    "T": _parse_number,
}
"""Placeholder in ``--help`` → parser of the value. Values of other placeholders are texts or whole
numbers."""


# The record of a run


_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/]*@")


def portable(value: Any) -> Any:
    """Return a value in the form for a record: ``***`` replaces the password in a URL."""
    return _PASSWORD.sub(r"\1:***@", value) if isinstance(value, str) else value


def _absolute_path(value: str) -> str:
    return str(Path(value).absolute())


def _absolute_if_existing(value: str) -> str:
    """Make the path of an existing file or folder absolute.

    A name is returned unchanged, and a URL without its password.
    """
    if scheme := parse_scheme(value):
        return f"{scheme}:{_absolute_if_existing(value.partition(':')[2])}"
    path = Path(value).expanduser()
    looks_like_a_path = "/" in value or bool(path.suffix)
    is_existing_path = looks_like_a_path and path.exists()
    return str(path.absolute()) if is_existing_path else str(portable(value))


def _portable_dataset(value: str) -> str:
    is_code = is_reference(value) and is_reference(loader_name(value) or "")
    return absolute(value) if is_code else _absolute_if_existing(value)


def _portable_code(value: str) -> str:
    """Make the path in a reference to code, such as ``file.py:name``, absolute."""
    # A .toml file is the profile of an agent; ``cli:`` begins a command instead.
    if value.endswith(".toml") and not value.startswith("cli:"):
        return _absolute_if_existing(value)
    return absolute(value)


def _portable_model(value: str) -> str:
    return value if value.partition("/")[0] in MODELS else absolute(value)


def _portable_engine(value: str) -> str:
    return str(portable(value)) if "://" in value else absolute(value)


def _portable_image(value: str) -> str:
    from intercode_sandbox.images.base import parse  # a slow import, which --help does not need

    try:
        return str(parse(value))
    except ImageError:  # another provider has its own syntax for names of images
        return value


CODE = {"reward", "sandbox", "engine"}
"""Environment options that may name code in a file."""


def resolve_paths(options: Options) -> dict[str, Any]:
    """Make the paths among options absolute, so they are valid in any working directory.

    Options that a run displays, such as the agent and the model, stay unchanged. The run resolves
    these options once, before the working directory can change.
    """
    return {name: _resolve_value(name, value) for name, value in options.items()}


def _resolve_value(name: str, value: Any) -> Any:
    # A URL is not a path. `RunSpec.recorded` removes its password.
    if not isinstance(value, str) or "://" in value:
        return value
    if name in ("out", "cache", "prices", "prompt"):
        return _absolute_path(value)
    if name in CODE:
        return absolute(value)
    return _absolute_if_existing(value) if name in ("databases", "repositories") else value


_PORTABLE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("cache", "prices", "prompt", "recording"), _absolute_path),
    "skill": lambda folders: [_absolute_path(folder) for folder in folders],
    "data": _portable_dataset,
    "env": lambda name: ENVS.file_reference(name) or _absolute_if_existing(name),
    **dict.fromkeys(("databases", "repositories"), _absolute_if_existing),
    **dict.fromkeys(("agent", "protocol", "reward", "sandbox"), _portable_code),
    **dict.fromkeys(("judge_model", "model"), _portable_model),
    "engine": _portable_engine,
    **dict.fromkeys(("image", "default_image"), _portable_image),
}
