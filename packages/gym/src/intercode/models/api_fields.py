"""Tables of the model protocols: their paths, their token limits, and the fields of requests.

InterCode's model clients read paths and limit names from the tables. The gateway, a proxy between
external agents and a model, forwards listed fields. By default, the gateway refuses every field,
item or tool that no table lists. The gateway removes the fields in `ModelApiFields.drops` from
requests: many agents send these fields, and the model does not need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Name = Literal["chat", "responses", "messages"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class ModelApiFields:
    """The fields and types of one protocol.

    Attributes:
        path: The URL path of calls.
        dialogue: The fields with the messages.
        limit: The fields with the reply's token limit. If a request has none of these fields, a
            gateway with a limit sets the first one.
        passes: Further fields that the gateway forwards.
        drops: Fields that the gateway removes.
        tools: Types of tools that the client executes, not the provider. A type that ends in ``_``
            is a prefix of types.
        tool_drops: Fields of tools that the gateway removes.
        stored: Fields for data that the provider stores, and for background work. By default, the
            gateway refuses them.
        hosted: Fields for services of the provider other than its model. By default, the gateway
            refuses them.
        parts: Type of a message or of a message part → its permitted fields.
        unsupported_parts: Further types of parts, which belong to hosted tools and to files. The
            gateway forwards these parts unchanged if it permits hosted tools and files.
    """

    path: str
    dialogue: tuple[str, ...]
    limit: tuple[str, ...]
    passes: frozenset[str]
    drops: frozenset[str]
    tools: tuple[str, ...]
    tool_drops: frozenset[str]
    stored: frozenset[str]
    hosted: frozenset[str]
    parts: Mapping[str, frozenset[str]]
    unsupported_parts: frozenset[str]


CHAT = ModelApiFields(
    path="/v1/chat/completions",
    dialogue=("messages",),
    limit=("max_completion_tokens", "max_tokens"),
    passes=_words(
        "stream stream_options temperature top_p top_k min_p stop seed presence_penalty "
        "frequency_penalty repetition_penalty logit_bias logprobs top_logprobs tools tool_choice "
        "parallel_tool_calls response_format reasoning_effort verbosity prompt_cache_key "
        "return_token_ids thinking chat_template_kwargs"
    ),
    drops=_words("user metadata safety_identifier service_tier prompt_cache_retention"),
    tools=("function", "custom"),
    tool_drops=frozenset(),
    stored=_words("store"),
    hosted=_words("web_search_options"),
    parts={
        "message": _words(
            "role content name tool_calls tool_call_id refusal reasoning reasoning_content "
            "function_call annotations provider_specific_fields thinking_blocks cache_control"
        ),
        "text": _words("text cache_control"),
        "refusal": _words("refusal"),
        "image_url": _words("image_url"),
    },
    unsupported_parts=_words("file input_audio"),
)

RESPONSES = ModelApiFields(
    path="/v1/responses",
    dialogue=("input", "instructions"),
    limit=("max_output_tokens",),
    passes=_words(
        "stream stream_options temperature top_p top_logprobs tools tool_choice text include "
        "parallel_tool_calls max_tool_calls reasoning truncation prompt_cache_key"
    ),
    drops=_words(
        "user metadata client_metadata safety_identifier service_tier prompt_cache_retention"
    ),
    tools=("function", "custom", "local_shell", "namespace"),
    tool_drops=frozenset(),
    stored=_words("store previous_response_id background conversation prompt"),
    hosted=_words("context_management"),
    parts={
        "message": _words("id role content status phase"),
        "function_call": _words("id call_id name namespace arguments status"),
        "function_call_output": _words("id call_id output status"),
        "custom_tool_call": _words("id call_id name namespace input status"),
        "custom_tool_call_output": _words("id call_id name output status"),
        "local_shell_call": _words("id call_id action status"),
        "local_shell_call_output": _words("id call_id output status"),
        "reasoning": _words("id summary content encrypted_content status"),
        "input_text": _words("text"),
        "output_text": _words("text annotations logprobs"),
        "summary_text": _words("text"),
        "reasoning_text": _words("text"),
        "text": _words("text"),
        "refusal": _words("refusal"),
        "input_image": _words("image_url detail"),
    },
    unsupported_parts=_words(
        "input_file item_reference compaction web_search_call file_search_call "
        "code_interpreter_call image_generation_call computer_call computer_call_output "
        "computer_screenshot mcp_list_tools mcp_approval_request mcp_approval_response mcp_call "
        "shell_call shell_call_output apply_patch_call apply_patch_call_output tool_search_call "
        "tool_search_output"
    ),
)

MESSAGES = ModelApiFields(
    path="/v1/messages",
    dialogue=("messages", "system"),
    limit=("max_tokens",),
    passes=_words(
        "stream temperature top_p top_k stop_sequences tools tool_choice thinking output_config "
        "output_format context_management cache_control"
    ),
    drops=_words("metadata betas service_tier speed inference_geo diagnostics"),
    tools=("custom", "bash_", "text_editor_"),
    tool_drops=_words("defer_loading eager_input_streaming"),
    stored=frozenset(),
    hosted=_words("container mcp_servers"),
    parts={
        "message": _words("role content"),
        "text": _words("text cache_control citations"),
        "image": _words("source cache_control"),
        "document": _words("source cache_control title context citations"),
        "tool_use": _words("id name input cache_control caller"),
        "tool_result": _words("tool_use_id content is_error cache_control"),
        "thinking": _words("thinking signature"),
        "redacted_thinking": _words("data"),
    },
    unsupported_parts=_words(
        "server_tool_use web_search_tool_result web_fetch_tool_result code_execution_tool_result "
        "bash_code_execution_tool_result text_editor_code_execution_tool_result mcp_tool_use "
        "mcp_tool_result tool_search_tool_result tool_reference search_result container_upload "
        "compaction"
    ),
)

TABLES: dict[Name, ModelApiFields] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
COUNT = "/v1/messages/count_tokens"
MODELS = "/v1/models"

INCLUDES = _words("reasoning.encrypted_content message.output_text.logprobs")
"""Permitted values of the field ``include`` of ``responses``."""
BETAS = (
    "claude-code-",
    "interleaved-thinking-",
    "fine-grained-tool-streaming-",
    "context-management-",
    "prompt-caching-",
    "extended-cache-ttl-",
    "token-efficient-tools-",
    "output-128k-",
    "effort-",
    "structured-outputs-",
    "token-counting-",
)
"""Prefixes of permitted values of the header ``anthropic-beta``; other values are dropped."""
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""HTTP status → Anthropic's error type; the type of every other status is ``api_error``."""


def model_entry(name: str, owner: str) -> dict[str, Any]:
    """Return a model's entry in a list of models, with the fields of OpenAI and Anthropic."""
    entry = {"id": name, "object": "model", "created": 0, "owned_by": owner}
    return entry | {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def model_page(names: Iterable[str], owner: str) -> dict[str, Any]:
    """Return the response to a request for the list of models, as a single page."""
    entries = [model_entry(name, owner) for name in names]
    # Anthropic's clients read ``first_id`` and ``last_id``; Codex reads the list ``models``.
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
    return {"object": "list", "data": entries, "has_more": False, "models": [], **ends}
