"""Calls of tools that models write as text, in the forms that real ones use."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from intercode.models.openai import extract_calls

NAMES = {"sql", "submit"}
FENCED = '```json\n{\n  "name": "sql",\n  "arguments": {\n    "statement": "SELECT 1"\n  }\n}\n```'
TAGGED = '<tool_call>\n{"name": "sql", "arguments": {"statement": "SELECT 1"}}\n</tool_call>'
LLAMA = '<function=sql>{"statement": "SELECT 1"}</function>'
CODER = "<function=sql>\n<parameter=statement>\nSELECT 1\n</parameter>\n</function>"
BARE = '{"name": "sql", "parameters": {"statement": "SELECT 1"}}'


@pytest.mark.parametrize("call", [FENCED, TAGGED, LLAMA, CODER, BARE, FENCED.replace("json", "")])
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("I look first.\n", ""), ("", "\n\nThen I submit.")]
)
def test_one_call_is_a_call(call: str, before: str, after: str) -> None:
    text, calls = extract_calls(before + call + after, NAMES)
    assert [(one.name, one.arguments) for one in calls] == [("sql", {"statement": "SELECT 1"})]
    assert text == (before + after).strip()


def test_several_are_calls_only_with_tags() -> None:
    submit = '{"name": "submit", "arguments": {}}'
    text, calls = extract_calls(f"{TAGGED}\n<tool_call>{submit}</tool_call>", NAMES)
    assert [one.name for one in calls] == ["sql", "submit"] and text == ""
    for both in (f"{FENCED}\n{LLAMA}", f"{FENCED}\n\n```json\n{submit}\n```", f"{BARE} {submit}"):
        assert extract_calls(both, NAMES) == (both, ())


@pytest.mark.parametrize(
    "text",
    [
        "```sql\nSELECT 1\n```",
        '```json\n{"name": "other", "arguments": {}}\n```',
        '```json\n{"rows": [{"name": "Ann"}]}\n```',
        '{"name": "sql"}',
        "<function=other>{}</function>",
        'A row is {"name": "Ann", "arguments": 3}.',
        "{ " * 5000,
        "",
    ],
)
def test_other_text_stays_text(text: str) -> None:
    assert extract_calls(text, NAMES) == (text, ())


def test_a_call_within_a_call_s_argument_is_none() -> None:
    inner = json.dumps({"name": "submit", "arguments": {}})
    outer = json.dumps({"name": "sql", "arguments": {"statement": inner}})
    _, calls = extract_calls(f"So: {outer}", NAMES)
    assert [one.name for one in calls] == ["sql"]


@given(st.text(alphabet='{}"<>=`\n /abc:,', max_size=200))
def test_any_text(text: str) -> None:
    rest, calls = extract_calls(text, NAMES)
    assert calls or rest == text
