"""Trust in recorded runs: the options of a record that have effects are refused.

A record may come from a stranger. Options such as amounts, modes and names of InterCode's own
components are harmless. An option has an effect if InterCode would execute code, read or write a
path, or connect to an address because of its value. `check` refuses such an `UntrustedOption`
unless the caller repeats the option's value, or trusts the record. The tables in this module are
allowlists: an option outside the tables counts as an option with an effect.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intercode.errors import ImageError, TrustError, UsageError
from intercode.registry import DATASETS, ENVS, MODELS, REWARDS, SOURCES, parse_scheme
from intercode_sandbox.user_code import is_reference

DATA_OPTIONS = frozenset(
    {
        *("benchmark", "reviewed", "secret", "judge_votes"),
        *("preset", "setting", "schema", "context", "examples", "recap"),
        *("observation_limit", "observation_tail", "dialogue_limit", "samples", "choose"),
        *("search", "search_width", "search_depth", "search_budget", "search_from"),
        *("episode_cost", "episode_tokens", "episode_seconds"),
        *("temperature", "top_p", "reply_tokens", "record_tokens", "max_cost", "max_tokens"),
        *("limit", "tasks", "epochs", "seed"),
        *("workers", "max_connections", "max_sandboxes", "model_timeout", "retries"),
        *("timeout", "memory", "disk", "output", "processes", "max_turns", "reward_every_turn"),
        *("keep_diffs", "keys", "ignore", "cache_gold", "attempts"),
        *("max_rows", "permute_columns", "columns", "history"),
    }
)
"""Options with harmless values: amounts, modes, texts for a model, or names within the tasks."""
_MODEL_OPTIONS = {
    **dict.fromkeys(("base_url", "model"), "model"),
    **dict.fromkeys(("judge_url", "judge_model"), "judge_model"),
}
"""Option with a model's name or a server's URL → the option that names the model. The model's name
begins with its provider, which determines the key that is sent."""
_KEYLESS = ("local", "scripted")
"""Model providers that need no key."""
_PASSWORDS = ("MYSQL_PWD", "PGPASSWORD")
_OR_FOLDER = "; or, of a benchmark that has moved, its folder: --env PATH"
_READ = ("env", "data", "databases", "repositories")
_WORD = re.compile(r"[\w-]+")
_MODEL_NAME = re.compile(r"[\w.:@-]+(?:/[\w.:@-]+)*")
_GENERATED = ("seed", "difficulty", "count", "split")
"""Options in a dataset's name, such as ``generated-bash:seed=1``, whose values are not paths."""

_DEEDS = {
    "agent": "runs this agent",
    "reward": "runs this reward",
    "env": "imports this environment",
    "protocol": "imports this protocol",
    "data": "reads these tasks, and the images, repositories and databases that they name",
    "split": "reads this split",
    "model": "calls this model",
    "judge_model": "calls this model",
    "base_url": "sends dialogues there",
    "judge_url": "sends answers there",
    "engine": "connects to this server",
    "variables": "gives tasks these variables of this machine",
    "repositories": "reads or fetches repositories there",
    "databases": "reads databases there",
    "image": "builds, pulls or unpacks this image",
    "default_image": "builds, pulls or unpacks this image",
    "layers": "lays these archives over the image",
    "network": "lets the sandbox reach these hosts",
    "capabilities": "gives root in the sandbox these capabilities",
    "python": "runs this program in the sandbox",
    "sandbox": "starts sandboxes by this provider",
    "prompt": "reads this file, and sends it to the model",
    "recording": "reads this file, and repeats its actions",
    "skill": "reads these folders, and offers them to the agent",
    "cache": "reads and writes replies there",
    "prices": "reads this file",
    "search_test": "runs this code in the sandbox",
    "on": "runs the episodes on this cluster",
}
"""Option → the effect of a value that is not harmless, for messages."""


@dataclass(frozen=True, slots=True)
class UntrustedOption:
    """A recorded option with an effect: code, a path or an address would be used."""

    option: str
    value: Any
    deed: str
    """The description of the effect, for messages."""

    @property
    def is_gone(self) -> bool:
        """Whether the value is the path of a missing file or folder.

        The property is true only for options whose path is read whenever the run is repeated.
        """
        if self.option not in _READ or not isinstance(self.value, str):
            return False
        source_scheme = parse_scheme(self.value)
        path = self.value if source_scheme is None else self.value.partition(":")[2]
        file, ending, _ = path.partition(".py:")
        return file.startswith("/") and not Path(f"{file}.py" if ending else file).exists()

    @property
    def words(self) -> list[str]:
        """The words with which a caller repeats the option on a command line."""
        values = self.value if isinstance(self.value, list) else [self.value]
        # Options outside both tables belong to an environment outside InterCode. On a command line,
        # they are set by ``-o``.
        if self.option not in _DEEDS and self.option not in DATA_OPTIONS:
            texts = (str(v).lower() if isinstance(v, bool) else v for v in values)
            return [word for text in texts for word in ("-o", f"{self.option}={text}")]
        flag = f"--{self.option.replace('_', '-')}"
        if self.option in ("network", "capabilities") and values is self.value:
            values = [",".join(map(str, values))]
        return [word for v in values for word in ((flag,) if v is True else (flag, str(v)))]


def effects(
    options: Mapping[str, Any], approved_names: Collection[str] = ()
) -> list[UntrustedOption]:
    """List the options of a record that have effects.

    Args:
        options: The record's options, option → value.
        approved_names: The names of the options whose values the caller has repeated.
    """
    return [
        UntrustedOption(name, value, _DEEDS.get(name, "is not known to be harmless"))
        for name, value in options.items()
        if name not in approved_names and _has_effect(name, value, options)
    ]


def check(
    record: object,
    record_effects: Collection[UntrustedOption],
    options: Mapping[str, Any],
    *,
    trust: bool,
) -> None:
    """Refuse a record that has effects, unless the caller trusts the record.

    An address that would receive a key of this host is refused even in a trusted record. The caller
    must name the address, or unset the key.

    Args:
        record: The record's location, for messages.
        record_effects: The effects that the caller has not repeated, from `effects`.
        options: All options of the run, including the caller's.
        trust: Whether the caller trusts the record.

    Raises:
        TrustError: An effect is neither repeated nor trusted.
        UsageError: A file that the record names does not exist any more.
    """
    keys = {effect.option: _key_for(effect.option, options) for effect in record_effects}
    refused_effects = [effect for effect in record_effects if keys[effect.option] or not trust]
    if not refused_effects:
        # Before this line, no path of the record is accessed, because the record may be untrusted.
        # The option `env` is checked first: a benchmark's folder also holds the data, so its new
        # path answers all further questions.
        for effect in sorted(record_effects, key=lambda effect: effect.option != "env"):
            if effect.is_gone:
                raise UsageError(
                    f"{record} names {effect.value}, which no longer exists. Give its new path: "
                    f"--{effect.option} PATH (in Python "
                    f"{effect.option}=PATH){_OR_FOLDER if effect.option == 'data' else ''}"
                )
        return
    rules = [f"{key} goes only to an address that you name" for key in keys.values() if key]
    if not trust:
        rules.append("add --trust to take all else as recorded" if rules else "or add --trust")
    raise TrustError(
        f"{record} names code, paths or addresses that this command does not name. None of them "
        f"was run, read or contacted:\n{listing(refused_effects)}\nRepeat the options that you "
        f"want, with these values; {'; '.join(rules)}"
    )


def listing(record_effects: Collection[UntrustedOption]) -> str:
    """Format effects for a message: for each, the option to repeat and a description."""
    lines = (
        f"  {_escape_line(shlex.join(effect.words))}\n    {effect.deed}"
        for effect in record_effects
    )
    return "\n".join(lines)


def _escape_line(text: str) -> str:
    """Escape control characters and line ends, so no value can imitate a line of the message."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _key_for(option: str, options: Mapping[str, Any]) -> str:
    """Return the name of the key that would be sent to the address in an option.

    The result is empty if no key would be sent.
    """
    from intercode.models.api_keys import find

    if option == "engine":
        return next((name for name in _PASSWORDS if find(name)), "")
    if option not in _MODEL_OPTIONS:
        return ""
    model = str(options.get(_MODEL_OPTIONS[option]) or "")
    provider = model.partition("/")[0]
    is_code = is_reference(model) and provider not in MODELS
    # A model that is the user's code chooses its address itself, so InterCode sends no key.
    if provider in _KEYLESS or (is_code and option == _MODEL_OPTIONS[option]):
        return ""
    name = _key_variables().get(provider)
    # The clients of all other providers find the key by themselves, so a key may be sent.
    if name is None:
        return f"the key of {provider or 'the provider'}"
    return name if find(name) else ""


def _key_variables() -> dict[str, str]:
    """Return the environment variables with the keys of model providers.

    Returns:
        Provider → the variable whose key is sent to the option `base_url`.
    """
    from intercode.models.providers import PROVIDERS

    names = {name: provider.key for name, provider in PROVIDERS.items()}
    return {**names, "openai-completions": names["openai-compatible"]}


def _has_effect(name: str, value: Any, options: Mapping[str, Any]) -> bool:
    """Return whether an option's value has an effect."""
    if value is None or value is False or value in ([], ""):
        return False
    if name in DATA_OPTIONS:
        elements = value if isinstance(value, list) else [value]
        return not all(isinstance(item, str | int | float) for item in elements)
    is_harmless = _HARMLESS_TESTS.get(name)
    return not (is_harmless and isinstance(value, str) and is_harmless(value, options))


def _is_dataset(value: str, options: Mapping[str, Any]) -> bool:
    name, _, parameters = value.partition(":")
    assignments = (
        [assignment.partition("=") for assignment in parameters.split(",")] if parameters else []
    )
    has_known_names = all(k in _GENERATED and _WORD.fullmatch(v) for k, _, v in assignments)
    return DATASETS.is_trusted(name) and has_known_names


def _is_agent(value: str, options: Mapping[str, Any]) -> bool:
    from intercode.agents.registry import AGENTS

    return AGENTS.is_trusted(value) or value in AGENTS.homes


def _is_model(value: str, options: Mapping[str, Any]) -> bool:
    """Return whether a text is ``PROVIDER/NAME`` of a known provider, and no file and no URL."""
    provider, _, name = value.partition("/")
    if provider not in (*_key_variables(), *_KEYLESS):
        return False
    if provider == "local":
        return _WORD.fullmatch(name.replace(".", "-")) is not None and not name.endswith(".gguf")
    return provider != "scripted" and _MODEL_NAME.fullmatch(name) is not None


def _is_image(value: str, options: Mapping[str, Any]) -> bool:
    from intercode.datasets.builtin import PREFIX
    from intercode_sandbox.images.base import parse
    from intercode_sandbox.images.debian import RECIPES

    try:
        image = parse(value)
    except ImageError:
        return False
    builtin = all(addition.text.startswith(PREFIX) for addition in image.additions)
    return builtin and not image.argument and image.scheme in ("host", "base", *RECIPES)


def _is_engine(value: str, options: Mapping[str, Any]) -> bool:
    from intercode.databases import ENGINES

    return ENGINES.is_trusted(value)


def _is_reward(value: str, options: Mapping[str, Any]) -> bool:
    return value in ("default", "judge") or REWARDS.is_trusted(f"{options.get('env')}:{value}")


def _is_provider(value: str, options: Mapping[str, Any]) -> bool:
    from intercode_sandbox.providers import PROVIDERS

    return PROVIDERS.is_trusted(value)


_HARMLESS_TESTS: Mapping[str, Callable[[str, Mapping[str, Any]], object]] = {
    "agent": _is_agent,
    "data": _is_dataset,
    **dict.fromkeys(("default_image", "image"), _is_image),
    "engine": _is_engine,
    "env": lambda value, options: ENVS.is_trusted(value) or SOURCES.is_trusted(value),
    **dict.fromkeys(("judge_model", "model"), _is_model),
    "protocol": lambda value, options: value in ("default", "paper"),
    "reward": _is_reward,
    "sandbox": _is_provider,
    "split": lambda value, options: _WORD.fullmatch(value),
}
"""Option → a function that returns whether a value is harmless: it names a component of InterCode.
The arguments of the function are the value and all options."""
