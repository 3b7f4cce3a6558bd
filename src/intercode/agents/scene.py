"""What an agent needs to know of an environment and a task to talk about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intercode.envs.traits import Traits, traits_in
from intercode.errors import UsageError

if TYPE_CHECKING:
    from intercode.task import Task


@dataclass(frozen=True, slots=True)
class Scene:
    """What prompts can speak of."""

    env: str
    """The environment's short name."""
    traits: Traits
    setting: str
    query: str
    max_turns: int
    schema: str = ""
    """For SQL: tables and their columns, if they are to be told (2023's "handicap")."""
    seed: int | None = None
    """The episode's."""

    @classmethod
    def of(cls, env: object, task: Task, *, setting: str = "", schema: bool = False) -> Scene:
        """The scene of an episode.

        Args:
            env: The environment; None: an agent that is tried without any, in Bash.
            task: What is asked.
            setting: What to call the setting.
            schema: Whether to tell the database's schema.
        """
        traits = traits_in(env)
        return cls(
            env=str(getattr(env, "name", "")),
            traits=traits,
            setting=setting or traits.setting or traits.language,
            query=task.query,
            max_turns=int(getattr(env, "max_turns", 10)),
            schema=describe_tables(task) if schema else "",
            seed=None if env is None else env.episode.seed,  # type: ignore[attr-defined]
        )

    @property
    def language(self) -> str:
        """The language of actions."""
        return self.traits.language

    def values(self) -> dict[str, Any]:
        """Return the values for a template."""
        names = ("env", "language", "setting", "query", "max_turns", "schema")
        return {
            **{name: getattr(self, name) for name in names},
            "answer": self.traits.answer,
            "briefing": self.traits.briefing.replace("{setting}", self.setting),
        }


def describe_tables(task: Task) -> str:
    """A task's tables and columns, as its dataset tells them.

    Raises:
        UsageError: It does not.
    """
    tables = task.metadata.get("db_tables")
    if not isinstance(tables, Mapping):
        raise UsageError(
            f"task {task.task_id!r} does not say which tables its database has "
            "(metadata.db_tables): leave --schema away"
        )
    return "\n".join(
        f"- {name}: {', '.join(map(str, columns))}" for name, columns in tables.items()
    )
