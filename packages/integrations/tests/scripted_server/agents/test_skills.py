"""Skills: what is refused, what an agent is told and finds, and what a run records of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.agents import skills
from intercode.cli.main import main
from intercode.errors import UsageError
from intercode.models.base import Message
from intercode.models.scripted import Line
from intercode.records import read_episodes
from intercode_integrations.testing import ScriptedServer
from sources import ROOT

EXAMPLE = ROOT / "examples/skills/ledger-totals"
FRONT = "name: greet\ndescription: How to greet.\n"
BODY = "Say `hello` twice, as [the script](scripts/greet.sh) does."
BASH = [{"task_id": "greet", "query": "greet", "gold": "echo hello hello"}]
Break = Callable[[Path], object]


def make(folder: Path, front: str = FRONT, body: str = BODY) -> Path:
    home = folder / "greet"
    (home / "scripts").mkdir(parents=True)
    (home / "scripts/greet.sh").write_text("echo hello hello\n")
    (home / "SKILL.md").write_text(f"---\n{front}---\n\n{body}\n")
    return home


def say(text: str) -> Break:
    return lambda home: (home / "SKILL.md").write_text(text)


def front(text: str) -> Break:
    return say(f"---\n{text}\n---\nbody")


def body(text: str) -> Break:
    return say(f"---\n{FRONT}---\n{text}")


def link(target: str, at: str = "notes.md") -> Break:
    return lambda home: (home / at).symlink_to(target)


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    return make(tmp_path)


def test_a_skill_is_read(tmp_path: Path) -> None:
    more = "license: MIT\nallowed-tools: Bash(git:*) Read\nmetadata:\n  author: us\nversion: 1\n"
    found = skills.read(make(tmp_path, FRONT + more))
    assert (found.name, found.description, found.body) == ("greet", "How to greet.", BODY)
    assert found.fields["allowed-tools"] == "Bash(git:*) Read"
    assert found.fields["metadata"] == {"author": "us"}
    assert found.fields["version"] == 1, "what other clients have added is no error"


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (lambda home: (home / "SKILL.md").unlink(), "it has no SKILL.md"),
        (say("no front matter"), "does not begin with front matter"),
        (front("name: [greet"), "not YAML"),
        (front("- greet"), "must be fields with values"),
        (front("description: x"), "'name' must be"),
        (front("name: Greet\ndescription: x"), "'name' must be"),
        (front("name: -greet\ndescription: x"), "'name' must be"),
        (front("name: gre--et\ndescription: x"), "'name' must be"),
        (front(f"name: {'g' * 65}\ndescription: x"), "'name' must be"),
        (front("name: meet\ndescription: x"), "the folder's name is 'greet'"),
        (front("name: greet"), "'description' must be a text"),
        (front("name: greet\ndescription: ' '"), "'description' must be a text"),
        (front(f"name: greet\ndescription: {'x' * 1025}"), "more than 1024 characters"),
        (front(f"{FRONT}compatibility: {'x' * 501}"), "more than 500 characters"),
        (front(f"{FRONT}license: 1"), "'license' must be a text"),
        (front(f"{FRONT}metadata: x"), "'metadata' must be fields with values"),
        (front(f"{FRONT}allowed-tools: 1"), "'allowed-tools' must be a text"),
        (body(""), "no instructions"),
        (body("x" * 65_536), "and at most 65,536 go to a model"),
        (body("[a](references/none.md)"), "there is no such file"),
        (body("[a](../greet.md)"), "points out of the folder, where"),
        (body("[a](/etc/passwd)"), "points out of the folder, where"),
        (body("![a](scripts/%2e%2e/../../x.png)"), "points out of the folder, where"),
        (link("/etc/passwd"), "'notes.md' leads out of it"),
        (link("../../etc", at="etc"), "'etc' leads out of it"),
        (lambda home: os.mkfifo(home / "pipe"), "'pipe' is neither a file"),
        (lambda home: (home / "SKILL.md").write_bytes(b"---\n\xff"), "cannot be read"),
    ],
)
def test_what_is_no_skill_is_refused(skill: Path, breaks: Break, says: str) -> None:
    breaks(skill)
    with pytest.raises(UsageError) as refused:
        skills.read(skill)
    assert says in str(refused.value)
    assert str(skill) in str(refused.value)


def test_a_skill_has_bounds(skill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "SIZE", 10)
    with pytest.raises(UsageError, match="MiB"):
        skills.read(skill)
    monkeypatch.setattr(skills, "FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        skills.read(skill)
    with pytest.raises(UsageError, match="no such folder"):
        skills.read(skill / "none")


def test_links_that_are_no_files_and_links_within_are_taken(skill: Path) -> None:
    (skill / "notes.md").symlink_to("scripts/greet.sh")
    more = (
        "[a](https://x.org/y) [b](#part) [c](scripts/greet.sh#L1) [d](mailto:a@b.c) [e](notes.md)"
    )
    body(f"{more}\n\n```\n[no](link.md)\n```\n\n`[no](link.md)`")(skill)
    assert skills.read(skill).name == "greet"


def test_a_digest_is_of_content_and_of_nothing_else(skill: Path, tmp_path: Path) -> None:
    before = skills.read(skill)
    copy = Path(shutil.copytree(skill, tmp_path / "copy/greet"))
    os.utime(copy / "SKILL.md", (1, 1))
    assert skills.read(copy).digest == before.digest
    assert skills.read(copy).layer() == before.layer()
    (copy / "scripts/greet.sh").chmod(0o755)
    executable = skills.read(copy).digest
    (copy / "scripts/greet.sh").write_text("echo bye\n")
    assert len({before.digest, executable, skills.read(copy).digest}) == 3


def test_it_is_where_the_agent_looks_cannot_be_written_and_does_not_count(skill: Path) -> None:
    read = skills.read(skill)
    layers = [str(read.layer()), str(read.layer("/root/.claude/skills"))]
    tasks = intercode.Dataset([intercode.Task("t", query="q", gold=["echo hello hello"])])
    with intercode.make("bash", data=tasks, layers=layers) as env:
        assert isinstance(env, intercode.InterCodeEnv)
        env.reset()
        found = env.step("cat /skills/greet/SKILL.md ~/.claude/skills/greet/SKILL.md")[0]
        assert found.count("How to greet.") == 2
        for action in (
            "echo x >> /skills/greet/SKILL.md",
            "rm -f /skills/greet/scripts/greet.sh",
            "touch /skills/greet/new",
        ):
            assert env.step(action)[4]["exit_code"] == 1, action
        env.step("sh /skills/greet/scripts/greet.sh")
        assert env.workspace.changes() == []
        assert env.step("submit")[1] == 1.0
        assert env.episode.metadata["image"] == "host", "it is no part of the task's image"


def test_nothing_is_laid_over_a_place_without_files(skill: Path) -> None:
    with pytest.raises(UsageError, match="layers"):
        intercode.make("sql", layers=[str(skills.read(skill).layer())])


# From the command line


def offered(messages: Any) -> bool:
    return "greet: How to greet." in messages[0].content


def script(messages: Any) -> Line:
    """Read the skill if it is offered, and do what it says; else guess."""
    spoken = sum(message.role == "assistant" for message in messages)
    last = messages[-1].content
    if offered(messages) and spoken == 0:
        return Line("```bash\ncat /skills/greet/SKILL.md\n```")
    if "Say `hello` twice" in last:
        return Line("```bash\nsh /skills/greet/scripts/greet.sh\n```")
    return Line("submit" if spoken else "```bash\necho hello\n```")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "sk-0123456789")
    Path("tasks.json").write_text(json.dumps(BASH))
    with ScriptedServer(script) as running:
        yield running


def play(
    server: ScriptedServer,
    *options: str,
    env: str = "bash",
    agent: str = "try-again",
    code: int = 0,
) -> dict[str, Any]:
    model = ["--model", "openai-compatible/test", "--base-url", server.url]
    data = ["--data", "tasks.json"] if env == "bash" else []
    command = ["run", env, *data, "--agent", agent, *model, "--quiet", "--out", "run", *options]
    assert main(command) == code
    return json.loads(Path("run/run.json").read_text()) if code == 0 else {}


def system(server: ScriptedServer) -> str:
    return str(server.exchanges[-1].body["messages"][0]["content"])


def test_name_and_description_are_told_and_the_rest_is_read_by_an_action(
    server: ScriptedServer, skill: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = play(server, "--skill", str(skill))
    assert "- greet: How to greet. (/skills/greet/SKILL.md)" in system(server)
    assert "Say `hello` twice" not in system(server)
    (episode,) = read_episodes(Path("run/episodes.jsonl"))
    assert episode.success
    assert [turn.action for turn in episode.turns] == [
        "cat /skills/greet/SKILL.md",
        "sh /skills/greet/scripts/greet.sh",
    ]
    assert manifest["agent"]["skills"] == {"greet": skills.read(skill).digest}
    assert manifest["sessions"][0]["options"]["skill"] == [str(skill)]
    capsys.readouterr()
    assert main(["rescore", "--trust", "run", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["success_rate"] == 1.0


def test_a_run_is_not_resumed_with_a_skill_that_has_changed(
    server: ScriptedServer, skill: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "--skill", str(skill))
    play(server, "--skill", str(skill), "--epochs", "2")
    (skill / "scripts/greet.sh").write_text("echo bye\n")
    play(server, "--skill", str(skill), "--epochs", "3", code=2)
    assert "skills" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--skill", "none"], "there is no such folder"),
        (["--skill", "greet", "--skill", "./greet"], "two skills are called 'greet'"),
    ],
)
def test_a_wrong_skill_is_refused_before_anything_is_run(
    server: ScriptedServer,
    skill: Path,
    options: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(server, *options, code=2)
    assert says in capsys.readouterr().err
    assert not server.exchanges
    assert not Path("run").exists()


def test_an_agent_that_reads_nothing_takes_no_skill(
    skill: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "bash", "--agent", "oracle", "--skill", str(skill)]) == 2
    assert "--skill" in capsys.readouterr().err


@pytest.mark.parametrize(("env", "agent"), [("sql", "try-again"), ("bash", "single-turn")])
def test_where_it_cannot_be_read_all_of_it_is_told(
    server: ScriptedServer, skill: Path, env: str, agent: str
) -> None:
    play(server, "--skill", str(skill), "--limit", "1", env=env, agent=agent)
    first = server.exchanges[0].body["messages"][0]["content"]
    assert "# greet\n\nHow to greet.\n\nSay `hello` twice" in first
    assert "/skills/" not in first


def test_python_reads_it_too(server: ScriptedServer, skill: Path) -> None:
    def reads(messages: list[Message]) -> Line:
        spoken = sum(message.role == "assistant" for message in messages)
        read = "```python\nprint(open('/skills/greet/SKILL.md').read())\n```"
        return Line("submit" if spoken else read)

    server.script = reads  # type: ignore[assignment]
    play(server, "--skill", str(skill), "--limit", "1", env="python")
    (episode,) = read_episodes(Path("run/episodes.jsonl"))
    assert "Say `hello` twice" in episode.turns[0].observation


def test_an_agent_of_a_readers_own_finds_it(skill: Path, server: ScriptedServer) -> None:
    Path("mine.py").write_text(
        "class Agent:\n"
        "    def act(self, observation, history):\n"
        "        return 'submit' if history else 'sh /skills/greet/scripts/greet.sh'\n\n"
        "def make(task):\n    return Agent()\n"
    )
    command = ["run", "bash", "--data", "tasks.json", "--agent", "mine.py:make", "--quiet"]
    assert main([*command, "--skill", str(skill), "--out", "run"]) == 0
    (episode,) = read_episodes(Path("run/episodes.jsonl"))
    assert episode.success
    assert list(json.loads(Path("run/run.json").read_text())["agent"]["skills"]) == ["greet"]
