"""The scorer of a Python task: tests of the program in the answer, each in its own process."""

import json
import secrets
import subprocess
import sys
from pathlib import Path

ANSWER, REWARD = "/logs/agent/answer.txt", "/logs/verifier/reward.txt"
# RUN prints the secret word only after all sources have run to their end. An early exit of the
# program therefore fails.
RUN = """import sys
space = {"__name__": "__main__"}
for source in %r:
    exec(compile(source, "<task>", "exec"), space)
print("\\n" + sys.stdin.readline())
"""


def passes(sources: list[str], seconds: float) -> bool:
    """Run pieces of source in one process; return whether all of them ran to their end."""
    nonce = secrets.token_hex(16)
    output = _run(RUN % (sources,), nonce, seconds)
    return output is not None and output.splitlines()[-1:] == [nonce]


def prints(program: str, case: dict[str, str], seconds: float) -> bool:
    """Run a program with a case's input; return whether the output is right.

    Trailing blanks do not count.
    """
    output = _run(program, case["stdin"], seconds)
    return output is not None and _lines(output) == _lines(case["stdout"])


def _run(program: str, stdin: str, seconds: float) -> "str | None":
    try:
        result = subprocess.run(
            [sys.executable, "-c", program],
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    print(result.stderr[-2000:], end="")
    return None if result.returncode else result.stdout


def _lines(text: str) -> "list[str]":
    return [line.rstrip() for line in text.rstrip().splitlines()]


def main() -> None:
    """Run all tests, and write the share of passed tests as the reward."""
    plan = json.loads(Path(__file__).with_name("plan.json").read_text())
    answer_path, seconds = Path(ANSWER), plan["seconds"]
    program = answer_path.read_text(errors="surrogateescape") if answer_path.is_file() else None
    results = [False]
    if program is not None:
        preceding_sources = [*plan["before"], program, *plan["setup"]]
        results = [passes([*preceding_sources, test], seconds) for test in plan["tests"]]
        program_source = "\n".join([*plan["before"], program])
        results += [prints(program_source, case, seconds) for case in plan["stdio"]]
    Path(REWARD).write_text(f"{sum(results) / len(results)}\n")


if __name__ == "__main__":
    main()
