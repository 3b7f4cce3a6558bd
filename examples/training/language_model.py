"""Train a small language model by the rewards of its own attempts: ``make train-model``.

It begins with weights that people know, SmolLM2-135M-Instruct, and practises short Python tasks
by GRPO. Two controls tell where the success comes from: as many steps with shuffled rewards, and
as many steps of supervised training on its own successes.

It needs TRL: ``pip install 'intercode-gym[trl]'``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from policy import Local, ready_made
from trainee import ATTEMPTS, Curve, Shuffled, Trainee, run_command, solved, summary
from transformers import set_seed

import intercode
from datasets import disable_progress_bars
from intercode.models.local.store import find_weights

ARMS = ("before", "practice", "shuffled rewards", "own successes")
MODEL = "smollm2-135m"


def main(argv: Sequence[str] | None = None) -> int:
    """Train, try, and write what came of it."""
    args = arguments(argv)
    if args.summary:
        print(summary(args.summary))
        return 0
    disable_progress_bars()
    set_seed(args.seed)
    args.out.mkdir(parents=True)
    model, words = ready_made(args.model or str(find_weights(MODEL).path), args.device)
    train_last(model, args.layers)
    Learner(args, model, words, args.env, args.turns).all()
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/model"), help="a new folder (runs/model)")
    add("--model", help=f"a name on the hub, a folder, or a .gguf file (local/{MODEL})")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where it is trained (cpu)")
    add("--env", choices=("python", "bash", "sql"), default="python", help="the environment")
    add("--turns", type=int, default=1, help="of an episode")
    add("--seed", type=int, default=0, help="of tasks and samples")
    add("--difficulty", type=int, choices=range(1, 5), default=1, help="of the generated tasks")
    add(
        "--layers", type=int, default=10, help="trained ones, the last; the others stay as they are"
    )
    add("--practise", type=int, default=40, help="steps of each arm")
    add("--batch", type=int, default=2, help=f"tasks in a step, with {ATTEMPTS} attempts each")
    add("--temperature", type=float, default=0.7, help="of attempts in practice")
    add("--practice-rate", type=float, default=5e-5, help="the learning rate of practice")
    add("--imitation-rate", type=float, default=5e-5, help="that of supervised training")
    add("--reply-tokens", type=int, default=64, help="of a reply in a trial, at most")
    add("--attempt-tokens", type=int, default=64, help="of replies and outputs in practice")
    add("--count", type=int, default=100, help="generated tasks of each trial")
    add("--points", type=int, default=3, help="trials of each learning curve; the best is kept")
    add("--arms", nargs="+", choices=ARMS, default=ARMS, help="what to train and to try")
    add("--summary", type=Path, nargs="+", metavar="OUT", help="only sum up what others have done")
    args = parser.parse_args(argv)
    if not args.summary and args.out.exists():
        parser.error(f"{args.out} is there already: name a new folder by --out")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU that PyTorch can use")
    return args


def train_last(model: Any, count: int) -> None:
    """Let training change only so many layers, the last: the others then need no gradients."""
    model.requires_grad_(False)
    for layer in model.model.layers[-count:]:
        layer.requires_grad_(True)


class Learner(Trainee):
    """One seed."""

    def tests(self) -> Mapping[str, intercode.Dataset]:
        """Name the tasks that are kept from training: other words, and tasks that people wrote."""
        starter = intercode.load_dataset(f"{self.env}-starter", split="test")
        return {**super().tests(), "starter": starter}

    def all(self) -> None:
        """Train and try each arm from the same weights; write `results.json`."""
        steps = self.args.practise
        base = deepcopy(self.model.state_dict())
        for arm in ARMS:
            if arm not in self.args.arms:
                continue
            self.model.load_state_dict(base)
            if arm == "before":
                self.attempt_all(arm, self.agent(arm))
            elif arm == "own successes":
                self.imitate(arm, steps)
            else:
                self.practise(arm, solved if arm == "practice" else Shuffled(self.args.seed))
            if arm != "before":
                self.save(arm.replace(" ", "-"))
            self.write_results()

    def imitate(self, arm: str, steps: int) -> None:
        """Learn to say what its own successful attempts said."""
        args = self.args
        wanted = steps * args.batch
        tasks = self.generated("train", wanted)
        model = Local(
            self.model, self.words, "sampled", args.reply_tokens, temperature=args.temperature
        )
        self.attempt(self.playing(model), tasks, "sampled", epochs=ATTEMPTS)
        lines = self.out / "successes.jsonl"
        run_command(
            *("export", str(self.trial("sampled")), "--to", "chat", "--style", "chat"),
            *("--solved", "--out", str(lines)),
        )
        told = [json.loads(line)["messages"] for line in lines.read_text().splitlines()]
        print(f"{len(told)} successes of {wanted * ATTEMPTS} attempts", flush=True)
        curve = Curve(self, arm, steps)
        if told:
            rows = [row for messages in told for row in _rows(messages)]
            self.fit(rows, steps, args.batch * ATTEMPTS, curve)
        self.finish(arm, curve)


def _rows(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each reply of a dialogue, after all that was said before it."""
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            yield {"prompt": messages[:number], "completion": [message]}


if __name__ == "__main__":
    raise SystemExit(main())
