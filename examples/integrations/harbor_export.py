"""Tasks of Bash as folders for Harbor: `python harbor_export.py FOLDER TASK_ID…`."""

import json
import shlex
import sys
from pathlib import Path

import intercode

ANSWER = "/logs/agent/answer.txt"
CHECK = """import hashlib, json, os, stat

def right(change):
    path, kind = change["path"], change["type"]
    if change["kind"] == "deleted" or not os.path.lexists(path):
        return change["kind"] == "deleted" and not os.path.lexists(path)
    if kind == "symlink":
        return hashlib.sha256(os.readlink(path).encode()).hexdigest() == change["sha256"]
    if kind != "file":
        return True
    with open(path, "rb") as file:
        same = hashlib.sha256(file.read()).hexdigest() == change["sha256"]
    return same and stat.S_IMODE(os.stat(path).st_mode) == change["mode"]

with open("/tests/gold.json") as file:
    gold = json.load(file)
good = all(right(change) for change in gold["changes"] if not change["path"].startswith("/tmp/"))
if gold["answer"]:
    said = open(gold["answer"]).read() if os.path.exists(gold["answer"]) else ""
    good &= said.split() == gold["output"].split()
print(int(good))
"""


def export(env, task, folder):
    """Write a task, with a check of gold's changes and its output in place of our reward."""
    gold = env.outcome(task).to_dict()
    gold["answer"] = ANSWER if "output" in task.tags or not gold["changes"] else None
    solve = "\n".join(task.gold[:1])
    ask = f"\n\nWrite the output, and nothing else, to {ANSWER}." if gold["answer"] else ""
    wrapped = f"{{ {solve}\n}} | tee {ANSWER}" if gold["answer"] else solve
    check = f"bash -c {shlex.quote(task.verification)} && echo 1 || echo 0"
    check = check if task.verification else "python3 /tests/check.py"
    files = {
        "instruction.md": task.query + ask + "\n",
        "task.toml": f'schema_version = "1.4"\n[task]\nname = "intercode/{task.task_id}"\n'
        '[environment]\nnetwork_mode = "no-network"\n',
        "tests/test.sh": f"#!/bin/bash\n{{ {check}\n}} > /logs/verifier/reward.txt\n",
        "tests/check.py": CHECK,
        "tests/gold.json": json.dumps(gold),
        "solution/solve.sh": f"#!/bin/bash\n{wrapped}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    env.stage.recipe(task, base="host").write(folder / "environment")


if __name__ == "__main__":
    env = intercode.make("bash")
    for task_id in sys.argv[2:]:
        export(env, env.dataset[task_id], Path(sys.argv[1]) / task_id)
