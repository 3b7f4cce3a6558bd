"""Tokens of untrusted text, which must not contain control tokens of a chat template.

A tokenizer encodes the text of a control token, such as ``<|im_end|>``, as that token, even within
an observation. Such an observation would end the environment's message and could then impersonate
other roles.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any

_TOKEN_START = re.compile(r"<(?=[|\uff5c][^<>|\uff5c\s]{1,64}[|\uff5c]>)")
"""Start of a control token's text in the form that most templates use: ``<|…|>``."""
_GAP = "\N{ZERO WIDTH SPACE}"


def added_tokens(tokenizer: Any) -> Collection[str]:
    """Return the texts, longer than a character, that a tokenizer always encodes as one token."""
    vocabulary: Collection[str] = getattr(tokenizer, "get_added_vocab", tuple)()
    special_tokens = getattr(tokenizer, "all_special_tokens", ())
    return {text for text in (*vocabulary, *special_tokens) if len(text) > 1}


def split_text(text: str, tokens: Collection[str]) -> list[str]:
    """Split a text after the first character of each control token that it contains.

    Args:
        text: The text.
        tokens: The texts of the control tokens.
    """
    boundaries = {0, len(text)}
    for token in tokens:
        position = text.find(token)
        while position >= 0:
            boundaries.add(position + 1)
            position = text.find(token, position + 1)
    return [text[start:end] for start, end in pairwise(sorted(boundaries))]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a trusted text, which may contain control tokens."""
    return list(tokenizer(text=text, add_special_tokens=False)["input_ids"])


def encode_data(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of an untrusted text, with control tokens encoded as their characters."""
    pieces = split_text(text, added_tokens(tokenizer))
    return [token for piece in pieces for token in encode(tokenizer, piece)]


def break_tokens(text: str, tokenizer: Any = None) -> str:
    """Return a text in which a zero-width space breaks the text of each control token.

    Args:
        text: The text.
        tokenizer: The tokenizer that defines the control tokens; None: all texts of the form
            ``<|…|>``, such as ``<|im_end|>``.
    """
    if tokenizer is None:
        return _TOKEN_START.sub(f"<{_GAP}", text)
    return _GAP.join(split_text(text, added_tokens(tokenizer)))
