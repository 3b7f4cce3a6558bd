"""The stand-in for a language model: it errs by dice, and its words are read as its actions."""

from __future__ import annotations

import random
from contextlib import closing

import pytest
from hypothesis import given, strategies as st

from intercode.agents.conversation import PromptContext
from intercode.agents.noisy_oracle import NAME, NoisyOracleAgents, plan, replies
from intercode.agents.parser import find_code
from intercode.datasets import load_seeded
from intercode.envs.swe import apply_patch
from intercode.envs.traits import find_traits
from intercode.project import create

ENVS = ("bash", "ctf", "python", "sql", "swe")


def scene(env: str, query: str = "look at /data") -> PromptContext:
    return PromptContext(env, find_traits(env), "", query, 10)


@given(
    st.sampled_from(ENVS),
    st.text(max_size=80),
    st.integers(0, 2**64),
)
def test_a_plan_ends_once(env: str, gold: str, seed: int) -> None:
    made = plan(scene(env), [gold, "submit"], random.Random(seed))
    actions = [action for _, action in made]
    assert actions == [a for _, a in plan(scene(env), [gold, "submit"], random.Random(seed))]
    assert actions[-1] == "submit" and len(actions) >= 2
    assert "{place}" not in "".join(actions[:-2])


def test_the_dice_decide() -> None:
    solution = ["sort x | uniq | wc -l", "submit"]
    lengths, ends = set(), set()
    for seed in range(200):
        actions = [action for _, action in plan(scene("bash"), solution, random.Random(seed))]
        lengths.add(len(actions))
        ends.add(tuple(actions[-2:]) == tuple(solution))
    assert lengths == {2, 3, 4, 5, 6} and ends == {True, False}


@pytest.mark.parametrize(
    ("env", "gold", "wrong"),
    [
        ("bash", "sort x | uniq | wc -l", ["sort x | uniq", "sort x"]),
        ("bash", "rm -r x", []),
        (
            "sql",
            "SELECT a FROM t WHERE b ORDER BY c",
            ["SELECT a FROM t WHERE b", "SELECT a FROM t"],
        ),
        ("sql", "DELETE FROM t WHERE b", []),
        ("python", "def f(x):\n    return x + 1\n", ["def f(x):\n    return None\n"]),
        ("python", "x = 1", []),
        ("swe", apply_patch("a\nb\nc\nd\ne\nf"), [apply_patch("a\nb\nc\nd")]),
    ],
)
def test_mistakes(env: str, gold: str, wrong: list[str]) -> None:
    assert [*find_traits(env).mistakes([gold, "submit"], random.Random(0))] == wrong


def test_a_flag_is_guessed() -> None:
    (guess,) = find_traits("ctf").mistakes(["cat flag", "submit intercode{x}"], random.Random(0))
    assert guess.startswith("submit intercode{") and guess != "submit intercode{x}"


@pytest.mark.parametrize("env", ENVS)
def test_what_it_says_is_read_as_what_it_means(env: str) -> None:
    with closing(create(env)) as made:
        for task in load_seeded(env, 0):
            steps = plan(scene(env, task.query), made.solution(task), random.Random(task.task_id))
            language = made.language
            for (_, action), reply in zip(steps, replies(steps, language), strict=True):
                assert find_code(reply, language) == action, task.task_id


def test_it_is_named_for_what_it_is() -> None:
    facts = NoisyOracleAgents().facts()
    assert (
        (NoisyOracleAgents().name, facts["model"])
        == ("try-again", NAME)
        == ("try-again", "scripted")
    )
