"""Outcome kinds: each is reached by a run, has one name, and no number where it has none."""

from __future__ import annotations

import csv
import importlib
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

import intercode
import intercode.rewards
import intercode_sandbox
from intercode import errors
from intercode.agents import registry
from intercode.agents.base import AgentError
from intercode.agents.language import EpisodeLimits
from intercode.cli.main import main
from intercode.episode import ENDED, Episode, Score, Status, Turn
from intercode.errors import InterCodeError, SandboxError
from intercode.evaluate import RunResult, evaluate, summarize
from intercode.models import get_model
from intercode.outcomes import KINDS_BY_CAUSE, OUTCOMES, UNSCORED, OutcomeKind, failure_kind
from intercode.records import Outcome, read_episodes
from intercode.report.export import episode_row, to_chat, turn_rows
from intercode.report.viewer_episodes import make_row
from intercode_integrations.trl.environments import environments
from intercode_integrations.trl.rollouts import env_reward
from sources import ROOT
from waiting import PATIENCE

HISTORY = sorted(ROOT.glob("tests/golden/runs-0.1.0/*/episodes.jsonl"))
TURNS = 2
TASKS = intercode.Dataset(
    [
        intercode.Task("touch", "Create the file /tmp/a.", gold=("touch /tmp/a",)),
        intercode.Task("setup", "Nothing can be done.", gold=("true",), setup="exit 3"),
    ],
    "outcomes",
)


class Scripted:
    """An agent that takes its actions, and says by what its work ended."""

    def __init__(self, *actions: str, ended_by: str | None = None) -> None:
        self._actions, self._ended_by = iter(actions), ended_by

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        return next(self._actions)

    def episode_metadata(self) -> Mapping[str, Any]:
        return {} if self._ended_by is None else {"ended_by": self._ended_by}


def limited(**limits: Any) -> Any:
    model = get_model(f"scripted/{ROOT}/tests/golden/runs-0.1.0/rules.jsonl")
    return registry.get("try-again", model=model, limits=EpisodeLimits(**limits))


IN_NO_TIME = limited(seconds=1e-9)  # allow limit: it is to be reached
AGENTS: dict[str, tuple[OutcomeKind, str, Callable[..., Any]]] = {
    "gold": ("solved", "touch", lambda task: Scripted("touch /tmp/a", "submit")),
    "gold in the last turn": ("solved", "touch", lambda task: Scripted("true", "touch /tmp/a")),
    "submits": ("not-solved", "touch", lambda task: Scripted("true", "submit")),
    "submits at once": ("not-solved", "touch", lambda task: Scripted("submit")),
    "never submits": ("turn-limit", "touch", lambda task: Scripted("true", "true")),
    "has no time": ("time-limit", "touch", IN_NO_TIME),
    "has no tokens": ("token-limit", "touch", limited(tokens=1)),
    "skips": ("ended-by-agent", "touch", lambda task: Scripted("skip")),
    "ends its sandbox": ("ended-by-agent", "touch", lambda task: Scripted("END")),
    "leaves": ("ended-by-agent", "touch", lambda task: Scripted("submit", ended_by="client")),
    "loses its sandbox": ("lost", "touch", lambda task: Scripted("true", "LOSE")),
    "loses it while it is judged": ("lost", "touch", lambda task: Scripted("true", "LOSE LATER")),
    "raises": ("refused", "touch", lambda task: Scripted()),
    "cannot begin": ("refused", "setup", lambda task: Scripted("submit")),
}
"""Agent → the kind, the task, and what makes the agent."""


def wrapped(env: Any) -> Any:
    """Let an environment fail at two actions, by the infrastructure or by the agent."""
    step = env.step

    def failing(action: str) -> Any:
        if action == "END":
            env.workspace._control.send(b"no request")  # process 1 fails, as by what runs in it
            assert env.workspace._process.wait(PATIENCE)
            return step("true")
        if action.startswith("LOSE"):
            env.workspace.close()
            return step("submit" if action == "LOSE LATER" else "true")
        return step(action)

    env.step = failing
    return env


def play(name: str, out: Path | None = None) -> tuple[OutcomeKind, RunResult]:
    kind, task, agent = AGENTS[name]
    tasks = intercode.Dataset([TASKS.by_id(task)], TASKS.name)
    make = lambda: wrapped(intercode.make("bash", data=tasks, max_turns=TURNS).unwrapped)  # noqa: E731
    return kind, evaluate(tasks, agent, make, out=out, max_retries=0)


def numbers(value: Any) -> Iterator[float]:
    """Yield each number of a reward, or of a success, at any depth of plain data."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if name in ("reward", "rewards", "success", "score") and inner is not None:
            yield from [inner] if isinstance(inner, int | float) else [math.inf]
        yield from numbers(inner)
    for inner in value if isinstance(value, list | tuple) else ():
        yield from numbers(inner)


@pytest.mark.parametrize("name", AGENTS)
def test_each_kind_of_a_run_has_one_name_everywhere(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, result = play(name, tmp_path / "run")
    (episode,) = read_episodes(tmp_path / "run" / "episodes.jsonl")
    line = json.loads((tmp_path / "run" / "episodes.jsonl").read_text())
    assert episode.outcome == line["outcome"] == episode.to_dict()["outcome"] == kind
    (outcome,) = result.outcomes
    counts = {name: int(name == kind) for name in OUTCOMES}
    assert outcome.kind == kind and result.statistics.outcomes == counts
    assert make_row(0, episode, outcome).outcome == to_chat(episode)["outcome"] == kind
    assert main(["export", str(tmp_path / "run"), "--to", "csv"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["outcome"] == kind
    assert main(["report", str(tmp_path / "run"), "--json"]) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    assert told["statistics"]["outcomes"] == counts and [*told["spending"]] == [kind]
    assert main(["show", str(tmp_path / "run")]) in (0, 1)
    assert f"── {kind}\n" in capsys.readouterr().out
    scored = kind not in UNSCORED
    assert (result.statistics.episodes, result.statistics.errors) == (scored, not scored)
    assert (outcome.reward is not None) == (row["reward"] != "") == (row["success"] != "") == scored
    if not scored:
        turns = [*turn_rows(episode)]
        assert not [*numbers([episode_row(episode), to_chat(episode), turns, line["score"]])]
        assert result.statistics.mean_reward is result.statistics.success_rate is None


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        (["touch /tmp/a", "submit"], "solved"),
        (["submit"], "not-solved"),
        (["true", "true"], "turn-limit"),
        (["skip"], "ended-by-agent"),
        (["END"], "ended-by-agent"),
        (["LOSE"], "lost"),
    ],
)
def test_info_tells_the_kind_at_the_end_and_not_before(actions: list[str], kind: str) -> None:
    made = intercode.make("bash", data=TASKS, max_turns=TURNS, errors="value").unwrapped
    with closing(wrapped(made)) as env:
        _, info = env.reset(task_id="touch")
        assert "outcome" not in info
        for action in actions[:-1]:
            assert "outcome" not in env.step(action)[4]
        _, reward, terminated, truncated, info = env.step(actions[-1])
        assert info["outcome"] == env.episode.outcome == kind
        assert truncated == (kind in ("turn-limit", "lost")) and terminated != truncated
        assert math.isnan(reward) == (kind == "lost") and ("success" in info) == (kind != "lost")
        _, info = env.reset(task_id="setup")  # refused, as a value
        assert info["outcome"] == "refused" and info["error"]["kind"] == "task"
        assert math.isnan(env.step("true")[1]) and env.episode.reward is None


def test_an_agent_is_not_told_its_outcome() -> None:
    """The outcome of an end that is judged later is not known, and never the agent's to know."""
    shown: list[Any] = []

    class Holding:
        def run(self, env: Any) -> Episode:
            shown.append(env.step("touch /tmp/a")[4])
            shown.append(env.step("true")[4])
            shown.append(env.episode.to_dict())
            return env.episode

    tasks = intercode.Dataset([TASKS.by_id("touch")])
    make = lambda: intercode.make("bash", data=tasks, max_turns=TURNS)  # noqa: E731
    result = evaluate(tasks, lambda task: Holding(), make)
    assert [one.kind for one in result.outcomes] == ["solved"]
    assert len(shown) == 3 and not any("outcome" in one for one in shown)


def test_an_interrupted_episode_is_lost() -> None:
    with closing(intercode.make("bash", data=TASKS).unwrapped) as env:
        env.reset(task_id="touch")
        env.interrupt(KeyboardInterrupt())
        assert env.episode.outcome == "lost"


@pytest.mark.parametrize("path", HISTORY, ids=lambda path: path.parent.name)
def test_episodes_of_0_1_0_have_a_kind(path: Path) -> None:
    for episode in read_episodes(path):
        assert b'"outcome"' not in path.read_bytes()
        expected = "turn-limit" if episode.status == "truncated" else "not-solved"
        assert episode.outcome == ("solved" if episode.success else expected)
        assert Episode.from_json(episode.to_json()) == episode


def test_a_recorded_kind_is_not_believed() -> None:
    lost = Episode("t", "q", "bash", status="error", error="SandboxError: gone")
    told = {**lost.to_dict(), "outcome": "solved"}
    assert Episode.from_dict(told).outcome == "lost"


facts = st.dictionaries(st.sampled_from([ENDED, "x"]), st.booleans())


@given(
    status=st.sampled_from(get_args(Status)),
    value=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
    detail=facts,
    info=facts,
    ended_by=st.none() | st.sampled_from([*KINDS_BY_CAUSE, "a surprise"]) | st.lists(st.integers()),
    error=st.none() | st.sampled_from(["SandboxError: gone", "TaskError: bad", "odd", ""]),
    error_type=st.none() | st.sampled_from(["AgentError", "KeyError"]) | st.integers(),
)
def test_every_end_has_one_kind(
    status: Status,
    value: float | None,
    detail: dict[str, Any],
    info: dict[str, Any],
    ended_by: Any,
    error: str | None,
    error_type: Any,
) -> None:
    """Whatever a record says: over with a number, or with an error, is one of the kinds."""
    score = None if value is None else Score(value, {}, detail)
    metadata = {"ended_by": ended_by, "error_type": error_type}
    episode = Episode("t", "q", "bash", turns=[Turn("a", "b", info=info)], status=status)
    episode.score, episode.error, episode.metadata = score, error, metadata
    kind = episode.outcome
    is_over = status == "error" or (status != "running" and score is not None)
    assert (kind in OUTCOMES) if is_over else (kind is None)
    assert (kind in UNSCORED) == (status == "error")
    assert (kind == "solved") == (is_over and episode.success)
    if status == "error":
        assert episode.reward is None and not episode.success
    outcome = Outcome.from_episode(episode)
    statistics = summarize([outcome])
    has_number = is_over and status != "error"
    assert (statistics.episodes, statistics.mean_reward is not None) == (has_number, has_number)


def subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from subclasses(inner)


REFUSED = (
    *(errors.UsageError, errors.TaskError, errors.TaskNotFoundError, errors.DockerfileError),
    *(errors.ActionError, errors.RewardError, errors.ModelError, AgentError),
)


def test_every_error_of_the_package_has_the_kind_of_its_base() -> None:
    """A record has only the name of an error: a new class must not fall out of its family."""
    for package in (intercode.agents, intercode.evaluate, intercode.rewards, intercode_sandbox):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = [one for one in subclasses(InterCodeError) if one.__module__.startswith("intercode")]
    assert len(found) > 40
    for kind in found:
        is_refusal = issubclass(kind, REFUSED)
        is_refusal = is_refusal and not issubclass(kind, errors.ModelUnavailableError)
        assert failure_kind(kind.__name__) == ("refused" if is_refusal else "lost"), kind
    for name in ("OSError", "MemoryError", "ZeroDivisionError", "", "SandboxError: x", "errors"):
        assert failure_kind(name) == "lost"


# What becomes of a lost episode in frameworks


@pytest.fixture
def burning(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(*given: object) -> None:
        raise SandboxError("the machine is on fire")

    monkeypatch.setattr("intercode.envs.base.execute", execute)


@pytest.mark.usefixtures("burning")
def test_gymnasium_raises() -> None:
    with closing(intercode.make("bash", data=TASKS)) as env:
        env.reset(options={"task_id": "touch"})
        with pytest.raises(SandboxError):
            env.step("true")


@pytest.mark.usefixtures("burning")
@pytest.mark.parametrize("policy", ["raise", "value"])
def test_a_vector_has_nan_and_the_kind(policy: str) -> None:
    envs = intercode.make_vec("bash", 2, data=TASKS, errors=policy, autoreset_mode="Disabled")
    with closing(envs):
        envs.reset(options={"task_id": ["touch", "touch"]})
        if policy == "raise":
            with pytest.raises(intercode.VectorError) as caught:
                envs.step(("true", "submit"))
            _, rewards, _, truncated, infos = caught.value.results
        else:
            _, rewards, _, truncated, infos = envs.step(("true", "submit"))
        assert math.isnan(rewards[0]) and rewards[1] == 0.0 and truncated.tolist() == [True, False]
        assert infos["outcome"].tolist() == ["lost", "not-solved"]


@pytest.mark.usefixtures("burning")
def test_trl_gets_no_reward() -> None:
    factory = environments("bash", data=TASKS)
    with closing(factory):
        env: Any = factory()
        env.reset(task_id="touch")
        env.bash("true")
        assert env.get_reward() is None
    assert env_reward(env_reward=[math.nan, 0.0]) == [None, 0.0]


# Documentation


def test_the_reference_has_the_definitions() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert rows == OUTCOMES
    assert set(get_args(OutcomeKind)) == set(OUTCOMES)
