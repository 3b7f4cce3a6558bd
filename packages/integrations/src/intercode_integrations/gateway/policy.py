"""The rules of the gate: the operator's terms, and requests by the tables of their protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from intercode.errors import UsageError
from intercode.models.protocols import BETAS, INCLUDES, TABLES, Name, Table
from intercode_sandbox.suggestions import hint_text

_MOST_TOKENS = 1_000_000
"""The longest reply that counts: all clients wait for the rate of tokens that one asks for."""
IMAGE_BYTES = 8192
"""Bytes of text that an image given as data is counted as: providers charge at most some thousand
tokens for it, whatever its size."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that the operator of a gate sets.

    Attributes:
        hosted: Tools that the provider carries out: web search, code interpreter, remote MCP,
            computer, file search. ``drop`` leaves them out of requests; ``pass`` lets their fields,
            items and unknown types of tools through.
        remote: Whether the provider may fetch URLs, and read files that it keeps.
        stored: Whether the provider may store responses, and work in the background.
        models: Name that a client asks for → name of the provider. Others are refused. None: every
            name means the model of `Upstream`.
        max_calls: Calls of one seat.
        max_body: Bytes of a request's body.
        max_context: Bytes of the dialogue and its tools, images apart: each token is at least one.
        reply_tokens: The most tokens of a reply, which larger limits of clients are lowered to.
        cache_sampled: Whether replies are cached also where the client has them sampled. Equal
            requests have then equal replies, and episodes that should differ may not.
        at_once: Calls of one seat at a time. Further ones wait.
        patience: Seconds that a client may take for a head, for a body, or for taking a part of a
            reply, and that a request waits for room.
        idle: Seconds without a request after which a connection is closed.
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
            raise UsageError(f"hosted is refuse, drop or pass, not {self.hosted!r}")
        for name in ("max_calls", "max_body", "max_context", "reply_tokens", "at_once"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise UsageError(f"{name} must be at least 1, not {limit}")
        if not (self.patience > 0 and self.idle > 0):
            raise UsageError("patience and idle must be above 0 seconds")


class Refusal(Exception):  # noqa: N818 - it is the client's error
    """A request that is not passed on."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def refused(why: str) -> Refusal:
    """Return the refusal of a request that is not as it must be."""
    return Refusal(400, f"the gateway refuses it: {why}")


def parsed(body: bytes) -> dict[str, Any]:
    """Read the JSON object of a request.

    Raises:
        Refusal: It is something else.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise refused("the body is not JSON") from None
    if not isinstance(data, dict):
        raise refused("the body is not a JSON object")
    return data


def admitted(name: Name, asked: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    """Return the part of a request's body that is passed on; without its model.

    Raises:
        Refusal: It has something that no table and no term allows.
    """
    table = TABLES[name]
    given = {key: value for key, value in asked.items() if value is not None and key != "model"}
    if name == "chat" and given.get("n", 1) != 1:
        raise refused("n: one reply a call")
    if given.get("modalities", ["text"]) != ["text"]:
        raise refused("modalities: text only")
    known = {*table.dialogue, *table.limit, *table.passes}
    sent: dict[str, Any] = {}
    for key, value in given.items():
        if key in known:
            sent[key] = value
        elif key in table.stored:
            if not terms.stored and value is not False:
                raise refused(f"{key}: the provider must store nothing")
            sent[key] = value
        elif key in table.hosted:
            if terms.hosted == "refuse":
                raise refused(f"{key}: the provider must do nothing but answer")
            if terms.hosted == "pass":
                sent[key] = value
        elif key not in table.drops and key not in {"n", "modalities"}:
            raise refused(f"{key} is not among the fields that pass{hint_text(key, known)}")
    if "stream" in sent and not isinstance(sent["stream"], bool):
        raise refused("stream is true or false")
    if name == "responses" and not terms.stored:
        sent["store"] = False  # OpenAI's default is to keep it
    unknown = {*_texts(sent.get("include"))} - INCLUDES
    if unknown and terms.hosted != "pass":
        raise refused(f"include: {', '.join(sorted(unknown))}")
    if "tools" in sent:
        sent["tools"] = [*_tools(sent["tools"], table, terms)]
    if not sent.get("tools"):
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            sent.pop(key, None)
    _dialogue(sent, table, terms)
    for key in table.limit:
        _limit(sent, key, terms)
    if terms.reply_tokens is not None and not any(key in sent for key in table.limit):
        sent[table.limit[0]] = terms.reply_tokens
    if terms.max_context is not None and (size := context(sent)) > terms.max_context:
        raise Refusal(
            400,
            f"prompt is too long: {size} bytes > {terms.max_context} maximum "
            "(context_length_exceeded at the gateway)",
        )
    return sent


def most_tokens(name: Name, sent: Mapping[str, Any]) -> int | None:
    """Return the limit that a request sets for its reply."""
    limits = [sent[key] for key in TABLES[name].limit if key in sent]
    return max(limits, default=None)


def betas(values: list[str], terms: Terms) -> str:
    """Return the values of the header ``anthropic-beta`` that pass."""
    given = [beta.strip() for value in values for beta in value.split(",")]
    return ",".join(b for b in given if b.startswith(BETAS) or (b and terms.hosted == "pass"))


def context(sent: Mapping[str, Any]) -> int:
    """Return an upper bound of a request's tokens: its bytes, without images' data."""
    images = 0

    def without(value: Any) -> Any:
        nonlocal images
        if isinstance(value, list):
            return [without(inner) for inner in value]
        if not isinstance(value, dict) or value.get("type") == "tool_use":
            return value  # arguments are anything: what looks like an image there is text
        if value.get("type") in {"image_url", "input_image"} or value.get("type") == "base64":
            images += 1
            return {}
        return {key: without(inner) for key, inner in value.items()}

    kept = {key: value if key == "tools" else without(value) for key, value in sent.items()}
    return len(json.dumps(kept, ensure_ascii=False).encode(errors="replace")) + images * IMAGE_BYTES


def _limit(sent: dict[str, Any], key: str, terms: Terms) -> None:
    if (value := sent.get(key)) is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refused(f"{key} is a number of tokens")
    sent[key] = min(value, terms.reply_tokens or _MOST_TOKENS)


def _tools(tools: Any, table: Table, terms: Terms) -> Iterator[dict[str, Any]]:
    for tool in _items(tools, "tools"):
        kind = tool.get("type", table.tools[0])
        if kind == "namespace":
            tool = {**tool, "tools": [*_tools(tool.get("tools", []), table, terms)]}
        known = isinstance(kind, str) and any(
            kind == own or (own.endswith("_") and kind.startswith(own)) for own in table.tools
        )
        if known or terms.hosted == "pass":
            yield {key: value for key, value in tool.items() if key not in table.tool_drops}
        elif terms.hosted == "refuse":
            raise refused(f"a tool of type {kind!r}, which the client does not carry out itself")


def _dialogue(sent: Mapping[str, Any], table: Table, terms: Terms) -> None:
    for key in table.dialogue:
        value = sent.get(key)
        if value is None or isinstance(value, str):
            continue
        for item in _items(value, key):
            _part(item, "text" if key == "system" else "message", table, terms)


def _part(part: dict[str, Any], usual: str, table: Table, terms: Terms) -> None:
    """Check a message, or a part of one, and the parts within."""
    kind = part.get("type", usual)
    if not isinstance(kind, str) or kind not in table.parts:
        if terms.hosted == "pass" and terms.remote and kind in table.unsupported_parts:
            return
        raise refused(f"a part of type {kind!r} in the dialogue")
    if unknown := part.keys() - table.parts[kind] - {"type"}:
        kept = {key for key in unknown if part[key] is not None}
        if kept & {"file_id", "file_url"} and not terms.remote:
            raise refused("a file that the provider keeps, or fetches")
        if kept and not (kept <= {"file_id", "file_url"}):
            raise refused(f"{', '.join(sorted(kept))} in a part of type {kind!r}")
    _local(part, terms)
    for key in ("content", "output", "summary"):
        if isinstance(part.get(key), list):
            for inner in _items(part[key], key):
                _part(inner, "text", table, terms)


def _local(part: Mapping[str, Any], terms: Terms) -> None:
    """Check that an image or a document is there as data."""
    if terms.remote:
        return
    if "image_url" in part:
        image = part["image_url"]
        url = image.get("url") if isinstance(image, dict) else image
        if not (isinstance(url, str) and url.startswith("data:")):
            raise refused("an image at a URL: send its data (data:image/png;base64,…)")
    if "source" in part:
        source = part["source"]
        kind = source.get("type") if isinstance(source, dict) else None
        if kind not in {"base64", "text", "content"}:
            raise refused(f"a source of type {kind!r}: send the data")
        if kind == "content" and not isinstance(source.get("content"), str):
            raise refused("a source of parts")


def _items(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise refused(f"{where} is not a list of objects")
    return value


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refused("include is a list of texts")
    return value
