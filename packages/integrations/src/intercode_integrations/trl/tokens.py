"""Tokenisation of untrusted text, without control tokens of a chat template.

A tokenizer encodes the text of an added token, such as ``<|im_end|>``, as the token itself,
wherever the text occurs. An observation with such a text would end the environment's turn and
impersonate other roles.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any

_TOKEN_START = re.compile(r"<(?=[|\uff5c][^<>|\uff5c\s]{1,64}[|\uff5c]>)")
"""Start of control tokens in the form of most templates."""
_GAP = "\N{ZERO WIDTH SPACE}"


def added_tokens(tokenizer: Any) -> Collection[str]:
    """Return the texts of several characters that a tokenizer encodes as single tokens."""
    vocabulary: Collection[str] = getattr(tokenizer, "get_added_vocab", tuple)()
    special = getattr(tokenizer, "all_special_tokens", ())
    return {text for text in (*vocabulary, *special) if len(text) > 1}


def split_text(text: str, tokens: Collection[str]) -> list[str]:
    """Split a text after the first character of each contained token."""
    boundaries = {0, len(text)}
    for token in tokens:
        position = text.find(token)
        while position >= 0:
            boundaries.add(position + 1)
            position = text.find(token, position + 1)
    return [text[start:end] for start, end in pairwise(sorted(boundaries))]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, including control tokens."""
    return list(tokenizer(text=text, add_special_tokens=False)["input_ids"])


def encode_data(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of untrusted text: its characters, and no control token."""
    pieces = split_text(text, added_tokens(tokenizer))
    return [token for piece in pieces for token in encode(tokenizer, piece)]


def break_tokens(text: str, tokenizer: Any = None) -> str:
    """Return a text without control tokens: a zero-width space breaks each.

    Args:
        text: The text.
        tokenizer: The tokenizer; None: texts in the form of most templates are broken, such as
            ``<|im_end|>``.
    """
    if tokenizer is None:
        return _TOKEN_START.sub(f"<{_GAP}", text)
    return _GAP.join(split_text(text, added_tokens(tokenizer)))
