"""A policy from nothing: a tokenizer, a transformer of a million parameters, and its replies."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Lfm2Config,
    Lfm2ForCausalLM,
    PreTrainedTokenizerFast,
)

from intercode.models import Message, Reply, Settings, Usage
from intercode.models.base import Tool

PAD, USER, REPLY, END = "<pad>", "<user>", "<reply>", "<end>"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}"
    f"{USER}{{{{ message.content[-120:] }}}}{REPLY}"
    "{% elif message.role == 'assistant' %}"
    f"{{{{ message.content }}}}{END}"
    "{% endif %}{% endfor %}"
)
"""The policy reads the end of each message, where the task is. The rules never change: it has
learnt them when it has learnt the tasks."""

SYLLABLE = "[bdfgklmnprstvz][aiou]"
"""A part of the made words that the generated tasks give to files, people and things."""
_PIECES = (
    rf"(?<![a-z]){SYLLABLE}(?=({SYLLABLE}|[bgklmnt])(?![a-z]))"  # the first of a made word
    rf"| (?={SYLLABLE}({SYLLABLE}|[bgklmnt])(?![a-z]))"  # the blank before it
    r"| ?[A-Za-z]+|[0-9]|\n| ?[^\sA-Za-z0-9]+| +"
)
"""A word of the language is a token, and so is a syllable of a made word, wherever it stands: a
policy can spell a word that it has never seen."""


def tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer of the words of some texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=5,
        special_tokens=[PAD, USER, REPLY, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    words = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, padding_side="left"
    )
    words.chat_template = TEMPLATE
    return words


def newborn(words: PreTrainedTokenizerFast) -> Lfm2ForCausalLM:
    """Make a model with random weights.

    Short convolutions see which token came before, which two layers of attention then need not
    find out before they can copy: it learns to in half of the steps.
    """
    model = Lfm2ForCausalLM(
        Lfm2Config(
            vocab_size=len(words),
            hidden_size=128,
            intermediate_size=512,
            block_auto_adjust_ff_dim=False,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            layer_types=["conv", "full_attention"] * 2,
            max_position_embeddings=1024,
            initializer_range=0.06,
            pad_token_id=words.pad_token_id,
            bos_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
        )
    )
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def ready_made(name: str, device: str = "auto") -> tuple[torch.nn.Module, PreTrainedTokenizerFast]:
    """Load a model and its tokenizer.

    Args:
        name: Its name on the hub, its folder, or a file of llama.cpp's (``.gguf``), whose weights
            are then numbers of 32 bits.
        device: Where it runs; ``auto``: on the GPU if there is one.
    """
    file = Path(name)
    given = {"dtype": "auto"}
    if file.suffix == ".gguf":
        name, given = str(file.parent), {"gguf_file": file.name}
    words = AutoTokenizer.from_pretrained(
        name, padding_side="left", gguf_file=given.get("gguf_file")
    )
    if words.pad_token is None:
        words.pad_token = words.eos_token
    model = AutoModelForCausalLM.from_pretrained(name, device_map=device, **given)
    if file.suffix == ".gguf":  # a trainer takes it for quantized, which its numbers are no longer
        del model.config.quantization_config
        loaded, model = model, AutoModelForCausalLM.from_config(model.config)
        model.load_state_dict(loaded.state_dict())
        model.to(loaded.device)
    return model, words


class Local:
    """A model in this process, for `evaluate`. It answers all dialogues that wait in one batch.

    Args:
        model: A causal language model.
        words: Its tokenizer.
        name: Its name in records.
        longest: The most tokens of a reply.
        temperature: At which replies are sampled; 0: the likeliest one is taken.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        words: PreTrainedTokenizerFast,
        name: str,
        longest: int,
        temperature: float = 0.0,
    ) -> None:
        self.name = name
        self._sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        )
        self._model, self._words, self._longest = model, words, longest
        self._waiting: list[tuple[str, Future[Reply]]] = []
        self._adding, self._answering = threading.Lock(), threading.Lock()

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the next message, whatever the settings."""
        told = [{"role": one.role, "content": one.content} for one in messages]
        prompt = self._words.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
        reply: Future[Reply] = Future()
        with self._adding:
            self._waiting.append((prompt, reply))
        with self._answering:  # the first thread answers all; the others find it done
            with self._adding:
                batch, self._waiting = self._waiting, []
            if batch:
                self._answer(batch)
        return reply.result()

    def _answer(self, batch: list[tuple[str, Future[Reply]]]) -> None:
        try:
            replies = self._generate([prompt for prompt, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised in each thread that waits
            for _, reply in batch:
                reply.set_exception(error)
        else:
            for (_, reply), answer in zip(batch, replies, strict=True):
                reply.set_result(answer)

    @torch.inference_mode()
    def _generate(self, prompts: list[str]) -> list[Reply]:
        given = self._words(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        width = given["input_ids"].shape[1]
        self._model.eval()
        made = self._model.generate(
            **given.to(self._model.device),
            max_new_tokens=self._longest,
            **self._sampling,
            pad_token_id=self._words.pad_token_id,
        )
        end = self._words.eos_token_id
        replies = []
        for asked, row in zip(given["attention_mask"], made[:, width:].tolist(), strict=True):
            ids = row[: row.index(end) + 1] if end in row else row
            text = self._words.decode(ids, skip_special_tokens=True)
            usage = Usage(int(asked.sum()), len(ids))
            finish = "stop" if ids[-1] == end else "length"
            replies.append(Reply(text, usage=usage, model=self.name, finish=finish))
        return replies
