"""Process 1 as a container's process list shows it.

In a 2023 container process 1 was an idle ``bash`` on a terminal, and an action was none of its
children: the engine put it there from outside (parent 0). In a sandbox of ours process 1 starts
the action, is called ``init``, and some of its entries in ``/proc`` cannot be entered. Only text
that shows *that* is changed, and only where the command asks for processes or walks ``/proc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_DENIED = re.compile(
    rb"(?m)^\w+: [^\n]*?proc/(?:tty/driver|1/(?:task/1/)?(?:fd|fdinfo|ns|map_files))/?'?: "
    rb"Permission denied\n"
)
_PS = re.compile(rb"\b(?:ps|top)\b")
_PSTREE = re.compile(rb"\bpstree\b")
_TREE = re.compile(rb"\Ainit((?:\(1\)|,1)?)[^\n]*\n(?:[ |`][^\n]*\n)*")
_FIRST = re.compile(rb"(?m)^( *(?:\S+ +)*?1 +(?:\S+ +)*?)init$")


def as_in_container(output: bytes, argv: Iterable[bytes]) -> bytes:
    """What a process printed, as it would have in a container."""
    if b"Permission denied" in output:
        output = _DENIED.sub(b"", output)
    if b"init" not in output:
        return output
    command = b" ".join(argv)
    if _PSTREE.search(command):
        return _TREE.sub(rb"bash\1\n", output)
    if _PS.search(command):
        return _FIRST.sub(_idle_bash, output)
    return output


def _idle_bash(match: re.Match[bytes]) -> bytes:
    """Process 1's line with a terminal and its state, in formats that show them."""
    columns = match[1].replace(b" ?     ", b" pts/0 ", 1)
    return re.sub(rb"(?<= )[SRD]  (?= )", b"Ss+", columns, count=1) + b"/bin/bash"
