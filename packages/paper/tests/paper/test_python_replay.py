"""Replays of Python runs: of one made here, and of the recorded one where it is to be had."""

import json

import pytest

from intercode.cli.main import main
from intercode.errors import SandboxUnavailableError
from intercode.interpreters.python_start import provider
from intercode.python_source import parse
from intercode_paper.python_env import TestResults, model_observation

from .upstream import UPSTREAM

RESULTS = UPSTREAM / "data/results/python/gpt-3.5/ic_python_multiturn_gpt-3.5_7_turns.json"
needs_recorded = pytest.mark.skipif(not RESULTS.is_file(), reason=f"no recorded runs in {UPSTREAM}")
EMPTY = "{'output': '', 'error': ''}"
MORE = "Test case did not pass. Please try again."
NONE = "No Python code was found in your last response.\n\nYour response …"
GOLD = "def double(x):\n  return 2 * x"
TESTS = ["assert double(1) == 2", "assert double('a') == 'aa'"]
# Two tasks ask the same: an episode's own is found by its row.
TASKS = [
    {
        "query": "Double it.",
        "gold": "def double(x):\n  return x",
        "tests": ["assert double(1) == 1"],
    },
    {"query": "Double it.", "gold": GOLD, "tests": TESTS},
]
TURNS = [
    ("def f(x):\n    return 3", MORE, 0.0),
    ("I am done.", NONE, 0.0),
    ("import math, os", EMPTY, 0.0),
    ("2 +", "Error executing action: invalid syntax (<unknown>, line 1)", 0.0),
    ("def f(x):\n    return x + 1", "Failed 1/2 Test Cases. Please try again.", 0.5),
    ("def f(x):\n    return x * 2", EMPTY, 1.0),
]


@pytest.fixture(autouse=True)
def sandboxes():
    try:
        provider().start("host").close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def replayed(tmp_path, capsys):
    """Write a record, and replay it."""

    def run(turns, *options, tasks=TASKS, row=1):
        (tmp_path / "tasks.json").write_text(json.dumps(tasks))
        actions, observations, rewards = (list(column) for column in zip(*turns, strict=True))
        history = {"actions": actions, "observations": observations, "rewards": rewards}
        episode = {"task_id": row, "query": "Double it.", "turn_history": history}
        (tmp_path / "results.json").write_text(json.dumps({str(row): episode}))
        argv = ["replay", "--env", "python", "--quiet", *options]
        argv += ["--data", str(tmp_path / "tasks.json")]
        assert main([*argv, "--results", str(tmp_path / "results.json")]) == 0
        return capsys.readouterr().out

    return run


def test_a_record_that_is_right_agrees_wholly(replayed):
    report = json.loads(replayed(TURNS, "--json"))
    assert report["mismatches"] == []
    assert (report["turns"], report["reward_equal"], report["observation_equal"]) == (5, 5, 5)
    assert report["by_task"] == {
        "1": {"turns": 5, "reward_equal": 5, "observation_equal": 5, "success_agree": True}
    }
    assert report["success_recorded"] == report["success_replayed"] == 1
    assert (report["success_default"], report["success_lost"]) == (1, [])


def test_a_record_that_is_wrong_is_found_out(replayed):
    turns = [(TURNS[0][0], EMPTY, 1.0), ("def f(x) x", "{'error': 'Error: other words'}", 0.0)]
    report = json.loads(replayed(turns, "--json"))
    first, second = report["mismatches"]
    assert (first["reward_recorded"], first["reward_replayed"]) == (1.0, 0.0)
    # Gold has stayed after the first turn, and what is no function cannot replace it.
    assert second["reward_replayed"] == 1.0
    # Which the default protocol gives nothing for.
    assert (report["success_default"], report["success_lost"]) == (0, ["1"])
    text = replayed(turns)
    assert "mismatches: 2 turns, 2 of them with another reward\n" in text
    assert "default protocol: 0 of 1\n  lost: 1\n" in text


def test_a_function_beside_helpers_of_golds_is_right_by_default_alone(replayed):
    # 2023 took it for the first function of gold's, whatever the tests call.
    helped = {"query": "Double it.", "gold": f"def two():\n  return 2\n{GOLD}", "tests": TESTS}
    report = json.loads(replayed([(TURNS[-1][0], MORE, 0.0)], "--json", tasks=[helped], row=0))
    assert (report["reward_equal"], report["success_gained"]) == (1, ["0"])


FAIL, FINE = {"error": "Error: "}, {"output": "", "error": ""}


@pytest.mark.parametrize(
    ("agent", "gold", "recorded", "said"),
    [
        ([FINE, FINE], [FINE, FINE], MORE, EMPTY),
        ([FAIL, FINE], [FINE, FINE], "", MORE),
        ([FAIL, FAIL], [FINE, FINE], "Failed 1/3 Test Cases. …", "Failed 2/2 Test Cases."),
        ([FINE, FAIL], [FINE, FINE], "Failed Test Case: x\n", "Failed Test Case: test 1\nPlease"),
        ([FINE, FINE], [FAIL, FINE], MORE, EMPTY),
    ],
)
def test_what_a_model_was_told(agent, gold, recorded, said):
    named = [{f"test {i}": result for i, result in enumerate(side)} for side in (agent, gold)]
    assert model_observation(FINE, TestResults(*named), recorded).startswith(said)


@pytest.mark.parametrize(
    "options",
    [["--engine", "sqlite"], ["--databases", "x"], ["--suite", "nl2bash_fs_1"]],
)
def test_options_of_other_environments_are_refused(options, tmp_path, capsys):
    argv = ["replay", "--env", "python", "--upstream", str(tmp_path), "--results", "x.json"]
    assert main([*argv, *options]) == 2
    assert "sql" in capsys.readouterr().err or "suite" in options[0]


@needs_recorded
def test_the_recorded_run_comes_out_again(capsys):
    argv = ["replay", "--env", "python", "--upstream", str(UPSTREAM), "--results", str(RESULTS)]
    assert main([*argv, "--workers", "2", "--quiet", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["episodes"], report["turns"]) == (117, 430)
    assert report["reward_equal"] == 430
    assert report["success_recorded"] == report["success_replayed"] == 69
    assert report["success_agree"] == 117
    # What was no Python, after gold had been run in the agent's names; and functions that were
    # tested under the name of one of gold's helpers.
    assert report["success_default"] == 63
    lost = {task for task, turns in rewarded(RESULTS) if not all(map(is_python, turns))}
    assert len(lost) == 9 and set(report["success_lost"]) == lost
    assert report["success_gained"] == ["17", "29", "55"]
    # Errors of syntax have other words in other versions.
    shown = [
        m[f"observation_{of}"] for m in report["mismatches"] for of in ("recorded", "replayed")
    ]
    assert all("line " in text for text in shown)


def rewarded(results):
    """Each recorded success, with the actions that had the whole reward."""
    for task, episode in json.loads(results.read_text()).items():
        history = episode["turn_history"]
        turns = zip(history["actions"], history["rewards"], strict=True)
        if actions := [action for action, reward in turns if reward == 1.0]:
            yield task, actions


def is_python(source):
    try:
        parse(source)
    except SyntaxError:
        return False
    return True
