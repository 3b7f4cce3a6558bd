"""The same dataset and seed give the same episodes."""

from __future__ import annotations

from typing import Any

from intercode.task import Dataset, Task

from .conftest import MakeEnv

MANY = Dataset([Task(str(number), f"q{number}", ("true",)) for number in range(5)])


def ids(env: Any, count: int, seed: int | None = None) -> list[str]:
    first = env.reset(seed=seed)[1]["task_id"]
    return [first, *(env.reset()[1]["task_id"] for _ in range(count - 1))]


def test_a_seed_gives_an_order_that_visits_every_task_once(make_env: MakeEnv) -> None:
    env = make_env(MANY)
    order = ids(env, 5, seed=3)
    assert sorted(order) == sorted(task.task_id for task in MANY)
    assert ids(env, 5, seed=3) == order
    assert ids(env, 5, seed=4) != order
    assert ids(make_env(MANY, seed=3), 5) == order
    # When all have had their turn, they come in another order; that, too, is the same each time.
    long = ids(env, 10, seed=3)
    assert sorted(long[5:]) == sorted(order)
    assert long[5:] != order
    assert ids(make_env(MANY), 10, seed=3) == long


def test_the_constructor_s_seed_is_for_the_first_reset(make_env: MakeEnv) -> None:
    env = make_env(MANY, seed=3)
    first = ids(env, 5)
    assert ids(env, 5) != first
    assert env.np_random_seed == 3


def test_a_chosen_task_leaves_the_order_alone(make_env: MakeEnv) -> None:
    env, other = make_env(MANY), make_env(MANY)
    order = ids(env, 3, seed=1)
    found = ids(other, 1, seed=1)
    assert other.reset(options={"task_id": "4"})[1]["task_id"] == "4"
    assert found + [other.reset()[1]["task_id"] for _ in range(2)] == order
