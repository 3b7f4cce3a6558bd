"""Models that speak by script, and that importing models stays cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from intercode.errors import ContextLengthError, UsageError
from intercode.models import MODELS, Message, ToolCall, Usage, get_model
from intercode.models.base import Answer, Request
from models.providers import HELLO

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


def test_nothing_heavy_is_imported_until_it_is_asked_for() -> None:
    code = "import sys, intercode.models as m; print(*(set(sys.modules) & {'openai', 'anthropic'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
