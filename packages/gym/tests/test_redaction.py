"""Secrets: in no record, whatever wrote them there; and no task is changed by that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intercode.cli.main import main
from intercode.episode import Episode, Score, Turn
from intercode.errors import UsageError
from intercode.evaluate.manifest import describe
from intercode.records import EPISODES, MANIFEST, RunRecordWriter, last_attempts
from intercode.redaction import PATTERNS_VARIABLE, SecretRedactor

KEY = "zq-0123456789-Geheim"
"""A value that no pattern knows."""
SHAPES = {
    "sk-ant": "sk-ant-api03-0123456789abcdef",
    "sk": "sk-proj-0123456789abcdef0123",
    "github": "ghp_0123456789abcdefABCDEF0123456789abcd",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "google": "AIza" + "b" * 35,
    "slack": "xoxb-123456789012-abcdef",
    "jwt": "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
    "bearer": "Authorization: Bearer abcdefgh12345678",
    "header": "x-api-key: 0123456789abcdef",
    "url": "postgresql://me:hunter2hunter2@db.example:5432/x",
}
SECRETS = {"bearer": "abcdefgh12345678", "header": "0123456789abcdef", "url": "hunter2hunter2"}
PLACES = ("query", "action", "observation", "answer", "error", "message", "tool", "detail", "info")


def manifest(**env: Any) -> dict[str, Any]:
    return describe(
        dataset={"name": "d", "source": None, "digest": "0", "tasks": 1},
        env=env,
        agent={"name": "noop", "options": {}, "digest": ""},
        needs_gold=False,
        seed=0,
        excluded_tasks={},
    )


def planted(place: str, text: str) -> Episode:
    """An episode with a text in one place."""

    def at(name: str) -> str:
        return text if name == place else "x"

    call = {"call_id": "1", "name": "execute", "arguments": {"command": at("tool")}}
    message = {"role": "assistant", "content": at("message"), "tool_calls": [call]}
    episode = Episode("t", at("query"), "bash", answer=at("answer"))
    episode.turns = [Turn(at("action"), at("observation"), info={"output": at("info")})]
    episode.score = Score(0.5, {}, {"reason": at("detail")})
    episode.error = at("error")
    episode.metadata = {"traceback": at("error"), "model": {"messages": [message]}}
    return episode


def recorded(folder: Path, episode: Episode, facts: dict[str, Any]) -> str:
    with RunRecordWriter(folder) as log:
        log.append(episode)
        log.write_manifest(facts)
    text = (folder / EPISODES).read_text() + (folder / MANIFEST).read_text()
    assert next(last_attempts(folder)).score == SecretRedactor().episode(episode).score
    return text


LETTERS = st.characters(min_codepoint=33, max_codepoint=0x24F, exclude_categories=("C", "Z"))


@given(
    st.text(LETTERS, min_size=15, max_size=60).map("k{}".format),
    st.sampled_from([*PLACES, "manifest"]),
    st.text(),
)
def test_a_known_value_is_never_recorded(
    tmp_path_factory: pytest.TempPathFactory, key: str, place: str, around: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_TOKEN", key)
        folder = tmp_path_factory.mktemp("run")
        text = recorded(
            folder, planted(place, f"{around}{key}{around}"), manifest(note=key + place)
        )
    assert key not in text and json.dumps(key)[1:-1] not in text
    assert "[SOME_TOKEN]" in text


@pytest.mark.parametrize("name", SHAPES)
def test_what_looks_like_a_key_is_in_no_error_and_no_option(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    text = recorded(tmp_path, planted("error", f"no: {shape}."), manifest(note=f"a {shape}"))
    assert SECRETS.get(name, json.dumps(shape)[1:-1]) not in text
    assert text.count("[redacted]") == 3


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("place", [place for place in PLACES if place != "error"])
def test_a_task_about_keys_stays_as_it_is(tmp_path: Path, name: str, place: str) -> None:
    episode = planted(place, SHAPES[name])
    recorded(tmp_path, episode, manifest())
    assert next(last_attempts(tmp_path)) == episode
    assert SHAPES[name] not in repr(SecretRedactor(includes_dialogues=True).episode(episode))


def test_words_paths_and_numbers_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ("password", "/home/me/keys/service-account.json", "https://a.example/token")
    for n, value in enumerate((*values, "1234567890.1234567")):
        monkeypatch.setenv(f"SECRET_{n}", value)
        assert SecretRedactor().values(f"see {value}!") == f"see {value}!"


def test_a_list_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "patterns"
    own.write_text("# ours\nACME-\\d{6}\n(?i)(pin=)\\d+\n")
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text(f"{PATTERNS_VARIABLE}={own}\n")
    assert SecretRedactor().text("ACME-123456 PIN=77") == "[redacted] PIN=[redacted]"
    own.write_text("(")
    with pytest.raises(UsageError, match="patterns:1: not a regular expression"):
        SecretRedactor()
    assert main(["run", "bash", "--agent", "noop", "--limit", "1", "--out", "run"]) == 2
    assert "not a regular expression" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_run_that_met_a_key_is_recorded_resumed_and_exported_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent, in our own process, reads a key and says it; another raises with one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUR_API_KEY", KEY)
    Path("agent.py").write_text(
        "import os\n"
        "class Make:\n"
        "    def __init__(self, task): self.task = task\n"
        "    def act(self, observation, history):\n"
        "        if self.task.task_id == 'b': raise ValueError('sk-ant-' + 'a' * 30)\n"
        "        return 'submit' if history else 'echo ' + os.environ['OUR_API_KEY']\n"
    )
    tasks = [{"task_id": name, "query": "q", "gold": f"echo {SHAPES['aws']}"} for name in "ab"]
    Path("tasks.json").write_text(json.dumps(tasks))
    run = ["run", "bash", "--data", "tasks.json", "--agent", "agent.py:Make", "--out", "run"]
    assert main([*run, "--quiet"]) == 1
    again = ["resume", "run", "--trust", "--quiet"]
    assert main(again) == 1, "what was redacted makes no other run of it"
    for form in ("chat", "csv", "jsonl", "inspect"):
        assert main(["export", "run", "--to", form, "--out", f"{form}.json"]) == 0
    assert main(["report", "run", "--html", "page.html"]) == 0
    told = capsys.readouterr()
    told_text = told.out + told.err
    for path in ("run/run.json", "run/episodes.jsonl", "chat.json", "jsonl.json", "page.html"):
        told_text += Path(path).read_text()
    assert KEY not in told_text and "a" * 30 not in told_text
    [episode] = [one for one in last_attempts(Path("run")) if one.task_id == "a"]
    assert episode.turns[0].action == "echo [OUR_API_KEY]"


def test_a_record_of_an_older_version_is_exported_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(Path("run"), planted("observation", f"{KEY} {SHAPES['aws']}"), manifest())
    assert KEY in Path("run", EPISODES).read_text()
    monkeypatch.setenv("OUR_API_KEY", KEY)
    assert main(["export", "run", "--to", "jsonl", "--out", "plain"]) == 0
    assert main(["export", "run", "--to", "jsonl", "--out", "bare", "--redact"]) == 0
    plain, bare = Path("plain").read_text(), Path("bare").read_text()
    assert "[OUR_API_KEY] AKIAIOSFODNN7EXAMPLE" in plain
    assert "[OUR_API_KEY] [redacted]" in bare
