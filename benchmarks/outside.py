"""Many command-line agents at once, each an episode of a run: what the run's process takes for it.

The model is scripted, and slow. The agent here only calls it, so that agents take as little as may
be; another that is installed can be named: ``python benchmarks/outside.py mini-swe-agent``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import caller
from gate import program
from processes import own, pss
from rows import Row, below

THOUGHT = 0.25
"""Seconds that the model takes for an answer."""
FEW = 2
"""Calls of an episode in the short run: what a longer one takes beyond it is of calls alone."""
LOOK = 0.05
SERVER = f"""
import sys
from intercode_integrations.testing import Fault, Line, ScriptedServer, shell
slow, calls = Fault("slow", delay={THOUGHT}), int(sys.argv[1])
text = "word " * {caller.WORDS}
end = {{"mini-swe-agent": shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", text)}}
last = end.get(sys.argv[2], Line(text))
def say(messages):
    spoken = sum(message.role == "assistant" for message in messages)
    return shell("true", text) if spoken + 1 < calls else last
with ScriptedServer(say, plan=lambda _: slow) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


class Run:
    """A run of so many episodes at once, and what its process has taken.

    Attributes:
        seconds: CPU of the process, without those of its children: sandboxes are its children's.
        memory: The most that it held, in MiB.
        calls: The answered calls of all episodes.
        cost: Dollars, as recorded.
    """

    def __init__(self, agents: int, calls: int, agent: str = "") -> None:
        with tempfile.TemporaryDirectory() as name, program(SERVER, str(calls), agent) as server:
            assert server.stdout
            folder, url = Path(name), server.stdout.readline().strip()
            task = {"query": "Do nothing.", "gold": ["true"]}
            tasks = [{"task_id": str(number), **task} for number in range(agents)]
            (folder / "tasks.json").write_text(json.dumps(tasks))
            with tarfile.open(folder / "agent.tar", "w") as tar:
                tar.add(caller.__file__, "opt/caller.py")
            command = f"cli:python3 /opt/caller.py 8080 {{token}} {calls - 1}"
            price = {"openai-compatible/any": {"input": 1, "output": 1}}
            (folder / "prices.json").write_text(json.dumps({"models": price}))
            who = ["--agent", agent or command, "--image", f"host+{folder / 'agent.tar'}"]
            model = ["--model", "openai-compatible/any", "--base-url", url]
            model += ["--prices", str(folder / "prices.json")]
            many = ["--workers", str(agents), "--max-sandboxes", str(agents), "--memory", "2G"]
            self._run(["bash", "--data", str(folder / "tasks.json"), *who, *model, *many], folder)

    def _run(self, args: Sequence[str], folder: Path) -> None:
        env = {**os.environ, "OPENAI_COMPATIBLE_API_KEY": "none"}
        command = [
            sys.executable,
            "-m",
            "intercode.cli",
            "run",
            *args,
            "--out",
            str(folder / "run"),
        ]
        ended = threading.Event()
        with subprocess.Popen([*command, "--quiet"], stdout=subprocess.PIPE, env=env) as child:
            watch = threading.Thread(target=self._watch, args=(child.pid, ended))
            watch.start()
            said = child.communicate()[0]
            ended.set()
            watch.join()
        if child.returncode:
            raise SystemExit(f"the run failed:\n{said.decode()}")
        lines = (folder / "run" / "episodes.jsonl").read_text().splitlines()
        found = [json.loads(line)["metadata"] for line in lines]
        self.calls = sum(len(each["model"]["calls"]) for each in found)
        self.cost = sum(each["model"]["cost"] for each in found)

    def _watch(self, pid: int, ended: threading.Event) -> None:
        self.seconds, self.memory = 0.0, 0.0
        while not ended.wait(LOOK):
            try:
                self.memory = max(self.memory, pss(pid) / 2**20)
            except (OSError, ValueError):
                return  # it has ended
            self.seconds = max(self.seconds, own(pid))


def measure(agents: int = 32, calls: int = 12, agent: str = "") -> list[Row]:
    """All of it: a run of one agent, and two of many that differ in calls alone."""
    one, few, more = Run(1, calls, agent), Run(agents, FEW, agent), Run(agents, calls, agent)
    each = 1e3 * (more.seconds - few.seconds) / (more.calls - few.calls)
    what = f"{agents} {agent or 'agents'} in a run"
    note = f"{more.calls} calls, ${more.cost:.2f}"
    return [
        below(f"{what}: memory of its process", more.memory, 128, "MiB", note),
        Row("the same, of each", (more.memory - one.memory) / max(1, agents - 1), "MiB"),
        below(f"{what}: CPU of its process, a call", each, 20, "ms"),
    ]


if __name__ == "__main__":
    for row in measure(agent="".join(sys.argv[1:2])):
        print(row)
