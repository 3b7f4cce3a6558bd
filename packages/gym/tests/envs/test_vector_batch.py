"""What the environments of a vector share, and what is each one's own, without sandboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import intercode
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import (
    ActionError,
    EnvironmentStateError,
    TaskNotFoundError,
    UsageError,
    VectorError,
)
from intercode.task import Dataset

from .toy import Gate, Toy, many, toy

pytestmark = pytest.mark.filterwarnings("error")
Make = Callable[..., ThreadVectorEnv]
MODES = ["NextStep", "SameStep", "Disabled"]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes vectors of toys over one dataset."""
    made: list[ThreadVectorEnv] = []

    def make(
        num_envs: int = 3, tasks: Dataset | None = None, mode: str = "NextStep", **calls: Any
    ) -> ThreadVectorEnv:
        tasks = tasks or many(7)
        envs = [toy(tasks, Toy(calls)) for _ in range(num_envs)]
        made.append(ThreadVectorEnv(envs, mode))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def begun(infos: dict[str, Any]) -> list[str]:
    """The tasks of the episodes that began, by the environments' indices."""
    return list(infos["task_id"][infos["_query"]]) if "_query" in infos else []


def episodes(envs: ThreadVectorEnv, seed: int, count: int) -> list[str]:
    """The tasks of at least so many episodes, which end at random turns."""
    chance = np.random.default_rng(seed)
    _, infos = envs.reset(seed=seed)
    tasks = begun(infos)
    while len(tasks) < count:
        actions = ["submit" if chance.random() < 0.4 else "x" for _ in range(envs.num_envs)]
        _, _, terminated, truncated, infos = envs.step(actions)
        tasks += begun(infos)
        over = terminated | truncated
        if envs.autoreset_mode is AutoresetMode.DISABLED and over.any():
            tasks += begun(envs.reset(options={"reset_mask": over})[1])
    return tasks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 2, 3, 7, 10])
def test_an_epoch_meets_every_task_once(make: Make, mode: str, num_envs: int) -> None:
    tasks, alone = many(7), toy(many(7))
    for seed in range(3):
        met = episodes(make(num_envs, tasks, mode), seed, 28)
        for epoch in range(4):
            assert sorted(met[7 * epoch : 7 * epoch + 7]) == [task.task_id for task in tasks]
        order = [alone.reset(seed=None if n else seed)[1]["task_id"] for n in range(len(met))]
        assert met == order, "the order that one environment has"
        assert episodes(make(num_envs, tasks, mode), seed, 28) == met


def test_a_task_that_is_asked_for_leaves_the_order_alone(make: Make) -> None:
    envs = make(2)
    plain = begun(envs.reset(seed=3)[1]) + begun(envs.reset()[1])
    envs.reset(seed=3, options={"task_id": ["5", "5"]})
    assert begun(envs.reset()[1]) + begun(envs.reset()[1]) == plain


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_each_environment_has_its_own_option(make: Make, kind: Callable[[Any], Any]) -> None:
    envs = make(3)
    ids = ["4", "1", "4"]
    observations, infos = envs.reset(options={"task_id": kind(ids)})
    assert list(infos["task_id"]) == ids
    assert observations == ("Do 4.", "Do 1.", "Do 4.")
    assert begun(envs.reset(options={"task_id": "6"})[1]) == ["6"] * 3
    envs.reset(seed=1)
    assert begun(envs.reset(seed=1, options={"task_id": [None, "2", None]})[1])[1] == "2"
    mask = np.array([True, False, True])
    assert begun(envs.reset(options={"task_id": ["0", "?", "3"], "reset_mask": mask})[1]) == [
        "0", "3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"task_id": ["1", "2"]}, UsageError, "'task_id' has 2 values for 3 environments"),
        ({"task_id": ["1", "2", "x"]}, TaskNotFoundError, "no task has the id 'x'"),
        ({"turns": 3}, UsageError, "no option 'turns'"),
        ({"reset_mask": [True]}, UsageError, "reset_mask"),
    ],
)
def test_an_option_that_cannot_be_begins_no_episode(
    make: Make, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    envs = make(3)
    envs.reset(seed=2)
    envs.step(("x",) * 3)
    with pytest.raises(error, match=said):
        envs.reset(seed=5, options=options)
    assert list(envs.step(("x",) * 3)[-1]["turn"]) == [2] * 3


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ("xyz", "a single text was given"),
        (b"xyz", "a single text was given"),
        (("x", None, "x"), "environment 1: an action must be a text, not NoneType"),
        (("x", "x", 3), "environment 2: an action must be a text, not int"),
        ((b"x", "x", "x"), "environment 0: an action must be a text, not bytes"),
        (("x", "x"), "2 actions were given for 3"),
        ((), "0 actions were given for 3"),
    ],
)
def test_a_bad_batch_is_refused_before_any_has_stepped(
    make: Make, actions: Sequence[str], said: str
) -> None:
    envs = make(3)
    envs.reset()
    for call in (envs.step, envs.send):
        with pytest.raises(ActionError, match=said):
            call(actions)
    assert list(envs.step(("x",) * 3)[-1]["turn"]) == [1] * 3


def test_an_ignored_action_may_be_anything(make: Make) -> None:
    envs = make(2)
    envs.reset()
    envs.step(("submit", "x"))
    assert list(envs.step((None, "x"))[-1]["turn"]) == [0, 2]  # type: ignore[arg-type]


def test_a_slow_one_does_not_hold_up_the_others(make: Make) -> None:
    with Gate() as gate:
        others_go_on(make(3, wait=gate), gate)


def others_go_on(envs: ThreadVectorEnv, gate: Gate) -> None:
    envs.reset(seed=4)
    envs.send(("wait", "b", "c"))
    observations, rewards, terminated, truncated, infos = envs.recv(2)
    assert (list(infos["env_id"]), observations) == ([1, 2], ("b\n", "c\n"))
    assert [len(part) for part in (rewards, terminated, truncated, infos["turn"])] == [2] * 4
    for number in range(5):  # round after round, while the first is still at it
        envs.send((f"{number}", "submit" if number == 2 else "c"), [2, 1])
        observations, rewards, terminated, _, infos = envs.recv(2)
        assert list(infos["env_id"]) == [1, 2]
        assert observations[1] == f"{number}\n"
        assert list(terminated) == [number == 2, False] and rewards[0] == float(number == 2)
    assert list(infos["turn"]) == [1, 6]
    gate.opened.set()
    observations, *_, infos = envs.recv()
    assert (list(infos["env_id"]), observations) == ([0], ("wait\n",))
    assert envs.step(("a", "b", "c"))[0] == ("a\n", "b\n", "c\n")


@pytest.mark.parametrize("mode", MODES)
def test_send_and_recv_of_all_are_a_step(make: Make, mode: str) -> None:
    one, other = make(3, mode=mode), make(3, mode=mode)
    for envs in (one, other):
        envs.reset(seed=1)
    for actions in (("x", "submit", "x"), ("submit", "y", "z")):
        if mode == "Disabled" and actions[0] == "submit":
            for envs in (one, other):
                envs.reset(options={"reset_mask": [False, True, False]})
        stepped = one.step(actions)
        other.send(actions)
        received = other.recv(3)
        assert list(received[-1].pop("env_id")) == [0, 1, 2]
        np.testing.assert_equal(received, stepped)


def test_an_epoch_of_sends_meets_every_task_once(make: Make) -> None:
    envs, chance = make(4, many(9)), np.random.default_rng(0)
    met = Counter(begun(envs.reset(seed=0)[1]))
    envs.send(("submit",) * 4)
    while met.total() < 27:
        *_, infos = envs.recv(int(chance.integers(1, 3)))
        met.update(begun(infos))
        ids = infos["env_id"]
        envs.send(["submit" if chance.random() < 0.5 else "x" for _ in ids], ids)
    assert max(met.values()) - min(met.values()) <= 1


def test_a_step_that_is_interrupted_can_be_received(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(step: Future[Any], timeout: float | None = None) -> None:
        raise KeyboardInterrupt  # as Ctrl-C in the first wait for a result

    envs = make(2)
    envs.reset()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Future, "exception", interrupted)
        envs.step(("x", "y"))
    with pytest.raises(EnvironmentStateError, match="call recv"):
        envs.step(("x", "x"))
    assert envs.recv(2)[0] == ("x\n", "y\n")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda envs: envs.send(("x",), [3]), UsageError, "below 3"),
        (lambda envs: envs.send(("x",), [-1]), UsageError, "below 3"),
        (lambda envs: envs.send(("x", "x"), [1, 1]), UsageError, "must be different"),
        (lambda envs: envs.send(("x",), [0]), EnvironmentStateError, r"\[0\] were sent actions"),
        (lambda envs: envs.step(("x",) * 3), EnvironmentStateError, r"\[0\].* call recv\(\) first"),
        (lambda envs: envs.reset(), EnvironmentStateError, r"\[0\].* call recv\(\) first"),
        (lambda envs: envs.recv(2), UsageError, "2 results were requested, but only 1 steps are"),
        (lambda envs: envs.recv(0), UsageError, "0 results were requested"),
    ],
)
def test_misuse_of_send_and_recv(
    make: Make, call: Callable[[Any], object], error: type[Exception], said: str
) -> None:
    envs = make(3)
    envs.reset()
    envs.send(("x",), [0])
    with pytest.raises(error, match=said):
        call(envs)
    assert envs.recv()[0] == ("x\n",)
    assert envs.step(("a", "b", "c"))[0] == ("a\n", "b\n", "c\n")


def test_an_episode_must_have_begun(make: Make) -> None:
    envs = make(2)
    with pytest.raises(EnvironmentStateError, match="environment 0 has no episode: call reset"):
        envs.step(("x", "x"))
    envs.reset(options={"reset_mask": [True, False]})
    with pytest.raises(EnvironmentStateError, match="environment 1 has no episode"):
        envs.step(("x", "x"))
    envs.send(("x",), [0])
    assert envs.recv()[0] == ("x\n",)


def fail() -> None:
    raise OSError("lost")


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_loses_no_result_in_any_mode(make: Make, mode: str) -> None:
    envs = make(3, mode=mode, fail=fail)
    envs.reset(seed=1)
    with pytest.raises(VectorError, match=r"1 of the environments.* 1: OSError: lost") as caught:
        envs.step(("x", "fail", "submit"))
    observations, rewards, terminated, truncated, infos = caught.value.results
    assert observations[0] == "x\n" and observations[1] == ""
    assert list(terminated) == [False, False, True] and list(truncated) == [False, True, False]
    assert np.isnan(rewards[1]) and rewards[2] == 1.0
    assert infos["error"][1] == "OSError: lost"
    if mode == "Disabled":
        with pytest.raises(EnvironmentStateError, match=r"must be reset first: \[1, 2\]"):
            envs.step(("x",) * 3)
        envs.reset(options={"reset_mask": truncated | terminated})
    else:
        assert list(envs.step(("x",) * 3)[-1]["turn"])[:2] == [2, 0]
    assert envs.step(("x",) * 3)[0] == ("x\n",) * 3


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_reset_that_fails_loses_no_result(mode: str) -> None:
    tasks, bad = many(3), Toy()
    envs = ThreadVectorEnv([toy(tasks), toy(tasks, bad)], mode)
    failed = pytest.raises(VectorError, match="first environment 1: SandboxError: there is no pl")
    bad.lost = True
    with failed as caught:
        envs.reset(options={"task_id": "2"})
    observations, infos = caught.value.results
    assert observations == ("Do 2.", "") and list(infos["_error"]) == [False, True]
    bad.lost = False
    assert list(envs.step(("x", "ignored"))[-1]["turn"]) == [1, 0]
    if mode == "NextStep":
        envs.step(("x", "submit"))
    bad.lost = True
    with failed as caught:
        envs.step(("x", "submit"))
    observations, rewards, terminated, truncated, _ = caught.value.results
    assert observations == ("x\n", "")
    if mode == "SameStep":
        assert rewards[1] == 1.0 and terminated[1], "of the episode that had ended before"
    else:
        assert np.isnan(rewards[1]) and truncated[1]
    bad.lost = False
    assert list(envs.step(("x", "ignored"))[-1]["turn"])[1] == 0
    envs.close()


def test_other_environments_are_refused() -> None:
    with pytest.raises(UsageError, match="environment 1 has other tasks than environment 0"):
        ThreadVectorEnv([toy(many(2)), toy(many(3))])
    with pytest.raises(UsageError, match="takes InterCode's environments, not CartPoleEnv"):
        ThreadVectorEnv([gymnasium.make("CartPole-v1")])  # type: ignore[list-item]
    ThreadVectorEnv([toy(many(2)), toy(many(2))]).close()


def test_what_make_vec_refuses() -> None:
    with pytest.raises(UsageError, match="at least 1, not 0"):
        intercode.make_vec("bash", 0)
    for options in ({"vectorization_mode": "async"}, {"vector_kwargs": {}}):
        with pytest.raises(UsageError, match=r"on threads; for processes: gymnasium\.make_vec"):
            intercode.make_vec("bash", 2, **options)
