"""`intercode_paper.compat`: scripts of 2023, with one import changed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List  # noqa: UP035 - as scripts of 2023 wrote it

import pytest
from docker.models.containers import Container as DockerContainer

from intercode.errors import ActionError, EnvironmentStateError, ImageError, TaskError, UsageError
from intercode.legacy_names import NAMES
from intercode_paper.compat import (
    ACTION_EXEC,
    AGENT_OBS,
    GIT_RESET_SCRIPT,
    GIT_STATUS_SCRIPT,
    BashEnv,
    CTFEnv,
    IntercodeDataLoader,
    IntercodeEnv,
    PythonEnv,
    SqlEnv,
    SWEEnv,
    bash_build_docker,
    bash_image_name,
    bash_test_data,
    get_container,
    sql_build_docker,
    sql_image_name,
    sql_test_data,
    timeout,
)
from intercode_paper.compat.sql import MySQLConnectorCursor
from intercode_paper.sql_databases import error_observation
from paper.upstream import UPSTREAM, needs_upstream
from waiting import PATIENCE

MBPP = [
    {
        "query": "Write a function add(a, b).",
        "gold": "def add(a, b):\n    return a + b",
        "tests": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
        "test_setup_code": "",
    }
]


def preprocess_sql(record: Dict) -> List:  # noqa: UP006
    return [f"use {record['db']}"]


@pytest.fixture
def bash(request, tmp_path):
    env = BashEnv(bash_image_name, data_path=bash_test_data, traj_dir=str(tmp_path))
    request.addfinalizer(env.close)
    return env


@pytest.fixture
def sql(request):
    env = SqlEnv(sql_image_name, data_path=sql_test_data, preprocess=preprocess_sql)
    request.addfinalizer(env.close)
    return env


def test_the_quick_start_of_bash(bash, tmp_path, capsys):
    bash_build_docker()
    for index in range(len(bash.data_loader)):
        observation, info = bash.reset(index)
        assert (observation, info) == (bash.query, {}) == (bash.observation, bash.info)
        gold = bash.gold if isinstance(bash.gold, str) else ";".join(bash.gold)
        _, reward, done, info = bash.step(gold)
        assert (reward, done, info) == (0, False, {ACTION_EXEC: True})
        _, reward, done, info = bash.step("submit")
        assert (reward, done, info["reward"]["file_diff"]) == (1.0, True, 0.33)
    assert not capsys.readouterr().out
    logs = [json.loads(p.read_text()) for p in sorted((tmp_path / "logs_ic_bash").iterdir())]
    assert len(logs) == len(bash.data_loader)
    assert {log["reward"] for log in logs} == {1.0} and logs[0].keys() >= {"query_idx", "info"}
    assert [turn["action"] for turn in logs[0]["trajectory"]] == [logs[0]["gold"], "submit"]


def test_bash_has_the_quirks_of_2023(bash):
    bash.reset(0)
    assert bash.step("echo hello")[0] == bash.observation == "hello\n"
    assert bash.step('echo "a  b"')[0] == "a\n"  # the quotes end those of the command line
    assert bash.step("export X=1; X=2")[2] is False and bash.step("echo $X")[0] == "\n"
    bash.step("cd /testbed/")
    assert (bash.workdir, bash.step("pwd")[0]) == ("/testbed", "/testbed\n")
    assert bash.trajectory[-1] == ("pwd", "/testbed\n")
    assert bash.step("false")[3] == {ACTION_EXEC: False}
    assert bash.step("skip") == ("skipped", 0, True, {})
    bash.step("cd /testbed")
    assert bash.step("submit")[1] == 0.67


def test_a_wrong_answer_and_a_fresh_container(bash):
    bash.reset(2)
    bash.step("touch /testbed/other")
    _, reward, _, info = bash.step("submit")
    assert 0.3 < reward < 0.7 and info["diff_extra"] == [("testbed/other", "??")]
    command = bash.clean_cmd(GIT_STATUS_SCRIPT)
    assert bash.parse_status(bash.container.exec_run(command).output.decode()) == [
        ("testbed/other", "??")
    ]
    bash.container.exec_run(bash.clean_cmd(GIT_RESET_SCRIPT))
    assert bash.container.exec_run(command) == (0, b"")
    bash.step("touch /testbed/other")
    bash.reset(2)
    assert bash.container.exec_run("ls /testbed/other").exit_code != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user starts no engine")
def test_in_containers_of_docker(engine):
    env = BashEnv(bash_image_name, data_path=bash_test_data, sandbox="docker")
    env.reset(2)
    env.step(env.gold)
    assert env.step("submit")[1] == 1.0
    env.reset(2)
    assert env.step("submit")[1] < 1.0
    env.close()


def test_an_action_that_ends_its_container_is_no_error(bash):
    bash.reset(0)
    bash.container.sandbox._control.send(b"no request")  # process 1 fails, as by an agent's attack
    assert bash.step("true") == ("Malformed command", 0, False, {ACTION_EXEC: False})
    assert bash.step("echo on")[0] == "on\n"
    bash.container.sandbox._control.send(b"no request")
    _, reward, done, info = bash.step("submit")
    assert (reward, done) == (0.0, True) and "ended" in info
    assert bash.reset(0)[0] == bash.query and bash.step("echo on")[0] == "on\n"


def test_containers_are_dockers_to_isinstance(bash):
    assert isinstance(bash.container, DockerContainer)
    assert isinstance(bash.container_eval, DockerContainer)
    bash.close()
    assert bash.container.status == bash.container_eval.status == "exited"
    with pytest.raises(EnvironmentStateError, match="was stopped"):
        bash.container.exec_run("true")


def test_the_quick_start_of_sql(sql):
    sql_build_docker()
    for index in range(len(sql.data_loader)):
        assert sql.reset(index)[0] == sql.query
        rows = sql.step(sql.gold)[0]
        assert isinstance(rows, list) and isinstance(rows[0], tuple)
        observation, reward, done, info = sql.step("submit")
        assert (observation, reward, done, info[AGENT_OBS]) == (rows, 1.0, True, str(rows))
    assert sql.step("errant query")[0].startswith("Error executing query: ")
    assert sql.step("submit")[1] == 0.0
    sql.cur.execute("SELECT COUNT(*) FROM authors")
    assert sql.cur.fetchall() == [(20,)] and sql.cur.with_rows
    with pytest.raises(ValueError, match="nothing"):
        sql.cur.execute("SELECT * FROM nothing")
    assert sql.get_intersect_items(["a", "b", "c", "a"], {"a": 2, "b": 1}) == ["a", "b", "a"]
    sql.close()
    assert (sql.cnx.is_connected(), sql.cur.with_rows) == (False, False)


def test_sql_without_a_database(tmp_path):
    env = SqlEnv("docker-env-sql")
    env.reset()
    assert env.step("SELECT 1")[0] == "Error executing query: No database selected"
    env.close()


def test_a_database_that_is_not_there(tmp_path):
    data = tmp_path / "queries.csv"
    data.write_text("query,gold,db\nHow many?,SELECT COUNT(*) FROM t,mine\n")
    env = SqlEnv("docker-env-sql", data_path=str(data), preprocess=preprocess_sql)
    with pytest.raises(TaskError, match=r"'mine'.*databases=PATH"):
        env.reset(0)
    env.close()
    dump = tmp_path / "all_dbs.sql"
    dump.write_text("CREATE DATABASE `mine`;\nUSE `mine`;\nCREATE TABLE `t` (`a` int);\n")
    env = SqlEnv("docker-env-sql", data_path=str(data), preprocess=preprocess_sql)
    env.reset(0)
    assert env.step("SELECT COUNT(*) FROM t")[0] == [(0,)] and env.step("submit")[1] == 1.0
    env.close()


def test_python(tmp_path, monkeypatch):
    data = tmp_path / "ic_mbpp.json"
    data.write_text(json.dumps(MBPP))
    env = PythonEnv("intercode-python", data_path=str(data), is_agent=True)
    env.reset(0)
    assert env.step("1 + 1") == ({"output": "2", "error": ""}, 0, False, {ACTION_EXEC: True})
    assert env.step("x")[0]["error"] and not env.info[ACTION_EXEC]
    env.step("def plus(a, b):\n    return 3")
    _, reward, done, info = env.step("submit plus")
    assert (reward, done, info["submitted_function"]) == (0.5, True, "plus")
    env.close()
    people = PythonEnv("intercode-python", data_path=str(data))
    lines = iter(["    return a + b", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    people.reset()
    people.step("def f(a, b):")
    assert people.step("submit f")[1] == 1.0
    people.close()


def test_ctf(tmp_path):
    def preprocess(record: Dict) -> List:  # noqa: UP006
        return [f"cd /ctf/{record['task_id']}", *record.get("setup", [])]

    data = tmp_path / "ic_ctf.json"
    row = {"task_id": 3, "query": "Find it.", "gold": "picoCTF{It}", "setup": ["touch ready"]}
    data.write_text(json.dumps([row, {**row, "task_id": 4}]))
    (tmp_path / "task_assets/3/solution").mkdir(parents=True)
    (tmp_path / "task_assets/3/note").write_text("picoCTF{it}\n")
    env = CTFEnv("intercode-ctf", data_path=str(data), preprocess=preprocess)
    assert env.reset(0)[0] == "Find it."
    assert env.step("pwd; ls; cat note")[0] == "/ctf/3\nnote\nready\npicoCTF{it}\n"
    assert env.step('echo "a  b"')[0] == "a  b\n"
    assert env.step("submit picoCTF{it}")[1:3] == (1.0, True)
    assert env.step("submit no")[1] == env.step("submit")[1] == 0.0
    env.reset(1)
    assert env.step("pwd; ls")[0] == "/ctf/4\nready\n"
    env.close()


def test_swe(tmp_path):
    repository = tmp_path / "owner__repo"
    repository.mkdir()
    (repository / "a.py").write_text("x = 1\n")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    data = tmp_path / "ic_swe_bench.json"
    tests = {"patch": "", "FAIL_TO_PASS": ["grep -q 2 a.py"], "PASS_TO_PASS": []}
    row = {"task_id": "one", "query": "x is 2", "repo": "owner/repo", "base_commit": head}
    data.write_text(json.dumps([{**row, "tests": tests, "runner": "command"}]))
    env = SWEEnv("intercode-swe", data_path=str(data), repositories=str(tmp_path))
    env.reset(0)
    assert env.step("cat a.py")[0] == "x = 1\n"
    env.step("sed -i s/1/2/ a.py")
    assert env.step("submit")[1:3] == (1.0, True)
    env.reset(0)
    assert env.step("git diff")[0] == "" and env.step("submit")[1] == 0.0
    env.close()


class Echo(IntercodeEnv):
    """An environment of someone's own, as the wiki of 2023 taught."""

    name = "ic_echo"

    def exec_action(self, action: str) -> None:
        with timeout(PATIENCE, "late"):
            done = self.container.exec_run(["/bin/echo", action], workdir="/tmp")
        self.observation = done.output.decode("utf-8")
        self.info[ACTION_EXEC] = done.exit_code == 0

    def get_reward(self) -> tuple[float, dict[str, Any]]:
        self.reward = float(self.observation.strip() == self.gold)
        return self.reward, {"seen": self.observation}

    def reset_container(self) -> None:
        self.container.reset()


def test_a_subclass_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("query,gold,level\nSay hi.,hi,\n")
    env = Echo("host", data_path="tasks.csv", verbose=True, mine=3)
    assert env.kwargs["mine"] == 3 and env.get_available_actions() is None
    with pytest.raises(EnvironmentStateError, match="reset"):
        env.step("hi")
    env.reset(0)
    env.step("hi")
    assert env.step("submit") == ("hi\n", 1.0, True, {"seen": "hi\n", ACTION_EXEC: True})
    assert "Query: Say hi." in capsys.readouterr().out
    env.save_trajectory()
    assert len(list(Path("logs_ic_echo").iterdir())) == 1
    env.close()
    silent = Echo("host")
    assert silent.reset() == (None, {}) and silent.tool_mode and silent.logger.disabled
    assert silent.step("x")[0] == "x\n" and silent.step("submit")[1:3] == (0, True)
    silent.close()
    with pytest.raises(TypeError, match="abstract"):
        IntercodeEnv("host")


def test_a_time_limit_of_a_block():
    container = get_container("mine", "host", environment={"A": "b"})
    assert container.exec_run("/bin/sh -c 'echo $A'").output == b"b\n"
    with pytest.raises(TimeoutError, match="late"), timeout(0.3, "late"):  # allow limit: no end
        container.exec_run("sleep 999")
    assert container.exec_run("echo again").output == b"again\n"
    assert container.exec_run("echo 'half").exit_code is None
    container.stop()


def test_an_interrupt_ends_the_episode(bash, monkeypatch):
    def interrupted(action):
        raise KeyboardInterrupt

    bash.reset(0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bash, "exec_action", interrupted)
        bash.step("ls")
    for action in ("ls", "submit"):
        with pytest.raises(EnvironmentStateError, match=r"KeyboardInterrupt has .* call reset\(\)"):
            bash.step(action)
    bash.reset(0)
    assert bash.step("echo again")[0] == "again\n"


def test_preprocess_that_fails():
    def preprocess(record: Dict) -> str:  # noqa: UP006
        return f"use {record['extra']['db']}x"

    env = SqlEnv("docker-env-sql", data_path=sql_test_data, preprocess=preprocess)
    with pytest.raises(RuntimeError, match=r"'use libraryx' failed: .*Unknown database"):
        env.reset(0)
    env.close()


def test_rows_of_a_data_file(tmp_path):
    loader = IntercodeDataLoader(sql_test_data)
    row = loader.get(0)
    assert list(row) == ["query", "gold", "extra"]  # as the first releases had it
    assert row["db"] == row["extra"]["db"] == row.get("db") == "library"
    assert "db" in row and "hardness" not in row and row.get("hardness", 1) == 1
    with pytest.raises(KeyError):
        row["hardness"]
    assert list(IntercodeDataLoader(bash_test_data).get()) == ["query", "gold"]
    with pytest.raises(OSError, match="no data file"):
        IntercodeDataLoader(str(tmp_path / "none.csv"))
    for name, text in (("a.png", ""), ("a.pkl", ""), ("a.json", '[{"task": 1}]'), ("b.json", "{")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            IntercodeDataLoader(str(tmp_path / name))


@pytest.mark.parametrize(
    ("keywords", "error", "says"),
    [
        ({"ports": {"80/tcp": 80}}, UsageError, "ports= is Docker's"),
        ({"volumes": ["/a:/b"]}, UsageError, "volumes= is Docker's"),
        ({"preprocess": 3}, UsageError, "must be a function"),
        ({"sandbox": "podman"}, UsageError, "no sandbox provider"),
        ({"image_name": "my-image"}, ImageError, "no image called 'my-image'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(keywords, error, says):
    with pytest.raises(error, match=says):
        BashEnv(**{"image_name": "host", **keywords})


def test_the_file_system_of_the_data(tmp_path):
    data = tmp_path / "data/nl2bash/nl2bash_fs_2.json"
    data.parent.mkdir(parents=True)
    data.write_text(json.dumps([{"query": "Show it.", "gold": "cat /x/a"}]))
    with pytest.raises(TaskError, match=r"setup_nl2b_fs_2\.sh"):
        BashEnv("intercode-nl2bash", data_path=str(data))
    script = tmp_path / "docker/bash_scripts/setup_nl2b_fs_2.sh"
    script.parent.mkdir(parents=True)
    script.write_text("mkdir /x; echo here > /x/a\n")
    env = BashEnv("intercode-nl2bash", data_path=str(data))
    assert env._container_settings.image == f"nl2bash+{script}"
    env.close()
    demo = script.with_name("setup_fs.sh")
    demo.write_text("mkdir /x; echo demo > /x/a\n")
    env = BashEnv("intercode-bash", data_path=str(data))
    env.reset(0)
    assert env.step("cat /x/a")[0] == "demo\n"
    env.close()


@pytest.mark.parametrize("module", NAMES)
def test_an_old_import_says_the_new_one(module):
    for name in NAMES[module].split():
        with pytest.raises(ImportError, match=f"from intercode_paper.compat import {name} "):
            exec(f"from {module} import {name}")
        exec(f"from intercode_paper.compat import {name}")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {module} import nothing")


@needs_upstream
def test_the_data_of_2023():
    data = UPSTREAM / "data/sql/spider/ic_spider_dev.json"
    env = SqlEnv("docker-env-sql", data_path=str(data), preprocess=preprocess_sql)
    for index in range(0, 1034, 100):
        env.reset(index)
        env.step(env.gold)
        assert env.step("submit")[1] == 1.0
    env.close()
    env = CTFEnv("intercode-ctf", data_path=str(UPSTREAM / "data/ctf/ic_ctf.json"))
    env.reset(0)
    assert env.step(f"submit {env.gold}")[1] == 1.0
    env.close()


def test_a_statement_that_fails_leaves_no_rows_of_the_last() -> None:
    answers: list[Any] = [[(1,)], error_observation("nope")]
    cursor = MySQLConnectorCursor(SimpleNamespace(answer=lambda _: answers.pop(0)))  # type: ignore[arg-type]
    cursor.execute("SELECT 1")
    assert cursor.fetchall() == [(1,)]
    with pytest.raises(ActionError, match="nope"):
        cursor.execute("SELECT nope")
    assert cursor.fetchall() == [] and not cursor.with_rows
