"""``python -m tests.mutation [NAME...]``: the table, with what was found."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .defences import DEFENCES
from .mutants import SRC, mutate, occurrences, probe, unrooted

_WORDS = {0: "holds", 1: "gone", 77: "skipped"}
_COLUMNS = "{:26} {:24} {:10} {:10} {}"


def main(names: list[str]) -> int:
    if unknown := set(names) - {d.name for d in DEFENCES}:
        print(f"no such defence: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
