"""Harbor's task folders under our runner: no part of Harbor is needed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from envs.conftest import port as port
from intercode.cli.main import main
from intercode_integrations.harbor.folder_env import HarborEnv
from sandbox import rootfs
from sandbox.layouts import layout
from sandbox.local_registry import push, serving

TESTS = """#!/bin/bash
echo looking
if [ "$(cat fruit)" = "$WANTED" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
CONFIG = """
schema_version = "1.4"
[task]
name = "tests/one"
keywords = ["sweet"]
[metadata]
difficulty = "easy"
tags = ["fruit"]
[verifier]
env = {WANTED = "apples"}
[environment]
workdir = "/srv"
"""
PROGRAMS = f"{rootfs.PROGRAMS} bash tar gzip base64 xargs rmdir test stat true date readlink sleep"
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Write a task folder, with other files where they are given, and return it."""

    def write(name: str = "one", **files: str | None) -> Path:
        given: Mapping[str, str | None] = {
            "instruction": "<!-- a canary: 7 -->\n\nWrite apples to fruit.\n",
            "task": CONFIG,
            "dockerfile": "FROM host\n",
            "tests": TESTS,
            "solve": "#!/bin/bash\ncat /solution/data/fruit > fruit\n",
            "fruit": "apples\n",
            **files,
        }
        places = {
            "instruction": "instruction.md",
            "task": "task.toml",
            "dockerfile": "environment/Dockerfile",
            "tests": "tests/test.sh",
            "solve": "solution/solve.sh",
            "fruit": "solution/data/fruit",
        }
        for key, text in given.items():
            path = tmp_path / "tasks" / name / places.get(key, key)
            if text is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return tmp_path / "tasks" / name

    return write


def opened(folder: Path, **options: Any) -> HarborEnv:
    env = intercode.make(f"harbor:{folder}", **options).unwrapped
    assert isinstance(env, HarborEnv)
    return env


def played(folder: Path, *actions: str, **options: Any) -> intercode.Episode:
    """Play the actions and a submit."""
    with closing(opened(folder, **options)) as env:
        env.reset()
        for action in (*actions, "submit"):
            env.step(action)
        return env.episode


def reward(folder: Path, *actions: str, **options: Any) -> float:
    score = played(folder, *actions, **options).score
    assert score is not None
    return score.value


def test_a_run_of_folders(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    """The oracle solves all that can be tried, and the run can be reported and resumed."""
    shares = '#!/bin/bash\necho \'{"speed": 1, "size": 0.5}\' > /logs/verifier/reward.json\n'
    folder("one")
    folder("shares", tests=shares)
    folder("stages", task=f"{CONFIG}\n[[steps]]\nname = 'first'\n")
    folder("windows", task=CONFIG.replace("[environment]", "[environment]\nos = 'windows'"))
    folder("several", **{"environment/docker-compose.yaml": "services: {}\n"})
    folder("apart", task=CONFIG.replace("[verifier]", "[verifier]\nenvironment_mode='separate'"))
    address, out = f"harbor:{tmp_path}/tasks", tmp_path / "run"
    assert main(["run", address, "--agent", "oracle", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["statistics"]
    assert (told["episodes"], told["mean_reward"]) == (2, (1.0 + 0.75) / 2)
    session = json.loads((out / "run.json").read_text())["sessions"][0]
    assert session["options"]["data"] == address
    assert main(["resume", "--trust", str(out)]) == 0 and main(["report", str(out)]) == 0
    excluded = json.loads((out / "run.json").read_text())["excluded"]
    assert excluded == {
        "apart": "its tests need a container of their own",
        "several": "it needs several containers (docker-compose)",
        "stages": "it has several steps",
        "windows": "it is for windows",
    }
    with closing(opened(tmp_path / "tasks")) as env, pytest.raises(intercode.TaskError) as caught:
        env.check(env.dataset["stages"])
    assert "'stages' cannot run here: it has several steps" in str(caught.value)


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Our tasks, exported to such folders, are solved by gold, and not by doing nothing."""
    out = tmp_path / "out"
    asked = ["datasets", "export", "bash", "--to", "harbor", "--out", str(out), "--limit", "4"]
    assert main([*asked, "--quiet"]) == 0
    for agent, share in (("oracle", 1.0), ("noop", 0.0)):
        capsys.readouterr()
        asked = ["run", f"harbor:{out}", "--agent", agent, "--out", str(tmp_path / agent)]
        assert main([*asked, "--quiet", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["statistics"]
        assert (told["episodes"], told["mean_reward"]) == (4, share)


def test_gold_is_validated(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"harbor:{folder()}"]) == 0
    assert main(["validate", f"harbor:{folder(solve='#!/bin/bash')}"]) == 1
    assert "gold scores 0.00" in capsys.readouterr().out


def test_the_agents_view(folder: Folder) -> None:
    """Where it begins, with what, and that nothing of what decides is there."""
    config = f'{CONFIG}memory_mb = 300\nenv = {{PLACE = "${{NO_SUCH:-a b}}"}}\n'
    with closing(opened(folder(task=config))) as env:
        query, info = env.reset()
        assert (query, info["tags"]) == ("Write apples to fruit.", ("sweet", "fruit", "easy"))
        assert env.step('echo "$PLACE" "$WANTED"; pwd; ls -d /logs/*')[0] == (
            "a b \n/srv\n/logs/agent\n/logs/artifacts\n/logs/verifier\n"
        )
        seen = env.step("ls /tests /solution; grep -rl apples /srv /tmp /logs /root; env")[0]
        assert "apples" not in seen and seen.count("No such file") == 2
        assert env.workspace.limits.memory == 300 << 20
        assert str(env.dataset.source) not in env.step("cat /proc/mounts")[0]
        assert env.dataset[0].shown().metadata == {}


HOST = {
    "a reward from before": "echo 1 > /logs/verifier/reward.txt",
    "a reward that comes first": "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "a process that waits": "(while :; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; "
    "done) > /dev/null 2>&1 &",
    "tests from before": "mkdir /tests; "
    "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod -R 555 /tests",
    "tests elsewhere": "mkdir /srv/t; ln -s /srv/t /tests",
    "logs elsewhere": "rm -r /logs; mkdir -p /srv/l/verifier; ln -s /srv/l /logs; "
    "echo '{\"reward\": 1}' > /srv/l/verifier/reward.json",
    "logs that are a file": "rm -r /logs; echo 1 > /logs",
    "its start-up files": "echo 'cat() { echo apples; }; export -f cat' > ~/.bashrc",
    "a variable": "export WANTED= BASH_ENV=/srv/x; echo 'cat() { :; }' > /srv/x",
    "a bash": "mkdir /srv/b; printf '#!/usr/bin/bash\\n"
    "echo 1 > /logs/verifier/reward.txt\\n' > /srv/b/bash; chmod 755 /srv/b/bash; "
    "rm /bin && mv /srv/b /bin",
}


@pytest.mark.parametrize("attack", HOST.values(), ids=HOST)
def test_attacks(folder: Folder, attack: str) -> None:
    assert reward(folder(), attack) == 0.0


FORGED = "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /x; chmod 755 /x; "
SYSTEM = {
    "the shell itself": f"{FORGED} rm /bin/bash; cp /x /bin/bash",
    "a link in its place": f"{FORGED} ln -sf /x /bin/bash",
    "a program": "printf '#!/bin/sh\\necho apples\\n' > /x; chmod 755 /x; cp /x /bin/cat",
    "one that is found first": "mkdir -p /usr/local/bin; printf '#!/bin/sh\\necho apples\\n' > "
    "/usr/local/bin/cat; chmod 755 /usr/local/bin/cat",
    "a library for all": "echo /nowhere/lib.so > /etc/ld.so.preload",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of an image in which every file can be written."""
    return rootfs.write(tmp_path_factory.mktemp("root") / "rootfs.tar", PROGRAMS)


@pytest.fixture
def writable(folder: Folder, root: Path) -> Path:
    path = folder(dockerfile="FROM ./rootfs.tar\nENV PATH=/usr/local/bin:/bin\nWORKDIR /srv\n")
    shutil.copy(root, path / "environment")
    return path


@pytest.mark.parametrize("attack", SYSTEM.values(), ids=SYSTEM)
def test_programs_are_those_of_the_image(writable: Path, attack: str) -> None:
    """Who changes them gains nothing, and loses nothing of honest work."""
    assert reward(writable, attack) == 0.0
    episode = played(writable, "echo apples > fruit", attack)
    assert episode.score is not None and episode.score.value == 1.0, episode.score
    assert episode.score.detail["output"] == "looking\n"


def test_programs_that_the_solution_changes_are_left(writable: Path) -> None:
    """And so are new ones, whoever installs them."""
    (writable / "tests/test.sh").write_text(
        "#!/bin/bash\n[ $(find) = found ] && [ $(another) = ran ] && r=1\n"
        "echo ${r:-0} > /logs/verifier/reward.txt\n"
    )
    makes = "#!/bin/bash\nprintf '#!/bin/sh\\necho {}\\n' > /bin/{}; chmod 755 /bin/{}\n"
    (writable / "solution/solve.sh").write_text(makes.format("found", "find", "find"))
    right, other = (
        makes.format(*names) for names in (("found", "find", "find"), ("ran", "another", "another"))
    )
    assert reward(writable, right, other) == 1.0
    assert reward(writable, right) == 0.0


def test_tests_without_a_reward(folder: Folder) -> None:
    """They are an error, unless it is the agent who has kept them from it."""
    for silent in (
        "exit 0", "echo many > /logs/verifier/reward.txt", "echo NaN > $_/reward.json",
        "printf %01000d 9 > $_/reward.json", "printf %0100000d 0 | tr 0 [ > $_/reward.json",
        "printf 9%.0s {1..400} > $_/reward.json", "truncate -s 2M $_/reward.json",
        "truncate -s 2M $_/reward.txt", "mkdir $_/reward.json", "mkfifo $_/reward.json",
        "ln -s . $_/reward.json; ln -s loop loop; ln -sf loop $_/reward.txt",
    ):  # fmt: skip
        with pytest.raises(intercode.RewardError, match="'one': its tests left no reward: "):
            played(folder(tests=f"#!/bin/bash\nmkdir -p /logs/verifier\n{silent}\n"))
    needs = "#!/bin/bash\nset -e\n. /etc/profile.d/needed\necho 1 > /logs/verifier/reward.txt\n"
    image = "FROM host\nRUN mkdir -p /etc/profile.d && echo true > /etc/profile.d/needed\n"
    path = folder(tests=needs, dockerfile=image)
    assert reward(path) == 1.0
    score = played(path, "rm /etc/profile.d/needed").score
    assert score is not None and score.value == 0.0 and "no reward" in score.detail["reason"]
    slow = CONFIG.replace("[verifier]", "[verifier]\ntimeout_sec = 0.5")
    path = folder(
        task=slow, tests=f"{TESTS}[ ! -e /srv/wait ] || {{ rm /logs/verifier/*; sleep 99; }}\n"
    )
    assert reward(path, "echo apples > fruit; touch wait") == 0.0


def test_an_agent_that_makes_the_tests_write_too_much(folder: Folder) -> None:
    """The agent gets 0 with the reason, and has not ended the sandbox."""
    path = folder(tests=f"{TESTS}[ ! -e more ] || truncate -s 2M /logs/verifier/reward.json\n")
    score = played(path, "echo apples > fruit; touch more").score
    assert score is not None and score.value == 0.0
    assert "reward.json holds more than" in score.detail["reason"] and "ended" not in score.detail


def test_tests_that_work_no_longer_are_no_reward_of_0(folder: Folder) -> None:
    """As where a server is gone that they need: it worked for an agent before."""
    needs = "#!/bin/bash\n. /tests/server && [ ! -e gone ] && echo 1 > /logs/verifier/reward.txt\n"
    path = folder(tests=needs, **{"tests/server": "true\n"})
    with closing(opened(path)) as env:
        env.reset()
        env.step("touch gone")
        assert env.step("submit")[1] == 0.0
        (path / "tests/server").unlink()
        env.reset()
        with pytest.raises(intercode.RewardError, match="its tests left no reward"):
            env.step("submit")


def test_every_turn_can_be_scored(folder: Folder) -> None:
    with closing(opened(folder(), reward_every_turn=True)) as env:
        env.reset()
        rewards = [env.step(action)[1] for action in ("sleep 99 & ls", "echo apples > fruit")]
        assert rewards == [0.0, 1.0]
        assert env.step("ls -d /tests /srv/fruit")[0].endswith("\n/srv/fruit\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="not for an ordinary user: there is no other user")
def test_users(folder: Folder) -> None:
    """The agent's cannot write where the verifier's can; both can write their logs."""
    image = (
        "FROM host\nRUN echo 'app:x:1000:1000::/srv:/bin/bash' >> /etc/passwd && chmod 777 /srv\n"
    )
    users = CONFIG.replace("[verifier]", '[agent]\nuser = "app"\n[verifier]\nuser = 1001')
    tests = TESTS.replace("echo looking", "id -u")
    with closing(opened(folder(task=users, dockerfile=image, tests=tests))) as env:
        env.reset()
        assert env.step("id -u; touch /logs/agent/x /root/x")[0].startswith("1000\ntouch: cannot")
        env.step(env.dataset[0].gold[0])
        assert env.step("submit")[1] == 1.0
        assert env.episode.score is not None
        assert env.episode.score.detail["output"] == "1001\n"
    # Root may do what it may in a container.
    path = folder(dockerfile=image)
    assert played(path, "chown app . && stat -c %U .").turns[0].observation == "app\n"
    assert played(path, "chown app .", capabilities="kill").turns[0].ok is False
    with pytest.raises(intercode.TaskError, match="its agent's user"):
        played(folder(task=users))
    # A verifier's user that an agent has removed is no error, but one that never was is.
    users = CONFIG.replace("[verifier]", '[verifier]\nuser = "app"')
    path = folder(task=users, dockerfile=image)
    assert reward(path, "echo apples > fruit; sed -i /^app/d /etc/passwd") == 0.0
    with pytest.raises(intercode.RewardError):
        played(folder(task=users, dockerfile="FROM host\n"))


def test_the_network_of_each_phase(folder: Folder, port: int) -> None:
    """What the task asks for, as far as the caller allows it; the tests may have more."""
    connect = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null"
    tests = f"#!/bin/bash\n{connect}; echo $((! $?)) > /logs/verifier/reward.txt\n"
    phases = CONFIG.replace("[environment]", '[environment]\nnetwork_mode = "no-network"')
    phases = phases.replace("[verifier]", '[verifier]\nnetwork_mode = "public"')
    path = folder(task=phases, tests=tests)
    episode = played(path, f"{connect} || echo none", network=f"127.0.0.1:{port}")
    assert episode.turns[0].observation == "none\n"
    assert episode.reward == 1.0
    assert reward(path) == 0.0
    listed = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org", "*.b.org"]'
    path = folder(task=CONFIG.replace("[environment]", listed))
    for network, reached in (
        (False, False),
        (True, ["a.org", "*.b.org"]),
        (["a.org", "c.org"], ["a.org"]),
    ):
        with closing(opened(path, network=network)) as env:
            assert env.stage.reach(env.dataset[0]) == reached  # type: ignore[attr-defined]
    path = folder(task=CONFIG.replace("[environment]", listed.replace("a.org", "10.0.0.0/8")))
    assert "allowed_hosts" in intercode.load_dataset(f"harbor:{path}")[0].metadata["cannot"]


def test_a_healthcheck_is_awaited(folder: Folder) -> None:
    health = f"{CONFIG}[environment.healthcheck]\ninterval_sec = 0.01\ncommand = "
    waits = '"echo x >> /tmp/x; [ $(wc -l < /tmp/x) = 2 ]"'
    with closing(opened(folder(task=health + waits))) as env:
        env.reset()
        assert env.step("cat /tmp/x")[0] == "x\nx\n"
    with pytest.raises(intercode.TaskError, match="'one': its healthcheck fails: sick"):
        played(folder(task=f'{health}"echo sick; false"'))


def test_an_image_of_a_registry(
    folder: Folder, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that come beside it are laid into its directory."""
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    settings = {"Env": ["PATH=/bin", "A=1"], "WorkingDir": "/tmp"}
    source = layout(tmp_path / "image", [root.read_bytes()], settings, pack=bytes)
    with serving(tmp_path) as registry:
        name = f"{registry}/tests/system:1"
        push(source, name)
        config = CONFIG.replace('workdir = "/srv"', f'docker_image = "{name}"')
        path = folder(task=config, dockerfile=None, **{"environment/given": "pears\n"})
        episode = played(path, "echo $A; pwd; cat given", "echo apples > fruit")
        assert episode.turns[0].observation == "1\n/tmp\npears\n" and episode.reward == 1.0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"task": "["}, "task.toml: "),
        ({"task": "[agent]\ntimeout_sec = 'long'\n"}, "task.toml: .*timeout_sec"),
        ({"task": "[environment]\nmemory = 'much'\n"}, "'much' is not a size"),
    ],
)
def test_what_is_malformed(folder: Folder, files: dict[str, str], message: str) -> None:
    with pytest.raises(intercode.TaskError, match=message):
        intercode.load_dataset(f"harbor:{folder(**files)}")


def test_what_is_missing(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(intercode.TaskError, match="neither a task folder of Harbor"):
        intercode.make(f"harbor:{tmp_path}")
    path = folder(task=f'{CONFIG}env = {{KEY = "${{A_KEY}}"}}\n')
    with closing(opened(path, variables=["A_KEY"])) as env:
        with pytest.raises(intercode.TaskError, match=r"'KEY' needs .*, which is not set here"):
            env.check(env.dataset[0])
        monkeypatch.setenv("A_KEY", "7")
        with (
            closing(opened(path, variables=["OTHER"])) as other,
            pytest.raises(intercode.TaskError, match=r"the command names .*A_KEY"),
        ):
            other.check(other.dataset[0])
        env.check(env.dataset[0])
        env.reset()
        assert env.step("echo $KEY")[0] == "7\n"
    (path / "tests" / "out").symlink_to("/etc/passwd")
    with pytest.raises(intercode.TaskError, match="tests/out: a symbolic link that points out of "):
        intercode.load_dataset(f"harbor:{path}")
    (path / "tests" / "out").unlink()
    secret = folder(task=f'{CONFIG}[solution.env]\nKEY = "${{A_KEY}}"\n')
    assert intercode.load_dataset(f"harbor:{secret}")[0].gold == ()
