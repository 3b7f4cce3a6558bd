"""The scripted server as the real SDKs read it: every protocol, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import openai
import pytest

from intercode.models import Message, Tool, ToolCall, Usage
from intercode_integrations.testing import Line, Rule, ScriptedServer, script, shell
from intercode_integrations.testing.request_conversion import fit_script
from intercode_integrations.testing.server_dialects import DIALECTS, token_id

PROTOCOLS = ("chat", "responses", "messages")
SAYS = "I look\n there, at\u2028once. "
CALLS = (ToolCall("call_a", "look", {"where": "a b\n"}), ToolCall("call_b", "wait", {}))
QUESTION = "one two three"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
Clients = tuple[openai.OpenAI, anthropic.Anthropic]


class Speaker:
    """A client of one protocol; each answer is text, calls, usage and reason."""

    def __init__(self, protocol: str, clients: Clients, stream: bool) -> None:
        self._ask = getattr(self, f"_{protocol}")
        self._stream = stream
        self._openai, self._anthropic = clients

    def ask(self, dialogue: Any = QUESTION, **options: Any) -> tuple[str, list[Any], Usage, str]:
        return self._ask(dialogue, options)  # type: ignore[no-any-return]

    def _chat(self, dialogue: Any, options: dict[str, Any]) -> Any:
        if isinstance(dialogue, str):
            dialogue = [{"role": "user", "content": dialogue}]
        asked = {"model": "any", "messages": dialogue, **options}
        completions = self._openai.chat.completions
        if self._stream:
            with completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                whole: Any = stream.until_done().get_final_completion()
        else:
            whole = completions.create(**asked)
        choice = whole.choices[0]
        calls = [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in choice.message.tool_calls or ()
        ]
        usage = Usage(whole.usage.prompt_tokens, whole.usage.completion_tokens)
        return choice.message.content or "", calls, usage, choice.finish_reason

    def _responses(self, dialogue: Any, options: dict[str, Any]) -> Any:
        asked = {"model": "any", "input": dialogue, **options}
        if self._stream:
            with self._openai.responses.stream(**asked) as stream:
                whole: Any = stream.until_done().get_final_response()
        else:
            whole = self._openai.responses.create(**asked)
        calls = [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in whole.output
            if item.type == "function_call"
        ]
        usage = Usage(whole.usage.input_tokens, whole.usage.output_tokens)
        return whole.output_text, calls, usage, whole.status

    def _messages(self, dialogue: Any, options: dict[str, Any]) -> Any:
        if isinstance(dialogue, str):
            dialogue = [{"role": "user", "content": dialogue}]
        asked = {"model": "any", "messages": dialogue, "max_tokens": 100, **options}
        if self._stream:
            with self._anthropic.messages.stream(**asked) as stream:
                whole: Any = stream.get_final_message()
        else:
            whole = self._anthropic.messages.create(**asked)
        text = "".join(block.text for block in whole.content if block.type == "text")
        calls = [
            (block.id, block.name, block.input)
            for block in whole.content
            if block.type == "tool_use"
        ]
        usage = Usage(whole.usage.input_tokens, whole.usage.output_tokens)
        return text, calls, usage, whole.stop_reason


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture(scope="module")
def clients(server: ScriptedServer) -> Iterator[Clients]:
    theirs = openai.OpenAI(api_key="x", base_url=server.url, max_retries=0)
    others = anthropic.Anthropic(api_key="x", base_url=server.root, max_retries=0)
    with theirs, others:
        yield theirs, others


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def speaker(
    request: pytest.FixtureRequest, protocol: str, server: ScriptedServer, clients: Clients
) -> Speaker:
    server.exchanges.clear()
    return Speaker(protocol, clients, request.param)


def says(server: ScriptedServer, *rules: Rule) -> None:
    server.script = script(rules)


def test_text_calls_and_usage(server: ScriptedServer, speaker: Speaker, protocol: str) -> None:
    says(server, Rule(Line(SAYS, CALLS, "tool_calls")))
    text, calls, usage, reason = speaker.ask()
    assert text == SAYS
    assert calls == [(call.call_id, call.name, call.arguments) for call in CALLS]
    assert usage == server.usage == Usage(3, 5 + 4 + 2)
    ends = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}
    assert reason == ends[protocol]


@pytest.mark.parametrize("text", ["", " ", "x", "\n x \x85 y\u3000"])
def test_every_text_arrives_whole(server: ScriptedServer, speaker: Speaker, text: str) -> None:
    says(server, Rule(Line(text)))
    found, calls, usage, _ = speaker.ask()
    assert (found, calls, usage.output_tokens) == (text, [], len(text.split()))


TOOL = {"name": "Bash", "description": "Runs it."}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}],
    "responses": [{"type": "function", **TOOL, "parameters": SCHEMA, "strict": False}],
    "messages": [{**TOOL, "input_schema": SCHEMA}],
}


def answered(protocol: str, call_id: str, arguments: dict[str, Any], result: str) -> list[Any]:
    """A dialogue after one call, as an agent sends it."""
    asked = {"role": "user", "content": QUESTION}
    text = json.dumps(arguments)
    if protocol == "chat":
        function = {"name": "Bash", "arguments": text}
        calls = [{"id": call_id, "type": "function", "function": function}]
        said = {"role": "assistant", "content": None, "tool_calls": calls}
        return [asked, said, {"role": "tool", "tool_call_id": call_id, "content": result}]
    if protocol == "responses":
        call = {"type": "function_call", "call_id": call_id, "name": "Bash", "arguments": text}
        thought = {"type": "reasoning", "id": "rs_1", "summary": []}
        output = {"type": "function_call_output", "call_id": call_id, "output": result}
        return [asked, thought, call, output]
    use = {"type": "tool_use", "id": call_id, "name": "Bash", "input": arguments}
    content = [{"type": "text", "text": result}]
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return [asked, {"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]


def test_a_script_acts_by_the_agents_own_shell(
    server: ScriptedServer, speaker: Speaker, protocol: str
) -> None:
    seen: list[Message] = []

    def say(messages: Sequence[Message]) -> Line:
        seen[:] = messages
        return turns(messages)

    turns = script([Rule(shell("ls -la"), turn=0), Rule(Line("Done."), when="^a b$", turn=1)])
    server.script = say
    _, [(call_id, name, arguments)], _, _ = speaker.ask(tools=TOOLS[protocol])
    assert (name, arguments) == ("Bash", {"command": "ls -la"})
    dialogue = answered(protocol, call_id, arguments, "a b")
    text, calls, usage, _ = speaker.ask(dialogue, tools=TOOLS[protocol])
    assert (text, calls, usage) == ("Done.", [], Usage(5, 1))
    assert [call for message in seen for call in message.tool_calls] == [
        ToolCall(call_id, "Bash", arguments)
    ]
    text, calls, _, _ = speaker.ask()
    assert (text, calls) == ("ok", []), "a request without tools, as for a title"


def test_limits_are_kept(server: ScriptedServer, clients: Clients) -> None:
    """Of streams: helpers of OpenAI's SDK refuse answers that are cut off."""
    says(server, Rule(Line("a b c d")))
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
    theirs, others = clients
    *_, chat = theirs.chat.completions.create(**asked, max_completion_tokens=2, stream=True)
    *_, response = theirs.responses.create(
        model="any", input=QUESTION, max_output_tokens=2, stream=True
    )
    *_, message, _ = others.messages.create(**asked, max_tokens=2, stream=True)
    assert chat.choices[0].finish_reason == "length"
    assert response.type == "response.incomplete"
    assert response.response.output_text.split() == ["a", "b"]
    assert response.response.incomplete_details.reason == "max_output_tokens"  # type: ignore[union-attr]
    assert message.type == "message_delta" and message.delta.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 2


@pytest.mark.parametrize(
    ("name", "properties", "required", "arguments"),
    [
        ("Bash", {"command": "string", "description": "string"}, ["command"], {"command": "ls"}),
        ("shell", {"command": "array"}, ["command"], {"command": ["bash", "-lc", "ls"]}),
        ("exec_command", {"cmd": "string", "tty": "boolean"}, ["cmd"], {"cmd": "ls"}),
        (
            "terminal",
            {"command": "string", "security_risk": ["LOW", "HIGH"], "summary": "string"},
            ["command", "security_risk", "summary"],
            {"command": "ls", "security_risk": "LOW", "summary": "act"},
        ),
        (
            "own",
            {"cmd": "string", "wait": "boolean"},
            ["cmd", "wait"],
            {"cmd": "ls", "wait": False},
        ),
        ("bash", {}, [], {"command": "ls"}),
    ],
)
def test_shell_tools_of_agents(
    name: str, properties: dict[str, Any], required: list[str], arguments: dict[str, Any]
) -> None:
    schema = {
        "properties": {
            key: {"enum": kind} if isinstance(kind, list) else {"type": kind}
            for key, kind in properties.items()
        },
        "required": required,
    }
    tools = [Tool("Read", "", {"properties": {"path": {}}}), Tool(name, "", schema)]
    line = fit_script(script([Rule(shell("ls"))]), tools)([Message("user", "x")])
    assert line.calls == (ToolCall("call_0_0", name, arguments),)


def test_calls_of_a_dialogue_have_ids_of_their_own() -> None:
    two = Line("", shell("a").calls + shell("b").calls)
    say = fit_script(script([Rule(two)]), [Tool("bash", "", {})])
    dialogue = [Message("user", "x")]
    ids = [call.call_id for call in say(dialogue).calls]
    ids += [call.call_id for call in say([*dialogue, Message("assistant", "")]).calls]
    assert len(set(ids)) == 4


def test_models_tokens_and_addresses(server: ScriptedServer, clients: Clients) -> None:
    says(server, Rule(Line("x")))
    server.exchanges.clear()
    theirs, others = clients
    assert [model.id for model in theirs.models.list()] == ["scripted"]
    assert [model.id for model in others.models.list()] == ["scripted"]
    assert theirs.models.retrieve("a/b").id == others.models.retrieve("a/b").id == "a/b"
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
    assert others.messages.count_tokens(**asked, system="Be good.").input_tokens == 5
    # As Claude Code asks, and as some versions of the SDK do.
    beta = others.beta.messages.create(**asked, max_tokens=9, extra_query={"beta": "true"})
    assert beta.usage.input_tokens == 3
    with pytest.raises(openai.NotFoundError):
        theirs.files.list()
    paths = ["models", "models", "models/a/b", "models/a/b", "messages/count_tokens", "messages"]
    assert [exchange.path for exchange in server.exchanges] == [*paths, "files"]
    assert server.exchanges[-2].query == "beta=true"
    assert server.usage == Usage(3, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_and_probabilities(
    server: ScriptedServer, clients: Clients, stream: bool
) -> None:
    says(server, Rule(Line("it is", CALLS[:1], "tool_calls")))
    parts = ["it", " is", "look", '{"where":', ' "a', ' b\\n"}']
    asked: Any = {
        "model": "any",
        "messages": [{"role": "user", "content": QUESTION}],
        "logprobs": True,
        "extra_body": {"return_token_ids": True},
    }
    found = clients[0].chat.completions.create(**asked, stream=stream)
    chunks: list[Any] = list(found) if stream else [found]
    choices = [chunk.choices[0] for chunk in chunks]
    probabilities = [
        one for choice in choices if choice.logprobs for one in choice.logprobs.content
    ]
    assert [one.token for one in probabilities] == parts
    assert all(one.logprob < 0 and bytes(one.bytes).decode() == one.token for one in probabilities)
    ids = [one for choice in choices for one in getattr(choice, "token_ids", [])]
    assert ids == [token_id(part) for part in parts]
    assert chunks[0].prompt_token_ids == [token_id(word) for word in QUESTION.split()]


@pytest.mark.parametrize("stream", [False, True])
def test_completions_are_streamed(server: ScriptedServer, clients: Clients, stream: bool) -> None:
    says(server, Rule(Line(SAYS)))
    asked: Any = {"model": "any", "prompt": QUESTION, "logprobs": 1}
    asked |= {"stream_options": {"include_usage": True}} if stream else {}
    found = clients[0].completions.create(**asked, stream=stream)
    chunks: list[Any] = list(found) if stream else [found]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == SAYS
    words = [one for choice in choices if choice.logprobs for one in choice.logprobs.tokens]
    assert "".join(words) == SAYS
    assert chunks[-1].usage.completion_tokens == len(words) == 5


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_streams_what_it_says_whole(
    server: ScriptedServer, clients: Clients, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(server, Rule(Line(SAYS, CALLS, "tool_calls")))
    monkeypatch.setattr(server, "dialect", dialect)
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
    asked |= {"tools": TOOLS["chat"], "tool_choice": "auto"}
    whole = clients[0].chat.completions.create(**asked)
    chunks = list(clients[0].chat.completions.create(**asked, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or ():
            assert call.function
            one = calls.setdefault(call.index, ["", ""])
            one[0] += call.function.name or ""
            one[1] += call.function.arguments or ""
    expected = [] if dialect == "calls-in-text" else [(c.name, c.arguments) for c in CALLS]
    assert [(name, json.loads(text, strict=False)) for name, text in calls.values()] == expected
