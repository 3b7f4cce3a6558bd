"""Presets: the settings of the 2023 experiments, as far as they are known.

A preset sets environment, agent, model, limits and sampling. A preset does not set the protocol:
only ``--protocol paper`` selects the 2023 version of the environment. The prompts are InterCode's
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from intercode.errors import UsageError
from intercode_sandbox.spelling_suggestions import hint_text

MODELS: Mapping[str, str] = {
    "gpt-3.5": "openai/gpt-3.5-turbo",
    "gpt-4": "openai/gpt-4",
    "text-davinci-003": "openai-completions/text-davinci-003",
    "vicuna": "openai-compatible/vicuna-13b",
    "starchat": "openai-compatible/starchat-beta",
}
"""The paper's name of a model → InterCode's. ``--model`` can replace a model that has been retired.
"""
SETTINGS: Mapping[str, str] = {
    "bash": "Bourne Shell",
    "ctf": "Bourne Shell",
    "python": "Python 3 Interpreter",
    "sql": "MySQL Database",
}
"""Environment → its name in prompts."""
STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "single-turn": ("bash", "sql"),
    "try-again": ("bash", "sql", "python", "ctf"),
    "react": ("bash", "sql"),
    "plan-solve": ("bash", "sql"),
}
"""The paper's name of a strategy → the environments in which the paper used the strategy."""
_TURNS = {"python": 7}
_DIALOGUE = {"bash": 7, "sql": 5}
_CHAT_ONLY = ("react", "plan-solve")


@dataclass(frozen=True, slots=True)
class RunPreset:
    """Options of ``intercode run`` with their values; options on the command line override them."""

    env: str
    agent: str
    model: str
    setting: str
    max_turns: int
    observation_limit: int
    observation_tail: bool = False
    dialogue_limit: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    reply_tokens: int = 512


def get(name: str) -> RunPreset:
    """Return the preset with a given name of the form ``paper-MODEL-ENV-STRATEGY``.

    Raises:
        UsageError: No preset has the name.
    """
    if name not in (presets := dict(_iterate_presets())):
        raise UsageError(f"there is no preset {name!r}{hint_text(name, presets)}")
    return presets[name]


def names() -> list[str]:
    """Return the names of all presets."""
    return [name for name, _ in _iterate_presets()]


def _iterate_presets() -> Iterator[tuple[str, RunPreset]]:
    for model, model_name in MODELS.items():
        for strategy, envs in STRATEGIES.items():
            if strategy in _CHAT_ONLY and model != "gpt-3.5":
                continue
            for env in envs:
                if env in ("python", "ctf") and not model.startswith("gpt"):
                    continue
                yield f"paper-{model}-{env}-{strategy}", _preset(model_name, env, strategy)


def _preset(model: str, env: str, strategy: str) -> RunPreset:
    # ReAct limited completions to 100 tokens, and had the lowest limit on observations.
    if strategy == "react":
        return RunPreset(env, "react", model, SETTINGS[env], 10, 350, reply_tokens=100)
    # Plan & Solve was refined until the true reward was 1.
    if strategy == "plan-solve":
        return RunPreset(env, "plan-solve-refine-oracle", model, SETTINGS[env], 10, 1000)
    if strategy == "single-turn":
        return RunPreset(env, "single-turn", model, SETTINGS[env], 1, 1000)
    return RunPreset(
        env,
        "try-again-oracle",
        model,
        SETTINGS[env],
        _TURNS.get(env, 10),
        500 if model.startswith("openai-completions/") else 1000,
        dialogue_limit=_DIALOGUE.get(env),
    )
