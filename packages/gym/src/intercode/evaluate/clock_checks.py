"""Clock shifts for `validate`: gold runs at other times, and in another time zone.

In environments with shell actions, an additional first action sets ``TZ`` and ``LD_PRELOAD``. The
dynamic linker then loads InterCode's library, which replaces the clock functions of the C library.
The other trials are compared with a trial whose clock is unshifted. The library is built at first
use. Without a C compiler no such trials take place.

Golds in SQL and Python do not run with another clock. Their text is only searched for words that
read the clock.
"""

from __future__ import annotations

import base64
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.envs.traits import GuessedSolution

if TYPE_CHECKING:
    from intercode.task import Task

_SOURCE = Path(__file__).with_name("clock_shift.c")
_FLAGS = ("-O2", "-s", "-fPIC", "-shared", "-nostdlib", "-Wl,-z,noseparate-code")
_MOVE = 0x6D6F766564627920
"""The number in the compiled library that `library` replaces by the shift in seconds."""
_LIBRARY = "/var/tmp/.clock.so"
"""The library's path in the sandbox, in a folder that no reward compares."""
_ACTION = """
if base64 -d > {library} 2> /dev/null <<'END'
{content}END
then export LD_PRELOAD={library} TZ={zone}; fi
"""


@dataclass(frozen=True, slots=True)
class ClockShift:
    """A shift of the clock."""

    name: str
    """The shift in words, such as ``a day later``; messages name the trial by these words."""
    seconds: int = 0
    zone: str = "UTC0"
    """A value of ``TZ`` that needs no time zone database."""


UNCHANGED_CLOCK = ClockShift("at the same time")
TIMES = (
    ClockShift("an hour later", 3600),
    ClockShift("a day later", 86400),
    ClockShift("40 days later", 40 * 86400),
)
ZONE = ClockShift("in another time zone", zone="ODD-13:45")

_TIME_PATTERNS = {
    "sql": re.compile(
        r"\b(?:CURRENT_(?:DATE|TIME|TIMESTAMP)|LOCALTIME(?:STAMP)?)\b"
        r"|\b(?:NOW|CURDATE|CURTIME|SYSDATE|GETDATE|TODAY|UTC_(?:DATE|TIME|TIMESTAMP)"
        r"|(?:CLOCK|STATEMENT)_TIMESTAMP)\s*\("
        r"|\b(?:UNIX_TIMESTAMP|UNIXEPOCH|JULIANDAY|DATE|TIME|DATETIME)\s*\(\s*\)"
        r"|\(\s*(?:'[^']*'\s*,\s*)?'now'",
        re.IGNORECASE,
    ),
    "python": re.compile(
        r"\b(?:datetime|date)\.(?:now|today|utcnow)\("
        r"|\btime\.(?:time|time_ns|localtime|gmtime|ctime|strftime|asctime)\("
    ),
}


def clock_guesses(language: str, tasks: Sequence[Task]) -> Sequence[GuessedSolution]:
    """Return a guess for each clock shift. The guess's actions precede gold's actions.

    Args:
        language: The language of actions.
        tasks: The tasks to try. Tasks without gold, or marked as dependent on the clock, get no
            actions.

    Returns:
        The guesses; empty: the language is not ``bash``, all tasks are marked as dependent on the
        clock, or this machine cannot build the library.
    """
    if language != "bash" or all(task.depends_on_clock for task in tasks) or not library(0):
        return ()

    def guess(move: ClockShift) -> GuessedSolution:
        action = action_for(move)

        def actions(task: Task) -> tuple[str, ...]:
            return () if task.depends_on_clock or not task.gold else (action,)

        return GuessedSolution(move.name, actions, role="clock")

    return [guess(move) for move in (UNCHANGED_CLOCK, *TIMES, ZONE)]


def action_for(move: ClockShift) -> str:
    """Return the action that shifts the clock of all later programs in the shell."""
    content = base64.encodebytes(library(move.seconds)).decode()
    return _ACTION.format(content=content, library=_LIBRARY, zone=shlex.quote(move.zone))


def library(seconds: int) -> bytes:
    """Return the library that shifts the clock; empty: this machine cannot build it.

    Args:
        seconds: The shift in seconds, a signed 64-bit integer.
    """
    move, library_data = _MOVE.to_bytes(8, "little"), _build()
    return library_data.replace(move, seconds.to_bytes(8, "little", signed=True))


@cache
def _build() -> bytes:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return b""
    with tempfile.TemporaryDirectory() as folder:
        library_path = Path(folder, "clock.so")
        argv = [compiler, *_FLAGS, "-o", str(library_path), str(_SOURCE)]
        result = subprocess.run(argv, capture_output=True, check=False)
        return library_path.read_bytes() if result.returncode == 0 else b""


def find_time_words(task: Task, language: str) -> str:
    """Return the first words by which gold, tests or setup read the clock; empty: no such words.

    Args:
        task: The task.
        language: ``sql`` or ``python``; for other languages, the result is empty.
    """
    pattern = _TIME_PATTERNS.get(language)
    programs = (*task.gold, *task.tests, task.setup or "")
    matches = (pattern.search(text) for text in programs) if pattern else ()
    return next((match[0] for match in matches if match), "")
