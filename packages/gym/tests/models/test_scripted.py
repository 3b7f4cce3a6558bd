"""Models that speak by script, and that importing models stays cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from intercode.errors import ContextLengthError, ModelError, UsageError
from intercode.models import MODELS, Message, Retry, Settings, ToolCall, Usage, get_model
from intercode.models.base import Answer, Request
from intercode.models.remote import RemoteModel

HELLO = (Message("user", "one two three"),)
RULES = """
{"when": "(?i)sql", "say": "SELECT 1"}
{"turn": 1, "calls": [{"name": "submit", "arguments": {"answer": 3}}]}

{"say": "submit", "finish": "length"}
"""


def test_the_first_rule_that_fits_answers(tmp_path: Path) -> None:
    (tmp_path / "rules.jsonl").write_text(RULES)
    model = get_model("scripted/rules.jsonl")
    assert model.complete([Message("user", "in SQL, please")]).text == "SELECT 1"
    other = model.complete(HELLO)
    assert (other.text, other.finish, other.usage) == ("submit", "length", Usage(3, 1))
    turn = model.complete([*HELLO, Message("assistant", "x"), Message("user", "go on")])
    assert (turn.tool_calls, turn.finish) == (
        (ToolCall("call_0", "submit", {"answer": 3}),),
        "tool_calls",
    )


@pytest.mark.parametrize("rule", ["{", "[]", '{"whem": 1}', '{"when": "("}', '{"calls": [{}]}'])
def test_a_script_that_is_wrong(tmp_path: Path, rule: str) -> None:
    (tmp_path / "rules.jsonl").write_text(f'{{"say": "a"}}\n{rule}\n')
    with pytest.raises(UsageError, match=r"rules\.jsonl:2: "):
        get_model("scripted/rules.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        get_model("scripted/nothing.jsonl")


class Echo:
    """A client of a reader's own."""

    endpoint = "echo"

    def __init__(self, model: str, *, base_url: str | None, timeout: float) -> None:
        self.model = model

    def send(self, request: Request) -> Answer:
        if len(request.messages) > 1:
            raise ContextLengthError("one message is enough")
        return Answer(request.messages[0].content, usage=Usage(1, 1), model=self.model)

    def close(self) -> None:
        pass


def test_a_client_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._entries, "echo", Echo)
    model = get_model("echo/one")
    assert model.complete(HELLO).text == HELLO[0].content
    with pytest.raises(ContextLengthError, match=r"^echo/one: one message"):
        model.complete(HELLO * 2)


OWN = """
from intercode.models import Answer, ToolCall, Usage
class Right:
    endpoint = "own"
    def __init__(self, model, *, base_url, timeout): pass
    def send(self, request): return Answer("hello", [ToolCall("1", "f", {})], Usage(1, 1))
    def close(self): pass
"""


def own(source: str, folder: Path) -> RemoteModel:
    folder.joinpath("mo.py").write_text(f"{OWN}{source}\n")
    return get_model("mo.py:Own", retry=Retry(retries=0))


@pytest.mark.parametrize(
    ("source", "flaw"),
    [
        ("class Own:\n    endpoint = 'x'", r"Own\(\) cannot be called: .*base_url, timeout"),
        ("def Own(model): return Right", r"Own\(model\) cannot be called"),
        ("async def Own(model, *, base_url, timeout): return 1", "Own is async"),
        ("def Own(model, **options): return None", "must be a client, not None"),
        ("def Own(model, **options): return Right", "must be a client, not <class"),
        ("def Own(model, **options): return 1 / 0", r"mo\.py, line 8: ZeroDivisionError"),
        ("def Own(model, **options): raise SystemExit(0)", r"mo\.py, line 8: SystemExit: 0"),
        ("class Own(Right): endpoint = None", "Own has no text 'endpoint'"),
        ("class Own(Right): endpoint = property(lambda self: 1 / 0)", "ZeroDivisionError"),
        ("class Own(Right): send = None", "Own has no method 'send'"),
        ("class Own(Right):\n    def send(self): pass", r"Own\.send\(\) cannot be called"),
        ("class Own(Right):\n    async def send(self, request): pass", "send is async"),
        ("class Own(Right): close = None", "Own has no method 'close'"),
        ("class Own(Right):\n    async def close(self): pass", "close is async"),
        ("class Own(Right):\n    weights = 1\n    def start(self, calls=1): pass", "'weights'"),
        ("class Own(Right):\n    weights = ''\n    def start(self): pass", r"start\(\) cannot"),
    ],
)
def test_a_factory_of_ones_own_that_is_wrong_is_told_at_once(
    tmp_path: Path, source: str, flaw: str
) -> None:
    with pytest.raises(UsageError, match=rf"model {tmp_path}/mo\.py:Own.*{flaw}"):
        own(source, tmp_path)


@pytest.mark.parametrize(
    ("result", "flaw"),
    [
        ("'submit'", "it returned 'submit'"),
        ("None", "it returned None"),
        ("later()", "it returned <coroutine"),
        ("Answer(None)", "its text is None"),
        ("Answer('', None)", "its tool_calls is None"),
        ("Answer('', ['f'])", r"its tool_calls is \['f'\]"),
        ("Answer('', [ToolCall('1', 'f', '{}')])", "its tool_calls is "),
        ("Answer('', usage=Usage(-1, None))", r"its usage is Usage\(input_tokens=-1"),
        ("Answer('', usage=Usage(1, 1, None))", "its usage is "),
        ("Answer('', usage={'input_tokens': 1})", "its usage is {"),
        ("Answer('', model=None)", "its model is None"),
        ("Answer('', finish='end')", "its finish is 'end'"),
        ("Answer('', finish=[])", r"its finish is \[\]"),
        ("Answer('', trace=[1])", r"its trace is \[1\]"),
    ],
)
def test_an_answer_of_ones_own_client_that_is_wrong_names_its_class(
    tmp_path: Path, result: str, flaw: str
) -> None:
    source = (
        f"async def later(): pass\nclass Own(Right):\n    def send(self, request): return {result}"
    )
    model = own(source, tmp_path)
    with pytest.raises(ModelError, match=rf"Own\.send must return an .*Answer.*: {flaw}"):
        model.complete(HELLO)


def test_a_client_of_ones_own_that_raises_is_told_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = "def {}(self, *_): raise SystemExit(0)"
    source = "\n    ".join(["class Own(Right):", *map(method.format, ("send", "close"))])
    model = own(source, tmp_path)
    with pytest.raises(ModelError, match=r"Own\.send raised .*mo\.py, line 9: SystemExit") as error:
        model.complete(HELLO)
    assert isinstance(error.value.__cause__, SystemExit)
    model.close()
    assert "mo.py, line 10: SystemExit" in caplog.text


def test_a_server_of_ones_own(tmp_path: Path) -> None:
    source = (
        "class Own(Right):\n    weights = 'abc'\n"
        "    def start(self, calls=1):\n        if calls > 1: raise ValueError('one is all')"
    )
    model = own(source, tmp_path)
    model.start()
    assert model.weights == "abc"
    assert model.complete(HELLO).tool_calls[0].name == "f"
    with pytest.raises(UsageError, match=r"Own\.start raised .*line 11: ValueError: one is all"):
        model.start(2)


def test_token_ids_that_are_not_reported_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = own("class Own(Right): pass", tmp_path)
    model.complete(HELLO)
    assert "token ids" not in caplog.text
    for _ in range(2):
        model.complete(HELLO, Settings(trace=True))
    assert caplog.text.count("reports no token ids") == 1


def test_nothing_heavy_is_imported_until_it_is_asked_for() -> None:
    code = "import sys, intercode.models as m; print(*(set(sys.modules) & {'openai', 'anthropic'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
