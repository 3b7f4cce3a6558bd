"""``python -m tests.mutation [NAME... | --fit]``: the table, with what was found."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .defences import DEFENCES
from .mutants import SRC, mutate, occurrences, probe, unrooted

FIT = "--fit"
"""The argument for a check of the table against the source alone, without a probe."""
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
    """Print the defences whose text is no longer once in the source; whether there are any."""
    names = [each.name for each in DEFENCES if set(occurrences(each)) != {1}]
    for name in names:
        print(f"tests/mutation/defences.py: {name}: what it replaces is not once in the source")
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
