"""The likely cause of a mismatch between replay and record: a guess from texts, for people."""

from __future__ import annotations

import re

CUT = 350
"""The number of characters that ReAct's runs kept of an observation."""
_ORDER = "order of directory entries"
_IMAGE = "image content"

_COMMANDS = tuple(
    (cause, re.compile(pattern.replace("<", r"(?<![\w/.+=-])(?:").replace(">", r")(?![\w/.+=-])")))
    for cause, pattern in (
        ("network", r"<ping6?|curl|wget|dig|host|nslookup|getent|apt(?:-get)?|ssh|nc>"),
        ("processes", r"<ps|pstree|pgrep|top|w|who|uptime|jobs|pidof|lsof|fuser>"),
        ("disk usage", r"<df|du|mount|findmnt|lsblk>|\bls -\w*s|-size\b"),
        ("proc/sys", r"/proc\b|/sys\b|<uname|nproc|free|lscpu|dmesg>"),
        ("host name", r"<env|printenv|set|declare|export|hostname>|HOST"),
        ("date", r"<date|cal>|-[acm](?:time|min)\b|-newer|-daystart"),
    )
)
"""Commands that show the machine, the network or the moment; ``<a|b>`` is a command's name."""

_TEXTS = tuple(
    (cause, re.compile(pattern, re.MULTILINE))
    for cause, pattern in (
        ("inode", r"^ *\d{6,} +\d+ [-dlrwx]{10}"),
        ("date", r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}\b"),
        ("date", r"\b20\d\d-\d\d-\d\d\b|\b1[67]\d{8}\b"),
        ("proc/sys", r"\bproc/|\bsys/"),
        (_IMAGE, r"/(?:usr|lib|etc|var|bin|sbin|opt)/|\b(?:setup_nl2b|libx32|boot)\b|minimized"),
        ("network", r"\b(?:\d{1,3}\.){3}\d{1,3}\b"),
        ("time limit", r"^Command timed out$"),
        ("race of two processes", r"terminated by signal"),
    )
)
"""Observations that show them."""

_DIGEST = re.compile(r"\|\s*(?:md5|sha\d*|ck|b2)sum\b")
_WALK = re.compile(r"\bfind\b|\bgrep -\w*[rR]")
_EVERYTHING = re.compile(
    r"(?:\bfind|\bgrep|\bls|\btree|\btar)\b[^|;]* (?:/|\.|\*|\$\{\w+\})(?: |$)"
)
_TOOL = re.compile(r"not found|option|syntax error|--help|warning:|usage:|Broken pipe", re.I)


def cause_of(
    command: str, recorded: str, replayed: str, same_observation: bool = False, gold: str = ""
) -> str:
    """Return the likely cause of a mismatch of a Bash or CTF turn.

    Args:
        command: The last command that was executed.
        recorded: Its observation in 2023.
        replayed: Its observation now.
        same_observation: Whether the two agree, so that only the reward differs.
        gold: Gold's output now, if gold was run.
    """
    if same_observation:
        return f"gold: {_of_text(gold) or 'its container or order of entries'}"
    for cause, pattern in _COMMANDS:
        if pattern.search(command):
            return cause
    if "Command timed out" in (recorded, replayed):
        return "time limit"
    if _same_lines(recorded, replayed):
        return _ORDER
    if _DIGEST.search(command):
        return f"{_ORDER}, or a file that holds its own date"
    return _of_text(recorded) or _of_text(replayed) or _of_pair(command, recorded, replayed)


def _same_lines(recorded: str, replayed: str) -> bool:
    """Whether one is the other in another order; the recorded one may be cut."""
    one, two = recorded.split("\n"), replayed.split("\n")
    if sorted(one) == sorted(two) or sorted(recorded) == sorted(replayed):
        return True
    return len(one) > 2 and set(one[:-1]) <= set(two)


def _of_text(text: str) -> str | None:
    return next((cause for cause, pattern in _TEXTS if pattern.search(text)), None)


def _of_pair(command: str, recorded: str, replayed: str) -> str:
    if _EVERYTHING.search(command):
        return _IMAGE
    if _TOOL.search(recorded) or _TOOL.search(replayed):
        return "tool version"
    if not recorded or not replayed or "No such file" in recorded or "exists" in recorded:
        return "leak from an earlier task"
    if _WALK.search(command) and len(recorded) == CUT:
        return _ORDER
    words = set(recorded.split())
    common = words & set(replayed.split())
    return _ORDER if 2 * len(common) > len(words) else "unknown"
