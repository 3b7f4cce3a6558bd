"""A place that an agent has worked in by itself is scored as an episode would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import intercode
from intercode.envs.base import InterCodeEnv
from intercode.episode import Episode, Turn
from intercode.errors import EnvironmentStateError, SandboxEndedError, UsageError
from intercode.task import Dataset, Task

from .conftest import MakeEnv
from .toy import Toy, many, toy


@pytest.fixture
def make() -> Iterator[Any]:
    """Makes environments of any kind, which are closed when the test ends."""
    made: list[InterCodeEnv[Any]] = []

    def one(name: str, **options: Any) -> InterCodeEnv[Any]:
        made.append(intercode.make(name, **options))  # type: ignore[call-overload]
        return made[-1]

    yield one
    for env in made:
        env.close()


def shell(command: str) -> list[str]:
    return ["/bin/bash", "-c", command]


def scored(env: InterCodeEnv[Any], task_id: str, command: str, output: str | None = None) -> Any:
    """The score of a place in which a command has run, and the record of nothing."""
    task = env.dataset.by_id(task_id)
    with closing(env.stage.open(task)) as place:
        place.exec(shell(command))
        return env.score(task, place, output=output)


@pytest.mark.parametrize(
    ("task_id", "command", "output", "value"),
    [
        ("sort", "sort in.txt > out.txt", None, 1.0),
        ("sort", "cp in.txt out.txt", None, 0.0),
        ("count", "true", "3", 1.0),
        ("count", "true", "3\n", 1.0),
        ("count", "true", "4", 0.0),
        ("count", "true", None, 0.0),  # what asks for an answer is not solved without one
        ("count", "rm w/a", "3", 0.5),
        ("remove", "rm -r old", None, 1.0),
        ("remove", "true", "I have removed it", 0.0),
    ],
)
def test_files_answers_and_verifications_of_bash(
    make_env: MakeEnv, task_id: str, command: str, output: str | None, value: float
) -> None:
    assert scored(make_env(), task_id, command, output).value == value


def test_a_flag_a_query_and_a_program_are_answers(make: Any) -> None:
    ctf = make("ctf")
    flag = ctf.dataset[0].gold[0]
    assert scored(ctf, ctf.dataset[0].task_id, "true", flag).value == 1.0
    assert scored(ctf, ctf.dataset[0].task_id, "true", "flag{wrong}").value == 0.0
    sql = make("sql")
    reading = next(task for task in sql.dataset if task.gold[0].startswith("SELECT"))
    writing = next(task for task in sql.dataset if task.gold[0].startswith("UPDATE"))
    for task in (reading, writing):
        for answer, value in ((task.gold[0], 1.0), ("SELECT 42", 0.0), (None, 0.0)):
            with closing(sql.stage.open(task)) as session:
                assert sql.score(task, session, output=answer).value == value
    with closing(sql.stage.open(writing)) as session:  # the tables count, without an answer
        session.execute(writing.gold[0])
        assert sql.score(writing, session).value == 1.0
    python = make("python")
    task = python.dataset[0]
    assert scored(python, task.task_id, "true", task.gold[0]).value == 1.0
    assert scored(python, task.task_id, "true", "pass").value == 0.0


def test_a_repository_is_scored_by_its_tests(make: Any) -> None:
    swe = make("swe")
    task = swe.dataset[0]
    apply, _ = swe.solution(task)
    folder = swe.stage.directory(task)
    assert scored(swe, task.task_id, f"cd {folder}; {apply}").value == 1.0
    assert scored(swe, task.task_id, "true").value < 1.0


def test_programs_are_ended_before_a_place_is_judged(make_env: MakeEnv) -> None:
    env = make_env()
    task = env.dataset.by_id("sort")
    with closing(env.stage.open(task)) as place:
        place.exec(shell("sort in.txt > out.txt; (sleep 999 &) >/dev/null 2>&1"))
        assert place.processes()
        assert env.score(task, place).value == 1.0
        assert not place.processes()


def test_a_record_counts_with_its_turns_and_answer(make: Any) -> None:
    python = make("python")
    task = next(task for task in python.dataset if task.gold[0].startswith("def "))
    name = task.gold[0].partition("(")[0].removeprefix("def ")
    code = task.gold[0].replace(name, "mine")
    turns = [Turn(code, ""), Turn("1 + 1", "2")]
    for answer, value in (("mine", 1.0), ("other", 0.0)):
        record = Episode(task.task_id, task.query, "python", turns=turns, answer=answer)
        with closing(python.stage.open(task)) as place:
            assert python.score(task, place, episode=record).value == value
        assert (record.status, record.score) == ("running", None)  # it is the caller's


def test_scoring_is_refused_where_it_would_mean_nothing(make_env: MakeEnv) -> None:
    env = make_env()
    task = env.dataset.by_id("sort")
    env.reset(options={"task_id": "sort"})
    with pytest.raises(EnvironmentStateError, match=r"running episode.*step\('submit'\)"):
        env.score(task, env.sandbox)
    assert env.step("sort in.txt > out.txt")[4]["ok"]  # which goes on
    record = Episode("count", "", "bash")
    with closing(env.stage.open(task)) as place:
        with pytest.raises(UsageError, match="not both"):
            env.score(task, place, output="3", episode=record)
        with pytest.raises(UsageError, match="is of task 'count', not 'sort'"):
            env.score(task, place, episode=record)
        env.score(task, place)
        with pytest.raises(EnvironmentStateError, match="was scored before"):
            env.score(task, place)
    provider = env.stage.provider  # type: ignore[attr-defined]
    refused = pytest.raises(UsageError, match=r"not started from 'host'.*env\.stage\.open")
    with closing(provider.start("scratch")) as other, refused:
        env.score(task, other)
    assert env.step("submit")[1] == 1.0


def test_a_place_that_its_agent_has_ended_is_no_error() -> None:
    class Ended(Toy):
        def kill(self) -> None:
            raise SandboxEndedError("its process 1 is gone")

    env = toy(many(1), Ended())
    score = env.score(env.dataset[0], env.stage.open(env.dataset[0]))
    assert (score.value, score.detail["ended"]) == (1.0, "its process 1 is gone")


def test_a_reward_of_ones_own_sees_the_answer() -> None:
    seen: list[Episode] = []

    def reward(task: Task, episode: Episode, sandbox: Any) -> float:
        seen.append(episode)
        return float(episode.turns[-1].observation == "42")

    env = InterCodeEnv(Dataset([Task("one", "?")], "d"), reward=reward)
    assert scored(env, "one", "true", "42").value == 1.0
    assert (seen[0].task_id, seen[0].status) == ("one", "submitted")
