"""A command-line agent on a plain install: it asks its model, and nothing else is installed."""

from __future__ import annotations

import json

import pytest

from first_hour.conftest import Someone
from intercode.models.scripted import Line
from intercode_integrations.testing import ScriptedServer

WORK = "touch /root/answer"
TASK = {"query": "make /root/answer", "verification": "test -e /root/answer"}
AGENT = """\
import json, os, subprocess, sys, urllib.request
message = {"role": "user", "content": os.environ["INTERCODE_QUERY"]}
asked = {"model": os.environ["INTERCODE_MODEL"], "messages": [message]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(asked).encode(), headers)
with urllib.request.urlopen(request, timeout=60) as answer:
    [choice] = json.load(answer)["choices"]
subprocess.run(choice["message"]["content"], shell=True, check=True)
"""


@pytest.mark.parametrize("question", [AGENT, "pass"], ids=["asks", "asks nothing"])
def test_the_model_is_asked_or_there_is_no_score(someone: Someone, question: str) -> None:
    someone.file("tasks.jsonl", json.dumps(TASK) + "\n")
    someone.file("layer/opt/agent.py", question)
    someone.run("tar", "-C", "layer", "-cf", "agent.tar", "opt")
    with ScriptedServer(lambda _: Line(WORK)) as server:
        run = ("intercode", "run", "bash", "--data", "tasks.jsonl", "--image", "host+./agent.tar")
        agent = ("--agent", "cli:python3 /opt/agent.py", "--model", "openai-compatible/mine")
        where = ("--base-url", server.url, "--out", "run", "--json", "--retries", "0")
        asks = question == AGENT
        told = json.loads(someone.run(*run, *agent, *where, code=0 if asks else 1).stdout)
    assert len(server.exchanges) == asks
    statistics = told["statistics"]
    assert (statistics["successes"], statistics["errors"]) == (int(asks), int(not asks))
