"""Replays of SQL runs: of one made here, and of the recorded ones where they are to be had.

Every recorded episode is replayed with::

    INTERCODE_SOAK_EPISODES=10000 pytest packages/paper/tests/paper/test_sql_replay.py -s
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.datasets import load
from intercode.errors import RecordError
from intercode.task import Task
from intercode_paper.results_files import load_results
from intercode_paper.sql_replay import has_same_answer as same, replay_sql
from intercode_paper.sql_server import open_databases

from .conftest import needs_mariadb
from .experiment import Experiment
from .upstream import UPSTREAM

SQL_RESULTS = UPSTREAM / "data" / "results" / "sql" / "gpt-3.5"
needs_recorded = pytest.mark.skipif(
    not SQL_RESULTS.is_dir(), reason=f"no recorded runs in {UPSTREAM}"
)
EPISODES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "150"))
"""Of each recorded run; the first, as what one leaves behind is the next one's beginning."""
TASKS = [
    Task("0", "Which kinds?", ("SELECT DISTINCT Kind FROM animal ORDER BY Kind",), db="Zoo"),
    Task("1", "How many?", ("SELECT COUNT(*) FROM animal",), db="Zoo"),
    Task("2", "What is sold?", ("SELECT label FROM item",), db="shop"),
]
ACTIONS = [
    ["SELECT Kind FROM animals", "SELECT DISTINCT Kind FROM animal ORDER BY Kind DESC"],
    ["CREATE TABLE more (a int)", "SELECT COUNT(*) FROM animal"],
    ["USE Zoo", "SELECT * FROM more"],
]
FAILED = "Error executing query: "
RETRY = "No SQL code was found in your last response.\n\nYour response …"


@pytest.fixture
def recorded(dump, tmp_path):
    """A results file of a run in our own environment, on SQLite."""
    episodes = {}
    with closing(open_databases("sqlite", dump)) as databases:
        env = Experiment(databases, TASKS)
        for row, actions in enumerate(ACTIONS):
            env.reset(row)
            turns = [env.turn(action) for action in actions]
            seen = [(str(answer), reward) for answer, reward, _ in turns]
            episodes[str(row)] = {
                "task_id": row,
                "query": TASKS[row].query,
                "hardness": "easy" if row else "hard",
                "turn_history": {
                    "actions": [*actions, "I am done."],
                    "observations": [o for o, _ in seen] + [RETRY],
                    "rewards": [r for _, r in seen] + [0],
                    "valid_action": [True] * 3,
                },
                "summary": {"max_reward": max(r for _, r in seen)},
            }
        env.close()

    def written(change=lambda data: data):
        path = tmp_path / "r.json"
        path.write_text(json.dumps(change(episodes)))
        return load_results(path)

    return written


def replayed(run, databases):
    told = []
    report = replay_sql(TASKS, run, databases, lambda *counts: told.append(counts))
    assert told[-1] == (report.episodes, report.episodes)
    json.dumps(report.to_dict())
    return report


def test_a_run_replays_with_its_leaks(recorded, databases):
    report = replayed(recorded(), databases)
    assert (report.episodes, report.turns, report.reward_equal) == (3, 6, 6)
    assert report.observation_equal == 6, "CREATE TABLE in task 1 is seen in task 2"
    # In task 2 gold fails after the agent's USE, and so agrees with what has no rows.
    assert (report.success_recorded, report.success_replayed, report.success_agree) == (2, 2, 3)
    assert report.mismatches == []
    easy, hard = report.by_hardness["easy"], report.by_hardness["hard"]
    assert (easy.episodes, easy.success_replayed, hard.episodes) == (2, 2, 1)
    (part,) = report.parts
    assert (part.first, part.episodes, part.version) == ("0", 3, "released")
    assert part.agree == {"released": 6, "early": 5, "first": 5}


def test_a_person_is_rewarded_at_the_end(tmp_path, databases):
    """Their turns are executed, and the reward is of the last answer."""

    def episode(row, reward, *actions):
        turns = [{"action": action, "observation": "('a',)"} for action in actions]
        query = TASKS[row].query
        return {"query_idx": row, "query": query, "reward": reward, "trajectory": turns}

    path = tmp_path / "r.json"
    people = {
        "1": episode(1, 1.0, "show tables;", "SELECT COUNT(*) FROM animal;"),
        "0": episode(0, 0.0, "SELECT COUNT(*) FROM animal;"),
    }
    path.write_text(json.dumps(people))
    run = load_results(path)
    assert [e.task_id for e in run.episodes] == ["1", "0"]
    assert [e.success for e in run.episodes] == [True, False]
    report = replayed(run, databases)
    assert (report.turns, report.reward_equal, report.success_agree) == (2, 2, 2)


def test_what_differs_is_told(recorded, databases):
    def change(data):
        history = data["1"]["turn_history"]
        history["rewards"][1], history["observations"][1] = 0.5, "[(9,)]"
        data["1"]["summary"]["max_reward"] = 0.5
        return data

    report = replayed(recorded(change), databases)
    assert (report.reward_equal, report.observation_equal, report.success_agree) == (5, 5, 2)
    (found,) = report.mismatches
    assert (found.task, found.turn, found.action) == ("1", 1, ACTIONS[1][1])
    assert (found.observation_recorded, found.observation_replayed) == ("[(9,)]", "[(4,)]")
    assert (found.reward_recorded, found.reward_replayed) == (0.5, 1.0)


def test_each_part_has_its_connection_and_its_version(recorded, databases):
    """Wherever the order of the tasks breaks, another process of 2023 began."""

    def change(data):
        data["0"]["turn_history"]["rewards"][1] = 1.0  # as the early reward had it
        data["0"]["summary"]["max_reward"] = 1.0
        return {key: data[key] for key in ("1", "2", "0")}

    report = replayed(recorded(change), databases)
    assert [(part.first, part.episodes) for part in report.parts] == [("1", 2), ("0", 1)]
    assert report.parts[1].agree == {"released": 1, "early": 2, "first": 2}
    # One turn is no evidence that a part is of another version.
    assert [part.version for part in report.parts] == ["early", "early"]
    assert report.reward_equal == report.turns == 6


def test_missing_tasks_and_a_random_order_make_no_parts(databases, tmp_path):
    tasks = [Task(str(n), f"Q{n}", ("SELECT 1",), db="Zoo") for n in range(20)]
    history = {"actions": ["SELECT 1"], "observations": ["[(1,)]"], "rewards": [1.0]}
    for order in (
        [n for n in range(20) if n % 3],
        [7, 3, 12, 0, 15, 1, 9, 4, 18, 2, 11, 5],
    ):
        data = {str(n): {"query": f"Q{n}", "turn_history": history} for n in order}
        (tmp_path / "r.json").write_text(json.dumps(data))
        report = replay_sql(tasks, load_results(tmp_path / "r.json"), databases)
        assert [part.episodes for part in report.parts] == [len(order)]
        assert report.reward_equal == report.turns == len(order)


def test_react(databases, tmp_path):
    history = {
        "thoughts": ["a", "b", "c"],
        "actions": [
            "execute[SELECT COUNT(*) FROM animal; DROP TABLE animal]",
            "execute[SELECT COUNT(*) FROM animal;]",
            "submit",
        ],
        "observations": ["[(4,)]"] * 3,
        "rewards": [0, 0, 1.0],
        "valid_action": [True] * 3,
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"1": {"query": "How many?", "turn_history": history}}))
    report = replayed(load_results(path), databases)
    assert (report.turns, report.reward_equal, report.observation_equal) == (3, 3, 3)
    assert report.success_agree == 1


def test_results_of_other_data(recorded, databases):
    with pytest.raises(RecordError, match="What is sold"):
        replay_sql(TASKS[:2], recorded(), databases)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "d.json", "--image", "x"], "--image is for bash"),
        (["--upstream", "u", "--data", "d.json"], "--data"),
        (["--upstream", "u", "--suite", "nl2bash_fs_1"], "nl2bash_fs_1"),
    ],
)
def test_wrong_options(recorded, capsys, options, words):
    results = str(recorded().path)
    assert main(["replay", "--env", "sql", "--results", results, *options]) == 2
    assert words in capsys.readouterr().err


def test_the_command(recorded, dump, capsys):
    folder = Path(dump).parent
    data = folder / "tasks.json"
    data.write_text(json.dumps([{**task.to_dict(), "gold": task.gold[0]} for task in TASKS]))
    results = str(recorded().path)
    command = ["replay", "--env", "sql", "--results", results, "--data", str(data), "--quiet"]
    command += ["--databases", str(dump), "--engine", "sqlite"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["turns"], report["reward_equal"]) == (6, 6)
    assert report["engine"].startswith("SQLite") and report["by_hardness"]["hard"]["episodes"] == 1
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "success on SQLite" in shown and "released (6 turns)" in shown


@needs_recorded
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ["mysql", "sqlite"])
def test_recorded_runs(engine):
    """The recorded SQL runs of GPT-3.5, with the shares that the project promises."""
    if engine == "mysql":
        needs_mariadb()
    rewards, episodes = (0.995, 0.995) if engine == "mysql" else (0.95, 0.95)
    tasks = load("spider", root=UPSTREAM)
    for path in sorted(SQL_RESULTS.glob("*.json")):
        with closing(open_databases(engine, Path(tasks.databases))) as databases:
            run = load_results(path)
            run = replace(run, episodes=run.episodes[:EPISODES])
            report = replay_sql(list(tasks), run, databases)
        print(path.name, report.turns, report.reward_equal, report.success_agree)
        assert report.reward_equal >= rewards * report.turns > 0
        assert report.success_agree >= episodes * report.episodes > 0


@needs_recorded
def test_the_golds_that_fail_are_those_that_failed_on_mysql_8():
    needs_mariadb()
    tasks = load("spider", root=UPSTREAM)
    known = json.loads((UPSTREAM / "derived" / "spider_gold_on_mysql8.json").read_bytes())
    with closing(open_databases("mysql", Path(tasks.databases))) as databases:
        connection = databases.connect()
        failing = set()
        for task in tasks:
            connection.use(task.db)
            if isinstance(connection.execute(task.gold[0]), str):
                failing.add(task.task_id)
        connection.close()
    assert failing == {key for key, one in known.items() if one["corrupt"]}


E = "Error executing query: "


@pytest.mark.parametrize(
    ("recorded", "answer"),
    [
        ("[(1, 'a')]", [(1, "a")]),
        ("None", None),
        ("[]", []),
        (E + "Unknown column 'x' in 'field list'", E + "Unknown column 'x' in 'SELECT'"),
        (E + "Unknown column 'x' in 'order clause'", E + "Unknown column 'x' in 'ORDER BY'"),
        (E + "Column 'x' in field list is ambiguous", E + "Column 'x' in 'SELECT' is ambiguous"),
        (
            E + "Unknown column 'i' in 'IN/ALL/ANY subquery'",
            E + "Unknown column 'i' in 'IN/ALL/ANY'",
        ),
        ("[('Id', b'int', 'NO')]", [("Id", "int(11)", "NO")]),
        (E + "your MySQL server version for", E + "your MariaDB server version for"),
        ("[[1, 'a'], [2, 'b']]", [(1, "a"), (2, "b")]),
    ],
)
def test_only_the_wording_differs(recorded, answer):
    assert same(recorded, answer)


@pytest.mark.parametrize(
    ("recorded", "answer"),
    [
        ("[(1,)]", [(2,)]),
        ("[(1,)]", [(1,), (1,)]),
        ("[]", None),
        (E + "Unknown column 'x' in 'field list'", E + "Unknown column 'x' in 'WHERE'"),
        (str([(n,) for n in range(25)]), [(n,) for n in range(26)]),
    ],
)
def test_more_than_wording_differs(recorded, answer):
    assert not same(recorded, answer)


def test_react_cut_what_it_kept():
    many = [(n,) for n in range(26)]
    for kept in (10, 25, 26):
        assert same(str(many[:kept]), many, react=True)
    assert not same(str(many[:24]), many, react=True)
    error = E + "near your MySQL server version " + "x" * 400
    assert same(error[:350], error.replace("MySQL", "MariaDB"), react=True)
