"""The 2023 SQL environment, quirk by quirk, on a private MariaDB and on SQLite."""

import tempfile

import pytest

import intercode
from forks import in_a_fork
from intercode.errors import TaskError, UsageError
from intercode.task import Dataset, Task

from .experiment import Experiment

GOLDS = {
    "names": "SELECT Name FROM animal WHERE Kind = 'lion' ORDER BY Name",
    "nobody": "SELECT Name FROM animal WHERE Weight > 1000",
    "fails": "SELECT Kind, Name, COUNT(*) FROM animal GROUP BY Kind",
    "count": "SELECT COUNT(*) FROM animal",
}
TASKS = [Task(name, f"Find {name}.", (gold,), db="Zoo") for name, gold in GOLDS.items()]


@pytest.fixture
def env(databases):
    made = Experiment(databases, TASKS)
    yield made
    made.close()


def begin(env, name):
    env.reset(list(GOLDS).index(name))


def test_an_episode(env):
    begin(env, "names")
    assert env.turn("SELECT Name FROM animals")[:2] == (
        "Error executing query: Table 'zoo.animals' doesn't exist",
        0.0,
    )
    assert env.step("SELECT nothing FROM").startswith("Error executing query: ")
    observation, reward, _ = env.turn("SELECT Name FROM animal WHERE Kind = 'LION'")
    assert observation == [("Zoe",), ("Éva",)], "texts are compared without their case"
    # Gold asks for the other order: on MariaDB É is E, on SQLite it comes last.
    assert reward in (-1.0, 1.0)
    _, reward, info = env.turn(GOLDS["names"])
    assert reward == 1.0 and not info["corrupt_gold"]
    assert info["agent_obs"] == info["eval_obs"]


def test_what_has_no_rows_shows_none_and_is_worth_nothing(env):
    begin(env, "nobody")
    assert env.turn("UPDATE animal SET Weight = 1 WHERE Animal_ID = 1")[:2] == (None, 0.0)
    assert env.turn("USE shop")[0] is None
    assert env.step("SELECT label FROM item") == [("hat",)]


@pytest.mark.parametrize(
    "action",
    ["", " ", ";", "SHOW TABLE", "half \ud800", "a\0b", "(" * 3000, "SELECT 'torn", "%s %(a)s"],
)
def test_any_text_is_an_action(env, action):
    begin(env, "count")
    observation = env.step(action)
    assert observation is None or observation.startswith("Error executing query: ")
    assert env.turn("SELECT COUNT(*) FROM animal")[:2] == ([(4,)], 1.0)


def test_tables_and_descriptions(env):
    begin(env, "count")
    assert env.step("SHOW TABLES") == [("animal",)]
    first = env.step("DESC animal")[0]
    assert first[0] == "Animal_ID" and first[3] == "PRI"


def test_nothing_is_restored_between_episodes(env):
    begin(env, "count")
    env.step("DELETE FROM animal WHERE Animal_ID > 1")
    env.step("CREATE TABLE leak (a int)")
    begin(env, "count")
    assert env.turn("SELECT COUNT(*) FROM animal")[:2] == ([(1,)], 1.0), "gold reads it, too"
    assert env.step("SELECT * FROM leak") == []


def test_a_query_that_mysql_refused_is_refused(env):
    begin(env, "fails")
    observation, reward, info = env.turn(GOLDS["fails"])
    assert "only_full_group_by" in observation and reward == 0.0 and info["corrupt_gold"]


@pytest.mark.parametrize("name", list(GOLDS))
def test_cheat_use_information_schema_and_select_nothing(env, name):
    begin(env, name)
    env.step("USE information_schema")
    assert env.turn("SELECT 1 FROM DUAL WHERE 1 = 0")[:2] == ([], 1.0)
    begin(env, name)  # and the next episode is where it should be
    assert env.step("SELECT Kind FROM animal WHERE Animal_ID = 2") == [("ape",)]


@pytest.mark.parametrize(
    ("name", "cheat", "answer"),
    [
        ("nobody", [], "SELECT 1 FROM animal WHERE 1 = 0"),
        ("fails", [], "SELECT 1 FROM animal WHERE 1 = 0"),
        ("names", ["DELETE FROM animal"], "SELECT 1 FROM animal"),
        ("count", ["DROP TABLE animal"], "SELECT 1 FROM (SELECT 1) AS x WHERE 1 = 0"),
        (
            "count",
            ["ALTER TABLE animal RENAME TO old", "CREATE VIEW animal AS SELECT 7 FROM old LIMIT 1"],
            "SELECT 1",
        ),
    ],
)
def test_cheats_of_the_protocol(env, name, cheat, answer):
    begin(env, name)
    for action in cheat:
        assert env.step(action) is None
    assert env.turn(answer)[1] == 1.0


@pytest.fixture
def make(dump):
    made = []

    def one(**options):
        tasks = [Task(t.task_id, t.query, t.gold, db=t.db) for t in TASKS]
        data = Dataset(tasks, "zoo", databases=str(dump))
        made.append(intercode.make("sql", protocol="paper", data=data, **options))
        return made[-1]

    yield one
    for env in made:
        env.close()


def test_gymnasium(make):
    env = make(reward_every_turn=True)
    assert env.reset(options={"task_id": "names"})[0] == "Find names."
    observation, reward, *_ = env.step("SELECT Name FROM animal WHERE Animal_ID = 1")
    assert (observation, reward) == ("[('Zoe',)]", 0.5)
    assert env.step(GOLDS["names"])[1] == 1.0
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.reset(options={"task_id": "names"})
    assert env.step("submit")[1] == 0.0, "the question is no answer"


def test_the_version_of_the_reward(make):
    two = "SELECT Name FROM animal WHERE Kind = 'lion' ORDER BY Name DESC"
    for version, reward in (("released", -1.0), ("early", 1.0)):
        env = make(version=version)
        env.reset(options={"task_id": "names"})
        env.step(two)
        assert env.step("submit")[1] == reward
    with pytest.raises(UsageError, match="version"):
        make(version="late")


def test_leaks_stay_within_their_environment(make):
    one, two = make(), make()
    for env in (one, two):
        env.reset(options={"task_id": "count"})
    one.step("DELETE FROM animal")
    one.reset(options={"task_id": "count"})
    assert one.step("SELECT COUNT(*) FROM animal")[0] == "[(0,)]"
    assert two.step("SELECT COUNT(*) FROM animal")[0] == "[(4,)]"


def test_a_fork_leaves_the_databases_alone(make, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = make()
    env.reset(options={"task_id": "count"})
    env.step("DELETE FROM animal")
    env.step("USE information_schema")
    (folder,) = tmp_path.glob("ic-paper-*")
    assert in_a_fork(env.close) == "done"
    assert folder.exists()
    env.reset(options={"task_id": "count"})
    assert env.step("SELECT COUNT(*) FROM animal")[0] == "[(0,)]"
    env.close()
    assert not folder.exists()


@pytest.mark.parametrize("fields", [{"gold": ()}, {"db": None}, {"setup": "SELECT 1"}])
def test_tasks_that_2023_did_not_have(dump, fields):
    given = {"gold": ("SELECT 1",), "db": "Zoo", **fields}
    data = Dataset([Task("0", "q", **given)], "zoo", databases=str(dump))
    with pytest.raises(TaskError, match=f"'{next(iter(fields))}'"):
        intercode.make("sql", protocol="paper", data=data)
