"""The environments, and how to make one by name.

A new environment is the composition of three things: an image, a dataset and a reward. It is a
subclass of `intercode.envs.base.InterCodeEnv` whose constructor puts them together (see
`intercode.envs.bash`), and a line in `intercode.registry.ENVS`. Without a class of one's own there
is a folder with an ``intercode.toml`` (see `intercode.project`).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from intercode.errors import UsageError
from intercode.project import is_project, options_of, read
from intercode.registry import ENVS

if TYPE_CHECKING:
    import gymnasium

    from intercode.envs.vector import ThreadVectorEnv

__all__ = ["create", "create_vec"]


def create(env: str, *, protocol: str = "default", **options: Any) -> gymnasium.Env[str, str]:
    """An environment: what `gymnasium.make` and `intercode.make` call.

    Args:
        env: Its short name: ``"bash"``; or a folder with an ``intercode.toml``.
        protocol: ``"default"``, or ``"paper"`` for what the 2023 release did, with every quirk.
        options: For its constructor.

    Raises:
        UsageError: There is no such environment or protocol, or the folder's file is malformed.
    """
    env, options = _opened(env, options)
    name = env if protocol == "default" else f"{env}:{protocol}"
    if env in ENVS and name not in ENVS:
        raise UsageError(f"environment {env!r} has no protocol {protocol!r}")
    made: gymnasium.Env[str, str] = ENVS.get(name)(**options)
    return made


def create_vec(
    env: str,
    num_envs: int = 1,
    *,
    seed: int | None = None,
    autoreset_mode: str = "NextStep",
    **options: Any,
) -> ThreadVectorEnv:
    """Several environments, stepped together on threads: what `gymnasium.make_vec` calls.

    Args:
        env: As in `create`.
        num_envs: How many.
        seed: The first one's; each has its own, counted on from it.
        autoreset_mode: A value of `gymnasium.vector.AutoresetMode`.
        options: As in `create`, the same for all.
    """
    from intercode.envs.vector import ThreadVectorEnv

    env, options = _opened(env, options)
    takes_cache = env in ENVS and "cache_gold" in inspect.signature(ENVS.get(env)).parameters
    default = options.get("protocol", "default") == "default"
    if default and takes_cache and options.get("cache_gold", True) is True:
        from intercode.rewards.gold import GoldCache

        options["cache_gold"] = GoldCache()
    seeds: list[dict[str, Any]] = [
        {} if seed is None else {"seed": seed + index} for index in range(num_envs)
    ]
    return ThreadVectorEnv([create(env, **one, **options) for one in seeds], autoreset_mode)


def _opened(env: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The environment that a folder is for, with the folder's options; others are left as given."""
    if env in ENVS or not is_project(env):
        return env, options
    project = read(env)
    return project.env, options_of(project, options)
