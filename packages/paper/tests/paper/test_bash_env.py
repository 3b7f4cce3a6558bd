"""The 2023 environment, quirk by quirk, in a real sandbox."""

import pytest

from intercode.errors import TaskError
from intercode.task import Dataset, Task
from intercode_paper.bash_env import PaperBashEnv
from intercode_paper.bash_reward import GoldOutcomeCache

GOLDS = {
    "list": "ls /data",
    "add": "echo new > /data/new.txt",
    "leak": "echo x >> /root/log; wc -l < /root/log",
    "quotes": 'echo "a  b" c',
    "environment": "env",
    "nothing": "true",
}


@pytest.fixture
def make(provider, image, monkeypatch):
    """Makes the environment; all scores are kept in `scores`, with their details."""
    made, score = [], GoldOutcomeCache.score

    def one(tasks):
        data = Dataset(tasks, "quirks")
        env = PaperBashEnv(
            data, image=image.name, sandbox=provider, reward_every_turn=True, max_turns=99
        )
        env.scores = []
        made.append(env)
        return env

    def kept(*args, **options):
        made[-1].scores.append(score(*args, **options))
        return made[-1].scores[-1]

    monkeypatch.setattr(GoldOutcomeCache, "score", kept)
    yield one
    for env in made:
        env.close()


@pytest.fixture
def env(make):
    return make([Task(name, f"Do {name}.", (gold,)) for name, gold in GOLDS.items()])


def begin(env, name):
    return env.reset(options={"task_id": name})[0]


def turn(env, action):
    """An action: its observation, reward, and the `info` of 2023."""
    observation, reward, *_ = env.step(action)
    return observation, reward, env.scores[-1].detail


def test_an_episode(env):
    assert begin(env, "list") == "Do list."
    observation, reward, info = turn(env, "ls /data")
    assert observation == "a.txt\ndir1\nold.txt\n", "the empty directories are gone"
    assert reward == 1.0
    assert info["reward"] == {"file_diff": 0.33, "file_changes": 0.33, "answer_similarity": 0.33}
    assert env.step("submit")[1:3] == (1.0, True)


def test_pristine_state(env):
    begin(env, "add")
    env.step("touch /data/mine")
    begin(env, "leak")
    assert env.step("ls /data")[0] == "a.txt\ndir1\nold.txt\n"


def test_each_action_is_a_process_of_its_own(env):
    begin(env, "nothing")
    env.step("X=1; export X")
    assert env.step("echo $X.")[0] == ".\n"


def test_quotes_and_malformed(env):
    begin(env, "quotes")
    assert turn(env, 'echo "a  b" c')[:2] == ("a\n", 1.0)
    assert env.step('echo "')[0] == "Malformed command"
    assert env.step(r"printf '\377'")[0] == "Malformed command"
    assert not env.step(r"printf '\377'")[4]["ok"]
    assert "argument list too long" in env.step("echo " + "x" * 130_000)[0]


def test_both_streams_in_order_and_no_terminal(env):
    begin(env, "nothing")
    observation, *_ = env.step("echo a; echo b >&2; echo c; test -t 1 || echo d")
    assert observation == "a\nb\nc\nd\n"


def test_cd(env):
    begin(env, "nothing")
    assert env.step("pwd")[0] == "/\n"
    env.step("cd data")
    assert env.step("pwd")[0] == "/data\n"
    assert "No such file" in env.step("cd nowhere")[0]
    assert env.step("pwd")[0] == "/data\n"
    env.step("cd ../data/./dir1")
    assert env.step("pwd")[0] == "/data/dir1\n"
    assert env.step("cd / && echo in")[0] == "in\n"
    assert env.step("pwd")[0] == (
        "OCI runtime exec failed: exec failed: unable to start container process: "
        'chdir to cwd ("/ && echo in") set in config.json failed: '
        "no such file or directory: unknown\r\n"
    )
    env.step("cd /data")
    assert env.step("pwd")[0] == "/data\n"
    env.step("cd /data/a.txt; true")
    assert "no such file" in env.step("pwd")[0]
    env.step("cd /; true " + "x" * 5000)
    assert "file name too long" in env.step("pwd")[0]


def test_timeout(env, monkeypatch):
    begin(env, "nothing")
    with monkeypatch.context() as patch:
        patch.setattr("intercode_paper.bash_interpreter.TIMEOUT", 0.3)  # allow limit: it sleeps
        assert env.step("echo early; sleep 999")[0] == "Command timed out"
    assert env.step("echo next")[0] == "next\n"


def test_background_jobs_end_within_their_action(env):
    begin(env, "nothing")
    assert env.step("(sleep 0.3; echo late) &")[0] == "late\n"
    assert env.step("ls /nowhere 2>&1 | head -1 && echo ok")[0].endswith("ok\n")


def test_files(env):
    begin(env, "add")
    _, reward, info = turn(env, "true")
    assert info["diff_miss"] == [("data/new.txt", "??")]
    _, reward, info = turn(env, "echo other > /data/new.txt")
    assert info["reward"]["file_changes"] == 0.0 and reward < 1.0
    _, reward, _ = turn(env, "echo new > /data/new.txt")
    assert reward == 1.0
    _, reward, info = turn(
        env, "rm -r /data/dir1; chmod +x /data/a.txt; mkdir -p /x/y; touch /x/y/z"
    )
    assert info["diff_extra"] == [("data/a.txt", "M"), ("data/dir1/b.txt", "D"), ("x/", "??")]


def test_system_directories_are_not_seen(env):
    begin(env, "nothing")
    assert turn(env, "touch /root/x /var/x; mkdir /data/dir2; touch /data/a.txt")[1] == 1.0


def test_ages_are_those_of_the_recordings(env):
    begin(env, "nothing")
    assert env.step("find /data -type f -mtime +7")[0] == "/data/old.txt\n"
    # Up to an hour when the image was made, and then the other tests came.
    assert env.step("find /data -type f -mmin -90 | wc -l")[0] == "2\n"


def test_gold_leaves_things_where_the_reset_does_not_look(env):
    begin(env, "leak")
    assert turn(env, "echo 1")[2]["eval_obs"] == "1\n"
    assert turn(env, "echo 1")[2]["eval_obs"] == "2\n"
    begin(env, "leak")
    assert turn(env, "echo 1")[2]["eval_obs"] == "1\n"


def test_environment_variables(env):
    begin(env, "environment")
    observation, reward, info = turn(env, "env")
    names = {line.partition("=")[0] for line in observation.splitlines()}
    assert names == {
        *("PATH", "HOME", "HOSTNAME", "script", "file_system_version"),
        *("PWD", "SHLVL", "_"),
    }
    assert "file_system_version=9\n" in observation and "SHLVL=0\n" in observation
    assert observation != info["eval_obs"], "the containers have different names"
    assert 0.9 < reward < 1.0


def test_skip_and_submit(env):
    begin(env, "nothing")
    assert env.step("skip")[1:3] == (0.0, True)
    begin(env, "nothing")
    assert env.step("submitted words")[2] is True


@pytest.mark.parametrize("fields", [{"gold": ()}, {"setup": "true"}, {"files": {"a": "b"}}])
def test_tasks_that_2023_did_not_have(make, fields):
    with pytest.raises(TaskError, match=f"'{next(iter(fields))}'"):
        make([Task("0", "q", **{"gold": ("true",), **fields})])
