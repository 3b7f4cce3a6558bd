"""Sandboxes as the back end of smolagents and mini-swe-agent: the code of the how-to page, run."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output
from smolagents import OpenAIServerModel

from docs.pages import ROOT, blocks
from intercode.models.base import Message, ToolCall
from intercode.models.scripted import Line
from intercode_integrations.testing.server import ScriptedServer
from waiting import PATIENCE, eventually, new_marker, sleepers

PAGE = ROOT / "docs/sandbox/use.md"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of the page, in a folder from which they are imported."""
    for block in blocks(PAGE):
        if name := block.marks.get("file"):
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield


def serving(commands: Sequence[str]) -> ScriptedServer:
    """A model that calls the tool with these commands, and answers with the last output."""

    def say(messages: Sequence[Message]) -> Line:
        turn = sum(message.role == "assistant" for message in messages)
        last = turn == len(commands)
        arguments = {"answer": messages[-1].content} if last else {"command": commands[turn]}
        call = ToolCall(f"call-{turn}", "final_answer" if last else "bash", arguments)
        return Line(calls=(call,), finish="tool_calls")

    return ScriptedServer(say)


def test_an_agent_of_smolagents_acts_in_a_sandbox() -> None:
    from smolagents_box import solve

    with serving(["echo one > /root/a; id -u", "cat /root/a; ls /home; exit 3"]) as server:
        answer = solve("Act.", OpenAIServerModel("scripted", api_base=server.url, api_key="x"))
    assert "one\n(exit code 3)" in str(answer)
    assert not Path("/root/a").exists()


def environment(**options: Any) -> Any:
    """The page's environment, as a configuration of mini-swe-agent makes it."""
    return get_environment({"environment_class": "mini_box.SandboxEnvironment", **options})


def test_a_template_of_mini_swe_agent_has_no_variable_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    variables = environment(env={"WORD": "two"}).get_template_vars(n_model_calls=1)
    assert variables["env"] == {"WORD": "two"} and variables["n_model_calls"] == 1
    assert "OPENAI_API_KEY" not in variables and "sk-secret" not in str(variables)


def test_mini_swe_agent_acts_in_a_sandbox() -> None:
    env = environment(image="host", memory="256M", timeout=60, env={"WORD": "two"})
    commands = ["echo $WORD > /root/a; exit 3", "cat /root/missing", f"{SUBMIT}; cat /root/a"]
    outputs = [make_output("", [{"command": command}]) for command in commands]
    model = DeterministicModel(outputs=outputs, cost_per_call=0.0)
    agent = DefaultAgent(model, env, system_template="s", instance_template="{{task}}")
    result = agent.run("Act.")
    assert (result["exit_status"], result["submission"]) == ("Submitted", "two\n")
    text = "\n".join(str(message["content"]) for message in agent.messages)
    assert "<returncode>3</returncode>" in text and "No such file or directory" in text
    assert [change.path for change in env.box.changes()] == ["/root/a"]


def test_a_command_of_mini_swe_agent_that_is_late() -> None:
    env = environment(timeout=PATIENCE)
    late = env.execute({"command": "echo part; sleep 999"}, timeout=1)  # allow limit: it sleeps on
    assert (late["output"], late["returncode"]) == ("part\n", 137)
    assert "time limit" in late["exception_info"]
    assert env.execute({"command": "pwd"}, cwd="/tmp")["output"] == "/tmp\n"
    marker = new_marker()
    env.execute({"command": f"sleep {marker} >/dev/null 2>&1 &"})
    assert eventually(lambda: sleepers(marker))
    del env
    gc.collect()
    assert eventually(lambda: not sleepers(marker)), "a sandbox goes with its environment"
