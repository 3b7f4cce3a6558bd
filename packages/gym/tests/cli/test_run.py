"""`intercode run` from end to end, in real sandboxes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from intercode.records import EPISODES, RunRecordWriter, read_episodes, read_latest

from .conftest import TASKS, Run, keys, parsed, write


def test_the_oracle_solves_everything(cli: Run, data: Path, tmp_path: Path) -> None:
    done = cli("run", "bash", "--data", data, "--workers", 2)
    assert "100.0 %" in done.stdout
    folder = tmp_path / done.stdout.split("run: ")[1].split("\n")[0]
    assert folder.parent == tmp_path / "runs" and folder.name.endswith("-bash-oracle")
    assert {e.task_id: e.reward for e in read_episodes(folder / EPISODES)} == {
        task["task_id"]: 1.0 for task in TASKS
    }


def test_json(cli: Run, data: Path) -> None:
    told = parsed(cli("run", "bash", "--data", data, "--agent", "noop", "--json", "--out", "run"))
    keys(
        told,
        "run env agent dataset excluded planned finished ran seconds episodes_per_second "
        "interrupted stopped statistics tags failure_modes errors",
    )
    keys(told["dataset"], "name source digest tasks")
    keys(
        told["statistics"],
        "episodes errors error_rate successes success_rate success_low success_high clusters "
        "clustered_low clustered_high few_clusters mean_reward reward_low reward_high "
        "mean_turns mean_seconds invalid_rate unexecuted_rate outcomes "
        "restarts permuted explained hard_coded tokens_in tokens_out cost",
    )
    assert (told["run"], told["env"], told["agent"]) == ("run", "bash", "noop")
    assert told["planned"] == told["finished"] == told["ran"] == 4
    assert told["statistics"]["successes"] == 0
    assert list(told["tags"]) == ["files", "output", "verified"]
    assert told["errors"] == []


def test_the_papers_form(cli: Run, data: Path) -> None:
    arguments = ["--env", "bash", "--data", data, "--limit", 1, "--json"]
    told = parsed(cli(*arguments, module="intercode.run"))
    assert told["statistics"]["successes"] == 1
    assert "python -m intercode.run" in cli("--help", module="intercode.run").stdout


def test_verification_without_gold(cli: Run, tmp_path: Path) -> None:
    task = {key: value for key, value in TASKS[2].items() if key != "gold"}
    alone = ["run", "bash", "--data", write(tmp_path / "one.json", task), "--json"]
    refused = cli(*alone, "--agent", "oracle", code=2)
    assert "but no task has gold" in refused.stderr and not refused.stdout
    assert parsed(cli(*alone, "--agent", "noop"))["statistics"]["mean_reward"] == 0.0
    both = ["run", "bash", "--data", write(tmp_path / "two.json", [TASKS[0], task]), "--json"]
    assert "no gold for bash_00" in cli(*both, "--agent", "oracle").stderr


def test_the_first_command_of_2023_says_what_is_missing(cli: Run, tmp_path: Path) -> None:
    """Its README began with it; its file has no gold, and a reader has no agent yet."""
    task = {key: value for key, value in TASKS[2].items() if key != "gold"}
    write(tmp_path / "sample.json", [task])
    for more in ([], ["--json"]):
        arguments = ["--env", "bash", "--data", "sample.json", *more]
        done = cli(*arguments, module="intercode.run", code=2)
        assert done.stdout == "" and "%" not in done.stderr
        assert "sample.json: nothing was run: no agent was named" in done.stderr
        for next_command in (
            "intercode run bash --data sample.json --agent try-again --model openai/gpt-4o\n",
            "intercode run bash --data sample.json --agent my_agent.py:make\n",
            "intercode play bash --data sample.json\n",
        ):
            assert next_command in done.stderr
    assert not (tmp_path / "runs").exists()
    # Each of them is one that there is: it is refused for want of a key, or runs.
    cli("run", "bash", "--data", "sample.json", "--agent", "random", "--quiet")
    cli("play", "bash", "--data", "sample.json", stdin="submit\n")


def test_without_an_agent_gold_is_run_and_named(cli: Run, data: Path) -> None:
    command = ["run", "bash", "--data", data, "--limit", 1]
    told = cli(*command).stdout
    assert "No agent was named: 'oracle' ran" in told
    assert f"  intercode run bash --data {data} --agent try-again --model" in told
    for more in (["--quiet"], ["--json"], ["--agent", "oracle"]):
        assert "No agent was named" not in cli(*command, *more).stdout
    assert "--agent try-again" in cli(*command, "--model", "openai/x", code=2).stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[", "JSON"),
        ("[]", "no tasks"),
        ('[{"task_id": "a", "query": "q"}]', "neither 'gold' nor 'verification'"),
        ('[{"query": "q", "gold": 3}]', "row 1, field 'gold'"),
        ('[{"task_id": "a", "query": "q", "gold": "g"}, {"task_id": "a", "query": "q"}]', "row 2"),
    ],
)
def test_bad_data_is_refused_before_anything_starts(
    cli: Run, tmp_path: Path, content: str, told: str
) -> None:
    (tmp_path / "bad.json").write_text(content)
    done = cli("run", "bash", "--data", "bad.json", "--agent", "noop", code=2)
    assert told in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--task", "nope"], "no task has the id 'nope'"),
        (["--agent", "nope"], "there is no agent 'nope'"),
        (["--agent", "replay"], "needs --recording"),
        (["--agent", "oracle", "--recording", "x"], "agent oracle"),
        (["--agent", "missing.py:make"], "there is no file missing.py"),
        (["--agent", "own.py:mkae"], "own.py has no function 'mkae'; did you mean 'make'?"),
        (["--reward", "missing.py:score"], "cannot read missing.py: No such file"),
        (["--image", "nope"], "there is no image called 'nope'"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    cli: Run, data: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "own.py").write_text("def make(task):\n    return None\n")
    assert told in cli("run", "bash", "--data", data, *arguments, code=2).stderr
    assert not (tmp_path / "runs").exists()


def test_selection_epochs_and_limits(cli: Run, data: Path) -> None:
    options = ["--task", "touch", "--task", "hello", "--epochs", 2, "--out", "run", "--json"]
    limits = ["--timeout", 50, "--memory", "256M", "--processes", 50, "--max-turns", 3]
    assert parsed(cli("run", "bash", "--data", data, *options, *limits))["planned"] == 4
    manifest = parsed(cli("report", "run", "--json"))["manifest"]
    assert manifest["env"]["limits"]["memory"] == 256 << 20
    assert manifest["env"]["limits"]["timeout"] == 50.0
    assert manifest["env"]["max_turns"] == 3
    assert manifest["env"]["images"]["host"]
    told = cli("run", "bash", "--data", data, "--out", "run", code=2).stderr
    assert "env.limits.memory was 268435456 and is now 1073741824" in told


def test_going_on(cli: Run, data: Path) -> None:
    cli("run", "bash", "--data", data, "--out", "run", "--limit", 1)
    done = cli("run", "bash", "--data", data, "--out", "run", "--json")
    assert (parsed(done)["ran"], parsed(done)["finished"]) == (3, 4)
    assert "1 of 4 episodes are done" in done.stderr


def test_a_run_has_one_writer(cli: Run, data: Path, tmp_path: Path) -> None:
    with RunRecordWriter(tmp_path / "run"):
        assert (
            "another process" in cli("run", "bash", "--data", data, "--out", "run", code=1).stderr
        )


def test_what_is_shown_is_harmless(cli: Run, data: Path) -> None:
    cli("run", "bash", "--data", data, "--out", "run")
    shown = cli("run", "bash", "--data", data, "--show", "--workers", 2).stdout
    for text in (shown, cli("show", "run", "--full").stdout):
        assert "\x1b" not in text and "\r" not in text
        assert "\\x1b[2J\\xff\\rx" in text
        assert "$ find test_files -size +100M -delete" in text
        assert "submitted: reward 1.000" in text
    assert "hello" in cli("show", "run", "--task", "hello", env={"LC_ALL": "C"}).stdout


def test_show_and_report(cli: Run, data: Path) -> None:
    cli("run", "bash", "--data", data, "--out", "run", "--agent", "noop", "--quiet")
    assert len(parsed(cli("show", "run", "--json", "--failed"))) == 4
    [episode] = parsed(cli("show", "run", "--json", "--task", "touch"))
    assert episode["status"] == "submitted" and episode["agent"] == "noop"
    assert "gold's output is:\n      hello" in cli("show", "run", "--task", "hello").stdout
    assert "no episode of nope" in cli("show", "run", "--task", "nope", code=2).stderr
    told = parsed(cli("report", "run", "--json"))
    keys(
        told,
        "run manifest coverage statistics tags failure_modes errors levels places turns attempts "
        "spending",
    )
    assert told["statistics"]["episodes"] == 4
    assert "agent noop" in cli("report", "run").stdout


def test_a_comparison_of_one_task_is_json(cli: Run, data: Path) -> None:
    """Its interval has no ends, for which JSON has no numbers."""
    for name in ("one", "other"):
        cli("run", "bash", "--data", data, "--limit", 1, "--out", name)
    printed = cli("report", "one", "other", "--json").stdout
    found = json.loads(printed, parse_constant=lambda name: pytest.fail(name))
    assert found["comparisons"]["other"]["difference"]["low"] is None


def test_the_report_of_a_part_of_a_run(cli: Run, data: Path, tmp_path: Path) -> None:
    """It says that it is unfinished; and a log of something else is an error."""
    cli("run", "bash", "--data", data, "--out", "run")
    log = tmp_path / "run" / "episodes.jsonl"
    first, *_ = log.read_bytes().splitlines(keepends=True)
    assert "unfinished" not in cli("report", "run").stdout
    log.write_bytes(first)
    line = "unfinished: 1 of 4 episodes; if it is not running: intercode resume run\n"
    assert line in cli("report", "run").stdout
    assert f"  - {line}" in cli("report", "run", "run", "--markdown").stdout
    cli("report", "run", "--html", "page.html")
    assert "unfinished: 1 of 4 episodes" in (tmp_path / "page.html").read_text()
    log.write_text("garbage")
    assert "not an episode" in cli("report", "run", code=2).stderr


def test_a_benchmarks_own_name(cli: Run, tmp_path: Path) -> None:
    """In the header, in a report, and in the run's folder: the folder's, or what its file says."""
    folder = tmp_path / "shell ones"
    folder.mkdir()
    write(folder / "tasks.json", [TASKS[0]])
    toml = folder / "intercode.toml"
    toml.write_text('env = "bash"\ntasks = "tasks.json"\n')
    done = cli("run", folder)
    assert done.stdout.startswith("shell ones · bash · agent oracle, shown gold · tasks (1 task, ")
    assert "\n1 episode in " in done.stdout
    [run] = (tmp_path / "runs").glob("*-shell-ones-oracle")
    assert cli("resume", run, "--trust").stdout.startswith("shell ones · bash")
    toml.write_text(f'{toml.read_text()}name = "Shell"\n')
    cli("run", folder, "--agent", "noop")
    assert "bash · Shell" in cli("report", run, *(tmp_path / "runs").glob("*-Shell-noop")).stdout
    toml.write_text(f"{toml.read_text()}name = 3\n".replace('name = "Shell"\n', ""))
    assert "'name' must be text, not 3" in cli("run", folder, code=2).stderr


def test_an_agent_of_ones_own(cli: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import helper\n"
        "class Mine:\n"
        "    def __init__(self, task): self.task = task\n"
        "    def act(self, observation, history):\n"
        "        return 'submit' if history else helper.choose(observation)\n"
    )
    (tmp_path / "helper.py").write_text("def choose(query): return 'echo hello'\n")
    arguments = ["run", "bash", "--data", data, "--out", "run", "--task", "hello", "--json"]
    told = parsed(cli(*arguments, "--agent", "mine.py:Mine"))
    assert told["statistics"]["successes"] == 1
    (tmp_path / "mine.py").write_text("def Mine(task): return None\n")
    assert "mine.py has changed since" in cli(*arguments, "--agent", "mine.py:Mine", code=2).stderr
    arguments[5] = "other"
    assert "NoneType has neither" in cli(*arguments, "--agent", "mine.py:Mine", code=2).stderr
    crash = "class Mine:\n    def __init__(self, task): pass\n    def act(self, *_): return 1 / 0\n"
    (tmp_path / "mine.py").write_text(crash)
    arguments[5] = "crash"
    told = parsed(cli(*arguments, "--agent", "mine.py:Mine", code=1))
    said = told["errors"][0]["error"]
    assert re.fullmatch(
        "the agent raised .*mine.py, line 3: ZeroDivisionError: division by .*", said
    )
    assert "mine.py, line 3: ZeroDivisionError" in cli("show", "crash").stdout
    assert 'mine.py", line 3, in act' in cli("show", "crash", "--full").stdout
    (tmp_path / "mine.py").write_text("def (")
    done = cli(*arguments, "--agent", "mine.py:Mine", code=2)
    assert "cannot be imported: SyntaxError" in done.stderr


@pytest.mark.parametrize("where", ["act", "import", "dataset"])
def test_code_that_changes_the_working_directory_moves_no_path(
    cli: Run, data: Path, tmp_path: Path, where: str
) -> None:
    move = "import os\nos.chdir('/')\n"
    (tmp_path / "a.py").write_text(
        f"{move if where == 'import' else ''}import os\nclass A:\n    def act(self, *_):\n"
        f"        {'os.chdir(chr(47))' if where == 'act' else 'pass'}\n        return 'submit'\n"
        "def make(task): return A()\n"
    )
    (tmp_path / "ds.py").write_text(
        "import os\nfrom intercode import Dataset, Task\ndef load():\n    os.chdir('/')\n"
        "    return Dataset([Task(str(n), 'hi', ('true',)) for n in range(4)])\n"
    )
    (tmp_path / "rw.py").write_text("def score(task, episode, sandbox): return 0.5\n")
    tasks = "ds.py:load" if where == "dataset" else "tasks.json"
    options = ["--data", tasks, "--agent", "a.py:make", "--reward", "rw.py:score"]
    done = cli("run", "bash", *options, "--out", "runs/here", "--workers", "2", "--quiet")
    assert "\nrun: runs/here\n" in done.stdout
    assert len((tmp_path / "runs/here/episodes.jsonl").read_text().splitlines()) == 4
    cli("resume", "runs/here", *options, "--epochs", "2", "--quiet")
    assert len((tmp_path / "runs/here/episodes.jsonl").read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("return {'x': [object()]}", "metadata['mine']['x'][0] is object"),
        ("data = {}; data['x'] = data; return data", "cannot be written|nested too deeply"),
    ],
)
def test_an_agents_data_that_is_not_json_is_an_error_of_its_episode(
    cli: Run, data: Path, tmp_path: Path, method: str, place: str
) -> None:
    (tmp_path / "a.py").write_text(
        f"def odd():\n    {method}\nclass A:\n    def __init__(self, task): self.task = task\n"
        "    def act(self, *_): return 'submit'\n"
        "    def episode_metadata(self):\n"
        "        return {'mine': odd() if self.task.task_id == 'touch' else 1}\n"
    )
    run = ["run", "bash", "--data", data, "--agent", "a.py:A", "--out", "run", "--json"]
    told = parsed(cli(*run, code=1))
    assert told["finished"] == 4
    (error,) = told["errors"]
    assert error["task_id"] == "touch" and "cannot be recorded" in error["error"]
    assert re.search(place.replace("[", r"\["), error["error"])


def test_what_code_of_ones_own_prints_is_not_among_the_json(
    cli: Run, data: Path, tmp_path: Path
) -> None:
    noise = "import subprocess\nprint('NOISE')\nsubprocess.run(['echo', 'NOISE'])\n"
    (tmp_path / "a.py").write_text(
        f"{noise}class A:\n    def act(self, *_):\n        print('NOISE')\n"
        "        return 'submit'\ndef make(task): return A()\n"
    )
    (tmp_path / "rw.py").write_text(
        f"{noise}def score(task, episode, sandbox):\n    print('NOISE')\n    return 0.5\n"
    )
    (tmp_path / "ds.py").write_text(
        f"{noise}from intercode import Dataset, Task\ndef load():\n    print('NOISE')\n"
        "    return Dataset([Task('a', 'hi', ('true',))])\n"
    )
    tasks, reward = ["--data", "ds.py:load"], ["--reward", "rw.py:score", "--json"]
    agent = ["--agent", "a.py:make"]
    for arguments in (
        ["run", "bash", *tasks, *agent, *reward, "--out", "run"],
        ["validate", "ds.py:load", "--env", "bash", *reward],
        ["rescore", "run", *tasks, *reward, "--out", "again"],
    ):
        done = cli(*arguments, code=None)
        parsed(done)
        assert "NOISE" in done.stderr and "NOISE" not in done.stdout, arguments


@pytest.mark.parametrize("where", ["make", "act", "check", "import", "reward"])
def test_no_code_that_calls_exit_ends_a_run_well(
    cli: Run, data: Path, tmp_path: Path, where: str
) -> None:
    """A run without a result for each episode says so, and does not exit with 0."""
    source = {
        "make": "import sys\ndef make(task): sys.exit(0)\n",
        "act": "import argparse\nclass A:\n    def act(self, *_):\n"
        "        argparse.ArgumentParser().parse_args(['--help'])\ndef make(task): return A()\n",
        "check": "import sys\nclass Make:\n    def check(self, tasks): sys.exit(0)\n"
        "    def __call__(self, task): return None\nmake = Make()\n",
        "import": "import sys\nsys.exit(0)\n",
        "reward": "import sys\ndef make(task, episode, sandbox): sys.exit(0)\n",
    }[where]
    (tmp_path / "mine.py").write_text(source)
    option = "--reward" if where == "reward" else "--agent"
    command = ["run", "bash", "--data", data, "--out", "run", option, "mine.py:make"]
    done = cli(*command, code=2 if where == "import" else 1)
    line = source[: source.index("exit(0)" if "exit(0)" in source else "parse_")].count("\n") + 1
    assert f"mine.py, line {line}: SystemExit: 0" in done.stdout + done.stderr or (
        f"mine.py, line {line} cannot be imported: SystemExit: 0" in done.stderr
    )
    if where not in ("check", "import"):
        again = cli("resume", "run", "--data", data, option, "mine.py:make", code=1)
        assert "ended in an error" in again.stdout


def test_replaying_a_run(cli: Run, data: Path) -> None:
    cli("run", "bash", "--data", data, "--out", "run")
    again = ["run", "bash", "--data", data, "--agent", "replay", "--recording", "run", "--json"]
    assert parsed(cli(*again))["statistics"]["successes"] == 4


def test_errors_are_told_apart_and_fail_the_run(cli: Run, tmp_path: Path) -> None:
    bad = {"task_id": "bad", "query": "q", "gold": "true", "setup": "exit 3"}
    data = write(tmp_path / "mixed.json", [TASKS[0], bad])
    done = cli("run", "bash", "--data", data, code=1)
    assert "Episodes without a result: 1 TaskError" in done.stdout
    told = parsed(cli("run", "bash", "--data", data, "--json", code=1))
    assert told["statistics"]["success_rate"] == 1.0
    assert told["statistics"]["errors"] == 1
    assert told["errors"][0]["task_id"] == "bad" and "setup" in told["errors"][0]["error"]


def test_the_run_json_knows_what_was_run(cli: Run, data: Path, tmp_path: Path) -> None:
    cli("run", "bash", "--data", data, "--out", "run", "--seed", 5)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["seed"] == 5
    assert manifest["env"]["protocol"] == "default"
    [session] = manifest["sessions"]
    session["versions"].pop("commit", None)  # where it is known
    keys(session["versions"], "python intercode code gymnasium numpy")
    assert manifest["env"]["sandbox"] == "native" and "cgroup" in session["sandbox"]
    assert session["tools"]["host"]["bash"][0].isdigit()
    assert session["settings"]["workers"] == 1 and session["host"]["cpus"] >= 1


def test_successes_in_sql_that_are_counted_apart(cli: Run, tmp_path: Path) -> None:
    task = {"query": "?", "gold": "SELECT n, word FROM t", "metadata": {"permute_columns": True}}
    rows = [{"task_id": name, **task} for name in ("SELECT word, n FROM t", "VALUES (7, 'a')")]
    write(tmp_path / "tasks.json", rows)
    (tmp_path / "t.sql").write_text("CREATE TABLE t (n INTEGER, word TEXT);"
                                    "INSERT INTO t VALUES (7, 'a');")  # fmt: skip
    (tmp_path / "agent.py").write_text(
        "from intercode.agents.builtin import ScriptedAgent\n"
        "def make(task): return ScriptedAgent([task.task_id])\n"
    )
    options = ["sql", "--data", "tasks.json", "--databases", "t.sql", "--agent", "agent.py:make"]
    told = cli("run", *options, "--out", "run").stdout
    page = cli("report", "run").stdout
    for text in (told, page):
        assert "Successes with columns in another order than gold's: 1." in text
        assert "Successes by an answer that reads no table: 1." in text
    told = cli("run", *options, "--no-permute-columns", "--out", "strict").stdout
    assert "another order" not in told and "reads no table: 1." in told


def test_split(cli: Run, tmp_path: Path) -> None:
    """A run has the tasks of one split; its record says which, for a repetition."""
    write(tmp_path / "t.json", [{**TASKS[0], "split": "train"}, {**TASKS[1], "split": "test"}])
    given = ["--data", "t.json", "--split", "test", "--json"]
    assert parsed(cli("run", "bash", *given, "--out", "run"))["planned"] == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["sessions"][0]["options"]["split"] == "test"
    [episode] = read_episodes(tmp_path / "run" / EPISODES)
    assert episode.task_id == TASKS[1]["task_id"]
    again = parsed(cli("run", "--trust", "--locked", "run", "--json", "--out", "again"))
    assert (again["planned"], again["statistics"]["successes"]) == (1, 1)
    said = parsed(cli("validate", "t.json", "--split", "train", "--json", "-q"))
    assert (said["tasks"], said["valid"]) == (1, True)
    refused = cli("run", "bash", "--data", "t.json", "--split", "dev", code=2).stderr
    assert "there is no split 'dev': its splits are train, test" in refused


def test_unknown_fields_are_listed_once(cli: Run, tmp_path: Path) -> None:
    tasks = [{**TASKS[0], "hardness": 3}, {**TASKS[1], "hardness": 1, "origin": "me"}]
    write(tmp_path / "t.json", tasks)
    told = "intercode: t.json: kept as metadata: hardness, origin\n"
    assert cli("run", "bash", "--data", "t.json", "--quiet").stderr == told
    assert cli("validate", "t.json", "--quiet", code=None).stderr == told


def test_a_database_that_is_missing_is_named_with_its_row(cli: Run, tmp_path: Path) -> None:
    write(tmp_path / "t.json", [{"query": "q", "gold": "SELECT 1", "db": "nope"}])
    told = cli("run", "sql", "--data", "t.json", code=2).stderr
    assert told.startswith("intercode: error: t.json: row 1, task '0'")


def shop(folder: Path) -> Path:
    """A folder whose image is for the tasks that name none."""
    folder.mkdir()
    for name in ("folder", "own"):
        (folder / f"{name}.sh").write_text(f"echo {name} > /srv/which\n")
    tasks = [
        {"task_id": "own", "query": "q", "image": f"host+{folder}/own.sh"},
        {"task_id": "other", "query": "q"},
    ]
    for task, which in zip(tasks, ("own", "folder"), strict=True):
        task |= {"gold": "cat /srv/which", "verification": f"grep {which} /srv/which"}
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "intercode.toml").write_text('env = "bash"\nimage = "host+./folder.sh"\n')
    return folder


def test_a_folders_image_is_for_tasks_that_name_none(cli: Run, tmp_path: Path) -> None:
    folder = shop(tmp_path / "shop")
    told = parsed(cli("run", folder, "--json"))
    assert told["statistics"]["successes"] == 2
    cli("run", folder, "--quiet", "--locked", told["run"])  # the record says the same
    played = cli("play", folder, "--task", "own", "--json", stdin="cat /srv/which\nsubmit\n")
    assert parsed(played)[0]["turns"][0]["observation"] == "own\n"
    (tmp_path / "predictions.jsonl").write_text('{"task_id": "own", "prediction": "true"}\n')
    assert parsed(cli("score", "predictions.jsonl", folder, "--json"))["statistics"]["successes"]
    assert "own gold does not solve" not in cli("validate", folder, "--quiet", code=1).stdout


def test_a_tasks_image_that_does_not_exist_is_refused(cli: Run, tmp_path: Path) -> None:
    folder = shop(tmp_path / "shop")
    with (folder / "tasks.jsonl").open("a") as file:
        file.write('\n{"task_id": "c", "query": "q", "gold": "true", "image": "./img"}\n')
    done = cli("run", folder, code=2)
    assert "tasks.jsonl: row 3 (line 4), task 'c', field 'image': the image " in done.stderr
    assert f"{folder}/img does not exist\n" in done.stderr and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    command = f"exec {sys.executable} -m intercode.cli run sql --limit 1 --out run {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert len(list(read_latest(tmp_path / "run", lambda episode: episode))) == 1


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"rmdir $PWD; exec {sys.executable} -m intercode.cli run sql --limit 1"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path / "gone", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "intercode: error: the working directory is gone: cd to another\n"


def test_predictions_for_some_of_the_tasks(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text('{"task_id": "clinic-01", "prediction": "SELECT 1"}\n')
    for order in (("some.jsonl", "sql"), ("sql", "some.jsonl")):
        done = cli("score", *order, "--out", f"by-{order[0]}", "--quiet")
        assert "72 of 73 tasks have no prediction" in done.stderr
    done = cli("score", "some.jsonl", "sql", "--task", "clinic-01", "--out", "one", "--quiet")
    assert "no prediction" not in done.stderr
