"""Clients of servers with OpenAI's protocols: OpenAI's own server, and self-hosted servers.

The clients use OpenAI's Python SDK. The ``encode_…`` functions return request parameters, and the
``decode_…`` functions decode responses. Many servers implement the protocols with small
differences; see ``docs/gym/models.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from intercode.errors import ModelError
from intercode.json_limits import is_flat
from intercode.models import response_parsing
from intercode.models.api_fields import CHAT
from intercode.models.base import (
    Answer,
    Request,
    Settings,
    TokenTrace,
    Tool,
    ToolCall,
    Usage,
    as_openai,
    tool_as_openai,
)
from intercode.models.providers import PROVIDERS

if TYPE_CHECKING:
    import openai as sdk_types

NO_KEY = "none"
"""The placeholder key for servers without keys, because the SDK requires a key."""
MOST_TOKENS = 1024
"""Token limit of a completion if the settings contain none, because the servers' default is only
16 tokens."""
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Result"}
_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCED_CALL = re.compile(
    r"^[ \t]*```[ \t]*(?:(?:json|tool_call|xml)[ \t]*)?\n(.*?)^[ \t]*```", re.DOTALL | re.M
)
_FUNCTION = re.compile(r"<function=(?P<name>[\w.-]+)>(?P<body>.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=(?P<key>[\w.-]+)>\n?(?P<value>.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)",
    re.DOTALL,
)
_MOST_OBJECTS = 1000
"""Maximum number of opening braces in a text at which the parser looks for a tool call, because
each attempt costs time."""


class _OpenAIClient:
    """The common base of `ChatCompletionsClient` and `CompletionsClient`, with the connection.

    Args:
        model: The model's name on the server.
        base_url: The server's URL.
        key: The API key.
        timeout: Seconds for which the server may be silent.
    """

    path = ""

    def __init__(self, model: str, base_url: str, key: str, timeout: float) -> None:
        openai = response_parsing.sdk("openai", "OpenAI's protocol")
        self.model = model
        self._errors = response_parsing.SdkErrorTranslator(openai, key)
        self._sdk: sdk_types.OpenAI = openai.OpenAI(
            api_key=key,
            base_url=base_url,
            timeout=openai.Timeout(timeout, connect=min(response_parsing.CONNECT, timeout)),
            max_retries=0,  # `ModelCallLimiter` retries, with rate limit and budget
        )
        self.endpoint = f"{str(self._sdk.base_url).rstrip('/')}/{self.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, {self.endpoint!r})"

    def close(self) -> None:
        """Close all connections."""
        self._sdk.close()

    def _post(self, create: Callable[..., Any], body: dict[str, Any], main: str) -> dict[str, Any]:
        # Most parameters go into `extra_body`, because `create` accepts only the parameters of
        # OpenAI's current models. The raw response is parsed here, because the responses of other
        # servers deviate from the SDK's types.
        sdk_arguments = {"model": self.model, main: body.pop(main)}
        with self._errors:
            response = create(**sdk_arguments, extra_body=body)
            return self._errors.read(response.http_response.content)


class ChatCompletionsClient(_OpenAIClient):
    """The client of the protocol ``chat/completions``.

    Args:
        model, base_url, key, timeout: As in the base class.
        limit: The name of the request parameter with the reply's token limit, which differs between
            servers.
    """

    path = CHAT.path.removeprefix("/v1/")

    def __init__(
        self,
        model: str,
        base_url: str,
        key: str,
        timeout: float,
        limit: str = CHAT.limit[-1],
    ) -> None:
        super().__init__(model, base_url, key, timeout)
        self._limit = limit

    def send(self, request: Request) -> Answer:
        """Send one request; see `ModelClient.send`."""
        create = self._sdk.chat.completions.with_raw_response.create
        response_body = self._post(create, encode_chat(request, self._limit), "messages")
        return decode_chat(response_body, request.tools)


class CompletionsClient(_OpenAIClient):
    """The client of the protocol ``completions``, for models without a chat template."""

    path = "completions"

    def send(self, request: Request) -> Answer:
        """Send one request; see `ModelClient.send`."""
        create = self._sdk.completions.with_raw_response.create
        return decode_completion(self._post(create, encode_completion(request), "prompt"))


def openai(model: str, *, base_url: str | None, timeout: float) -> ChatCompletionsClient:
    """Return the client of OpenAI, or of a compatible server.

    Args:
        model: The model's name on the server.
        base_url: The server's URL; None: the URL in ``OPENAI_BASE_URL``, otherwise OpenAI's.
        timeout: Seconds for which the server may be silent.

    Raises:
        UsageError: The SDK or the key is missing, or the key or the URL is malformed.
    """
    url, key = _locate(f"openai/{model}", base_url)
    return ChatCompletionsClient(model, url, key, timeout, CHAT.limit[0])


def openai_completions(model: str, *, base_url: str | None, timeout: float) -> CompletionsClient:
    """Return the client of a completion model: OpenAI's, or with `base_url` any server's."""
    provider = "openai-compatible" if base_url else "openai"
    url, key = _locate(f"openai-completions/{model}", base_url, provider)
    return CompletionsClient(model, url, key, timeout)


def compatible(model: str, *, base_url: str | None, timeout: float) -> ChatCompletionsClient:
    """Return the client of any server with OpenAI's protocol; `base_url` is required."""
    return ChatCompletionsClient(model, *_locate(f"openai-compatible/{model}", base_url), timeout)


def vllm(model: str, *, base_url: str | None, timeout: float) -> ChatCompletionsClient:
    """Return the client of a vLLM server; without a URL, of the server on this machine."""
    return ChatCompletionsClient(model, *_locate(f"vllm/{model}", base_url), timeout)


def ollama(model: str, *, base_url: str | None, timeout: float) -> ChatCompletionsClient:
    """Return the client of an Ollama server; without a URL, of the server on this machine."""
    return ChatCompletionsClient(model, *_locate(f"ollama/{model}", base_url), timeout)


def llama_cpp(model: str, *, base_url: str | None, timeout: float) -> ChatCompletionsClient:
    """Return the client of a llama.cpp server; without a URL, of the server on this machine."""
    return ChatCompletionsClient(model, *_locate(f"llama.cpp/{model}", base_url), timeout)


def _locate(name: str, base_url: str | None, provider: str = "") -> tuple[str, str]:
    """Return the URL and the key of a model's server.

    Args:
        name: The model's name, ``PROVIDER/NAME``.
        base_url: The server's URL; None: the provider's URL.
        provider: The provider; empty: the provider in `name`.
    """
    facts = PROVIDERS[provider or name.partition("/")[0]]
    if facts.needs_key:
        response_parsing.require_sdk("openai", facts.key, name)
    url, key = facts.locate(name, base_url)
    return url, key or NO_KEY


def encode_chat(request: Request, limit: str = CHAT.limit[-1]) -> dict[str, Any]:
    """Return the request parameters of ``chat/completions``.

    Args:
        request: The request.
        limit: The parameter name of the reply's token limit.
    """
    body = _settings(request.settings, limit)
    body["messages"] = [as_openai(message) for message in request.messages]
    if request.settings.trace:
        body |= {"return_token_ids": True, "logprobs": True}
    if request.tools:
        body["tools"] = [tool_as_openai(tool) for tool in request.tools]
        body["tool_choice"] = "auto"  # without this field, llama-cpp-python ignores the tools
    return body


def encode_completion(request: Request) -> dict[str, Any]:
    """Return the request parameters of ``completions``, for models without a chat template.

    The text of a dialogue with one message is sent unchanged. A longer dialogue is sent as a
    transcript with the speakers' names, which ends with ``Assistant:``, so the model writes the
    next reply. Unless the settings have stop texts, the reply ends before a text of the user.

    Raises:
        ModelError: The request has tools, which the protocol does not support.
    """
    if request.tools:
        raise ModelError("a completions model takes no tools")
    messages = request.messages
    body = {"max_tokens": MOST_TOKENS, **_settings(request.settings, "max_tokens")}
    if request.settings.trace:
        body |= {"return_token_ids": True, "logprobs": 1}
    if len(messages) == 1:
        return {**body, "prompt": messages[0].content}
    speaker_texts = [f"{_SPEAKERS[m.role]}: {m.content}" for m in messages]
    prompt = "\n\n".join([*speaker_texts, "Assistant:"])
    return {"stop": [f"\n\n{_SPEAKERS['user']}:"], **body, "prompt": prompt}


def _settings(settings: Settings, limit: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        limit: settings.max_tokens,
        "stop": list(settings.stop) or None,
        "seed": settings.seed,
    }
    return {name: value for name, value in body.items() if value is not None}


def _trace(
    response_body: dict[str, Any], choice: dict[str, Any], logprobs: object
) -> TokenTrace | None:
    """Return the token ids of a response, from the fields that vLLM and other servers use."""
    prompt = response_body.get("prompt_token_ids", choice.get("prompt_token_ids"))
    return TokenTrace.parse(prompt, choice.get("token_ids"), logprobs)


def decode_chat(response_body: dict[str, Any], tools: Sequence[Tool] = ()) -> Answer:
    """Decode a model's answer from a response of ``chat/completions``.

    Args:
        response_body: The JSON object of the response.
        tools: The request's tools, whose calls may also appear in the text (see `extract_calls`).

    Raises:
        AttemptError: The response has no usable answer.
    """
    choice = _choice(response_body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise response_parsing.unusable_answer("the answer has no message")
    text, calls = response_parsing.extract_text(message.get("content")), _calls(message)
    if tools and not calls:
        text, calls = extract_calls(text, {tool.name for tool in tools})
    finish = response_parsing.finish(choice.get("finish_reason"), bool(calls))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal and not text and not calls:
        text, finish = refusal, "filter"
    token_entries = (choice.get("logprobs") or {}).get("content") or ()
    logprobs = [entry.get("logprob") for entry in token_entries if isinstance(entry, dict)]
    trace = _trace(response_body, choice, logprobs)
    return Answer(
        text,
        calls,
        _usage(response_body),
        response_parsing.extract_model(response_body),
        finish,
        trace,
    )


def decode_completion(response_body: dict[str, Any]) -> Answer:
    """Decode a model's answer from a response of ``completions``.

    Args:
        response_body: The JSON object of the response.

    Raises:
        AttemptError: The response has no usable answer.
    """
    choice = _choice(response_body)
    finish = response_parsing.finish(choice.get("finish_reason"), calls=False)
    trace = _trace(response_body, choice, (choice.get("logprobs") or {}).get("token_logprobs"))
    text = response_parsing.extract_text(choice.get("text"))
    return Answer(
        text,
        (),
        _usage(response_body),
        response_parsing.extract_model(response_body),
        finish,
        trace,
    )


def _choice(response_body: dict[str, Any]) -> dict[str, Any]:
    if response_body.get("error"):  # some proxies report an upstream failure with status 200
        error = response_body["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise response_parsing.status_error(
            code if isinstance(code, int) else 502, {}, json.dumps(response_body)
        )
    choices = response_body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise response_parsing.unusable_answer("the answer has no choices")
    return choices[0]


def _calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    raw_calls = message.get("tool_calls") or []
    if isinstance(raw_calls, dict):
        raw_calls = [raw_calls]
    if not isinstance(raw_calls, list):
        raise response_parsing.unusable_answer(
            f"the answer's tool calls are a {type(raw_calls).__name__}"
        )
    calls: list[ToolCall] = []
    for call in raw_calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise response_parsing.unusable_answer("the answer has a tool call without a name")
        call_id = str(call.get("id") or f"call_{len(calls)}")  # Ollama may omit ids
        values = response_parsing.arguments(function.get("arguments"))
        calls.append(ToolCall(call_id, function["name"], values))
    return tuple(calls)


def _usage(response_body: dict[str, Any]) -> Usage | None:
    return response_parsing.usage(response_body.get("usage"), "prompt_tokens", "completion_tokens")


def extract_calls(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Extract tool calls from a reply's text.

    Models generate tool calls as text, which the server should convert. A server without the right
    template or parser (llama.cpp without ``--jinja``, vLLM without ``--enable-auto-tool-choice``)
    leaves the calls in the text. The first of these rules that matches applies:

    1. Extract all ``<tool_call>{…}</tool_call>`` (Hermes, Qwen).
    2. Extract a text that consists of one call (Llama).
    3. Extract the only call among fenced JSON blocks (Qwen2.5-Coder) and
       ``<function=NAME>…</function>`` (Llama, Qwen3-Coder). If these forms have no call, extract
       the only call elsewhere in the text.

    Only calls of offered tools count, so other JSON stays text. Several calls without
    ``<tool_call>`` tags stay text, too, because a later call may revise an earlier call.

    Args:
        text: The text of the reply.
        names: The names of the offered tools.

    Returns:
        The text without the tool calls, and the calls.
    """
    calls: list[ToolCall] = []

    def take(source: str) -> bool:
        call = _call(source, names, len(calls))
        if call is not None:
            calls.append(call)
        return call is not None

    remaining_text = _TAG.sub(lambda match: "" if take(match[1].strip()) else match[0], text)
    if not calls and take(text.strip()):
        remaining_text = ""
    if not calls and (only_call := _only_call(text, names)) is not None:
        call, leading_text, trailing_text = only_call
        calls, remaining_text = [call], f"{leading_text.rstrip()}\n{trailing_text.lstrip()}"
    return (remaining_text.strip() if calls else text), tuple(calls)


def _only_call(text: str, names: Collection[str]) -> tuple[ToolCall, str, str] | None:
    """Find the tool call in a text that has exactly one call without ``<tool_call>`` tags.

    Returns:
        The call, the text before the call, and the text after the call. None: the text has no call
        or several calls.
    """
    spans = [(match.span(), _call(match[1], names, 0)) for match in _FENCED_CALL.finditer(text)]
    spans += [
        (match.span(), _parse_tagged_call(match, names)) for match in _FUNCTION.finditer(text)
    ]
    candidates = [(span, call) for span, call in spans if call is not None]
    if not candidates:
        candidates = [
            ((start, end), call)
            for start, end, source in _objects(text)
            if (call := _call(source, names, 0)) is not None
        ]
    if len(candidates) != 1:
        return None
    ((start, end), call) = candidates[0]
    return call, text[:start], text[end:]


def _parse_tagged_call(match: re.Match[str], names: Collection[str]) -> ToolCall | None:
    """Parse a tool call in the form ``<function=NAME>…</function>``.

    The arguments are a JSON object, or each argument has a tag. Returns None for an unknown tool.
    """
    if match["name"] not in names:
        return None
    parameters = {
        parameter["key"]: parameter["value"] for parameter in _PARAMETER.finditer(match["body"])
    }
    arguments = parameters or response_parsing.arguments(match["body"].strip() or {})
    return ToolCall("text_0", match["name"], arguments)


def _objects(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the outermost JSON objects of a text, each as start index, end index and source."""
    decoder, start = json.JSONDecoder(strict=False), 0
    for _ in range(_MOST_OBJECTS):
        if (start := text.find("{", start)) < 0:
            return
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        yield start, end, text[start:end]
        start = end


def _call(source: str, names: Collection[str], call_number: int) -> ToolCall | None:
    if not is_flat(source):
        return None
    try:
        call_fields: Any = json.loads(source, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call_fields, dict) or call_fields.get("name") not in names:
        return None
    if (arguments := call_fields.get("arguments", call_fields.get("parameters"))) is None:
        return None
    return ToolCall(
        f"text_{call_number}", call_fields["name"], response_parsing.arguments(arguments)
    )
