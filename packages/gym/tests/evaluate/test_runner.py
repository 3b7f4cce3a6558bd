"""`evaluate`: order, retries, errors, resume."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from intercode.agents import registry
from intercode.agents.builtin import ScriptedAgent
from intercode.episode import Episode
from intercode.errors import (
    RecordError,
    RewardError,
    RunLockedError,
    SandboxError,
    SandboxUnavailableError,
    TaskNotFoundError,
    UsageError,
)
from intercode.evaluate import Progress, evaluate
from intercode.evaluate.episode_loop import episode_seed
from intercode.records import RunRecordWriter
from intercode.report.runs import read_runs
from intercode.report.tables import run_tables
from intercode.spec import EnvSpec, RunOptions, RunSpec
from intercode.task import Dataset, Task

from .fakes import Factory, FakeEnv, dataset

TASKS = dataset(10)


def all_at_once(workers: int) -> Callable[[str, str], None]:
    """Begins the first episodes together, so that each worker has one of them."""
    together = threading.Barrier(workers, timeout=60)

    def fail(task_id: str, action: str) -> None:
        if action == "reset" and int(task_id[1:]) < workers:
            together.wait()

    return fail


def test_oracle_solves_all_and_closes_what_it_opened() -> None:
    factory = Factory(TASKS, fail=all_at_once(3))
    result = evaluate(TASKS, "oracle", factory, workers=3, max_sandboxes=3)
    stats = result.statistics
    assert (stats.episodes, stats.successes, stats.errors) == (10, 10, 0)
    assert result.complete and not result.interrupted and result.folder is None
    assert len(factory.made) == 3
    assert all(env.closed for env in factory.made)
    assert [outcome.task_id for outcome in result.outcomes] == [f"t{n}" for n in range(10)]
    assert {episode.task_id for episode in result.episodes()} == {f"t{n}" for n in range(10)}


def test_noop_scores_nothing_but_is_no_error() -> None:
    result = evaluate(TASKS, "noop", Factory(TASKS))
    assert result.statistics.successes == 0
    assert result.statistics.mean_reward == 0.0
    assert result.complete


def test_jobs_are_taken_by_epoch_then_task() -> None:
    factory = Factory(TASKS)
    evaluate(TASKS, "noop", factory, epochs=2, limit=3)
    assert [task for task, _ in factory.made[0].resets] == ["t0", "t1", "t2"] * 2


def test_an_episodes_seed_depends_on_seed_epoch_and_task_only() -> None:
    def seeds(**options: Any) -> dict[str, int | None]:
        factory = Factory(TASKS)
        evaluate(TASKS, "noop", factory, **options)
        return dict(reset for env in factory.made for reset in env.resets)

    assert seeds(workers=1, seed=7) == seeds(workers=4, seed=7)
    assert seeds(seed=7) != seeds(seed=8)
    assert seeds(seed=7, tasks=["t3"]) == {"t3": episode_seed(7, 0, "t3")}
    assert episode_seed(7, 0, "t3") != episode_seed(7, 1, "t3")


def test_tasks_are_selected_in_the_datasets_order() -> None:
    result = evaluate(TASKS, "noop", Factory(TASKS), tasks=["t5", "t2", "t5"])
    assert [outcome.task_id for outcome in result.outcomes] == ["t2", "t5"]
    with pytest.raises(TaskNotFoundError, match="nope"):
        evaluate(TASKS, "noop", Factory(TASKS), tasks=["nope"])


@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"epochs": 0}, {"limit": 0}, {"max_retries": -1}],
)
def test_senseless_numbers_are_refused_before_anything_starts(options: dict[str, int]) -> None:
    factory = Factory(TASKS)
    with pytest.raises(UsageError):
        evaluate(TASKS, "noop", factory, **options)  # type: ignore[arg-type]
    assert factory.made == []


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(env=EnvSpec(name="bash"), limit=-3),
        RunSpec(env=EnvSpec(name="bash"), run_options=RunOptions(workers=0)),
    ],
)
def test_a_spec_of_senseless_numbers_is_refused(spec: RunSpec) -> None:
    with pytest.raises(UsageError, match=r"(limit|workers): must be at least 1"):
        evaluate(spec)


class Flaky:
    """Fails the first `times` attempts at a task, in the given call."""

    def __init__(self, task_id: str, times: int, at: str, error: Exception) -> None:
        self.task_id, self.left, self.at, self.error = task_id, times, at, error
        self.lock = threading.Lock()

    def __call__(self, task_id: str, action: str) -> Exception | None:
        with self.lock:
            if task_id == self.task_id and action == self.at and self.left:
                self.left -= 1
                return self.error
        return None


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="takes no worker; it takes accept"):
        evaluate(TASKS, "noop", Factory(TASKS), worker=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("at", ["reset", "echo 4", "submit"])
def test_a_failing_sandbox_is_retried_with_a_fresh_environment(at: str) -> None:
    factory = Factory(TASKS, fail=Flaky("t4", 2, at, SandboxError("died")))
    result = evaluate(TASKS, "oracle", factory, max_retries=2)
    assert result.statistics.successes == 10
    assert len(factory.made) == 3
    assert all(env.closed for env in factory.made)
    attempts = {e.task_id: e.metadata.get("attempts") for e in result.episodes()}
    assert attempts["t4"] == 3 and attempts["t5"] is None


@pytest.mark.parametrize("at", ["reset", "echo 4", "submit"])
def test_an_error_that_remains_is_counted_apart_and_has_no_score(at: str) -> None:
    factory = Factory(TASKS, fail=Flaky("t4", 99, at, SandboxError("died")))
    result = evaluate(TASKS, "oracle", factory, workers=2, max_retries=1)
    stats = result.statistics
    assert (stats.episodes, stats.successes, stats.errors) == (9, 9, 1)
    assert stats.success_rate == 1.0
    assert not result.complete
    [episode] = [e for e in result.episodes() if e.status == "error"]
    assert (episode.task_id, episode.error, episode.score) == ("t4", "died", None)
    assert len(episode.turns) == (1 if at == "submit" else 0)
    assert episode.metadata["attempts"] == 2


def test_a_reward_that_cannot_be_computed_is_not_retried() -> None:
    flaky = Flaky("t4", 99, "submit", RewardError("gold failed"))
    result = evaluate(TASKS, "oracle", Factory(TASKS, fail=flaky))
    assert flaky.left == 98
    assert result.statistics.errors == 1


def test_an_agent_that_raises_costs_its_episode_only(tmp_path: Path) -> None:
    class Broken:
        def act(self, observation: str, history: object) -> str:
            return json.loads('"submit"' if observation != "say 4" else self.missing())

        def missing(self) -> str:
            return {"y": ""}["x"]

    line = Broken.missing.__code__.co_firstlineno + 1
    result = evaluate(TASKS, lambda task: Broken(), Factory(TASKS))
    assert result.statistics.errors == 1
    [episode] = [e for e in result.episodes() if e.status == "error"]
    assert re.fullmatch(
        rf"the agent raised {re.escape(__file__)}, line {line}: KeyError: 'x'", str(episode.error)
    )


class Left(BaseException):
    """An exception that is no `Exception`."""


LEAVES = [SystemExit(0), SystemExit("bye"), GeneratorExit(), Left("bye")]


@pytest.mark.parametrize("error", LEAVES, ids=repr)
@pytest.mark.parametrize("where", ["factory", "act", "run", "metadata", "action", "environment"])
def test_what_would_end_python_ends_an_episode_only(
    tmp_path: Path, where: str, error: BaseException
) -> None:
    def leave() -> None:
        raise type(error)(*error.args)

    class Acts:
        def act(self, observation: str, history: object) -> str:
            if where == "act" and observation == "say 4":
                leave()
            return "submit"

        def episode_metadata(self) -> dict[str, Any]:
            if where == "metadata":
                leave()
            return {}

    class Plays:
        def run(self, env: Any) -> None:
            if env.observation == "say 4":
                leave()

    class Watcher(Progress):
        def action(self, task: Task, action: str) -> None:
            if where == "action":
                leave()

    def make(task: Task) -> Any:
        if where == "factory" and task.task_id == "t4":
            leave()
        return Plays() if where == "run" else Acts()

    def fail(task_id: str, action: str) -> BaseException | None:
        is_here = where == "environment" and task_id == "t4"
        return type(error)(*error.args) if is_here else None

    factory = Factory(TASKS, fail=fail)
    result = evaluate(TASKS, make, factory, workers=2, out=tmp_path, progress=Watcher())
    assert (len(result.outcomes), result.planned) == (10, 10)
    assert result.statistics.errors == (10 if where in ("metadata", "action") else 1)
    assert not result.complete
    lines = {"environment": "fakes.py"}
    for episode in result.episodes():
        if episode.status == "error":
            place = rf"{lines.get(where, 'test_runner.py')}, line \d+: {type(error).__name__}"
            assert re.search(place, str(episode.error))


@pytest.mark.parametrize("error", LEAVES, ids=repr)
def test_an_environment_that_cannot_be_made_ends_the_run_and_not_python(
    error: BaseException,
) -> None:
    def make() -> Any:
        raise error

    with pytest.raises(
        UsageError, match=r"the environment cannot be created: .*test_runner.py, line"
    ):
        evaluate(TASKS, "oracle", make)


def test_a_machine_without_sandboxes_stops_the_run() -> None:
    def refuse(task_id: str, action: str) -> Exception:
        return SandboxUnavailableError("not here")

    with pytest.raises(SandboxUnavailableError, match="not here"):
        evaluate(TASKS, "oracle", Factory(TASKS, fail=refuse), workers=4)


@pytest.mark.parametrize("at", ["reset", "echo 4", "submit"])
def test_no_exception_of_one_episode_ends_the_run(tmp_path: Path, at: str) -> None:
    """Attacks A1 and A2: what one agent brought about ended the run, and each resume of it."""
    fail = Flaky("t4", 1, at, ZeroDivisionError("bug"))
    factory = Factory(TASKS, fail=fail)
    result = evaluate(TASKS, "oracle", factory, workers=2, out=tmp_path)
    assert (result.statistics.successes, result.statistics.errors) == (9, 1)
    assert all(env.closed for env in factory.made)
    [episode] = [e for e in result.episodes() if e.status == "error"]
    assert (episode.task_id, fail.left) == ("t4", 0)
    assert re.fullmatch(r".*/fakes\.py, line \d+: ZeroDivisionError: bug", str(episode.error))
    assert "fakes.py" in episode.metadata["traceback"]
    resumed = evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path)
    assert (resumed.ran, resumed.complete) == (1, True)


@pytest.mark.parametrize(
    "error", [UsageError("no"), RecordError("no")], ids=lambda e: type(e).__name__
)
def test_what_would_meet_every_episode_ends_the_run(error: Exception) -> None:
    factory = Factory(TASKS, fail=Flaky("t4", 1, "submit", error))
    with pytest.raises(type(error)):
        evaluate(TASKS, "oracle", factory, workers=2)
    assert all(env.closed for env in factory.made)


def test_an_environment_that_cannot_even_be_closed_ends_no_run() -> None:
    class Stuck(FakeEnv):
        def close(self) -> None:
            super().close()
            if self.resets[-1][0] == "t4":
                raise OSError("stuck")

    made: list[FakeEnv] = []

    def factory() -> FakeEnv:
        made.append(Stuck(TASKS, fail=Flaky("t4", 1, "submit", SandboxError("died"))))
        return made[-1]

    result = evaluate(TASKS, "oracle", factory, max_retries=0)
    assert (result.statistics.successes, result.statistics.errors) == (9, 1)
    assert len(made) == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_an_end_that_fails_is_no_error_of_the_run(workers: int, tmp_path: Path) -> None:
    """Every episode is over, and recorded, when the environments are closed at last."""

    class Stuck(FakeEnv):
        def close(self) -> None:
            super().close()
            raise SandboxError("a sandbox did not end")

    result = evaluate(TASKS, "oracle", lambda: Stuck(TASKS), workers=workers, out=tmp_path)
    assert result.complete
    assert (result.statistics.successes, result.statistics.errors) == (10, 0)


def test_restarts_are_counted() -> None:
    factory = Factory(TASKS, fail=Flaky("t4", 2, "submit", SandboxError("died")))
    result = evaluate(TASKS, "oracle", factory)
    assert (result.statistics.restarts, result.statistics.outcomes["lost"]) == (2, 0)


def test_a_watcher_that_raises_stops_the_run() -> None:
    class Broken(Progress):
        ended = False

        def episode(self, episode: Episode) -> None:
            raise BrokenPipeError

        def end(self) -> None:
            self.ended = True

    factory = Factory(TASKS, delay=0.01, fail=all_at_once(2))
    progress = Broken()
    with pytest.raises(BrokenPipeError):
        evaluate(TASKS, "oracle", factory, workers=2, max_sandboxes=2, progress=progress)
    assert progress.ended
    assert all(env.closed for env in factory.made)


def test_the_folder_says_what_was_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = evaluate(
        TASKS, "oracle", Factory(TASKS), workers=2, out=out, seed=3, settings={"env": "fake"}
    )
    assert result.folder == out
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["format"] == 1
    assert manifest["seed"] == 3
    assert manifest["env"] == {"env": "fake"}
    assert manifest["agent"]["name"] == "oracle"
    assert manifest["dataset"]["digest"] == TASKS.digest
    [session] = manifest["sessions"]
    assert session["episodes"] == 10 and session["finished"] and session["versions"]["python"]
    assert len((out / "episodes.jsonl").read_text().splitlines()) == 10
    assert {e.task_id for e in result.episodes()} == {f"t{n}" for n in range(10)}


def test_resume_runs_only_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    evaluate(TASKS, "oracle", Factory(TASKS), out=out, limit=4)
    factory = Factory(TASKS)
    result = evaluate(TASKS, "oracle", factory, out=out, epochs=2)
    assert result.ran == 16
    assert result.planned == len(result.outcomes) == 20
    assert [task for task, _ in factory.made[0].resets][:6] == [f"t{n}" for n in range(4, 10)]
    again = Factory(TASKS)
    assert evaluate(TASKS, "oracle", again, out=out, epochs=2).ran == 0
    assert again.made == []
    manifest = json.loads((out / "run.json").read_text())
    assert [session["episodes"] for session in manifest["sessions"]] == [4, 16, 0]


def test_resume_tries_errors_again_and_the_last_word_counts(tmp_path: Path) -> None:
    out = tmp_path / "run"
    failing = Factory(TASKS, fail=Flaky("t4", 99, "reset", SandboxError("died")))
    assert evaluate(TASKS, "oracle", failing, out=out).statistics.errors == 1
    result = evaluate(TASKS, "oracle", Factory(TASKS), out=out)
    assert result.ran == 1
    assert result.complete and result.statistics.successes == 10


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dataset": dataset(11)}, "dataset.digest"),
        ({"agent": "noop"}, "agent.name"),
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"settings": {"env": "fake", "image": "other"}}, "env.image was 'one'"),
        ({"settings": {"env": "fake"}}, "env.image was 'one' and is now None"),
    ],
)
def test_another_run_is_not_mixed_in(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    same: dict[str, Any] = {
        "dataset": TASKS,
        "agent": "oracle",
        "settings": {"env": "fake", "image": "one"},
        "seed": 0,
    }

    def go(options: dict[str, Any]) -> None:
        options = {"out": tmp_path / "run", "limit": 2, **options}
        evaluate(options.pop("dataset"), options.pop("agent"), Factory(TASKS), **options)

    go(same)
    before = (tmp_path / "run" / "episodes.jsonl").read_bytes()
    with pytest.raises(RecordError, match=told):
        go({**same, **change})
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() == before


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with RunRecordWriter(tmp_path / "run"), pytest.raises(RunLockedError):
        evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run")
    assert evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run").complete


def test_a_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RecordError, match="not empty"):
        evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_episodes_without_their_run_json_are_refused(tmp_path: Path) -> None:
    evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(RecordError, match=r"run\.json"):
        evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run")


def test_progress_hears_all_of_it(tmp_path: Path) -> None:
    class Watcher(Progress):
        def __init__(self) -> None:
            self.heard: list[Any] = []
            self.actions: list[str] = []

        def begin(self, total: int, earlier: Any) -> None:
            self.heard.append((total, len(earlier)))

        def action(self, task: Any, action: str) -> None:
            self.actions.append(action)

        def episode(self, episode: Episode) -> None:
            assert threading.current_thread() is threading.main_thread()
            self.heard.append(episode.task_id)

        def end(self) -> None:
            self.heard.append("end")

    evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run", limit=1)
    watcher = Watcher()
    evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run", limit=3, progress=watcher)
    assert watcher.heard == [(3, 1), "t1", "t2", "end"]
    assert watcher.actions == ["echo 1", "submit", "echo 2", "submit"]


def test_replay_does_what_was_recorded(tmp_path: Path) -> None:
    evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run", limit=5)
    again = registry.get("replay", recording=tmp_path / "run")
    assert evaluate(TASKS, again, Factory(TASKS), limit=5).statistics.successes == 5
    with pytest.raises(UsageError, match="t5, t6, t7, t8, t9"):
        evaluate(TASKS, again, Factory(TASKS))


def test_memory_does_not_grow_with_what_episodes_hold(tmp_path: Path) -> None:
    result = evaluate(TASKS, "oracle", Factory(TASKS), out=tmp_path / "run")
    assert result.kept == []


SECRET = Task(
    "t",
    "Do it.",
    ("gold-42",),
    setup="gold-42",
    verification="gold-42",
    files={"gold-42": "gold-42"},
    tests=("assert 'gold-42'",),
    tags=("easy",),
    metadata={"solution": "gold-42", "db_tables": {"t": ["a"]}},
)


class Looking:
    """Keeps what its agents are shown."""

    def __init__(self, needs_gold: bool) -> None:
        self.needs_gold = needs_gold
        self.seen: list[object] = []

    def check(self, tasks: Sequence[Task]) -> None:
        self.seen += tasks

    def make_agent(self, env: object, task: Task) -> Any:
        self.seen += [env, task]
        return ScriptedAgent()

    def __call__(self, task: Task) -> Any:
        raise NotImplementedError


def test_an_agent_is_shown_no_gold_unless_it_says_that_it_needs_it(tmp_path: Path) -> None:
    """Attack C2: an agent of a reader's own solved every task by the gold that it was handed."""
    tasks = Dataset([SECRET])
    for asks in (False, True):
        looking = Looking(asks)
        evaluate(tasks, looking, Factory(tasks), out=tmp_path / str(asks))
        assert ("gold-42" in repr([vars_of(seen) for seen in looking.seen])) is asks
        task = looking.seen[-1]
        assert isinstance(task, Task) and (task.query, task.tags) == ("Do it.", ("easy",))
        assert task.metadata["db_tables"] == {"t": ["a"]}
        manifest = json.loads((tmp_path / str(asks) / "run.json").read_text())
        assert manifest["needs_gold"] is asks
        [run] = read_runs([tmp_path / str(asks)])
        assert ("Shown gold" in run_tables(run)[0].note) is asks


def vars_of(seen: object) -> object:
    """All that an object holds, as an agent could look it up."""
    return [getattr(seen, name) for name in dir(seen) if not name.startswith("__")]
