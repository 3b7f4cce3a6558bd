"""What strategies say to a model, and what they make of its replies; without an environment."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agents.talking import TASK, WARM, Says, model, play
from intercode.agents import registry
from intercode.agents.language import EpisodeLimits
from intercode.envs.base import InterCodeEnv
from intercode.episode import NoAction, Turn
from intercode.errors import ContextLengthError, ModelUnavailableError, UsageError
from intercode.evaluate import evaluate
from intercode.models import Message, Reply, ToolCall
from intercode.models.scripted import Line
from intercode.task import Dataset, Task
from intercode_integrations.testing import ScriptedServer


def contents(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def test_try_again_shows_outputs_and_hides_rewards() -> None:
    says = Says(["```bash\nls\n```", "Hm, I am not sure.", "submit"])
    actions, record = play("try-again", says, ["one\ntwo\n", "[no bash code …]"], [0.25, 0.5])
    assert actions == ["ls", "", "submit"]
    assert isinstance(actions[1], NoAction) and "```bash" in actions[1].note
    roles = [message.role for message in says.heard[2]]
    assert roles == ["system", "user", *["assistant", "user"] * 2]
    assert "one\ntwo\n" in says.heard[1][-1].content
    assert "eward" not in contents(says.heard[2])
    assert record["model"]["input_tokens"] == 30 and record["model"]["cost"] == 1.5
    assert [call["turn"] for call in record["model"]["calls"]] == [0, 1, 2]


def test_the_oracle_variant_shows_rewards_and_stops_at_one() -> None:
    says = Says(["```bash\nls\n```", "```bash\npwd\n```"])
    actions, _ = play("try-again-oracle", says, ["x", "y"], [0.25, 1.0])
    assert actions == ["ls", "pwd", "submit"]
    assert "Reward: 0.25" in says.heard[1][-1].content
    with pytest.raises(UsageError, match="reward_every_turn"):
        registry.get("try-again-oracle", model=says)(TASK)


@pytest.mark.parametrize("name", ["try-again", "react-zero-shot"])
@pytest.mark.parametrize("again", ["`sl`", "`submit`"])
def test_a_model_that_goes_in_circles_is_told_the_task_again(name: str, again: str) -> None:
    says = Says(["`ls`", "`sl`", again, "`pwd`", "`submit`"])
    outputs = ["a.txt", "sl: not found", "/"]
    actions, record = play(name, says, outputs, failed=[1], recap=True)
    assert actions == ["ls", "sl", "pwd", "submit"]
    system, told = says.heard[3]  # no word of its own is before it
    assert system == says.heard[0][0] and told.role == "user"
    assert told.content.startswith(f"Task: {TASK.query}\n\nThis was run, with these outputs:")
    assert told.content.index("a.txt") < told.content.index("This was tried, and failed:")
    assert told.content.index("failed:") < told.content.index("sl: not found")
    assert [message.role for message in says.heard[4]] == ["system", "user", "assistant", "user"]
    calls = record["model"]["calls"]
    assert [call["turn"] for call in calls] == [0, 1, 2, 2, 3]
    assert [call.get("discarded", False) for call in calls] == [False, False, True, False, False]


def test_what_failed_may_be_tried_again_after_a_change() -> None:
    says = Says(["`make`", "`sed -i s/a/b/ Makefile`", "`make`", "`submit`"])
    actions, _ = play("try-again", says, ["Error 2", "", "done"], failed=[0], recap=True)
    assert actions == ["make", "sed -i s/a/b/ Makefile", "make", "submit"]


def test_a_look_is_no_change() -> None:
    says = Says(["`cat a`", "`ls -l`", "`cat a`", "`cat b`"])
    actions, _ = play("try-again", says, ["no such file", "b"], failed=[0], recap=True)
    assert actions == ["cat a", "ls -l", "cat b"]


def test_a_recap_that_is_too_long_leaves_all_as_it_was() -> None:
    said = iter(["`cat a`", "`cat a`", "`cat b`"])

    class Short(Says):
        def complete(self, messages: Any, *given: Any) -> Reply:
            if "This was tried" in messages[-1].content:
                raise ContextLengthError("too long")
            return super().complete(messages, *given)

    says = Short(said)
    actions, record = play("try-again", says, ["?"] * 2, failed=[0, 1], recap=True)
    assert actions == ["cat a", "cat a", "cat b"] and "ended_by" not in record
    assert not any(call.get("discarded") for call in record["model"]["calls"])
    assert [message.role for message in says.heard[-1]][-3:] == ["user", "assistant", "user"]


def test_a_model_that_insists_has_its_way() -> None:
    says = Says(["`sl`", "`sl`", "`sl`", "`submit`", "`submit`"])
    actions, _ = play("try-again", says, ["sl: not found"] * 2, failed=[0, 1], recap=True)
    assert actions == ["sl", "sl", "submit"]


def test_a_model_that_never_takes_anything_else_hands_in() -> None:
    says = Says(["`sl`"] * 5)
    actions, record = play("try-again", says, ["sl: not found"] * 2, failed=[0, 1], recap=True)
    assert actions == ["sl", "sl", "submit"]
    assert record["model"]["calls"][-1]["gave_up"]


def test_with_oracle_feedback_the_dialogue_is_that_of_2023() -> None:
    says = Says(["`sl`", "`sl`"])
    actions, _ = play("try-again-oracle", says, ["?"], [0.0], failed=[0], recap=True)
    assert actions == ["sl", "sl"]


def test_a_recap_is_for_models_of_this_machine_unless_it_is_asked_for() -> None:
    for name, recap, asked in (
        ("local/x", None, 3),
        ("openai/x", None, 2),
        ("local/x", False, 2),
        ("openai/x", True, 3),
    ):
        says = Says(["`sl`"] * 3)
        says.name = name
        play("try-again", says, ["?"], failed=[0], recap=recap, examples=False)
        assert len(says.heard) == asked


def test_single_turn() -> None:
    assert play("single-turn", Says(["ls"]), ["out"])[0] == ["ls", "submit"]


@pytest.mark.parametrize(("name", "shown"), [("react", True), ("react-zero-shot", False)])
@pytest.mark.parametrize("env", ["bash", "sql", "python", "ctf", "swe"])
def test_react(name: str, shown: bool, env: str) -> None:
    says = Says(["Thought: I look.\nAction: execute[x]\nObservation: 3", "Action: submit"])
    actions, record = play(name, says, ["out"], env=env)
    assert actions == ["x", "submit"]
    replies = [m.content for m in says.heard[0] if m.role == "assistant"]
    assert bool(replies) is shown and all(map(_is_reacts, replies))
    assert says.heard[1][-1].content == "Observation: out"
    assert record["model"]["calls"][0]["thought"] == "I look."


def _is_reacts(reply: str) -> bool:
    return reply.startswith("Thought: ") and "\nAction:\n```" in reply


def test_plan_and_solve() -> None:
    replies = [
        "1. Look.\n2. Count.",
        "```\nls\n```",
        "```\nls | wc -l\n```",
        "Again `wc`.",
        "submit",
    ]
    says = Says(replies)
    assert play("plan-solve", says, ["a", "1"])[0] == ["ls", "ls | wc -l", "submit"]
    assert "step 2 of 2: Count." in says.heard[2][-1].content
    says = Says(replies)
    actions, record = play("plan-solve-refine", says, ["a", "1", "2"])
    assert actions == ["ls", "ls | wc -l", "wc", "submit"]
    assert [call.get("step") for call in record["model"]["calls"][:3]] == [None, "Look.", "Count."]
    assert play("plan-solve", Says(["Just do it.", "ls"]), ["a"])[0] == ["ls", "submit"]


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{number}", name, arguments)


def test_tool_calls_are_turns_and_each_is_answered() -> None:
    says = Says(
        [
            Reply("", (call("bash", 1, command="ls"), call("bash", 2, command="pwd"))),
            Reply("", (call("sql", 3, statement="x"),)),
            Reply("", (call("bash", 4, _raw="{"),)),
            Reply("What now?"),
            Reply("", (call("submit", 5),)),
        ]
    )
    actions, record = play("tool-calling", says, ["a", "/", "no such tool", "no text", "no call"])
    assert actions == ["ls", "pwd", "", "", "", "submit"]
    answers = [(m.call_id, m.content) for m in says.heard[3] if m.role == "tool"]
    assert [(call_id, told.splitlines()[0]) for call_id, told in answers] == [
        *(("c1", "a"), ("c2", "/"), ("c3", "no such tool"), ("c4", "no text"))
    ]
    assert says.heard[4][-1].role == "user"
    assert [tool["name"] for tool in record["model"]["tools"]] == ["bash", "submit"]
    flag = Says([Reply("", (call("submit", flag="flag{x}"),))])
    assert play("tool-calling", flag, env="ctf")[0] == ["submit flag{x}"]


def test_a_reply_that_was_cut_off_is_not_run() -> None:
    says = Says([Reply("```bash\nrm -rf /tmp", finish="length")])
    (action,), _ = play("try-again", says)
    assert isinstance(action, NoAction) and "cut off" in action.note


def test_a_call_that_was_cut_off_is_not_run() -> None:
    said = [Reply("", (call("bash", _raw='{"command": "rm -rf /t'),), finish="length")]
    said += [Reply("I will", finish="length")]
    says = Says(said)
    actions, _ = play("tool-calling", says, ["…"])
    assert all(isinstance(action, NoAction) and "cut off" in action.note for action in actions)


def test_of_a_dialogue_the_first_messages_and_the_last_are_sent() -> None:
    says = Says(["```bash\nls\n```"] * 6)
    play("try-again", says, [str(n) for n in range(5)], dialogue_limit=3)
    assert [len(heard) for heard in says.heard] == [2, 4, 5, 5, 5, 5]
    assert [m.role for m in says.heard[-1]] == ["system", "user", "user", "assistant", "user"]


def test_a_dialogue_that_is_too_long_is_halved_until_it_fits() -> None:
    with (
        ScriptedServer(lambda _: Line("```bash\nls\n```"), context=400) as server,
        model(server.url) as talks_to,
    ):
        actions, record = play("try-again", talks_to, ["word " * 80] * 5)
        assert actions == ["ls"] * 6 and "ended_by" not in record
        refused = [c for c in record["model"]["calls"] if c.get("error") == "ContextLengthError"]
        assert refused
        actions, record = play("try-again", talks_to, ["word " * 500])
        assert actions == ["ls", "submit"] and record["ended_by"] == "context"
        with pytest.raises(ContextLengthError):  # nothing was tried: no reward of 0
            play("try-again", talks_to, task=Task("long", "word " * 500))


@pytest.mark.parametrize(
    ("limits", "turns", "reason"),
    [
        (EpisodeLimits(tokens=20), 2, "tokens"),
        (EpisodeLimits(cost=0.5), 1, "cost"),
        (EpisodeLimits(seconds=1e-9), 0, "seconds"),  # allow limit: it is over at once
    ],
)
def test_limits_of_an_episode(limits: EpisodeLimits, turns: int, reason: str) -> None:
    actions, record = play("try-again", Says(["`ls`"] * 9), ["x"] * 4, limits=limits)
    assert actions == ["ls"] * turns + ["submit"] * (5 - turns)
    assert record["ended_by"] == reason
    unpriced = Says([Reply("`ls`")] * 2)
    with pytest.raises(UsageError, match="price"):
        play("try-again", unpriced, ["x"], limits=EpisodeLimits(cost=1.0))


def test_what_a_model_cannot_say_goes_out_and_is_kept() -> None:
    class Gone(Says):
        def complete(self, *args: Any, **named: Any) -> Reply:
            raise ModelUnavailableError("gone")

    agent = registry.get("try-again", model=Gone([]))(TASK)
    with pytest.raises(ModelUnavailableError):
        agent.act("x", [])
    (called,) = agent.episode_metadata()["model"]["calls"]  # type: ignore[attr-defined]
    assert called["error"] == "ModelUnavailableError"


def test_self_consistency_takes_what_most_agree_on() -> None:
    says = Says(["`pwd`", "Well.", "```bash\nls\n```", "So: `ls`", "`pwd `", "`ls`"])
    actions, record = play("try-again", says, samples=6, settings=WARM)
    assert actions == ["ls"]
    assert [settings.seed for settings in says.settings] == [7, 8, 9, 10, 11, 12]
    assert record["model"]["calls"][-1]["chosen"] == 2
    assert record["model"]["output_tokens"] == 6


def test_best_of_n_asks_the_model() -> None:
    says = Says(
        ["`one`", "`two`", "`three`", "Number 3, I think.", "`four`", "`five`", "`six`", "?"]
    )
    actions, record = play("react", says, ["out"], samples=3, choose="judge", settings=WARM)
    assert actions == ["three", "four"]
    assert "Reply 2:\n`two`" in says.heard[3][-1].content
    # The dialogue goes on as if the chosen reply had been the only one.
    assert [m.content for m in says.heard[4] if m.role == "assistant"][-1] == "`three`"
    assert len(record["model"]["calls"]) == 8


def test_several_samples_need_a_temperature() -> None:
    with pytest.raises(UsageError, match="temperature"):
        registry.get("try-again", model=Says([]), samples=3)
    with pytest.raises(UsageError, match="takes no option colour"):
        registry.get("try-again", model=Says([]), colour="red")


def test_random_is_the_same_for_the_same_seed() -> None:
    def actions(seed: int, env: str = "bash") -> list[str]:
        place = SimpleNamespace(name=env, episode=SimpleNamespace(seed=seed))
        agent = registry.get("random").make_agent(place, TASK)  # type: ignore[attr-defined]
        return [agent.act("", [Turn("x", "")] * n) for n in range(20)]

    assert actions(1) == actions(1) != actions(2)
    assert "submit" in actions(1) and actions(1)[0] != "submit"
    assert actions(1, "sql")[0].startswith("SELECT")


@pytest.mark.parametrize(("language", "code"), [("python", "1 + 1"), ("bash", "echo 2")])
def test_an_environment_that_is_put_together_says_its_language(language: str, code: str) -> None:
    tasks = Dataset([Task("a", "q")])
    says = Says([f"```{language}\n{code}\n```", "submit"])

    def env() -> InterCodeEnv[Any]:
        return InterCodeEnv(tasks, interpreter=language, reward=lambda *given: 1.0)

    (episode,) = evaluate(tasks, registry.get("try-again", model=says), env).kept
    assert [(turn.action, turn.observation) for turn in episode.turns] == [(code, "2\n")]
    assert language.title() in says.heard[0][0].content
