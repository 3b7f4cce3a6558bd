"""A policy of one matrix, served as vLLM serves models: token ids in, ids and probabilities out."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END, CALL, CALLED = "<|im_end|>", "<tool_call>", "</tool_call>"
MARKS = ("<|im_start|>", END, "<|endoftext|>", CALL, CALLED, "<tool_response>", "</tool_response>")


def tokenizer(choices: Sequence[str], folder: Path) -> PreTrainedTokenizerFast:
    """Make and save a tokenizer of bytes, with Qwen's marks, and a token for each choice."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    more = (*MARKS, "<think>", "</think>", *(f"\n{choice}\n" for choice in choices))
    made.add_tokens([AddedToken(one, normalized=False) for one in more])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    fast.save_pretrained(folder)
    return fast


class Policy:
    """The next token by the last one; at first every choice of a call is as likely."""

    def __init__(self, words: PreTrainedTokenizerFast, choices: Sequence[str]) -> None:
        begin, end, call, called = words.convert_tokens_to_ids(["Ċ", END, CALL, CALLED])
        chosen = words.convert_tokens_to_ids([f"\n{choice}\n" for choice in choices])
        self.weights = np.zeros((len(words), len(words)))
        self.weights[begin, call] = self.weights[called, end] = 40.0
        self.weights[call, chosen] = self.weights[chosen, called] = 40.0
        self._end, self._call, self._chosen = end, call, chosen
        self._dice = np.random.default_rng(0)

    def likely(self, last: int) -> np.ndarray:
        """Return the probability of each token."""
        powers = np.exp(self.weights[last] - self.weights[last].max())
        return powers / powers.sum()

    def likely_calls(self) -> np.ndarray:
        """Return the probability of each choice where a call begins."""
        return self.likely(self._call)[self._chosen]

    def continued(self, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
        """Sample a completion; return its tokens, and their logarithmic probabilities."""
        ids: list[int] = []
        logs: list[float] = []
        while self._end not in ids:
            likely = self.likely([*prompt, *ids][-1])
            ids.append(int(self._dice.choice(len(likely), p=likely)))
            logs.append(float(np.log(likely[ids[-1]])))
        return ids, logs

    def learn(self, samples: Sequence[tuple[list[int], list[bool]]], rewards: list[float]) -> None:
        """Take a step up the gradient of the mean reward: REINFORCE, with the mean as baseline."""
        gradient = np.zeros_like(self.weights)
        for (ids, sampled), reward in zip(samples, rewards, strict=True):
            for at in np.flatnonzero(sampled):
                gradient[ids[at - 1]] -= (reward - np.mean(rewards)) * self.likely(ids[at - 1])
                gradient[ids[at - 1], ids[at]] += reward - np.mean(rewards)
        self.weights += gradient


class Answer(NamedTuple):
    """An answer of the server's, and the rollout that asked."""

    rollout: str
    prompt: list[int]
    ids: list[int]
    logs: list[float]


class PolicyServer:
    """Serves a policy on a free port, within a ``with`` statement."""

    def __init__(self, policy: Policy) -> None:
        self.answers: list[Answer] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(policy, self.answers))
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> PolicyServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(policy: Policy, answers: list[Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            self._send({"data": []})

        def do_POST(self) -> None:
            assert self.path == "/inference/v1/generate"
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            ids, logs = policy.continued(body["token_ids"])
            answers.append(Answer(self.headers["X-Session-ID"], body["token_ids"], ids, logs))
            pairs = zip(ids, logs, strict=True)
            content = [{"token": f"token_id:{one}", "logprob": log} for one, log in pairs]
            choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
            self._send({"request_id": "1", "choices": [choice]})

        def _send(self, reply: dict[str, Any]) -> None:
            text = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler
