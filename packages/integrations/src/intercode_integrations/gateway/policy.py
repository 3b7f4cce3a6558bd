"""Rules of the gateway: the operator's policy, and validation of requests by protocol tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from intercode.errors import UsageError
from intercode.models.api_fields import BETAS, INCLUDES, TABLES, ModelApiFields, Name
from intercode_sandbox.spelling_suggestions import hint_text

_MAX_REPLY_TOKENS = 1_000_000
"""Maximum reply tokens of a request if `GatewayPolicy.reply_tokens` is None. A larger number would
use up the shared rate."""
IMAGE_BYTES = 8192
"""Bytes that `context_size` counts for an image that is given as data. Providers charge at most a
few thousand tokens for an image of any size."""


@dataclass(frozen=True, slots=True)
class GatewayPolicy:
    """The rules that the operator of a gateway sets for requests of clients.

    Attributes:
        hosted: The treatment of tools that the provider runs: web search, code interpreter, remote
            MCP, computer, file search. ``refuse`` rejects requests with such tools; ``drop``
            removes the tools from requests; ``pass`` forwards the tools, also of unknown types, and
            the fields that configure them. Earlier calls of such tools in the dialogue are
            forwarded only if `remote` is True, too.
        remote: Whether a request may make the provider fetch URLs, or read files that the provider
            stores.
        stored: Whether a request may make the provider store responses, or work in the background.
        models: Client's model name → provider's model name. Other names are refused. None: every
            name selects the model of `Upstream`.
        max_calls: The maximum number of calls in one session.
        max_body: The maximum bytes of a request's body.
        max_context: The maximum size of a request in bytes of JSON, with its dialogue and tools.
            Each image counts as `IMAGE_BYTES`. Bytes are an upper bound of tokens, because each
            token has at least one byte.
        reply_tokens: The maximum tokens of a reply; a higher limit in a request is lowered to it.
        cache_sampled: Whether to cache replies even if the client requests sampling without a seed.
            Equal requests then get equal replies, so episodes that should differ may be equal.
        at_once: Concurrent calls of one session. Further calls wait.
        patience: Seconds that a client may take to send a head, to send a body, or to read a part
            of a reply. The wait for the memory of a large body has the same limit.
        idle: Seconds without a request after which a connection is closed.

    Raises:
        UsageError: A value is out of its range.
    """

    hosted: Literal["refuse", "drop", "pass"] = "refuse"
    remote: bool = False
    stored: bool = False
    models: Mapping[str, str] | None = None
    max_calls: int | None = None
    max_body: int = 32 * 1024**2
    max_context: int | None = None
    reply_tokens: int | None = None
    cache_sampled: bool = False
    at_once: int = 16
    patience: float = 60.0
    idle: float = 600.0

    def __post_init__(self) -> None:
        if self.hosted not in {"refuse", "drop", "pass"}:
            raise UsageError(f"hosted must be refuse, drop or pass, not {self.hosted!r}")
        for field_name in ("max_calls", "max_body", "max_context", "reply_tokens", "at_once"):
            if (limit := getattr(self, field_name)) is not None and limit < 1:
                raise UsageError(f"{field_name} must be at least 1, not {limit}")
        if not (self.patience > 0 and self.idle > 0):
            raise UsageError("patience and idle must be above 0 seconds")


class GatewayRefusal(Exception):  # noqa: N818 - it is the client's error
    """An HTTP error response of the gateway itself: to a refused request, or without an answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def bad_request(reason: str) -> GatewayRefusal:
    """Return the refusal of an invalid request, with status 400."""
    return GatewayRefusal(400, f"the gateway refuses it: {reason}")


def parse_body(body: bytes) -> dict[str, Any]:
    """Parse the body of a request, which must be a JSON object.

    Raises:
        GatewayRefusal: The body is not a JSON object.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise bad_request("the body is not JSON") from None
    if not isinstance(data, dict):
        raise bad_request("the body is not a JSON object")
    return data


def admit_body(
    protocol: Name, client_body: Mapping[str, Any], policy: GatewayPolicy
) -> dict[str, Any]:
    """Validate a request's body; return the body that is forwarded, without the model's name.

    Raises:
        GatewayRefusal: The body has a field or value that the protocol's table or the policy
            forbids.
    """
    table = TABLES[protocol]
    fields = {
        key: value for key, value in client_body.items() if value is not None and key != "model"
    }
    if protocol == "chat" and fields.get("n", 1) != 1:
        raise bad_request("n: one reply a call")
    if fields.get("modalities", ["text"]) != ["text"]:
        raise bad_request("modalities: text only")
    allowed_fields = {*table.dialogue, *table.limit, *table.passes}
    request_body: dict[str, Any] = {}
    for key, value in fields.items():
        if key in allowed_fields:
            request_body[key] = value
        elif key in table.stored:
            if not policy.stored and value is not False:
                raise bad_request(f"{key}: the provider must store nothing")
            request_body[key] = value
        elif key in table.hosted:
            if policy.hosted == "refuse":
                raise bad_request(f"{key}: the provider must do nothing but answer")
            if policy.hosted == "pass":
                request_body[key] = value
        elif key not in table.drops and key not in {"n", "modalities"}:
            raise bad_request(
                f"{key} is not among the fields that pass{hint_text(key, allowed_fields)}"
            )
    if "stream" in request_body and not isinstance(request_body["stream"], bool):
        raise bad_request("stream is true or false")
    if protocol == "responses" and not policy.stored:
        request_body["store"] = False  # OpenAI stores responses by default
    unknown_includes = {*_check_strings(request_body.get("include"))} - INCLUDES
    if unknown_includes and policy.hosted != "pass":
        raise bad_request(f"include: {', '.join(sorted(unknown_includes))}")
    if "tools" in request_body:
        request_body["tools"] = [*_filter_tools(request_body["tools"], table, policy)]
    if not request_body.get("tools"):
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            request_body.pop(key, None)
    _check_dialogue(request_body, table, policy)
    for key in table.limit:
        _lower_limit(request_body, key, policy)
    if policy.reply_tokens is not None and not any(key in request_body for key in table.limit):
        request_body[table.limit[0]] = policy.reply_tokens
    if policy.max_context is not None and (size := context_size(request_body)) > policy.max_context:
        raise GatewayRefusal(
            400,
            f"prompt is too long: {size} bytes > {policy.max_context} maximum "
            "(context_length_exceeded at the gateway)",
        )
    return request_body


def max_reply_tokens(protocol: Name, request_body: Mapping[str, Any]) -> int | None:
    """Return the maximum of reply tokens that a request sets itself; None if it sets none."""
    limits = [request_body[key] for key in TABLES[protocol].limit if key in request_body]
    return max(limits, default=None)


def betas(header_values: list[str], policy: GatewayPolicy) -> str:
    """Filter the values of the header ``anthropic-beta`` by the policy, and join them by commas."""
    beta_names = [
        beta.strip() for header_value in header_values for beta in header_value.split(",")
    ]
    return ",".join(
        beta_name
        for beta_name in beta_names
        if beta_name.startswith(BETAS) or (beta_name and policy.hosted == "pass")
    )


def context_size(request_body: Mapping[str, Any]) -> int:
    """Return an upper bound of a request's tokens: the bytes of its JSON without images.

    Each image counts as `IMAGE_BYTES`.
    """
    image_count = 0

    def strip_images(node: Any) -> Any:
        nonlocal image_count
        if isinstance(node, list):
            return [strip_images(item) for item in node]
        if not isinstance(node, dict) or node.get("type") == "tool_use":
            return node  # tool arguments are arbitrary: what looks like an image there is text
        if node.get("type") in {"image_url", "input_image"} or node.get("type") == "base64":
            image_count += 1
            return {}
        return {key: strip_images(item) for key, item in node.items()}

    text_body = {
        key: field_value if key == "tools" else strip_images(field_value)
        for key, field_value in request_body.items()
    }
    return (
        len(json.dumps(text_body, ensure_ascii=False).encode(errors="replace"))
        + image_count * IMAGE_BYTES
    )


def _lower_limit(request_body: dict[str, Any], limit_field: str, policy: GatewayPolicy) -> None:
    if (limit_value := request_body.get(limit_field)) is None:
        return
    if isinstance(limit_value, bool) or not isinstance(limit_value, int) or limit_value < 1:
        raise bad_request(f"{limit_field} is a number of tokens")
    request_body[limit_field] = min(limit_value, policy.reply_tokens or _MAX_REPLY_TOKENS)


def _filter_tools(
    tools: Any, table: ModelApiFields, policy: GatewayPolicy
) -> Iterator[dict[str, Any]]:
    for tool in _check_objects(tools, "tools"):
        kind = tool.get("type", table.tools[0])
        if kind == "namespace":
            tool = {**tool, "tools": [*_filter_tools(tool.get("tools", []), table, policy)]}
        is_known = isinstance(kind, str) and any(
            kind == tool_type or (tool_type.endswith("_") and kind.startswith(tool_type))
            for tool_type in table.tools
        )
        if is_known or policy.hosted == "pass":
            yield {key: value for key, value in tool.items() if key not in table.tool_drops}
        elif policy.hosted == "refuse":
            raise bad_request(
                f"a tool of type {kind!r}, which the client does not carry out itself"
            )


def _check_dialogue(
    request_body: Mapping[str, Any], table: ModelApiFields, policy: GatewayPolicy
) -> None:
    for key in table.dialogue:
        value = request_body.get(key)
        if value is None or isinstance(value, str):
            continue
        for item in _check_objects(value, key):
            _check_part(item, "text" if key == "system" else "message", table, policy)


def _check_part(
    part: dict[str, Any], default_type: str, table: ModelApiFields, policy: GatewayPolicy
) -> None:
    """Validate a message, or a part of a message, and its nested parts.

    Raises:
        GatewayRefusal: A type or a field of a part is not permitted.
    """
    kind = part.get("type", default_type)
    if not isinstance(kind, str) or kind not in table.parts:
        if policy.hosted == "pass" and policy.remote and kind in table.unsupported_parts:
            return
        raise bad_request(f"a part of type {kind!r} in the dialogue")
    if unknown_keys := part.keys() - table.parts[kind] - {"type"}:
        present_fields = {key for key in unknown_keys if part[key] is not None}
        if present_fields & {"file_id", "file_url"} and not policy.remote:
            raise bad_request("a file that the provider keeps, or fetches")
        if present_fields and not (present_fields <= {"file_id", "file_url"}):
            raise bad_request(f"{', '.join(sorted(present_fields))} in a part of type {kind!r}")
    _check_data_source(part, policy)
    for key in ("content", "output", "summary"):
        if isinstance(part.get(key), list):
            for nested_part in _check_objects(part[key], key):
                _check_part(nested_part, "text", table, policy)


def _check_data_source(part: Mapping[str, Any], policy: GatewayPolicy) -> None:
    """Refuse an image or a document that the request gives by reference, not as data."""
    if policy.remote:
        return
    if "image_url" in part:
        image = part["image_url"]
        url = image.get("url") if isinstance(image, dict) else image
        if not (isinstance(url, str) and url.startswith("data:")):
            raise bad_request("an image at a URL: send its data (data:image/png;base64,…)")
    if "source" in part:
        source = part["source"]
        source_type = source.get("type") if isinstance(source, dict) else None
        if source_type not in {"base64", "text", "content"}:
            raise bad_request(f"a source of type {source_type!r}: send the data")
        if source_type == "content" and not isinstance(source.get("content"), str):
            raise bad_request("a source of parts")


def _check_objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise bad_request(f"{name} is not a list of objects")
    return value


def _check_strings(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise bad_request("include is a list of texts")
    return value
