"""A random model of two layers, with a tokenizer of single bytes, that says what a script says.

Its forward passes and gradients are real; only what it samples is written beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
Script = Callable[[int, str], str]
"""A row's number in its batch, and all that was said → the reply."""


def qwen() -> str:
    """Return the chat template of Qwen3, which TRL knows."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()


def tokenizer(template: str = "") -> PreTrainedTokenizerFast:
    """Make a tokenizer of single bytes with a chat template, or that of Qwen3."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={one: n for n, one in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    made.add_tokens(WORDS)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    wrapped.chat_template = template or qwen()
    return wrapped


class Scripted(Qwen3ForCausalLM):
    """The model."""

    def __init__(self, words: PreTrainedTokenizerFast, script: Script) -> None:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
        length = {"max_position_embeddings": 8192}
        super().__init__(Qwen3Config(vocab_size=len(words), **sizes, **heads, **length))
        self.words, self.script = words, script

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Say what the script says."""
        said = [self.words.decode(row) for row in input_ids]
        rows = [self.words.encode(self.script(n, text)) for n, text in enumerate(said)]
        pad, width = self.words.pad_token_id, max(map(len, rows))
        replies = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        return torch.cat([input_ids, replies], 1)


def call(name: str, **arguments: str) -> str:
    """Write a reply that calls a tool."""
    asked = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{asked}\n</tool_call><|im_end|>"


def block(action: str, language: str = "bash") -> str:
    """Write a reply with a block of code."""
    return f"```{language}\n{action}\n```<|im_end|>"
