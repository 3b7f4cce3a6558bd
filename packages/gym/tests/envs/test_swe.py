"""The SWE environment: episodes, scores, what is refused, and what else takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from intercode.cli.main import main
from intercode.envs.swe import SweEnv, apply_patch
from intercode.errors import ImageError, TaskError
from intercode.evaluate import evaluate
from intercode.evaluate.validate import validate
from intercode.task import Dataset, Task
from intercode_sandbox import Limits
from intercode_sandbox.units import MIB

from .swe_tasks import GOLD, TEST_PATCH, make_repository, task

RUNNERS = ("pytest", "unittest", "command")
LIMITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds for all tests, until they do for those that end by themselves, on whatever machine."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swe") / "calc"
    make_repository(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(repository: Path) -> Dataset:
    return Dataset([task(name, name, repository=str(repository)) for name in RUNNERS], "calc")


@pytest.fixture(scope="module")
def env(tasks: Dataset) -> Iterator[SweEnv]:
    made = SweEnv(tasks)
    yield made
    made.close()


@pytest.mark.parametrize("runner", RUNNERS)
def test_gold_is_worth_all_and_nothing_nothing(env: SweEnv, runner: str) -> None:
    env.reset(options={"task_id": runner})
    assert env.step("submit")[1] == 0.0
    score = env.episode.score
    assert score is not None
    assert score.parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}
    assert score.detail["failed"] == list(env.dataset[runner].metadata["FAIL_TO_PASS"])
    assert "AssertionError: -1 != 3" in score.detail["output"]
    assert "1 != 2" not in score.detail["output"]  # of the tests that are ours
    env.reset(options={"task_id": runner})
    apply, submit = env.solution(env.dataset[runner])
    assert env.step(apply)[:2] == ("", 0.0)
    *_, info = env.step(submit)
    assert (info["success"], info["parts"]) == (True, {"fail_to_pass": 1.0, "pass_to_pass": 1.0})


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_worked_must_still_work(env: SweEnv, runner: str) -> None:
    env.reset(options={"task_id": runner})
    env.step("printf 'def add(a, b): return a + b\\ndef double(a): return 0\\n' > calc.py")
    *_, info = env.step("submit")
    assert info["parts"] == {"fail_to_pass": 1.0, "pass_to_pass": 0.0}
    assert env.episode.reward == 0.0


@pytest.mark.parametrize(
    "action",
    [
        "cat /dev/zero > zero",
        "n=0; while : > $((n++)).txt; do :; done",
        "rm -r tests/test_calc.py; mkdir -p tests/test_calc.py/x; touch tests/test_calc.py/x/y",
        "for n in {1..9}; do ln -s calc.py link$n.py; done; rm -rf /usr",
    ],
    ids=["a full disk", "too many files", "in the place of tests", "no program left"],
)
@pytest.mark.parametrize("runner", RUNNERS)
def test_work_that_keeps_tests_from_running_has_failed_them(
    repository: Path, runner: str, action: str
) -> None:
    data = Dataset([task("x", runner, repository=str(repository))])
    with closing(SweEnv(data, limits=Limits(disk=32 * MIB, files=2000))) as small:
        small.reset()
        small.step(action)
        *_, info = small.step("submit")
        assert small.episode.status == "submitted" and info["success"] is False


@pytest.mark.parametrize("runner", RUNNERS)
def test_tests_that_do_not_end_have_failed_and_the_others_not(
    repository: Path, runner: str
) -> None:
    rows = [
        task(f"{limit:g} s", runner, repository=str(repository), test_timeout=limit)
        for limit in LIMITS
    ]
    with_limit = SweEnv(Dataset(rows), reward_every_turn=True)
    # The last one: what has ended before the time was up counts.
    code = "import time\ndef add(a, b): return a + b\ndef double(a): time.sleep(1000)\n"
    for row in rows:
        with_limit.reset(options={"task_id": row.task_id})
        *_, info = with_limit.step(f"cat > calc.py <<'EOF'\n{code}EOF")
        assert info["parts"]["pass_to_pass"] == 0.0
        if info["parts"]["fail_to_pass"]:
            break
    assert info["parts"] == {"fail_to_pass": 1.0, "pass_to_pass": 0.0}
    with_limit.close()


def test_an_episode_is_a_shell_in_the_repository(env: SweEnv) -> None:
    env.reset(options={"task_id": "unittest"})
    assert env.step("pwd; git status --short; git log --format=%s")[0] == "/repo\nMore\n"
    assert "add" not in env.step("cat tests/test_calc.py")[0]
    env.step("cd tests; x=1; echo y > z")
    assert env.step("pwd; echo $x; git status --short; git commit -qam z > /dev/null; echo $?")[
        0
    ] == ("/repo/tests\n1\n?? z\n1\n")
    assert env.workspace.changes() != []
    env.reset(options={"task_id": "unittest"})
    assert env.workspace.changes() == []  # the repository is the image's: nothing was copied


def test_files_of_all_kinds_are_taken_over(env: SweEnv) -> None:
    env.reset(options={"task_id": "command"})
    env.step(f"git apply - <<'EOF'\n{GOLD}EOF")
    env.step(
        "mkdir -p a/b; mv calc.py a/b/real.py; ln -s $'a/b/\\xff\\n' calc.py; ln -s x ./-n; "
        "chmod +x a/b/real.py; ln -s real.py $'a/b/\\xff\\n'; "
        "rm docs/x.txt; rmdir docs; echo > docs; rm README.md; mkdir README.md; "
        "printf 'x' > $'a/\\xff \\n'"
    )
    env.step("submit")
    assert env.episode.reward == 1.0, env.episode.score
    # Its own command sees what was taken over.
    see = "test -x a/b/real.py && test -L calc.py && test -f docs && test -d README.md && "
    see += "test -s $'a/\\xff \\n' && ! test -e gone && test -x run"
    see += f"\n# {'x' * 140_000}"  # longer than an argument may be
    seen = task(
        "see", "command", FAIL_TO_PASS=[see], repository=str(env.dataset[0].metadata["repository"])
    )
    looking = SweEnv(Dataset([seen]))
    looking.reset()
    for turn in env.episode.turns:
        looking.step(turn.action)
    looking.step("echo > run; chmod +x run; touch gone; rm gone")
    assert looking.step("submit")[4]["parts"]["fail_to_pass"] == 1.0, looking.episode.score
    looking.close()


def test_too_much_to_be_taken_over(env: SweEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercode.rewards.swe.MAX_FILES", 10)
    env.reset(options={"task_id": "unittest"})
    env.step("touch {1..20}")
    assert env.step("submit")[1] == 0.0
    assert env.episode.score is not None and "more files" in env.episode.score.detail["reason"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"FAIL_TO_PASS": []}, r"'metadata\.FAIL_TO_PASS' names no test"),
        ({"FAIL_TO_PASS": "x"}, "is text, but not JSON"),
        ({"FAIL_TO_PASS": ["test_x"]}, "'test_x' is not a test of pytest's"),
        ({"runner": "nose"}, "must be one of pytest, unittest, command"),
        ({"directory": "repo"}, "must be an absolute path"),
        ({"test_patch": "hello"}, "must be a unified diff"),
        ({"test_patch": TEST_PATCH.replace("tests/", "../")}, "which is not in the repository"),
        ({"test_timeout": 0}, "must be above 0"),
    ],
)
def test_malformed_tasks_are_refused_before_any_work(facts: Any, message: str) -> None:
    env = SweEnv(Dataset([task(repository="/nowhere", **facts)]))
    with pytest.raises(TaskError, match=f"task 'add': .*{message}"):
        env.check(env.dataset[0])
    with pytest.raises(TaskError, match=message):
        env.reset()
    env.close()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"repository": None, "repo": None}, "has no repository"),
        ({"repository": None, "repo": "ann/other"}, "'ann/other' is not in .*; clone it there"),
        ({"base_commit": "v9"}, "has no commit 'v9'"),
        ({"base_commit": "--help"}, "'--help' is not a commit"),
        ({"base_commit": None}, "the commit of .* is missing: name it in 'base_commit'"),
        ({"repository": "/nowhere"}, "there is no repository /nowhere"),
    ],
)
def test_a_repository_that_is_not_there(repository: Path, facts: Any, message: str) -> None:
    given = {"repository": str(repository), **facts}
    mirror = repository.parent if given.get("repo") else None
    env = SweEnv(Dataset([task(**given)]), repositories=mirror)
    with pytest.raises(TaskError, match=f"task 'add'.*{message}"):
        env.check(env.dataset[0])
    env.close()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"test_patch": TEST_PATCH.replace("test_double", "test_triple")}, "does not apply"),
    ],
)
def test_what_is_wrong_with_the_task_is_an_error_and_no_score(
    repository: Path, facts: Any, message: str
) -> None:
    env = SweEnv(Dataset([task(repository=str(repository), **facts)]))
    env.reset()
    with pytest.raises(TaskError, match=message):
        env.step("submit")
    assert env.episode.status == "error"
    env.close()


def test_a_python_that_the_image_has_not(repository: Path) -> None:
    env = SweEnv(Dataset([task(repository=str(repository), python="python2")]))
    with pytest.raises(ImageError, match="cannot run 'python2', which its tasks need"):
        env.reset()
    env.close()


def test_agents_and_workers(tasks: Dataset) -> None:
    for agent, reward in (("oracle", 1.0), ("noop", 0.0)):
        result = evaluate(tasks, agent, lambda: SweEnv(tasks), workers=2)
        assert [outcome.reward for outcome in result.outcomes] == [reward] * 3


@pytest.mark.filterwarnings("error")
def test_gymnasium(tasks: Dataset) -> None:
    env = gymnasium.make("intercode-swe-v0", data=tasks)
    check_env(env)
    env.close()


def test_the_command_line(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "ann__calc").symlink_to(repository)
    rows = [task("good", "unittest", repo="ann/calc"), task("bad", "unittest", repo="ann/calc")]
    data = [row.to_dict() for row in rows]
    data[1]["gold"] = GOLD.replace("a + b", "a * b")
    (tmp_path / "tasks.json").write_text(json.dumps(data))
    where = ["--data", str(tmp_path / "tasks.json"), "--repositories", str(mirror), "--json"]
    run = ["run", "swe", *where, "--agent", "oracle", "--task", "good", "--quiet"]
    assert main(run) == 0
    assert '"success_rate": 1.0' in capsys.readouterr().out
    assert main(["datasets", "validate", *where[1:], "--env", "swe", "--quiet"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [(row["task_id"], row["problem"][:16]) for row in problems] == [
        ("bad", "gold scores 0.00")
    ]


def test_a_patch_that_holds_the_here_document_s_end() -> None:
    assert apply_patch("Fix\nEND\n+x\n").endswith("<<'END_'\nFix\nEND\n+x\nEND_")


def test_tasks_without_gold_can_be_tried(repository: Path) -> None:
    facts = task("t", "unittest", repository=str(repository)).metadata
    env = SweEnv(Dataset([Task("t", "q", metadata=facts)]))
    env.reset()
    assert env.solution(env.dataset[0]) == ["submit"]
    env.close()


def test_validation_tells_patches_that_do_not_apply_and_tests_that_pass_at_base(
    repository: Path,
) -> None:
    there = {"runner": "unittest", "repository": str(repository)}
    stale = GOLD.replace("a - b", "b - a")
    both = [f"tests.test_calc.CalcTest.test_{name}" for name in ("add", "double")]
    data = Dataset(
        [
            replace(task("stale", **there), gold=(stale,)),
            replace(task("no file", **there), gold=(GOLD.replace("calc.py", "cal.py"),)),
            task("another way", alternatives=[apply_patch(stale)], **there),
            task("free tests", FAIL_TO_PASS=both, PASS_TO_PASS=[], **there),
        ],
        "calc",
    )
    problems = validate(data, lambda: SweEnv(data), timeout=20.0).problems
    assert [(one.task_id, one.kind) for one in problems] == [
        *(("stale", "gold"), ("no file", "gold")),
        *(("another way", "refused"), ("free tests", "tests")),
    ]
    refused = "patch does not apply: error: patch failed: calc.py:1 error: calc.py"
    assert problems[0].problem.startswith(f"gold's {refused}")
    assert problems[1].problem.startswith(
        "gold's patch does not apply: error: cal.py: No such file"
    )
    assert problems[2].problem.startswith(f"alternative solution 1's {refused}")
    passing = "1 of 2 tests of FAIL_TO_PASS pass before any action"
    assert problems[3].problem == f"{passing}: {both[1]}"
