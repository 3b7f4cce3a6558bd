"""Agents from outside: a program in the sandbox that asks its model through the run's gateway."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.cli.main import main
from intercode.envs.swe import apply_patch
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.models import Message
from intercode.models.prices import ModelPrices
from intercode.models.scripted import Line
from intercode.records import Outcome, read_episodes
from intercode.tool_calls import ToolCall
from intercode_integrations.external_agents.profile import (
    NO_MODEL,
    TurnExtractionRules,
    find_profile,
)
from intercode_integrations.external_agents.rebuilt_turns import read_action, rebuild_turns
from intercode_integrations.gateway import Call
from intercode_integrations.testing import ScriptedServer, shell
from intercode_integrations.testing.server import Fault, status

KEY = "sk-very-secret-0123456789"
TINY = Path(__file__).with_name("tiny.py")
AGENT = "cli:python3 /opt/tiny.py {query}"
GOLD = "echo 42 > /root/answer; echo made"
TASK = {"task_id": "make", "query": "Make the answer.", "gold": [GOLD]}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The host's image with the tiny agent in it."""
    layer = tmp_path_factory.mktemp("layer") / "agent.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(TINY, "opt/tiny.py")
    return f"host+{layer}"


Play = Callable[..., Episode]


@pytest.fixture
def play(
    server: ScriptedServer, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Play:
    """Run an agent over one task by the command line, with a model that says these lines."""
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)

    def run(
        *lines: Line | str,
        options: Sequence[str] = (),
        agent: str = AGENT,
        task: Mapping[str, Any] = TASK,
        env: str = "bash",
        code: int = 0,
        out: str = "run",
        model: str = "openai-compatible/test",
    ) -> Episode:
        server.script = script(*lines)
        server.exchanges.clear()
        data = tmp_path / "tasks.json"
        data.write_text(json.dumps([task]))
        args = ["run", env, "--data", str(data), "--out", str(tmp_path / out), "--quiet"]
        args += ["--agent", agent, "--model", model]
        args += [] if model == NO_MODEL else ["--base-url", server.url]
        assert main([*args, "--image", image, *options]) == code
        return next(read_episodes(tmp_path / out / "episodes.jsonl"))

    return run


def script(*lines: Line | str) -> Callable[[Sequence[Message]], Line]:
    """Say the lines in order, the last one again and again; a text is a command."""
    said = [shell(line) if isinstance(line, str) else line for line in lines] or [Line("Done.")]

    def say(messages: Sequence[Message]) -> Line:
        spoken = sum(message.role == "assistant" for message in messages)
        return said[min(spoken, len(said) - 1)]

    return say


def actions(episode: Episode) -> list[tuple[str, str]]:
    return [(turn.action, turn.observation) for turn in episode.turns]


def test_a_command_solves_a_task_and_all_commands_read_its_record(
    play: Play, server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episode = play("pwd", shell(GOLD, "I make it."), Line("Done."))
    assert episode.success and episode.status == "submitted" and episode.error is None
    assert actions(episode) == [("pwd", "/root\n"), (GOLD, "made\n")]
    assert episode.metadata["outside"]["exit_code"] == 0
    assert episode.metadata["outside"]["output"] == "Done.\n"
    assert episode.metadata["model"]["calls"][1]["thought"] == "I make it."
    # Tokens are those that the server has counted.
    outcome = Outcome.from_episode(episode)
    assert outcome.calls == len(server.exchanges) == 3
    assert (outcome.tokens_in or 0) + (outcome.tokens_out or 0) == server.usage.total
    run = str(tmp_path / "run")
    capsys.readouterr()
    assert main(["show", run]) == 0
    told = capsys.readouterr().out
    assert "echo made" in told and "I make it." in told
    assert main(["report", run]) == 0
    assert main(["export", run, "--to", "chat", "--out", str(tmp_path / "chat.jsonl")]) == 0
    assert main(["rescore", "--trust", run, "--quiet", "--json"]) == 0
    record = (tmp_path / "run" / "episodes.jsonl").read_text() + told
    assert KEY not in record


def test_the_agent_works_in_the_repository_of_an_issue(play: Play, tmp_path: Path) -> None:
    task = intercode.load_dataset("swe")[0]
    data = ["--data", "swe", "--task", task.task_id]
    episode = play(apply_patch(task.gold[0]), Line("Done."), env="swe", options=data)
    assert episode.success and len(episode.turns) == 1


def test_a_program_that_fails_has_made_an_attempt(play: Play) -> None:
    failing = "cli:bash -c 'python3 /opt/tiny.py x; echo 42 > /root/answer; echo oh no; exit 3'"
    episode = play(agent=failing, task={**TASK, "verification": "test -e /root/answer"})
    assert episode.success and not episode.turns
    assert episode.metadata["outside"]["exit_code"] == 3
    assert episode.metadata["outside"]["output"] == "Done.\noh no\n"


def test_a_program_without_a_model_has_made_an_attempt(play: Play, tmp_path: Path) -> None:
    alone = f"cli:bash -c '{GOLD}; env | grep -c OPENAI; exit 3'"
    task = {**TASK, "verification": "test -e /root/answer"}
    episode = play(agent=alone, task=task, model=NO_MODEL)
    assert episode.success and episode.metadata["outside"]["exit_code"] == 3
    assert episode.metadata["outside"]["output"] == "made\n0\n" and "model" not in episode.metadata
    facts = json.loads((tmp_path / "run/run.json").read_text())["agent"]["language_model"]
    assert "model" not in facts
    assert main(["report", str(tmp_path / "run")]) == main(["show", str(tmp_path / "run")]) == 0


UNASKED = [
    ("true", (), "exit code 0; no output"),
    ("bash -c 'echo oh no >&2; exit 3'", (), "exit code 3; the end of its output:\noh no"),
    ("no-such-program", (), "cannot be started"),
    ("sleep 1000", ("--episode-seconds", "0.5"), "it was killed (ended by: seconds)"),
    ("bash -c 'kill -9 -1; sleep 1000'", ("--episode-seconds", "5"), "did not call its model"),
    ("curl -s -d {{}} {url_v1}/nothing", (), "refused with 401"),
    ("curl -s -H 'x-api-key: {token}' -d {{}} {url_v1}/nothing", (), "refused with 404"),
]


@pytest.mark.parametrize(("command", "options", "reason"), UNASKED)
def test_a_model_that_was_not_asked_makes_no_score(
    play: Play, server: ScriptedServer, command: str, options: tuple[str, ...], reason: str
) -> None:
    """Neither is it the model's failure, nor that of the agent that it would have played."""
    options = (*options, "--retries", "1")
    episode = play(agent=f"cli:{command}".replace("{{}}", "{}"), options=options, code=1)
    assert not server.exchanges and (episode.status, episode.score) == ("error", None)
    assert episode.metadata["error_type"] == "AgentStartError"
    assert episode.metadata["attempts"] == 2, "as after any failure of the infrastructure"
    assert reason in str(episode.error)


def test_a_gate_that_fails_makes_no_score(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("there is no h11")

    monkeypatch.setattr("intercode_integrations.gateway.gateway.ClientConnection", fail)
    episode = play("true", options=["--retries", "0"], code=1)
    assert episode.score is None and "RuntimeError: there is no h11" in str(episode.error)


def test_a_port_in_use_makes_no_score(play: Play) -> None:
    serve = "import os, socket; s = socket.create_server(('127.0.0.1', 8080))"
    task = {**TASK, "setup": f'python3 -c "{serve}; os.fork() or s.accept()"'}
    episode = play(task=task, options=["--retries", "0"], code=1)
    assert episode.score is None and "port 8080" in str(episode.error)


def test_a_model_that_refuses_every_call_makes_no_score(play: Play, server: ScriptedServer) -> None:
    server.plan = lambda _: status(400)
    try:
        episode = play("true", code=1)
    finally:
        server.plan = lambda _: None
    assert episode.score is None and episode.metadata["error_type"] == "ModelError"


def test_a_model_lost_half_way_makes_no_score_however_often_it_is_asked(
    play: Play, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the calls that failed have used up the limit of calls."""
    server.plan = lambda number: None if number % 100 == 0 else status(401)
    server._requests = 0
    again = "cli:bash -c 'for n in 1 2 3 4; do python3 /opt/tiny.py x; done'"
    try:
        episode = play("true", agent=again, options=["--max-turns", "2"], code=1)
    finally:
        server.plan = lambda _: None
    assert episode.metadata["error_type"] == "ModelAccessError" and episode.score is None


def test_a_hung_program_is_killed_with_all_that_it_began(play: Play) -> None:
    began = "(setsid sleep 1000 &) ; sleep 1000 & echo begun; wait"
    episode = play(
        agent=f"cli:bash -c '{began}'",
        task={**TASK, "verification": "! grep -qx sleep /proc/[0-9]*/comm"},
        options=["--episode-seconds", "0.5"],
        model=NO_MODEL,
    )
    assert episode.success and episode.metadata["ended_by"] == "seconds"
    assert episode.metadata["outside"]["exit_code"] is None
    assert episode.metadata["outside"]["output"] == "begun\n"


@pytest.mark.parametrize(
    ("option", "limit"),
    [("--max-turns", "calls"), ("--episode-tokens", "tokens")],
)
def test_a_limit_ends_the_calls_of_the_model(
    play: Play, server: ScriptedServer, option: str, limit: str
) -> None:
    episode = play("echo more", options=[option, "2" if limit == "calls" else "7"])
    assert episode.metadata["ended_by"] == limit and episode.error is None
    assert episode.status == "submitted" and 0 < len(server.exchanges) <= 3


def test_dollars_end_the_calls_of_the_model(
    play: Play, server: ScriptedServer, tmp_path: Path
) -> None:
    """The price is the reader's, the tokens are the server's, and what was reached is scored."""
    name = "openai-compatible/test"
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"models": {name: {"input": 10_000, "output": 100_000}}}))
    price = ModelPrices(prices).find(name)
    assert price is not None
    options = ["--prices", str(prices), "--episode-cost", "2"]
    episode = play(GOLD, options=options)
    assert episode.success and episode.status == "submitted" and episode.error is None
    assert episode.metadata["ended_by"] == "cost"
    assert episode.turns[0].action == GOLD
    costs = [price.compute_cost(each.usage) for each in server.exchanges if each.usage is not None]
    assert len(costs) > 1 and sum(costs[:-1]) < 2 <= sum(costs)
    assert Outcome.from_episode(episode).cost == pytest.approx(sum(costs))


def test_a_program_that_goes_on_without_its_model_is_killed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intercode_integrations.external_agents.episode_runner.GRACE", 0.1)
    stubborn = "cli:bash -c 'python3 /opt/tiny.py x; exec sleep 1000'"
    episode = play("echo more", agent=stubborn, options=["--max-turns", "1"])
    assert episode.metadata["ended_by"] == "calls"
    assert episode.metadata["outside"]["exit_code"] is None


def test_a_model_that_does_not_answer_is_no_attempt(play: Play, server: ScriptedServer) -> None:
    server.plan = lambda _: status(401)
    try:
        episode = play("true", code=1)
    finally:
        server.plan = lambda _: None
    assert episode.status == "error" and episode.score is None
    assert episode.metadata["error_type"] == "ModelAccessError"


@pytest.mark.parametrize("streamed", ["false", "true"])
def test_a_call_that_a_limit_cuts_off_says_nothing_of_the_agents_start(
    play: Play, server: ScriptedServer, streamed: str
) -> None:
    """Neither before its answer's first byte, nor in the middle of a stream."""
    never = threading.Event()
    server.plan = lambda _: Fault("slow", last_request=never)
    body = {"model": "$INTERCODE_MODEL", "messages": [{"role": "user", "content": "hi"}]}
    asked = json.dumps(body).replace("}]}", f'}}], "stream": {streamed}}}').replace('"', '\\"')
    headers = '-H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json"'
    ask = f'curl -s {headers} -d "{asked}" {{url_v1}}/chat/completions'
    try:
        episode = play(agent=f"cli:bash -c '{ask}'", options=["--episode-seconds", "5"])
    finally:
        never.set()
        server.plan = lambda _: None
    assert len(server.exchanges) == 1
    assert episode.metadata["ended_by"] == "seconds" and episode.error is None
    assert episode.reward is not None and not episode.success


def test_a_program_that_leaves_before_its_model_answers_makes_no_score(
    play: Play, server: ScriptedServer
) -> None:
    never = threading.Event()
    server.plan = lambda _: Fault("slow", last_request=never)
    leaves = "cli:bash -c 'timeout 1 python3 /opt/tiny.py x; true'"
    try:
        episode = play(agent=leaves, code=1)
    finally:
        never.set()
        server.plan = lambda _: None
    assert episode.score is None and episode.metadata["error_type"] == "ModelError"


def test_a_budget_of_the_run_stops_it(play: Play) -> None:
    episode = play("true", options=["--max-tokens", "1"], code=1)
    assert episode.status == "error" and episode.metadata["error_type"] == "BudgetError"


PROFILE = """
name = "mine"
version = "1"

[run]
command = ["python3", "/root/.mine/agent.py", "{query}"]
before = "mkdir /root/.mine/log"
env = { OPENAI_BASE_URL = "{url_v1}", OPENAI_API_KEY = "{token}", INTERCODE_MODEL = "{model}" }

[run.files]
"/root/.mine/agent.py" = '''
%s'''

[score]
ignore = ["/root/.mine", ".mine.*"]
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(PROFILE % TINY.read_text())
    return str(path)


def test_an_agent_is_added_by_a_profile_alone(play: Play, profile: str) -> None:
    episode = play(f"touch /root/.mine.log; {GOLD}", Line("Done."), agent=profile)
    assert episode.success, episode.score
    # A path that the task itself works with counts, whosever it is.
    named = {**TASK, "gold": ["echo 1 > /root/.mine.log"]}
    wrong = ("echo 2 > /root/.mine.log", Line("Done."))
    episode = play(*wrong, agent=profile, task=named, out="named")
    assert not episode.success


def test_a_profile_says_what_its_agent_needs_and_a_run_goes_before_it(
    play: Play, profile: str, tmp_path: Path
) -> None:
    Path(profile).write_text(
        Path(profile).read_text() + '[limits]\nmemory = "2G"\nprocesses = 77\n'
    )
    play(GOLD, Line("Done."), agent=profile)
    play(agent=profile, options=["--processes", "66"], out="told")
    assert main(["rescore", "--trust", str(tmp_path / "run"), "--quiet"]) == 0
    limits = [
        json.loads((tmp_path / out / "run.json").read_text())["env"]["limits"]
        for out in ("run", "told")
    ]
    assert [(one["memory"], one["processes"]) for one in limits] == [(2 << 30, 77), (2 << 30, 66)]
    assert [one["disk"] for one in limits] == [1 << 30] * 2


def test_edits_that_no_turn_tells_are_not_rescored_as_nothing(play: Play, tmp_path: Path) -> None:
    edits = f"cli:sh -c 'python3 /opt/tiny.py \"$1\"; {GOLD}' sh {{query}}"
    episode = play(agent=edits)
    assert episode.reward == 0.5 and not episode.turns  # the file, but no answer
    again_in = ["--out", str(tmp_path / "again"), "--quiet"]
    assert main(["rescore", "--trust", str(tmp_path / "run"), *again_in]) == 1
    again = next(read_episodes(tmp_path / "again" / "episodes.jsonl"))
    assert again.score is None and "agent's actions is recorded" in str(again.error)


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    home = tmp_path / "greet"
    (home / "scripts").mkdir(parents=True)
    (home / "SKILL.md").write_text("---\nname: greet\ndescription: How to greet.\n---\nRun it.\n")
    (home / "scripts/greet.sh").write_text("echo 42 > /root/answer; echo made\n")
    return home


def asked(server: ScriptedServer) -> str:
    """The task as the agent has told it to its model."""
    return str(server.exchanges[0].body["messages"][0]["content"])


WRITES = (
    "for i in 'echo x >> SKILL.md' 'touch new' 'rm SKILL.md'; do eval $i; done |& grep -c denied"
)
OFFERED = "- greet: How to greet. (/skills/greet/SKILL.md)"


def test_a_skill_is_told_of_in_the_task_and_cannot_be_written(
    play: Play, server: ScriptedServer, skill: Path, tmp_path: Path
) -> None:
    home, options = "/skills/greet", ["--skill", str(skill)]
    steps = [f"cat {home}/SKILL.md", f"cd {home}; {WRITES}", f"sh {home}/scripts/greet.sh"]
    episode = play(*steps, Line("Done."), options=options)
    assert episode.success, episode.score
    assert asked(server).startswith(TASK["query"]) and asked(server).endswith(OFFERED)
    read, written, run = (turn.observation for turn in episode.turns)
    assert "How to greet." in read and run == "made\n"
    assert written == "3\n"
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(manifest["agent"]["skills"]) == ["greet"]
    assert main(["rescore", "--trust", str(tmp_path / "run"), "--quiet"]) == 0


def test_a_skill_is_where_a_profile_says_that_its_agent_looks(
    play: Play, server: ScriptedServer, skill: Path, profile: str
) -> None:
    text = Path(profile).read_text()
    Path(profile).write_text(
        text.replace("[run.files]", 'skills = "/root/.mine/skills"\n[run.files]')
    )
    steps = ["cat /skills/greet/SKILL.md", "sh /root/.mine/skills/greet/scripts/greet.sh"]
    episode = play(*steps, Line("Done."), agent=profile, options=["--skill", str(skill)])
    assert asked(server) == TASK["query"], "it is the agent that tells of it"
    assert episode.success and "How to greet." in episode.turns[0].observation
    Path(profile).write_text(text.replace("[run.files]", 'skills = "whole"\n[run.files]'))
    play(agent=profile, options=["--skill", str(skill)], out="whole")
    assert asked(server).endswith("# greet\n\nHow to greet.\n\nRun it.")
    assert all(find_profile(name).home_of_skills for name in ("claude-code", "codex"))


def test_a_skill_is_compared_with_none(
    server: ScriptedServer, image: str, skill: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def say(messages: Sequence[Message]) -> Line:
        if len(messages) > 1 or OFFERED not in messages[0].content:
            return Line("Done.")
        return shell("sh /skills/greet/scripts/greet.sh")

    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    server.script = say
    data = tmp_path / "tasks.json"
    data.write_text(json.dumps([TASK]))
    args = ["sweep", f"bash={data}", "--agent", AGENT, "--model", "openai-compatible/test"]
    args += ["--base-url", server.url, "--image", image, "--skill", "none", "--skill", str(skill)]
    assert main([*args, "--out", str(tmp_path / "sweep"), "--quiet", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (found["tasks"], found["first"], found["second"]) == (1, 0.0, 1.0)


def test_episodes_have_seats_of_their_own_and_the_sandbox_no_key(
    play: Play, tmp_path: Path
) -> None:
    look = "env | grep API_KEY; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c sk-very"
    options = ["--epochs", "4", "--workers", "4"]
    play(look, Line("Done."), options=options)
    found = [*read_episodes(tmp_path / "run" / "episodes.jsonl")]
    assert len(found) == 4 and all(episode.turns for episode in found)
    assert all(episode.turns[0].observation.splitlines()[-1] == "0" for episode in found)
    assert len({episode.turns[0].observation for episode in found}) == 4
    assert KEY not in (tmp_path / "run" / "episodes.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["sql", "--agent", AGENT, "--model", "openai/x"], "choose bash or swe"),
        (["ctf", "--agent", AGENT, "--model", "openai/x"], "choose bash or swe"),
        (["python", "--agent", AGENT, "--model", "openai/x"], "choose bash or swe"),
        (["bash", "--agent", AGENT], "needs --model PROVIDER/NAME, or --model none"),
        (["bash", "--agent", "aider", "--model", NO_MODEL], "aider needs --model PROVIDER/NAME\n"),
        (
            ["bash", "--agent", "cli:a {token}", "--model", NO_MODEL],
            "needs --model PROVIDER/NAME\n",
        ),
        (["bash", "--agent", "cli:a", "--model", NO_MODEL, "--max-tokens", "9"], "no --max-tokens"),
        (
            ["bash", "--agent", AGENT, "--model", "openai/x", "--temperature", "1"],
            "controls this itself: omit --temperature",
        ),
        (["bash", "--agent", AGENT, "--model", "openai/x", "--skill", "/no"], "no such folder"),
        (["bash", "--agent", AGENT, "--model", "openai/x", "--network"], "model: omit --network"),
        (["bash", "--agent", AGENT, "--model", "openai/x", "--sandbox", "docker"], "native"),
        (["bash", "--agent", "cli:", "--model", "openai/x"], "needs a command"),
        (["bash", "--agent", "cli:echo '", "--model", "openai/x"], "quotation"),
        (["bash", "--agent", "no.toml", "--model", "openai/x"], "No such file"),
    ],
)
def test_refusals_come_before_any_work(
    options: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out = tmp_path / "run"
    assert main(["run", *options, "--out", str(out)]) == 2
    assert says in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 1", "name"),
        ('name = "a"', "run"),
        ('name = "a"\nwhat = 1\n[run]\ncommand = ["a"]', "what"),
        ('name = "a"\n[run]\ncommand = []', "length >= 1"),
        ('name = "a"\n[run]\ncommand = ["a"]\nskills = "skills"', "run.skills"),
        ('name = "a"\n[run]\ncommand = ["a"]\n[record]\noutput = "("', "record.output"),
        ('name = "a"\n[run]\ncommand = ["a"]\n[record]\nexit_code = "a"', "no group"),
        ('name = "a"\n[run]\ncommand = ["a"]\n[record]\nreply = "$.a"', "record.reply"),
        (
            'name = "a"\n[install]\nfrom = "pypi"\npackages = []\npython = "three"\n'
            '[run]\ncommand = ["a"]',
            "install.python",
        ),
        ('name = "a"\n[run]\ncommand = ["a"]\n[limits]\nmemory = "4X"', "limit 'memory'"),
        ("name =", "Invalid value"),
    ],
)
def test_a_malformed_profile_is_refused_with_its_place(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        find_profile(str(path))
    assert str(path) in str(caught.value)


def test_the_calls_of_tools_become_actions() -> None:
    def action(name: str, **arguments: object) -> str:
        return read_action(ToolCall("", name, arguments), TurnExtractionRules())

    assert action("Bash", command="ls") == "ls"
    assert action("shell", command=["bash", "-lc", "ls | wc"]) == "ls | wc"
    assert action("shell", command=["echo", "a b"]) == "echo 'a b'"
    assert action("Edit", path="a", new="b") == '{"Edit": {"path": "a", "new": "b"}}'


@pytest.mark.parametrize(
    ("agent", "result", "output", "exit_code"),
    [
        ("claude-code", "8", "8", None),
        ("claude-code", "(Bash completed with no output)", "", None),
        ("claude-code", "8\nShell cwd was reset to /root", "8", None),
        ("codex", f"Process exited with code {'9' * 5000}\nOutput:\n8", "8", None),
        ("mini-swe-agent", '{"output": "8", "returncode": "--5"}', "8", None),
        ("mini-swe-agent", '{"output": "8", "returncode": "\u00b2"}', "8", None),
        (
            "codex",
            "Chunk ID: a1\nWall time: 0.0 seconds\nProcess exited with code 2\n"
            "Original token count: 1\nOutput:\n8\n",
            "8\n",
            2,
        ),
        (
            "openhands",
            "8\n[The command completed with exit code 2.]\n[Current working directory: /root]\n"
            "[Command finished with exit code 2]",
            "8",
            2,
        ),
        ("mini-swe-agent", '{\n  "returncode": 2,\n  "output": "8\\n"\n}', "8\n", 2),
        ("mini-swe-agent", "the tool was not called", "the tool was not called", None),
    ],
)
def test_results_as_the_tools_of_real_agents_send_them(
    agent: str, result: str, output: str, exit_code: int | None
) -> None:
    """As the pinned versions sent them."""
    call = ToolCall("1", "bash", {"command": "act"})
    first = (Message("user", "do it"),)
    asked = Call("chat", "/v1/chat/completions", "model", first, tool_calls=(call,))
    told = replace(asked, messages=(*first, Message("tool", result, call_id="1")), tool_calls=())
    ((turn,), _) = rebuild_turns("model", [asked, told], find_profile(agent).record)
    assert (turn.action, turn.observation, turn.exit_code) == ("act", output, exit_code)


def test_keystrokes_in_replies_become_actions() -> None:
    """As Terminus sends them, in the pinned version."""
    commands = [{"keystrokes": 'echo "a\\b"\n', "duration": 1.0}, {"keystrokes": "C-c"}]
    said = json.dumps({"analysis": "an é", "commands": commands})
    done = json.dumps({"analysis": "all is done", "commands": [], "task_complete": True})
    screen = "New Terminal Output:\n\nroot@box:/# echo\na\\b"
    sure = (
        f"Current terminal state:\n{screen}\n\nAre you sure you want to mark the task as complete?"
    )
    dialogue = [Message("user", "do it"), Message("assistant", said), Message("user", screen)]
    dialogue += [Message("assistant", done), Message("user", sure)]
    calls = [
        Call("chat", "/v1/chat/completions", "model", tuple(dialogue[: 2 * number + 1]), text=text)
        for number, text in enumerate((said, done, done))
    ]
    ((turn,), _) = rebuild_turns("model", calls, find_profile("terminus").record)
    assert turn.action == 'echo "a\\b"\nC-c'
    assert turn.observation == "root@box:/# echo\na\\b"
