"""The cache: what is asked twice is called once; and what makes a difference, does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from intercode.errors import ModelUnavailableError, UsageError
from intercode.models import Budget, Message, Reply, Settings, Tool, ToolCall, Usage, get_model
from intercode.models.base import Request
from intercode.models.cache import ReplyCache, digest
from intercode.models.scripted import Line
from intercode_integrations.testing import ScriptedServer, status
from models.conftest import KEYS
from scripted_server.models.providers import ALL, CHAT, HELLO, connect

REPLY = Reply("hé\ud800", (ToolCall("c", "f", {"a": [1]}),), Usage(1, 2, 1), 0.5, "m", "length")


@pytest.mark.parametrize("name", ALL)
def test_what_is_asked_twice_is_called_once(name: str, tmp_path: Path) -> None:
    line = Line("hello") if "completions" in name else Line("hello", (ToolCall("c", "f", {}),))
    budget = Budget(max_tokens=10_000)
    with ScriptedServer(lambda _: line) as server:
        first = connect(name, server, cache=tmp_path / "c").complete(HELLO)
        again = connect(name, server, cache=tmp_path / "c", budget=budget).complete(HELLO)
        assert len(server.exchanges) == 1
    [kept] = (tmp_path / "c").glob("*/*.json")
    assert kept.stat().st_mode & 0o777 == 0o600  # no other user reads a dialogue
    assert not first.cached
    assert again == replace(first, cached=True, cost=0.0, seconds=0.0)
    assert budget.spent.tokens == 0


def test_everything_that_matters_makes_a_difference() -> None:
    settings, tool = Settings(), Tool("f", "F.", {"type": "object"})
    request = Request(HELLO, settings)
    others = [
        replace(request, messages=(Message("system", HELLO[0].content),)),
        replace(request, messages=(Message("user", "one two three "),)),
        replace(request, messages=(*HELLO, *HELLO)),
        replace(request, messages=(Message("user", HELLO[0].content, call_id="c"),)),
        replace(request, tools=(tool,)),
        replace(request, tools=(replace(tool, parameters={"type": "string"}),)),
        *(
            replace(request, settings=replace(settings, **{name: value}))
            for name, value in {
                "temperature": None,
                "top_p": 0.5,
                "max_tokens": 5,
                "stop": ("a",),
                "seed": 1,
            }.items()
        ),
    ]
    keys = {digest("m", "e", one) for one in [request, *others]}
    keys |= {digest("m2", "e", request), digest("m", "e2", request)}
    assert len(keys) == len(others) + 3
    assert digest("m", "e", Request(HELLO, Settings())) == digest("m", "e", request)


def test_what_is_drawn_without_a_seed_is_drawn_each_time(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        model = connect(CHAT, server, cache=tmp_path)
        for seed in (None, None, 1, 1, 2):
            model.complete(HELLO, Settings(temperature=0.7, seed=seed))
        assert len(server.exchanges) == 4


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    with ScriptedServer(plan=lambda n: status(500) if n == 0 else None) as server:
        model = connect(CHAT, server, cache=tmp_path, retries=0)
        with pytest.raises(ModelUnavailableError):
            model.complete(HELLO)
        assert not model.complete(HELLO).cached


@pytest.mark.parametrize("spoilt", ["", "{", "[]", "{}", '{"text": 1, "usage": 3}', "\x00"])
def test_a_file_that_is_not_whole_is_as_good_as_none(tmp_path: Path, spoilt: str) -> None:
    cache = ReplyCache(tmp_path)
    cache.put("abc", REPLY)
    assert cache.get("abc") == REPLY
    (file,) = tmp_path.rglob("abc.json")
    file.write_text(spoilt)
    assert cache.get("abc") is None
    cache.put("abc", REPLY)
    assert cache.get("abc") == REPLY


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    replies = [replace(REPLY, text=letter * 200_000) for letter in "abcdefgh"]

    def work(reply: Reply) -> None:
        cache = ReplyCache(tmp_path)
        for _ in range(10):
            cache.put("k", reply)
            assert cache.get("k") in replies

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, replies))
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["k.json"]


def test_no_key_is_in_it(tmp_path: Path) -> None:
    with ScriptedServer(lambda _: Line("hello")) as server:
        for name in ALL:
            connect(name, server, cache=tmp_path).complete(HELLO)
    files = [file for file in tmp_path.rglob("*.json") if file.is_file()]
    assert len(files) == len(ALL)
    for file in files:
        assert json.loads(file.read_text())["text"] == "hello"
        assert not any(key in file.read_text() for key in KEYS.values())


def test_a_reply_that_cannot_be_kept_is_a_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ReplyCache(tmp_path)
    (tmp_path / "ab").write_text("in the way")
    cache.put("abc", REPLY)
    assert "cannot be written to" in caplog.text
    assert cache.get("abc") is None


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        get_model(CHAT, cache=tmp_path / "file")


def test_another_script_is_another_model(tmp_path: Path) -> None:
    rules = tmp_path / "rules.jsonl"
    for text in ("one", "two"):
        rules.write_text(json.dumps({"say": text}))
        model = get_model(f"scripted/{rules}", cache=tmp_path / "cache")
        assert [model.complete(HELLO).text for _ in range(2)] == [text, text]
