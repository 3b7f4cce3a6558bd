"""The files of a sandbox, to compare it with another."""

from __future__ import annotations

from intercode.task import Task
from intercode_sandbox.base import SandboxBackend
from waiting import PATIENCE

ODD = Task(
    "odd",
    "?",
    files={"a b/$HOME \\x.txt": "1", "/srv/'q'/\u00fc": "2", "plain": "3"},
    setup='mkdir made; printf "%s\\n" "$PWD" \'a\tb\' > made/"new\nline"; umask 077; touch secret',
)
"""A task whose files and setup a careless Dockerfile would change."""
_LEFT_OUT = ("proc", "sys", "dev", "tmp", "etc/hosts", "etc/hostname", "etc/resolv.conf")
_LIST = r"""
cd /
find . -xdev \( PRUNED \) -prune -o ! -type d -printf '%P %y %m %U:%G %l %n\0' \
    -o -type d -printf '%P %y %m %U:%G\0' | sort -z
find . -xdev \( PRUNED \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum --zero
"""


def tree(sandbox: SandboxBackend, *left_out: str) -> set[str]:
    """List paths with kind, mode, owner, target, and content of files; times are left out.

    Args:
        sandbox: The sandbox.
        left_out: Paths without the leading slash, besides those that a kernel or an engine mounts.
    """
    pruned = " -o ".join(f"-path ./{path}" for path in (*_LEFT_OUT, *left_out))
    script = _LIST.replace("PRUNED", pruned)
    done = sandbox.exec(["/bin/bash", "-c", script], timeout=PATIENCE, output_limit=1 << 27)
    assert done.ok and not done.truncated, done.stderr
    lines = {line.decode("utf-8", "surrogateescape") for line in done.stdout.split(b"\0")}
    assert len(lines) > 20
    return lines
