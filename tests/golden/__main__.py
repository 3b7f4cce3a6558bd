"""``python -m tests.golden``: record what is now. `git diff` then shows what has changed."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded")


def main() -> None:
    """Write the files, into another folder if one is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=RECORDED)
    folder = parser.parse_args().folder.absolute()
    with tempfile.TemporaryDirectory(prefix="intercode-golden-") as scratch:
        # A cache of its own, so that no list depends on what this machine has built before.
        os.environ["INTERCODE_CACHE"] = f"{scratch}/cache"
        from .collect import collect

        place = Path(scratch, "commands")
        place.mkdir()
        files = collect(place)
    folder.mkdir(exist_ok=True)
    for subject, found in files.items():
        (folder / f"{subject}.json").write_text(as_text(found), encoding="utf-8")


def as_text(found: object) -> str:
    """A file's text."""
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
