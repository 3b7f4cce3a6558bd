"""The environments that TRL is given, without TRL."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import intercode
from intercode.errors import EnvironmentStateError, UsageError
from intercode_integrations.trl import Environments, Rollouts, env_reward, environments
from intercode_sandbox import get_provider
from soak.killed import adopting, children

TASK = intercode.load_dataset("bash").by_id("archive-01")


@pytest.fixture
def bash() -> Iterator[Environments]:
    with closing(environments("bash", max_turns=3)) as made:
        yield made


def tools(one: object) -> list[str]:
    """What TRL takes for tools."""
    named = inspect.getmembers(type(one), predicate=inspect.isfunction)
    public = [name for name, _ in named if not name.startswith("_")]
    assert {"reset", "get_reward"} <= set(public)
    return [name for name in public if name not in ("reset", "get_reward")]


@pytest.mark.parametrize(
    ("name", "names", "answers"),
    [
        ("bash", ["bash", "submit"], "() -> str"),
        ("sql", ["sql", "submit"], "() -> str"),
        ("python", ["python", "submit"], "(function: str = '') -> str"),
        ("ctf", ["bash", "submit"], "(flag: str) -> str"),
    ],
)
def test_public_methods_are_the_tools(name: str, names: list[str], answers: str) -> None:
    one: Any = environments(name)()
    assert tools(one) == names
    assert type(one).__name__ == name.capitalize()
    assert str(inspect.signature(one.submit)) == answers
    assert "Args:" in getattr(one, names[0]).__doc__


def test_episode(bash: Environments) -> None:
    one: Any = bash()
    assert one.reset(task_id="archive-01", prompt=[]).startswith(f"Task: {TASK.query[:20]}")
    assert one.bash("echo one") == "one\n"
    one.bash(command=TASK.gold[0])
    assert one.get_reward() == 1.0
    assert one.get_reward() == 1.0
    with pytest.raises(EnvironmentStateError, match="no sandbox"):
        _ = one._env.workspace
    assert one.reset(index=1).startswith("Task: ")
    assert one.submit() == "[the episode has ended]"
    assert "did nothing" in one.bash("ls")
    assert one.get_reward() == 0.0


def test_lost_sandbox_is_no_reward(bash: Environments) -> None:
    one: Any = bash()
    one.reset(task_id="archive-01")
    one._env.workspace.close()
    assert "ended" in one.bash("ls")
    assert "did nothing" in one.bash("ls")
    assert one.get_reward() is None
    one.reset(task_id="archive-01")
    one.bash(TASK.gold[0])
    assert one.get_reward() == 1.0


def test_lost_sandbox_that_no_tool_has_met(
    bash: Environments, caplog: pytest.LogCaptureFixture
) -> None:
    one: Any = bash()
    one.reset(task_id="archive-01")
    one._env.workspace.close()
    assert one.get_reward() is None
    assert "archive-01: an attempt has no reward: SandboxClosedError: " in caplog.text


def test_permanent_refusal_ends_a_training(
    bash: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL itself would go on without any reward, to its end."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise intercode.SandboxUnavailableError("no namespaces here")

    monkeypatch.setattr(type(get_provider("native")), "start", refuse)
    with pytest.raises(intercode.SandboxUnavailableError, match="no namespaces"):
        bash().reset(task_id="archive-01")
    trainer = SimpleNamespace(_tokenize_prompts=lambda prompts: ([[1] for _ in prompts],))
    with (
        closing(Rollouts("bash")) as rollouts,
        pytest.raises(intercode.VectorError, match="no namespaces"),
    ):
        rollouts([[{"role": "user", "task_id": "archive-01"}]] * 2, trainer)


def test_place_that_cannot_be_made() -> None:
    one: Any = environments("bash", image="/nowhere/Dockerfile")()
    assert one.reset(task_id="archive-01").startswith("Task: ")
    assert one.get_reward() is None


def test_row_without_a_task(bash: Environments) -> None:
    with pytest.raises(UsageError, match="neither 'task_id' nor 'index'"):
        bash().reset(prompt=[])


def test_rows_tell_the_task_and_no_more(bash: Environments) -> None:
    rows = bash.rows()
    assert [row["task_id"] for row in rows] == [one.task_id for one in bash._template.dataset]
    system, user = rows[0]["prompt"]
    assert "you have 3" in system["content"]
    assert user == {"role": "user", "content": ""}
    assert set(rows[0]) == {"prompt", "task_id"}


def test_pickled(bash: Environments) -> None:
    again = pickle.loads(pickle.dumps(bash))
    assert again.rows() == bash.rows()
    assert tools(again()) == ["bash", "submit"]


def test_gold_runs_once_for_all(bash: Environments) -> None:
    one, other = bash(), bash()
    assert one._env.options.cache_gold is other._env.options.cache_gold


def test_closed_when_dropped(bash: Environments) -> None:
    one: Any = bash()
    one.reset(task_id="archive-01")
    place = one._env.workspace
    del one
    with pytest.raises(intercode.SandboxError):
        place.exec(["/bin/true"])


LEFT = """
from intercode_integrations.trl import environments
bash = environments("bash")
kept = [bash() for _ in range(2)]
for one in kept:
    one.reset(task_id="archive-01")
    one.bash("sleep 1000 &")
print("begun")
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(1)", "1 / 0"])
def test_nothing_is_left_of_a_process_that_closes_nothing(end: str) -> None:
    with adopting():
        before = children()
        done = subprocess.run(
            [sys.executable, "-c", LEFT.format(end=end)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "begun\n", done.stderr
        assert children() == before


def test_prompts_of_rollouts_name_their_tasks() -> None:
    rollouts = Rollouts("bash", max_turns=3)
    system, user = rollouts.rows()[0]["prompt"]
    assert "You have 3 turns" in system["content"]
    assert user == {
        "role": "user",
        "content": f"Task: {TASK.query}",
        "task_id": "archive-01",
    }


@pytest.mark.parametrize("turns", [-1, 3])
def test_no_turn_left_after_those_in_common(turns: int) -> None:
    with pytest.raises(UsageError, match="below max_turns, 3, not"):
        Rollouts("bash", max_turns=3, shared_turns=turns)


def test_prompt_without_a_task() -> None:
    rollouts = Rollouts("bash")
    with pytest.raises(UsageError, match="does not name its task"):
        rollouts([[{"role": "user", "content": "hello"}]], None)


def test_no_reward_is_none() -> None:
    assert env_reward(env_reward=[1.0, float("nan")], prompts=[]) == [1.0, None]
