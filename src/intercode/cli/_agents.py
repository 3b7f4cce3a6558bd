"""From options to an agent: who acts, which model, what it may cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.agents import presets, registry
from intercode.agents.language import LanguageAgents, Strategy
from intercode.cli import _judge, _options
from intercode.errors import UsageError
from intercode.user_code import is_reference

if TYPE_CHECKING:
    from intercode.agents.base import AgentFactory
    from intercode.models import Budget
    from intercode.models.remote import RemoteModel

RECORDED = ("replay", "predictions")
"""Agents that need ``--recording``."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Who acts, and for language models all that there is to say of them."""
    who = parser.add_argument_group("who")
    who.add_argument("--agent", help="see above (default: oracle)")
    who.add_argument(
        "--recording", type=Path, metavar="PATH", help="for --agent replay and predictions"
    )
    who.add_argument(
        "--preset", metavar="NAME", help="settings of the paper, as paper-gpt-3.5-bash-try-again"
    )
    who.add_argument("--model", metavar="NAME", help="PROVIDER/NAME, for instance openai/gpt-4o")
    add_model(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """All that there is to say of language models but their names."""
    model = parser.add_argument_group("the language model")
    model.add_argument("--base-url", metavar="URL", help="of a server of your own")
    model.add_argument("--temperature", type=_natural_number, metavar="T", help="default: 0")
    model.add_argument("--top-p", type=_number, metavar="P", help="default: the model's")
    model.add_argument(
        "--reply-tokens", type=_options.positive, metavar="N", help="of one reply, at most"
    )
    model.add_argument("--cache", type=Path, metavar="DIR", help="keep and reuse replies")
    model.add_argument("--prices", type=Path, metavar="FILE", help="of models that we do not know")
    talk = parser.add_argument_group("what it is told")
    talk.add_argument("--prompt", type=Path, metavar="FILE", help="a template of your own")
    talk.add_argument("--setting", metavar="TEXT", help="what prompts call the setting")
    talk.add_argument(
        "--schema",
        action="store_true",
        default=None,
        help="for SQL: tables and columns, where the dataset has them (2023's 'handicap')",
    )
    talk.add_argument(
        "--observation-limit",
        type=_options.positive,
        metavar="N",
        help="characters of an observation that are shown (default: 10000)",
    )
    talk.add_argument(
        "--dialogue-limit",
        type=_options.positive,
        metavar="N",
        help="messages after the first ones that are sent (default: all)",
    )
    talk.add_argument(
        "--samples", type=_options.positive, metavar="N", help="replies a turn (default: 1)"
    )
    talk.add_argument(
        "--choose", choices=("vote", "judge"), help="one of them: by majority (default), by itself"
    )
    spend = parser.add_argument_group("what it may take")
    add_budget(spend)
    spend.add_argument("--episode-cost", type=_number, metavar="USD", help="each episode")
    spend.add_argument("--episode-tokens", type=_options.positive, metavar="N", help="each episode")
    parser.set_defaults(observation_tail=None)  # only a preset says
    spend.add_argument("--episode-seconds", type=_options.seconds, metavar="S", help="each episode")


def add_budget(group: argparse._ActionsContainer) -> None:
    """What all episodes may take together, those of earlier sessions of the run among them."""
    group.add_argument("--max-cost", type=_number, metavar="USD", help="all episodes together")
    group.add_argument(
        "--max-tokens", type=_options.positive, metavar="N", help="all episodes together"
    )


def apply_preset(args: argparse.Namespace) -> None:
    """Fill what is not given from the preset.

    Raises:
        UsageError: There is no such preset, or it is for another environment.
    """
    if args.preset is None:
        return
    preset = presets.get(args.preset)
    given = args.env or args.env_option
    if given not in (None, preset.env):
        raise UsageError(f"preset {args.preset} is for {preset.env}, not for {given}")
    args.env = preset.env
    for name, value in asdict(preset).items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


@dataclass(frozen=True, slots=True)
class Who:
    """Who acts."""

    factory: AgentFactory
    agent: str | AgentFactory
    """As `evaluate` is to be given it: by name, or itself if it is more than a name can say."""
    options: dict[str, Any]
    """That go with the name."""
    asks_of_environment: dict[str, Any]
    """Options without which it cannot act."""
    close: Callable[[], None] = lambda: None
    """Lets go of what it holds."""


def make(args: argparse.Namespace, budget: Budget | None = None) -> Who:
    """Who acts, by the options; what that asks of the environment is put among them.

    Args:
        args: The options.
        budget: One that several runs share; default: the run's own, by the options.

    Raises:
        UsageError: There is no such agent or model, or it does not take these options.
    """
    if args.agent in RECORDED and args.recording is None:
        raise UsageError(f"--agent {args.agent} needs --recording PATH")
    if (strategy := strategy_of(args.agent)) is not None:
        model = _model(args, strategy, budget)
        agents = _language_agents(args, strategy, model)
        asks = {"reward_every_turn": True} if agents.needs_reward else {}
        if asks:
            args.more = {**getattr(args, "more", {}), **asks}
        return Who(agents, agents, {}, asks, model.close)
    given = [name for name in without_model(args) if getattr(args, name) is not None]
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"agent {args.agent} is no language model: it takes no {flag}")
    options: dict[str, Any] = {} if args.recording is None else {"recording": args.recording}
    return Who(registry.get(args.agent, **options), args.agent, options, {})


def strategy_of(agent: str) -> Strategy | None:
    """The strategy of that name; None if the agent is no language model, or unknown."""
    if is_reference(agent) or agent not in registry.AGENTS:
        return None
    found = registry.AGENTS.get(agent)
    return found if isinstance(found, Strategy) else None


def _model(args: argparse.Namespace, strategy: Strategy, budget: Budget | None) -> RemoteModel:
    if args.recording is not None:
        raise UsageError(f"agent {strategy.name} takes no --recording")
    if args.model is None:
        raise UsageError(f"agent {strategy.name} needs --model PROVIDER/NAME")
    from intercode.models import get_model

    return get_model(
        args.model,
        base_url=args.base_url,
        cache=args.cache,
        prices=args.prices,
        budget=budget or budget_of(args),
    )


def budget_of(args: argparse.Namespace, runs: Sequence[argparse.Namespace] = ()) -> Budget:
    """What models may take, all episodes together, and what they have taken of it before.

    Args:
        args: The options that say it.
        runs: Those of the runs that share it; default: the same.
    """
    from intercode.evaluate.budget_spent import spent_by
    from intercode.models import Budget
    from intercode.models.budget import Spending
    from intercode.models.prices import Prices

    before = Spending()
    if args.max_cost is not None or args.max_tokens is not None:
        for run in runs or (args,):
            names = run.model, run.judge_model
            if run.out is not None and any(names):
                known = Prices(run.prices)
                price, judge_price = (known.find(name) if name else None for name in names)
                found = spent_by(run.out, price, run.reply_tokens, judge_price=judge_price)
                before.add(found.cost, found.tokens)
    return Budget(args.max_cost, args.max_tokens, before=before)


def _language_agents(
    args: argparse.Namespace, strategy: Strategy, model: RemoteModel
) -> LanguageAgents:
    from intercode.agents.ending import EpisodeLimits
    from intercode.models import Settings

    options: dict[str, Any] = {
        name: value for name in _TALK if (value := getattr(args, name, None)) is not None
    }
    return strategy(
        model,
        settings=Settings(
            temperature=0.0 if args.temperature is None else args.temperature,
            top_p=args.top_p,
            max_tokens=args.reply_tokens,
        ),
        limits=EpisodeLimits(args.episode_seconds, args.episode_tokens, args.episode_cost),
        **options,
    )


_TALK = (
    *("prompt", "setting", "schema", "observation_limit", "observation_tail", "dialogue_limit"),
    *("samples", "choose"),
)
_MODEL_OPTIONS = (
    *("model", "base_url", "temperature", "top_p", "reply_tokens", "cache", "prices"),
    *_TALK[:4],
    *_TALK[5:],
    *("max_cost", "max_tokens", "episode_cost", "episode_tokens", "episode_seconds"),
)


def without_model(args: argparse.Namespace) -> list[str]:
    """The options that an agent that is no language model has no use for, nor a judge."""
    taken = _judge.TAKES_TOO if args.reward == _judge.NAME else ()
    return [name for name in _MODEL_OPTIONS if name not in taken]


def _number(text: str) -> float:
    """A number above 0."""
    if (value := _natural_number(text)) == 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def _natural_number(text: str) -> float:
    """A number, 0 or above."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or above, not {text!r}")
    return value
