"""``python -m tests.mutation [NAME... | --fit]``: the table, with what was found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from .defences import DEFENCES, Defence
from .mutants import SRC, mutate, occurrences, probe, source_of, unrooted

TABLE = "tests/mutation/defences.py"
FIT = "--fit"
"""The argument for a check of the table against the source alone, without a probe."""
RUFF = Path(sys.executable).with_name("ruff")
_WORDS = {0: "holds", 1: "gone", 77: "skipped"}
_COLUMNS = "{:26} {:24} {:10} {:10} {}"


def main(names: list[str]) -> int:
    if unknown := set(names) - {FIT, *(d.name for d in DEFENCES)}:
        print(f"no such defence: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if names == [FIT]:
        return unfit()
    failures = 0
    print(_COLUMNS.format("DEFENCE", "DEFENDS FROM", "WITH IT", "WITHOUT", "VERDICT"))
    for defence in DEFENCES:
        if names and defence.name not in names:
            continue
        if unrooted(defence):
            print(_COLUMNS.format(defence.name, defence.defends, "", "", "needs root"))
            continue
        with tempfile.TemporaryDirectory() as folder:
            fits = set(occurrences(defence)) == {1}
            codes = [probe(defence, src)[0] for src in (SRC, mutate(defence, Path(folder)))]
        with_it, without = (_WORDS.get(code, f"broken ({code})") for code in codes)
        ok = fits and codes in ([0, 1], [77, 77])
        failures += not ok
        verdict = "ok" if ok else "FAILED" if fits else "FAILED: not in the source"
        print(_COLUMNS.format(defence.name, defence.defends, with_it, without, verdict), flush=True)
    return int(failures > 0)


def unfit() -> int:
    """Print the defences whose edits no longer fit the source; return whether there are any."""
    failures = 0
    for defence in DEFENCES:
        if set(occurrences(defence)) != {1}:
            print(f"{TABLE}: {defence.name}: what it replaces is not once in the source")
            failures += 1
        elif names := undefined_names(defence):
            print(f"{TABLE}: {defence.name}: its edit names what the source lacks: {names}")
            failures += 1
    return int(failures > 0)


def undefined_names(defence: Defence) -> str:
    """Return the undefined names in a mutant's Python files; its probe would prove nothing."""
    names = []
    for file in {edit.file for edit in defence.edits if edit.file.endswith(".py")}:
        text = source_of(file).read_text()
        for edit in defence.edits:
            if edit.file == file:
                text = text.replace(edit.old, edit.new)
        check = subprocess.run(
            [RUFF, "check", "--isolated", "--select=F821", "--output-format=json", "-"],
            input=text,
            capture_output=True,
            text=True,
        )
        names += [finding["message"] for finding in json.loads(check.stdout)]
    return "; ".join(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
