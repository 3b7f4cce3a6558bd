"""TRL's own trainer, on our environments and on our rollouts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import curves
import language_model
import policy
import pytest
import torch
from recorded import played
from tiny_model import Script, Scripted, block, call, tokenizer
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

import intercode
from intercode_integrations.trl import Rollouts, env_reward, environments
from intercode_sandbox import get_provider
from open_resources import AHEAD, held

TASKS = intercode.load_dataset("bash")[:2]
GROUP = 4
STEPS = 2
LESSONS = 6
LEARNT = 0.05
"""The difference of mean logarithmic probabilities that the lessons make at least."""
LOST = 1
"""The attempt whose sandbox is lost; it would have solved its task."""


def gold(said: str) -> str:
    return next(one.gold[0] for one in TASKS if one.query in said)


def train(script: Script, folder: Path, steps: int = STEPS, **given: Any) -> list[dict[str, float]]:
    """Take some steps; return what the trainer has logged of each."""
    return train_model(Scripted(tokenizer(), script), folder, steps, **given)


def train_model(model: Scripted, folder: Path, steps: int, **given: Any) -> list[dict[str, float]]:
    """Train a model; return what the trainer has logged of each step."""
    words = model.words
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    options = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_steps=steps,
        max_completion_length=1500,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        max_tool_calling_iterations=4,
    )
    trainer = GRPOTrainer(model=model, args=options, processing_class=words, **given)
    trainer.train()
    after = model.model.layers[0].mlp.up_proj.weight.detach()
    assert (after - before).abs().max().item() > 0
    logged = [one for one in trainer.state.log_history if "reward" in one]
    assert len(logged) == steps
    for step in logged:
        assert step["reward_std"] > 0, step
        assert step["grad_norm"] > 0, step
    return logged


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that no sandbox is left, but for one that is made ahead."""
    yield
    assert held(get_provider("native"))["sandboxes"] <= AHEAD


def calls(number: int, said: str) -> str:
    """Every second attempt solves its task, then submits; the others submit only."""
    turns = said.split("</tools>")[-1].count("<tool_response>")
    if turns == 0:
        return call("bash", command=gold(said) if number % 2 else "true")
    return call("submit") if turns == 1 else "Done.<|im_end|>"


def test_environments_train(tmp_path: Path) -> None:
    with closing(environments("bash", data=TASKS)) as bash, nothing_left():
        given = {"train_dataset": bash.dataset(), "environment_factory": bash}
        for step in train(calls, tmp_path, **given):
            assert step["rewards/Bash/mean"] == 0.5, step
            assert step["tools/call_frequency"] == 2
            assert step["tools/failure_frequency"] == 0


def test_lost_sandbox_is_left_out(tmp_path: Path) -> None:
    made: list[Any] = []

    def script(number: int, said: str) -> str:
        if number == LOST and "<tool_response>" not in said.split("</tools>")[-1]:
            made[number]._env.workspace.close()
        return calls(number, said)

    with nothing_left(), closing(environments("bash", data=TASKS)) as bash:

        def factory() -> Any:
            made.append(bash())
            return made[-1]

        given = {"train_dataset": bash.dataset(), "environment_factory": factory}
        for step in train(script, tmp_path, 1, **given):
            assert step["rewards/Bash/mean"] == pytest.approx(1 / 3), step


def test_the_example_of_a_language_model(tmp_path: Path) -> None:
    words = policy.tokenizer(["Define", "return"])
    for part in (words, policy.newborn(words)):
        part.save_pretrained(tmp_path / "weights")
    options = {"--model": tmp_path / "weights", "--out": tmp_path / "run", "--practise": 2}
    options |= {"--batch": 1, "--count": 3, "--points": 1, "--reply-tokens": 8}
    options |= {"--attempt-tokens": 8, "--turns": 2}
    with nothing_left():
        assert language_model.main([str(word) for pair in options.items() for word in pair]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["solved"]) == list(language_model.ARMS)
    for solved in results["solved"].values():
        assert {name: len(tried) for name, tried in solved.items()} == {"test": 3, "starter": 6}
    curves.main([str(tmp_path / "run"), "--picture", str(picture := tmp_path / "curves.svg")])
    # What has solved nothing has nothing of its own to learn from.
    arms = curves.read([tmp_path / "run"])
    assert {*language_model.ARMS[1:3]} <= {*arms} <= {*language_model.ARMS[1:]}
    assert all(f"<!-- {arm} -->" in picture.read_text() for arm in arms)


def test_permanent_refusal_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise intercode.SandboxUnavailableError("no namespaces here")

    with closing(environments("bash", data=TASKS)) as bash:
        given = {"train_dataset": bash.dataset(), "environment_factory": bash}
        monkeypatch.setattr(type(get_provider("native")), "start", refuse)
        with pytest.raises(intercode.SandboxUnavailableError, match="no namespaces"):
            train(calls, tmp_path, **given)


class Blocks:
    """Every second attempt solves its task after the turns in common, then submits."""

    def __init__(self, shared: int) -> None:
        self._shared = shared

    def __call__(self, number: int, said: str) -> str:
        turns = said.count("Output:\n")
        if turns < self._shared:
            assert number == 0
            return block("cd /tmp; echo in common")
        if turns == self._shared:
            return block(gold(said) if number % 2 else "pwd")
        return block("submit")


class Kept:
    """Rollouts whose results are kept."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self.batches: list[dict[str, Any]] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self.batches.append(self._rollouts(prompts, trainer))
        return self.batches[-1]


@pytest.mark.parametrize("shared", [0, 1])
def test_rollouts_train(tmp_path: Path, shared: int) -> None:
    with closing(Rollouts("bash", data=TASKS, shared_turns=shared)) as rollouts, nothing_left():
        kept = Kept(rollouts)
        given = {"train_dataset": rollouts.dataset(), "rollout_func": kept}
        for step in train(Blocks(shared), tmp_path, reward_funcs=[env_reward], **given):
            assert step["rewards/env_reward/mean"] == 0.5, step
    words = tokenizer()
    for batch in kept.batches:
        assert batch["env_reward"] == [0.0, 1.0] * (GROUP // 2)
        prompts = [words.decode(ids) for ids in batch["prompt_ids"]]
        assert set(prompts) == {prompts[0]}
        assert prompts[0].count("Output:\nin common\n") == shared
        for number, (prompt, ids, mask) in enumerate(
            zip(prompts, batch["completion_ids"], batch["env_mask"], strict=True)
        ):
            own = [one for one, mine in zip(ids, mask, strict=True) if mine]
            action = block(gold(prompt) if number % 2 else "pwd")
            assert words.decode(own) == action + block("submit")
            assert as_the_template_has_it(prompt + words.decode(ids))
            # After a fork the directory is that of the turns in common.
            assert ("Output:\n/tmp\n" in words.decode(ids)) == (shared > 0 and number % 2 == 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_rewards_teach(tmp_path: Path, sign: int) -> None:
    """What solves its task becomes likelier than what does not; less likely, if it is punished."""

    def reward(completions: list[Any], env_reward: list[float], **_: Any) -> list[float]:
        return [sign * one for one in env_reward]

    model = Scripted(tokenizer(), Blocks(0))
    with closing(Rollouts("bash", data=TASKS[:1])) as rollouts, nothing_left():
        prompt = rollouts.dataset()[0]["prompt"]

        def preference() -> float:
            solves, fails = (block(action) for action in (TASKS[0].gold[0], "pwd"))
            return likelihood(model, prompt, solves) - likelihood(model, prompt, fails)

        before = preference()
        given = {"train_dataset": rollouts.dataset(), "rollout_func": rollouts}
        train_model(model, tmp_path, LESSONS, reward_funcs=[reward], **given)
        assert sign * (preference() - before) > LEARNT


def likelihood(model: Scripted, prompt: Any, reply: str) -> float:
    """Return the mean logarithmic probability of a reply's tokens."""
    asked = model.words.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    given, said = model.words.encode(asked), model.words.encode(reply)
    with torch.no_grad():
        logs = model(torch.tensor([given + said])).logits[0].log_softmax(-1)
    at = range(len(given) - 1, len(given) + len(said) - 1)
    return float(logs[at, said].mean())


def as_the_template_has_it(text: str) -> bool:
    """Tell whether a dialogue's text is what the chat template makes of its messages."""
    turns = [
        one.removeprefix("\n").removeprefix("<|im_start|>") for one in text.split("<|im_end|>")
    ]
    messages = [
        {"role": role, "content": content}
        for role, _, content in (turn.partition("\n") for turn in turns[:-1])
    ]
    last = messages.pop()
    prompt = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return bool(text == f"{prompt}{last['content']}<|im_end|>")


def test_rollout_of_a_lost_sandbox_is_left_out(tmp_path: Path) -> None:
    with nothing_left(), closing(Rollouts("bash", data=TASKS)) as rollouts:

        def script(number: int, said: str) -> str:
            if number == LOST and "Output:\n" not in said:
                assert rollouts._envs is not None
                rollouts._envs.envs[number].unwrapped.workspace.close()
            return Blocks(0)(number, said)

        given = {"train_dataset": rollouts.dataset(), "rollout_func": rollouts}
        for step in train(script, tmp_path, 1, reward_funcs=[env_reward], **given):
            assert step["rewards/env_reward/mean"] == pytest.approx(1 / 3), step


@pytest.mark.parametrize(("name", "count"), [("bash", 57), ("sql", 73)])
def test_all_tasks_earn_the_same(name: str, count: int) -> None:
    found = played(name)
    assert len(found) == count
    with closing(environments(name, max_turns=20)) as made:
        one: Any = made()
        for episode in found:
            one.reset(task_id=episode.task_id)
            for action in episode.actions:
                getattr(one, name)(action)
            assert one.get_reward() == episode.reward, episode.task_id


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bash", {"bash": ["command"], "submit": []}),
        ("sql", {"sql": ["statement"], "submit": []}),
        ("python", {"python": ["code"], "submit": ["function"]}),
        ("ctf", {"bash": ["command"], "submit": ["flag"]}),
    ],
)
def test_schemas(name: str, parameters: dict[str, list[str]]) -> None:
    one = environments(name)()
    for tool, wanted in parameters.items():
        schema = get_json_schema(getattr(one, tool))["function"]
        assert schema["name"] == tool
        assert list(schema["parameters"]["properties"]) == wanted
