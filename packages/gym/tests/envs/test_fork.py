"""Forks of a running episode: what they have of it, and what is refused, without sandboxes."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from forks import in_a_fork
from intercode.envs.base import InterCodeEnv
from intercode.envs.snapshots import EpisodeSnapshot
from intercode.envs.time_limit import TimeLimit
from intercode.envs.vector import ThreadVectorEnv
from intercode.episode import Episode, Fork, NoAction, Score
from intercode.errors import EnvironmentStateError, ForkError, SandboxError, UsageError
from intercode.interpreters.base import Execution, SavedInterpreterState
from intercode.task import Dataset, Task
from waiting import PATIENCE

from .toy import Gate, Toy, many, toy

CLOCK = itertools.count()


class Memory(Toy):
    """A place that remembers what was done in it; an action shows all of that.

    ``clock`` shows something else each time, and ``late`` runs into the time limit.
    """

    made: list[Memory]

    def __init__(self, done: tuple[str, ...] = (), made: list[Memory] | None = None) -> None:
        super().__init__()
        self.done = done
        self.made = [] if made is None else made
        self.open_now = False

    def open(self, task: Task | None = None) -> Memory:
        if self.lost:
            raise SandboxError("there is no place")
        place = type(self)(self.done, self.made)
        place.calls, place.open_now = self.calls, True
        self.made.append(place)
        return place

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        super().execute(action)
        self.done += (f"clock {next(CLOCK)}" if action == "clock" else action,)
        info = {"timed_out": True} if action == "late" else {"at": ("a", 1)}
        return Execution(" ".join(self.done).encode(), ok=True, info=info)

    def close(self) -> None:
        self.open_now = False


class Saving(Memory):
    """One whose state can be saved, unless a program runs: ``job``."""

    freed: ClassVar[list[str]] = []

    def save(self, lossy: bool = False) -> SavedInterpreterState:
        lost = ("1 background process: job",) if "job" in self.done else ()
        if lost and not lossy:
            raise ForkError(f"cannot be saved: {lost[0]}")
        done = tuple(action for action in self.done if action != "job")
        source, freed = Saving(done, self.made), self.freed

        def opened() -> tuple[Memory, Memory]:
            place = source.open()
            return place, place

        return SavedInterpreterState(
            opened, lambda: freed.append(" ".join(done)), ("actions",), lost
        )


def begun(place: Toy, *actions: str, **options: Any) -> InterCodeEnv[Any]:
    env = toy(many(3), place, **options)
    env.reset(seed=3, options={"task_id": "1"})
    for action in actions:
        env.step(action)
    return env


@pytest.mark.parametrize("kind", [Memory, Saving])
def test_a_fork_goes_on_where_the_other_is_and_each_for_itself(kind: type[Memory]) -> None:
    env = begun(kind(), "a", "b")
    one, other = env.fork(2)
    assert [one.step("c")[0], other.step("d")[0], env.step("e")[0]] == ["a b c", "a b d", "a b e"]
    assert one.step("f")[0] == "a b c f"
    assert [turn.action for turn in other.episode.turns] == ["a", "b", "d"]
    assert env.episode.fork is None
    assert one.episode.fork == Fork("1#0", 2, (0,))
    assert other.episode.id == "1#0.1"


def test_state_is_saved_where_it_can_be_else_the_actions_are_repeated() -> None:
    assert begun(Saving(), "a").snapshot().mode == "state"
    assert begun(Memory(), "a").snapshot().mode == "replay"
    env = begun(Saving(), "a", "job")
    assert env.snapshot().mode == "replay"
    with pytest.raises(ForkError, match="1 background process: job"):
        env.snapshot(mode="state")
    with pytest.raises(ForkError, match=r"Memory cannot save its state.*replay"):
        begun(Memory()).snapshot(mode="state")
    with pytest.raises(UsageError, match=r"^mode must be one of auto, state, replay, not 'exact'$"):
        env.snapshot(mode="exact")  # type: ignore[arg-type]


def test_what_is_left_out_is_said_in_info_and_in_the_record() -> None:
    env = begun(Saving(), "a", "job")
    with env.snapshot(lossy=True) as snapshot:
        assert snapshot.mode == "state"
        assert snapshot.lost == ("1 background process: job",)
        (fork,) = env.fork(lossy=True)
        assert fork.step("b")[0] == "a b"
        info = fork.step("submit")[4]
        assert info["lost"] == fork.episode.metadata["lost"] == ["1 background process: job"]
        assert "lost" not in env.step("submit")[4]


def test_a_fork_is_lazy_and_can_be_forked_before_it_begins() -> None:
    env = begun(place := Memory(), "a")
    (fork,) = env.fork()
    (deeper,) = fork.fork()
    assert len(place.made) == 1
    assert deeper.episode.fork == Fork("1#0.0", 1, (0, 0))
    assert deeper.workspace.done == ("a",)
    assert len(place.made) == 2
    assert fork.fork()[0].episode.fork == Fork("1#0.0", 1, (0, 1))


def test_a_fork_is_refused_at_the_first_turn_that_differs() -> None:
    env = begun(place := Memory(), "a", "clock", "b")
    (fork,) = env.fork()
    with pytest.raises(ForkError, match=r"turn 2 differs: recorded 'a clock \d+', now 'a clock"):
        fork.step("c")
    assert fork.episode.status == "error"
    assert fork.episode.score is None
    assert [made.open_now for made in place.made] == [True, False]
    with pytest.raises(EnvironmentStateError, match="has ended"):
        fork.step("c")
    assert env.step("c")[0].endswith("b c")


def test_a_turn_that_was_late_cannot_be_repeated() -> None:
    with pytest.raises(ForkError, match="turn 2 ran into the time limit"):
        begun(Memory(), "a", "late").snapshot()
    env = begun(Saving(), "late", "job")
    with pytest.raises(ForkError, match=r"turn 1 ran into.*cannot be saved: .*1 background"):
        env.snapshot()


def test_an_action_that_was_not_executed_is_not_repeated() -> None:
    env = begun(Memory(), "a", NoAction("nothing was said"), "x\ud800")
    (fork,) = env.fork()
    assert fork.step("b")[0] == "a b"
    assert [turn.observation for turn in fork.episode.turns[:3]] == [
        "a",
        "[nothing was said]",
        env.episode.turns[2].observation,
    ]


def test_a_snapshot_outlives_its_environment_and_can_be_restored_in_another_again_and_again() -> (
    None
):
    env = begun(Saving(), "a")
    snapshot = env.snapshot()
    env.close()
    other = begun(Saving(), "z")
    for number in range(3):
        observation, info = other.restore(snapshot)
        assert observation == "a"
        assert (info["turn"], info["turns_left"], info["query"]) == (1, 9, "Do 1.")
        assert other.episode.fork == Fork("1#0", 1, (number,))
        assert other.step("b")[0] == "a b"
    assert snapshot.turns == tuple(env.episode.turns)
    assert snapshot.task_id == "1"


def test_an_environment_is_taken_back_after_its_end() -> None:
    env = begun(Memory(), "a")
    snapshot = env.snapshot()
    env.step("submit")
    with pytest.raises(ForkError, match="has ended"):
        env.snapshot()
    env.restore(snapshot)
    assert env.step("b")[0] == "a b"
    first = begun(Memory()).snapshot()
    assert env.restore(first)[0] == "Do 1."
    assert env.step("b")[0] == "b"


def test_a_snapshot_of_something_else_is_refused_and_the_episode_goes_on() -> None:
    snapshot = begun(Memory(), "a", "b").snapshot()
    few = toy(many(1), Memory())
    other = toy(Dataset([Task("1", "Do another.")]), Memory())
    short = begun(Memory(), "a", max_turns=2)
    short.name = "short"  # type: ignore[misc]
    for env, said in (
        (few, "of another dataset: many: no task has the id '1'"),
        (other, "not the snapshot's"),
        (short, "of 'intercode' cannot be restored in 'short'"),
    ):
        with pytest.raises(ForkError, match=said):
            env.restore(snapshot)
    del short.name
    with pytest.raises(ForkError, match="has 2 turns, and max_turns is 2 here"):
        short.restore(snapshot)
    assert short.step("c")[0] == "a c"
    with snapshot:
        pass
    with pytest.raises(ForkError, match="was closed"):
        begun(Memory()).restore(snapshot)


def test_limits_are_kept_and_gymnasiums_wrappers_are_not() -> None:
    env = begun(Memory(), "a", reward_every_turn=True)
    TimeLimit(env, 3)
    (fork,) = env.fork()
    assert fork.step("b")[4]["turns_left"] == 1
    assert fork.episode.turns[-1].reward == 1.0
    assert fork.step("c")[3]
    assert isinstance(fork, InterCodeEnv)


def test_elapsed_time_is_kept_and_a_fork_that_waits_takes_none() -> None:
    env = begun(Memory(), "a")
    env.episode_state._start_time -= 1000
    (fork,) = env.fork()
    (deeper,) = fork.fork()
    assert 1000 <= deeper.episode.seconds == fork.episode.seconds
    deeper.step("submit")
    assert deeper.episode.seconds >= fork.episode.seconds
    assert deeper.episode.started == env.episode.started


def test_the_next_episodes_of_forks_are_drawn_by_their_branch() -> None:
    def drawn() -> list[list[str]]:
        env = toy(many(20))
        env.reset(seed=5)
        forks = [env, *env.fork(2)]
        forks += forks[1].fork(1)
        return [[fork.reset()[1]["task_id"] for _ in range(6)] for fork in forks]

    orders = drawn()
    assert drawn() == orders
    assert len({tuple(order) for order in orders}) == 4


def test_a_saved_state_is_freed_with_the_last_that_needs_it() -> None:
    Saving.freed.clear()
    env = begun(Saving(), "a")
    snapshot = env.snapshot()
    (fork,) = env.fork()
    env.restore(snapshot)
    snapshot.close()
    env.step("b")
    fork.step("c")
    assert Saving.freed == []
    env.close()
    assert Saving.freed == ["a"]
    fork.reset()
    assert Saving.freed == ["a", "a"]
    env.reset()
    env.step("x")
    begun_again = env.snapshot()
    del begun_again
    gc.collect()
    assert Saving.freed[2:] == ["x"]


def test_a_running_action_is_not_forked() -> None:
    with Gate() as gate:
        env = begun(Saving(), "a")
        env.workspace.calls["wait"] = gate
        thread = threading.Thread(target=env.step, args=("wait",))
        thread.start()
        assert gate.reached.wait(PATIENCE)
        for call in (env.snapshot, env.fork):
            with pytest.raises(EnvironmentStateError, match="another call"):
                call()
    thread.join()
    assert env.fork()[0].step("b")[0] == "a wait b"


def test_nothing_is_forked_without_an_episode_or_in_a_forked_process() -> None:
    env = toy(many(3), Memory())
    for call in (env.snapshot, env.fork):
        with pytest.raises(EnvironmentStateError, match="no episode yet"):
            call()
    with pytest.raises(UsageError, match="at least 1, not 0"):
        env.fork(0)
    env.reset()
    env.close()
    with pytest.raises(ForkError, match="has ended"):
        env.snapshot()
    env.reset()
    assert "was made by process" in in_a_fork(env.snapshot)


def test_a_place_that_cannot_be_started_is_an_error_and_no_reward() -> None:
    env = begun(place := Memory(), "a")
    forks = env.fork(2)
    place.lost = True
    with pytest.raises(SandboxError, match="no place"):
        forks[0].step("b")
    assert (forks[0].episode.status, forks[0].episode.score) == ("error", None)
    place.lost = False
    assert forks[1].step("b")[0] == "a b"


def test_an_interrupted_start_ends_the_fork_and_leaves_its_snapshot() -> None:
    def interrupt() -> None:
        if len(place.made) == 2:
            raise KeyboardInterrupt

    env = begun(place := Memory(), "a", "b")
    snapshot = env.snapshot()
    (fork,) = env.fork()
    place.calls["b"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        fork.step("c")
    assert not place.made[1].open_now
    with pytest.raises(EnvironmentStateError, match="KeyboardInterrupt has interrupted"):
        fork.step("c")
    fork.restore(snapshot)
    assert fork.step("c")[0] == "a b c"


class Own(InterCodeEnv[Memory]):
    """An environment with a constructor of its own, whose reward is bound to it."""

    def __init__(self, data: Any, place: Memory, *, doors: int = 2, max_turns: int = 10) -> None:
        self.doors = doors
        super().__init__(data, place, self._opened, self._scored, max_turns=max_turns)

    def _opened(self, place: Memory) -> Memory:
        place.execute(f"{self.doors} {self.episode_state.task.task_id}")
        return place

    def _scored(self, task: Task, episode: Episode, place: Memory) -> Score:
        return Score(len(self.episode.turns) / 10)


@pytest.mark.parametrize("named", [False, True])
def test_an_environment_of_ones_own_is_made_with_the_arguments_of_the_first(named: bool) -> None:
    make: Callable[..., Own] = Own
    env = make(data=many(2), place=Memory(), doors=3) if named else make(many(2), Memory(), doors=3)
    env.reset(options={"task_id": "1"})
    env.step("a")
    (fork,) = env.fork()
    env.reset(options={"task_id": "0"})
    assert fork.step("b")[0] == "3 1 a b"
    assert fork.step("c")[0] == "3 1 a b c"
    assert fork.step("submit")[1] == 0.3
    assert fork.dataset is env.dataset


def test_a_snapshot_says_what_it_is() -> None:
    snapshot = begun(Saving(), "a").snapshot()
    assert isinstance(snapshot, EpisodeSnapshot)
    assert repr(snapshot) == (
        "EpisodeSnapshot(mode='state', "
        "carried=('actions', 'turns', 'elapsed time', 'limits'), lost=())"
    )


# -- vectors ---------------------------------------------------------------------------------------


def group(mode: str = "NextStep", kind: type[Memory] = Saving) -> ThreadVectorEnv:
    vector = ThreadVectorEnv([toy(many(9), kind(), max_turns=3) for _ in range(4)], mode, seed=1)
    vector.reset()
    vector.step(["a", "b", "c", "d"])
    return vector


@pytest.mark.parametrize("kind", [Memory, Saving])
def test_a_group_has_its_first_turns_in_common(kind: type[Memory]) -> None:
    vector = group(kind=kind)
    observations, infos = vector.fork(1, into=[0, 3])
    assert observations == ("b", "b", "c", "b")
    assert list(infos["turn"]) == [1, 0, 0, 1]
    assert list(infos["_turn"]) == [True, False, False, True]
    texts, *_ = vector.step(["x"] * 4)
    assert texts == ("b x", "b x", "c x", "b x")
    episodes = vector.call("episode")
    assert [one.fork and one.fork.branch for one in episodes] == [(0,), None, None, (1,)]
    assert vector.fork(0)[0] == ("b x",) * 4
    branches = [one.fork.branch for one in vector.call("episode")]
    assert branches == [(0,), (0, 0), (0, 1), (0, 2)]
    vector.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_forks_end_and_begin_as_other_episodes_do(mode: str) -> None:
    vector = group(mode)
    vector.step(["submit", "x", "x", "x"])
    vector.fork(1)  # also into one whose episode has ended
    result = vector.step(["y"] * 4)
    if mode == "SameStep":
        assert all(result[4]["_final_obs"])
        assert list(result[4]["final_obs"]) == ["b x y"] * 4
    else:
        assert result[0] == ("b x y",) * 4
    assert result[3].all()
    if mode == "Disabled":
        vector.reset(options={"reset_mask": np.array([True] * 4)})
    elif mode == "NextStep":
        vector.step([""] * 4)
    assert len({task.task_id for task in vector.call("episode")}) == 4
    vector.close()


def test_a_fork_of_a_vector_is_refused_in_words() -> None:
    vector = group()
    for arguments, said in (((4,), "below 4"), ((0, [1, 1]), "different"), ((0, [0]), "different")):
        with pytest.raises(UsageError, match=said):
            vector.fork(*arguments)  # type: ignore[arg-type]
    vector.send(["x"], [2])
    with pytest.raises(EnvironmentStateError, match=r"\[2\] were sent actions"):
        vector.fork(0)
    assert vector.fork(0, [1])[0][:2] == ("a", "a")
    vector.recv()
    vector.step(["submit"] * 4)
    with pytest.raises(ForkError, match="has ended"):
        vector.fork(0)
    vector.close()
