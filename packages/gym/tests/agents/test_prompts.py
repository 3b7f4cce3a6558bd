"""What a model is told: prompts, observations, schemas, the settings of the paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import intercode
from intercode.agents import registry
from intercode.agents.base import make
from intercode.agents.conversation import (
    ObservationClipper,
    PromptContext,
    StrategyPrompts,
    turn_values,
)
from intercode.agents.language import ForkSearchOptions, StrategyOptions
from intercode.envs.traits import SHELL
from intercode.episode import Turn
from intercode.errors import UsageError
from intercode.evaluate.agent_setup import actors
from intercode.spec import RunSpec
from intercode.task import Task

from .talking import TASK, Says, play


def test_what_is_shown_of_an_observation() -> None:
    text = "".join(map(str, range(10))) * 10
    assert (
        ObservationClipper(100)(text) == text
        and ObservationClipper(10, tail=False)(text) == text[:10]
    )
    assert ObservationClipper(11)(text) == "01234\n[… 89 characters are left out here …]\n456789"
    says = Says(["`ls`", "`ls`"])
    play("try-again", says, ["\udcff\x00"])
    assert says.heard[1][-1].content.encode()


def test_the_schema_is_told_where_the_task_has_it() -> None:
    says = Says(["SELECT 1"])
    play("single-turn", says, env="sql", schema=True, setting="MySQL Database")
    assert "- files: name, size" in says.heard[0][0].content
    assert "(MySQL Database)" in says.heard[0][0].content
    agents = registry.get("single-turn", model=says, schema=True)
    with pytest.raises(UsageError, match="db_tables"):
        agents.check([Task("b", "q")])  # type: ignore[attr-defined]


def test_a_prompt_of_ones_own(tmp_path: Any) -> None:
    own = tmp_path / "own.j2"
    own.write_text("{% block observation %}You saw {{ observation }}.{% endblock %}")
    says = Says(["`ls`", "`ls`"])
    play("try-again", says, ["it\n"], prompt=own)
    assert says.heard[1][-1].content == "You saw it."
    assert "Count the files." in says.heard[0][1].content
    assert StrategyPrompts("try_again", own).digest != StrategyPrompts("try_again").digest


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{% block observation %}", "own.j2, line 1"),
        ("hello", "has no block; the blocks of this agent: system, task, observation"),
        ("{% block other %}{% endblock %}", "block 'other' is unknown"),
        ("{% block system %}{{ nothing }}{% endblock %}", "there is no value 'nothing'"),
        ("{% block system %}{{ step }}{% endblock %}", "block 'system': 'step' is undefined"),
        ("{% block system %}{{ ''.__class__ }}{% endblock %}", "block 'system'"),
    ],
)
def test_a_prompt_that_cannot_be(tmp_path: Any, text: str, told: str) -> None:
    own = tmp_path / "own.j2"
    own.write_text(text)
    with pytest.raises(UsageError, match=told):
        play("try-again", Says([]), prompt=own)
    with pytest.raises(UsageError, match="No such file"):
        StrategyPrompts("try_again", tmp_path / "none.j2")


def observed(action: str, ok: bool = True) -> Turn:
    return Turn(action=action, observation="seen", ok=ok)


def replied_without_code() -> Turn:
    return Turn(action="", observation="[no code]", ok=False, info={"invalid": True})


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([observed("ls")], "nothing else, reply with `submit`; else with other code"),
        ([observed("sl", ok=False)], "That failed. Look at what there is with `ls`"),
        ([observed("ls"), observed(" ls\n")], "If the task is done, reply with:\n```bash\nsubmit"),
        ([observed("sl", ok=False)] * 2, "You have sent this code before, and it failed then, too"),
        ([replied_without_code()] * 2, "That failed. Look at what there is"),
        ([observed("ls"), observed("pwd"), observed("ls")], "You have sent this code before"),
        ([observed(".schema")], "Now reply with code for the task"),
        ([observed(".schema")] * 2, "You have seen this before. Now reply with other code"),
    ],
)
def test_try_again_tells_what_became_of_an_action(turns: list[Turn], told: str) -> None:
    scene = PromptContext.from_env(None, TASK)
    language = "sql" if ".schema" in turns[0].action else "bash"
    values = {**scene.values(), "language": language, "show_reward": False}
    text = StrategyPrompts("try_again").render(
        "observation", observation="seen", **values | turn_values(turns)
    )
    assert told in text and TASK.query not in text


def test_a_model_that_has_looked_is_not_sent_to_look_again() -> None:
    scene = PromptContext.from_env(None, TASK)
    values = {**scene.values(), "language": "sql", "show_reward": False, "observation": "seen"}
    failed = observed("SELECT x", ok=False)
    for turns, told in (
        ([failed], "Reply with `.schema`"),
        ([observed(".schema"), failed], "You have seen the tables and their columns above"),
        ([observed(".schema", ok=False), failed], "Reply with `.schema`"),
        ([observed(".tables"), failed], "Reply with `.schema`"),
    ):
        text = StrategyPrompts("try_again").render("observation", **values | turn_values(turns))
        assert told in text


def test_silence_is_told_apart_from_failure() -> None:
    scene = PromptContext.from_env(None, TASK)
    for strategy in ("try_again", "react", "tool_calling"):
        for ok, told in ((True, "(none: it succeeded)"), (False, "(none: it failed)")):
            values = {**scene.values(), **turn_values([observed("x", ok)]), "show_reward": False}
            assert told in StrategyPrompts(strategy).render("observation", observation="", **values)


@pytest.mark.parametrize("agent", ["try-again", "react"])
def test_a_worked_example_can_be_left_out(agent: str) -> None:
    for examples in (True, False):
        says = Says(["`ls`"])
        play(agent, says, examples=examples)
        shown = "\n".join(message.content for message in says.heard[0])
        assert ("list of clients" in shown) is examples
        assert says.heard[0][-1].content == f"Task: {TASK.query}"


@pytest.mark.parametrize(
    ("agent", "model", "shown"),
    [
        ("try-again", "openai/x", False),
        ("try-again", "local/x", True),
        ("react", "openai/x", True),
        ("tree-search", "openai/x", True),
        ("best-of-n", "openai/x", True),
        ("react-zero-shot", "local/x", False),
        ("single-turn", "local/x", False),
    ],
)
def test_who_is_shown_worked_examples(agent: str, model: str, shown: bool) -> None:
    strategy = registry.AGENTS.get(agent)
    assert strategy.shows_examples(None, model) is shown
    assert not strategy.shows_examples(False, model)


def test_agents_without_a_place_for_worked_examples_refuse_them() -> None:
    with pytest.raises(UsageError, match="agent single-turn has no worked examples"):
        registry.get("single-turn", model=Says([]), examples=True)


def test_what_looking_around_shows_can_be_told_at_the_start() -> None:
    says = Says(["```sql\nSELECT 1\n```"])
    agents = registry.get("try-again", model=says, context="schema")
    with intercode.make("sql", data="sql-starter") as env:
        query, _ = env.reset(index=0)
        task = Task(env.episode.task_id, query)
        make(agents, env, task).act(query, [])  # type: ignore[union-attr]
        assert not env.episode.turns
    system, *_, told = says.heard[0]
    assert "CREATE TABLE bikes (" in told.content and told.content.endswith(f"Task: {query}")
    assert "unknown to you" not in system.content


@pytest.mark.parametrize(
    ("env", "setting"),
    [
        ("bash", r"Bash \d[\d.]* on \S.*, as \w+ in /\S*"),
        ("sql", r"SQLite \d[\d.]*"),
        ("python", r"Python \d[\d.]*"),
    ],
)
def test_the_place_is_named(env: str, setting: str) -> None:
    says = Says(["`ls`"])
    with intercode.make(env, data=f"{env}-starter") as made:
        query, _ = made.reset(index=0)
        task = Task(made.episode.task_id, query)
        make(registry.get("try-again", model=says), made, task).act(query, [])  # type: ignore[union-attr]
    assert re.search(rf" \({setting}", says.heard[0][0].content)


def test_looking_for_an_agent_leaves_the_episodes_place_as_it_is() -> None:
    numbers = []
    for looks in (False, True):
        with intercode.make("bash", data="bash-starter") as env:
            env.reset(index=0)
            if looks:
                assert "Bash" in env.unwrapped.setting() and env.unwrapped.overview()
            numbers.append(env.step("sh -c 'echo $$'; ls -la /tmp ~ | wc -l")[0])
    assert numbers[0] == numbers[1]


def test_a_place_without_programs_is_named_as_well() -> None:
    with intercode.make("bash", data="bash-starter") as env:
        env.unwrapped.traits = replace(SHELL, where=f"PATH=/nowhere; {SHELL.where}")
        env.reset(index=0)
        assert re.fullmatch(r"Bash \d.* in /\S*", env.unwrapped.setting())


def test_a_place_that_says_nothing_sensible_has_the_usual_name() -> None:
    for where in ("false", "echo one; echo two", "true"):
        with intercode.make("bash", data="bash-starter") as env:
            env.unwrapped.traits = replace(env.unwrapped.traits, where=where)
            env.reset(index=0)
            assert env.unwrapped.setting() == "Bash on Linux"


def test_no_context_where_nothing_shows_it() -> None:
    options = {"env": "python", "agent": "try-again", "model": "local/x", "context": "schema"}
    with pytest.raises(UsageError, match=r"--context schema: no commands list .*python"):
        actors(RunSpec.from_layers(options))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: ForkSearchOptions(depth=0), "depth .* must be at least 1"),
        (lambda: ForkSearchOptions(start=-1), "start of a search must be at least 0, not -1"),
        (lambda: StrategyOptions(dialogue_limit=0), "must be at least 1"),
    ],
)
def test_options_out_of_range(create: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        create()
