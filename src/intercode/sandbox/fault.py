"""The cause of a sandbox's end: the code that ran in it, or something outside.

A sandbox that an agent's code has ended is a result of the agent's; one that was lost otherwise is
an error, and the episode is tried again. The table, from the first line that applies:

================================================  =======
Evidence                                          Cause
================================================  =======
its keeper (spawner, engine) does not answer      outside
it was killed or stopped from outside             outside
its process 1 runs, and does not answer           inside
nobody knows how its process 1 ended              outside
its process 1 ended, but not by SIGKILL           inside
the kernel killed in it for want of memory        inside
any other SIGKILL                                 outside
================================================  =======

No program in a sandbox can send its process 1 a signal: what kills it is the kernel, for want of
memory, or somebody outside.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from outside of a sandbox that has ended, or does not answer."""

    keeper: bool
    """Whether what keeps it answers: the spawner, the engine."""
    struck: bool = False
    """Whether somebody outside has killed or stopped it."""
    running: bool = False
    """Whether its process 1 still runs."""
    exit_code: int | None = None
    """That of its process 1, minus N for death by signal N; None: nobody knows."""
    starved: bool = False
    """Whether the kernel has killed one of its processes for want of memory."""


def caused_inside(evidence: Evidence) -> bool:
    """Whether what ran in the sandbox is the cause; see the module's table."""
    if not evidence.keeper or evidence.struck:
        return False
    if evidence.running:
        return True
    if evidence.exit_code is None:
        return False
    return evidence.exit_code != -signal.SIGKILL or evidence.starved
