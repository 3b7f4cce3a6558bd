"""Replays of CTF runs: of ones made here, by the environment and by hand from what is known."""

import json

import pytest

from intercode.cli.main import main
from intercode.task import Dataset, Task
from intercode_paper.ctf_env import RIGHT, WRONG, PaperCtfEnv

pytestmark = pytest.mark.usefixtures("provider")
FLAG = "picoCTF{1|/|_4_p34|\\|ut}"
QUERY = "Read 'note.txt'."
SETUP = "wget https://example.org/note.txt"
NONE = "No Bash code was found in your last response."
BY_HAND = [
    ("cat note.txt", "look behind\n", 0),
    ("I give up.", NONE, 0),
    ("cd /ctf", "", 0),
    ("pwd", "/ctf\n", 0),
    ("cat 0/note.txt | grep 'x' || echo 'none  here'", "none\n", 0),
    ('python3 -c "print(\'a\' + \\"b\\")"', "ab\n", 0),
    ("submit picoCTF{wrong}", WRONG, 0),
    (f"submit {FLAG.upper()} , I think", WRONG, 1.0),
]


@pytest.fixture
def release(tmp_path):
    """A copy of the release: a puzzle with its files, and one without, which have one question."""
    folder = tmp_path / "release/data/ctf"
    (folder / "task_assets/0").mkdir(parents=True)
    (folder / "task_assets/0/note.txt").write_text("look behind\n")
    rows = [
        {"task_id": row, "query": QUERY, "gold": gold, "setup": SETUP, "tags": ["Forensics"]}
        for row, gold in enumerate([FLAG, "picoCTF{2}"])
    ]
    (folder / "ic_ctf.json").write_text(json.dumps(rows))
    return tmp_path / "release"


def episode(turns, row=0, **summary):
    actions, observations, rewards = (list(column) for column in zip(*turns, strict=True))
    history = {"actions": actions, "observations": observations, "rewards": rewards}
    return {"task_id": row, "query": QUERY, "turn_history": history, "summary": summary}


@pytest.fixture
def replayed(release, tmp_path, capsys):
    """Write a record, and replay it."""

    def run(record, *options, data=None):
        data = data or ["--upstream", str(release)]
        path = tmp_path / "results.json"
        path.write_text(json.dumps(record))
        argv = ["replay", "--env", "ctf", "--quiet", *data, "--results", str(path), *options]
        assert main(argv) == 0
        return capsys.readouterr().out

    return run


def test_a_record_that_is_right_agrees_wholly(replayed):
    record = {"0": episode(BY_HAND), "1": episode([("submit PicoCTF{2}", QUERY, 1)], 1)}
    report = json.loads(replayed(record, "--json", "--workers", "2"))
    assert report["mismatches"] == []
    assert report["by_task"] == {
        "0": {"turns": 7, "reward_equal": 7, "observation_equal": 7, "success_agree": True},
        "1": {"turns": 1, "reward_equal": 1, "observation_equal": 1, "success_agree": True},
    }
    names = ("episodes", "turns", "success_recorded", "success_replayed", "success_agree")
    assert [report[name] for name in names] == [2, 8, 2, 2, 2]
    # By default a flag is right to the letter, and nothing else is in the answer.
    assert (report["success_default"], report["success_lost"]) == (0, ["0", "1"])
    assert (report["success_gained"], report["without_files"]) == ([], 1)


def test_a_record_that_is_wrong_is_found_out(replayed, release):
    turns = [
        ("cat note.txt", "nothing\n", 0),
        ("submit picoCTF{x}", "No.", 0),
        (f"submit {FLAG}", "No.", 0),
        ("submit picoCTF{y}", WRONG, 1),
    ]
    record = {"meta": {}, "logs": {"0": episode(turns), "1": episode(turns[:1], 1)}}
    report = json.loads(replayed(record, "--json"))
    assert [(m["task"], m["turn"]) for m in report["mismatches"]] == [
        ("0", 0),
        ("0", 1),
        ("0", 2),
        ("0", 3),
        ("1", 0),
    ]
    assert (report["reward_equal"], report["observation_equal"]) == (3, 1)
    assert report["success_default"] == 1
    text = replayed(record, data=["--data", str(release / "data/ctf/ic_ctf.json")])
    assert "success under the default protocol: 1 of 2" in text
    assert "without the task's files: 2 of 2" in text


def test_attempts_end_an_episode_by_default(replayed):
    turns = [*[("submit x", WRONG, 0)] * 3, (f"submit {FLAG}", WRONG, 1)]
    report = json.loads(replayed([episode(turns, max_reward=1)], "--json"))
    assert (report["reward_equal"], report["success_lost"]) == (4, ["0"])


def test_the_spelling_of_the_longer_experiment(replayed):
    turns = [
        ('cmd /bin/bash -c "cat note.txt"', "look behind\n", 0),
        ("cmd python3 -c \"print('a b')\"", "a b\n", 0),
        (f"submit {FLAG}", RIGHT, 1),
    ]
    assert json.loads(replayed({"0": episode(turns)}, "--json"))["mismatches"] == []


def test_a_query_that_was_reworded_since(replayed, release, capsys, tmp_path):
    """Its id is what holds; a query that is not like the task's is of other data."""
    record = {"0": episode([(f"submit {FLAG}", QUERY, 1)])}
    record["0"]["query"] = "Read the file 'note.txt'."
    report = json.loads(replayed(record, "--json"))
    assert (report["success_agree"], report["reworded"]) == (1, ["0"])
    record["0"]["query"] = "How many sheep are there?"
    (tmp_path / "other.json").write_text(json.dumps(record))
    argv = ["replay", "--env", "ctf", "--quiet", "--upstream", str(release)]
    assert main([*argv, "--results", str(tmp_path / "other.json")]) != 0
    assert "no task of the data asks 'How many sheep" in capsys.readouterr().err


def test_react_and_lists_of_different_lengths(replayed):
    record = episode([("execute[cat note.txt]", "look behind\n", 0), ("submit x", WRONG, 0)])
    history = record["turn_history"]
    history["thoughts"] = ["Look.", "Try."]
    history["actions"].append("blocked")
    history["rewards"].append(0)
    report = json.loads(replayed({"0": record}, "--json"))
    assert (report["turns"], report["mismatches"]) == (2, [])


def test_what_the_environment_does_replays(replayed, provider, release):
    task = Task("0", QUERY, (FLAG,), files={"note.txt": "look behind\n"})
    env = PaperCtfEnv(Dataset([task]), sandbox=provider)
    env.reset()
    for action in ("ls -A", "cat 'note.txt'", "echo it's", "submit x", "cd nowhere", "pwd"):
        env.step(action)
    env.step(f"submit {FLAG}")
    turns = [(turn.action, turn.observation, 0.0) for turn in env.episode.turns]
    turns.append((f"submit {FLAG}", turns[-1][1], env.episode.reward))
    env.close()
    report = json.loads(replayed({"0": episode(turns)}, "--json"))
    assert (report["turns"], report["mismatches"], report["success_default"]) == (7, [], 1)


def test_other_runs_are_refused(release, capsys):
    argv = ["replay", "--env", "ctf", "--upstream", str(release), "--results", "x.json"]
    for options in (["--engine", "sqlite"], ["--suite", "mbpp"]):
        assert main([*argv, *options]) == 2
    assert "no CTF run of suite 'mbpp'" in capsys.readouterr().err
