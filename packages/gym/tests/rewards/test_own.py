"""Rewards of one's own: looked at early, and an error where they fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intercode import Dataset, InterCodeEnv, RewardError, SandboxError, Score, Task, UsageError
from intercode.envs.bash import BashEnv
from intercode.episode import Episode
from intercode.registry import REWARDS
from intercode.rewards.custom import choose_reward

TASK = Task("t", "Make a file.", gold=("touch made",))
EPISODE = Episode("t", "Make a file.", "bash")


def scored(function: object) -> Score:
    def none() -> None:
        raise AssertionError("it was not asked for")

    return choose_reward("bash", function, none)(TASK, EPISODE, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 0.25, 1, True, Score(0.5, {"a": 1.0})])
def test_a_number_or_a_score(value: float | Score) -> None:
    found = scored(lambda task, episode, sandbox: value)
    assert found == (value if isinstance(value, Score) else Score(float(value)))


@pytest.mark.parametrize(
    "value",
    [1.01, -0.1, float("nan"), float("inf"), "1", None, Score(2.0), Score(float("nan")), 1j],
)
def test_no_score_is_an_error(value: object) -> None:
    with pytest.raises(RewardError, match="must be a number from 0 to 1"):
        scored(lambda task, episode, sandbox: value)


CIRCLE: dict[str, object] = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Score(0.5, detail={"x": [1, object()]}), r"not JSON: its detail\['x'\]\[1\] is object"),
        (Score(0.5, detail={(1, 2): 3}), r"not JSON: its detail is dict"),
        (Score(0.5, detail=CIRCLE), "not JSON: its .*Circular"),
        (Score(0.5, detail=["x"]), "detail is not a dictionary"),
        (Score(0.5, parts=[1]), "parts are not names with numbers"),
        (Score(0.5, {"a": "1"}), "parts are not names with numbers"),
        (Score(np.float32(0.5)), "not JSON: its value is float32"),
        (Score(0.5, {"a": np.float32(0.5)}), r"not JSON: its parts\['a'\] is float32"),
    ],
)
def test_a_score_that_no_record_can_keep_is_an_error_that_names_it(
    score: Score, message: str
) -> None:
    def mine(task: Task, episode: Episode, sandbox: object) -> Score:
        return score

    with pytest.raises(RewardError, match=f"mine gave a Score .*{message}"):
        scored(mine)


def test_an_async_reward_is_refused_early() -> None:
    async def later(task: Task, episode: Episode, sandbox: object) -> float:
        return 1.0

    class Later:
        async def __call__(self, task: Task, episode: Episode, sandbox: object) -> float:
            return 1.0

    for function in (later, Later()):
        with pytest.raises(UsageError, match=r"[lL]ater is async"):
            choose_reward("bash", function, lambda: None)  # type: ignore[arg-type,return-value]


def test_a_class_whose_objects_are_called_is_a_reward(tmp_path: Path) -> None:
    text = "class score:\n    def __call__(self, task, episode, sandbox):\n        return {}\n"
    assert scored(write(tmp_path, text.format(0.5))) == Score(0.5)
    with pytest.raises(RewardError, match="score gave 2"):
        scored(write(tmp_path, text.format(2)))


@pytest.mark.parametrize("function", [lambda: 0, lambda task: 0, lambda a, b, c, d: 0, 3, dict])
def test_a_wrong_signature_is_refused_early(function: object) -> None:
    with pytest.raises(UsageError):
        choose_reward("bash", function, lambda: None)  # type: ignore[arg-type,return-value]


def write(folder: Path, text: str) -> str:
    path = folder / "reward.py"
    path.write_text(text)
    return f"{path}:score"


def test_an_error_in_it_names_file_and_line(tmp_path: Path) -> None:
    name = write(tmp_path, "def score(task, episode, sandbox):\n    x = 1\n    return x / 0\n")
    with pytest.raises(RewardError, match=r"reward\.py, line 3: ZeroDivisionError"):
        scored(name)
    with pytest.raises(RewardError, match="SystemExit"):
        scored(lambda task, episode, sandbox: exit(3))


def test_an_error_of_the_sandbox_stays_one() -> None:
    def dies(task: Task, episode: Episode, sandbox: object) -> float:
        raise SandboxError("it died")

    with pytest.raises(SandboxError, match="it died"):
        scored(dies)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nimport no_such_module\n", r"reward\.py, line 2 cannot .* ModuleNotFoundError"),
        ("x = 1\ny = (\n", r"reward\.py, line 2 cannot be imported: SyntaxError"),
        ("import sys\nsys.exit(0)\n", r"reward\.py, line 2 cannot be imported: SystemExit"),
        ("score = 1\n", "no function 'score'"),
        ("def other(task, episode, sandbox): ...\n", "no function 'score'"),
    ],
)
def test_a_file_that_is_no_good_is_refused_early(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BashEnv(Dataset([TASK]), reward=write(tmp_path, text))


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name, value in (("a", 0.25), ("b", 0.75)):
        (tmp_path / name).mkdir()
        assert scored(
            write(tmp_path / name, f"def score(task, episode, sandbox): return {value}")
        ) == Score(value)


def test_a_registered_class_is_made_from_the_parts_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine:
        def __init__(self, cache: int) -> None:
            self.cache = cache

        def __call__(self, task: Task, episode: Episode, place: object) -> Score:
            return Score(self.cache / 10)

    monkeypatch.setitem(REWARDS._entries, "bash:mine", Mine)
    made = choose_reward("bash", "mine", lambda: made, cache=3, databases=None)
    assert made(TASK, EPISODE, None) == Score(0.3)


def test_by_a_registered_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # For this test alone: others list what is registered.
    monkeypatch.setitem(REWARDS._entries, "bash:half", lambda task, episode, sandbox: 0.5)
    assert scored("half") == Score(0.5)
    with pytest.raises(UsageError, match="no reward 'bash:best'"):
        scored("best")


def test_the_default_reward_can_be_asked() -> None:
    def half(task, episode, sandbox, default):  # type: ignore[no-untyped-def]
        return default(task, episode, sandbox).value / 2

    env = BashEnv(Dataset([TASK]), reward=half)
    env.reset()
    env.step("touch made")
    assert env.step("submit")[1] == 0.5
    env.close()


def test_an_environment_from_an_image_an_interpreter_and_a_reward(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\nCOPY word /srv/word\n")
    (tmp_path / "word").write_text("plum\n")
    tasks = Dataset([Task("t", "Read /srv/word.")])

    def said(task: Task, episode: Episode, sandbox: object) -> float:
        return float(episode.turns[-1].observation == "'plum\\n'\n")

    env: InterCodeEnv[object] = InterCodeEnv(
        tasks, image=tmp_path / "Dockerfile", interpreter="python", reward=said
    )
    env.reset()
    env.step("open('/srv/word').read()")
    assert env.step("submit")[1] == 1.0
    env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "this environment needs a reward"),
        ({"reward": "half"}, "no reward 'intercode:half'"),
        ({"interpreter": "fish", "reward": scored}, "no interpreter 'fish'"),
        ({"interpreter": "sql", "reward": scored}, "SQL needs no image"),
        ({"interpreter": "bash", "reward": scored}, r"must take \(task, episode, sandbox\)"),
        ({"provider": "moon", "reward": lambda t, e, s: 0}, "no sandbox provider 'moon'"),
    ],
)
def test_what_cannot_be_put_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        InterCodeEnv(Dataset([TASK]), **options)  # type: ignore[arg-type]
