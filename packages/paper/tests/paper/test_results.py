"""Every shape of a results file; and files that are none."""

import json

import pytest

from intercode.errors import RecordError
from intercode_paper.results_files import load_results

RETRY = "No Bash code was found in your last response.\n\nYour response …"


def episode(**changes):
    history = {
        "actions": ["ls", "pwd"],
        "observations": ["a\n", "/\n"],
        "rewards": [0.67, 1.0],
        "valid_action": [True, False],
    }
    history.update(changes.pop("turn_history", {}))
    made = {"environment": "ic_bash", "dataset": "d.json", "task_id": 3, "query": "list"}
    made |= {"turn_history": history, "summary": {"max_reward": 1.0, "max_reward_idx": 1}}
    return made | changes


@pytest.fixture
def load(tmp_path):
    def loaded(data):
        path = tmp_path / "results.json"
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return load_results(path)

    return loaded


def test_try_again(load):
    run = load({"3": episode(), "1": episode(task_id=1)})
    assert [e.task_id for e in run.episodes] == ["3", "1"], "the order of the file is kept"
    first = run.episodes[0]
    assert (first.query, first.max_reward, first.success) == ("list", 1.0, True)
    assert [(t.index, t.command, t.observation, t.reward, t.valid) for t in first.turns] == [
        (0, "ls", "a\n", 0.67, True),
        (1, "pwd", "/\n", 1.0, False),
    ]
    assert all(turn.is_compared for turn in first.turns)


@pytest.mark.parametrize("wrap", [dict, lambda x: {"meta": {"m": 1}, "logs": x}])
def test_plan_and_solve(load, wrap):
    made = episode(turn_history={"steps": ["one", "two"]}, summary={"max_reward": 0.5})
    run = load(wrap({"0": made}))
    assert run.episodes[0].thoughts == ("one", "two")
    assert not run.episodes[0].success
    assert dict(run.meta) in ({}, {"m": 1})


def test_wrapped_lists_and_lists(load):
    assert load([episode()]).episodes == load({"logs": [episode()]}).episodes


def test_blocked_at_the_end(load):
    history = {
        "actions": ["ls", "blocked"],
        "observations": ["a"],
        "rewards": [0.67, 0.67],
        "valid_action": [True],
    }
    turns = load({"0": episode(turn_history=history)}).episodes[0].turns
    assert [t.is_compared for t in turns] == [True, False]
    assert turns[1].observation is None and turns[1].reward == 0.67


def test_a_command_may_be_called_blocked(load):
    history = {"actions": ["blocked"], "observations": ["not found"], "rewards": [0.67]}
    turns = load({"0": episode(turn_history=history)}).episodes[0].turns
    assert turns[0].is_compared


@pytest.mark.parametrize(
    "answer",
    [
        RETRY,
        "Error executing query: Your last `execute` action did not contain bash code",
    ],
)
def test_a_turn_without_code_does_not_count_whatever_its_reward(load, answer):
    history = {"actions": ["I am done."], "observations": [answer], "rewards": [0.67]}
    assert not load({"0": episode(turn_history=history)}).episodes[0].turns[0].is_compared


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("execute[ls]", "ls"),
        ("execute[echo [a] ]", "echo [a] "),
        ("execute[a\nb]", "a\nb"),
        ("execute[ls]\nObservation", "ls"),
        ("execute[sed 's/[0-9]//' | column", "sed 's/[0-9"),
        ("execute[ls", None),
        ("submit", "submit"),
        ("skip", "skip"),
        ("ls", None),
    ],
)
def test_react(load, action, command):
    history = {"thoughts": ["t"], "actions": [action], "observations": ["x"], "rewards": [0]}
    turn = load({"0": episode(turn_history=history)}).episodes[0].turns[0]
    assert (turn.action, turn.command) == (action, command)


def test_only_react_unwraps(load):
    history = {"actions": ["execute[ls]"], "observations": ["x"], "rewards": [0.67]}
    assert load({"0": episode(turn_history=history)}).episodes[0].turns[0].command == "execute[ls]"


def test_missing_rewards_are_no_rewards(load):
    turns = load({"0": episode(turn_history={"rewards": [0.67]})}).episodes[0].turns
    assert [t.reward for t in turns] == [0.67, None]
    assert [t.is_compared for t in turns] == [True, False]


def test_without_a_summary_the_best_turn_counts(load):
    assert load({"0": episode(summary={})}).episodes[0].success
    assert load({"0": episode(summary=None)}).episodes[0].max_reward == 1.0


def test_rows_as_observation_and_unknown_fields(load):
    history = {"observations": [[["a", 1]], None], "later": 1}
    turns = load({"0": episode(turn_history=history, hardness="easy")}).episodes[0].turns
    assert [t.observation for t in turns] == ["[['a', 1]]", None]


def test_the_key_is_the_id_if_there_is_no_other(load):
    made = episode()
    del made["task_id"]
    assert load({"12": made}).episodes[0].task_id == "12"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", ["not JSON"]),
        (b"\xff", ["not JSON"]),
        (b"[" * 100_000, ["not JSON"]),
        ({}, ["no episodes"]),
        (3, ["int"]),
        ({"7": 1}, ["'7'", "int"]),
        ({"7": {}}, ["'7'", "turn_history"]),
        ({"7": episode(query=None)}, ["'7'", "query"]),
        ({"7": episode(turn_history={"actions": None}) | {"turn_history": {}}}, ["actions"]),
        ({"7": episode(turn_history={"actions": [1]})}, ["actions[0]"]),
        ({"7": episode(turn_history={"rewards": [0.1, "x"]})}, ["'7'", "rewards[1]"]),
        ({"7": episode(turn_history={"rewards": 1})}, ["turn_history.rewards", "array"]),
        ({"7": episode(summary={"max_reward": "1"})}, ["summary.max_reward"]),
        ({"7": episode(summary=[1])}, ["summary"]),
        ({"7": episode(), "8": episode()}, ["twice"]),
        (
            {"7": {"query": "q", "trajectory": [{}], "reward": 1}},
            ["'7'", "trajectory[0]", "action"],
        ),
        ({"7": {"query": "q", "trajectory": []}}, ["'7'", "reward"]),
    ],
)
def test_bad_files_are_refused_by_name(load, data, words):
    with pytest.raises(RecordError) as caught:
        load(data)
    assert "results.json" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(RecordError, match=r"nothing\.json"):
        load_results(tmp_path / "nothing.json")
