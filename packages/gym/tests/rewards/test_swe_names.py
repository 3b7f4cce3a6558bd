"""Names of tests as logs have them: cut, odd, or of no test; each concerns its own task alone."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from envs.swe_tasks import CALC, GOLD, git, make_repository, task, write
from intercode.cli.main import main
from intercode.envs.swe import SweEnv
from intercode.episode import Score
from intercode.errors import TaskError
from intercode.evaluate import evaluate
from intercode.evaluate.task_selection import ungradable_tasks
from intercode.evaluate.validate import validate
from intercode.records import read_manifest
from intercode.task import Dataset

ODD = ["[100%]", "test_add (tests.test_calc.CalcTest)", "tests/test_calc.py", "a.py::t\nest", "::x"]
PARAMETERS = """\
import calc
import pytest


@pytest.mark.parametrize("text", ["one and two", "three and four", "three and five"])
def test_words(text):
    assert calc.add(1, 2) == 3


@pytest.mark.parametrize("text", ["a]b c", "x::y z"])
def test_marks(text):
    assert calc.double(2) == 4
"""
FILE = "tests/test_words.py::"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("names") / "calc"
    make_repository(folder)
    git(folder, "checkout", "--quiet", "-b", "words", "v1")
    write(folder, {"tests/test_words.py": PARAMETERS, "calc.py": CALC})
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=Words")
    return str(folder)


def score(repository: str, fail: list[str], passing: list[str], *actions: str) -> Score:
    row = task("t", repository=repository, base_commit="words", FAIL_TO_PASS=fail,
               PASS_TO_PASS=passing)  # fmt: skip
    with closing(SweEnv(Dataset([row]))) as env:
        env.reset()
        for action in actions or env.solution(row)[:-1]:
            env.step(action)
        env.step("submit")
        assert env.episode.score is not None
        return env.episode.score


def test_cut_names_are_those_that_begin_so(repository: str) -> None:
    fail, passing = [f"{FILE}test_words[one"], [f"{FILE}test_marks[a]b", f"{FILE}test_marks[x::y"]
    assert score(repository, fail, passing).value == 1.0
    undone = score(repository, fail, passing, "true")
    assert undone.parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}
    assert undone.detail["failed"] == [f"{FILE}test_words[one and two]"]


@pytest.mark.parametrize("name", ["test_words[three", "test_words[six"])
def test_cut_names_of_several_or_none_are_no_score(repository: str, name: str) -> None:
    with pytest.raises(TaskError, match=r"is truncated, and [02] tests have this prefix"):
        score(repository, [f"{FILE}{name}"], [])


def test_full_names_with_blanks_and_brackets(repository: str) -> None:
    names = [f"{FILE}test_words[three and four]", f"{FILE}test_marks[a]b c]"]
    assert score(repository, names[:1], names[1:]).value == 1.0


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_name_excludes_its_task_alone(repository: str, tmp_path: Path, odd: str) -> None:
    rows = [
        task("good", "unittest", repository=repository),
        task("odd", repository=repository, PASS_TO_PASS=json.dumps([odd])),
    ]
    tasks = Dataset(rows, "names")
    assert ungradable_tasks(tasks)["odd"].startswith(
        f"metadata.PASS_TO_PASS: {odd!r} is not a test of"
    )
    result = evaluate(tasks, "oracle", lambda: SweEnv(tasks), out=tmp_path / "run")
    assert [(o.task_id, o.reward) for o in result.outcomes] == [("good", 1.0)]
    assert list(read_manifest(tmp_path / "run")["excluded"]) == ["odd"]


def test_the_command_line_says_why(
    repository: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(repository, tmp_path / "add")
    rows = [
        task("good", "unittest", repository="add"),
        task("odd", repository="add", FAIL_TO_PASS=["[100%]"]),
    ]
    (tmp_path / "tasks.json").write_text(json.dumps([row.to_dict() for row in rows]))
    data = str(tmp_path / "tasks.json")
    assert main(["run", "swe", "--data", data, "--agent", "oracle"]) == 0
    said = capsys.readouterr()
    assert "excluded: odd: metadata.FAIL_TO_PASS: '[100%]' is not a test of" in said.err
    assert main(["run", "swe", "--data", data, "--agent", "oracle", "--task", "odd"]) == 2
    assert "are excluded: metadata.FAIL_TO_PASS: '[100%]'" in capsys.readouterr().err


def test_a_test_that_is_not_there_is_named_without_tests_of_our_own(repository: str) -> None:
    gone = "tests/test_calc.py::CalcTest::test_gone"
    detail = score(repository, [gone], [f"{FILE}test_marks[a]b c]"], "true").detail
    assert detail["not_found"] == [gone]
    assert "collected" not in detail["output"] and "%]" not in detail["output"]


def test_validate_reports_tests_that_are_not_as_listed(repository: str) -> None:
    add, double = (f"tests.test_calc.CalcTest.test_{name}" for name in ("add", "double"))
    rows = [
        task("passes", "unittest", repository=repository, FAIL_TO_PASS=[add, double],
             PASS_TO_PASS=[]),
        task("fails", "unittest", repository=repository, FAIL_TO_PASS=[add], PASS_TO_PASS=[add]),
        task("fine", "unittest", repository=repository),
    ]  # fmt: skip
    tasks = Dataset(rows, "lists")
    found = validate(tasks, lambda: SweEnv(tasks), timeout=60.0)
    assert {(p.task_id, p.kind, p.problem) for p in found.problems} == {
        (
            "passes",
            "tests",
            f"1 of 2 tests of FAIL_TO_PASS pass before any action: {double}",
        ),
        ("fails", "tests", f"1 of 1 tests of PASS_TO_PASS fail before any action: {add}"),
    }
    assert GOLD in tasks[0].gold and not found.valid
