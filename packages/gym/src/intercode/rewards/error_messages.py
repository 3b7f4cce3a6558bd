"""Messages of tools: the lines in which programs report errors or explain their usage.

A message is never an answer, whatever numbers, paths or words it contains. Complaints about single
unreadable files may accompany a right answer, and are removed from the output. Any other message
shows that the command failed. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TOOLS = """
    apt apt-get awk base64 basename bash bc bzip2 cal cargo cat cc cc1 chgrp chmod chown
    cksum cmp column comm cp crontab csplit curl cut dash date dd df diff dir dirname dpkg
    du echo egrep env expand expr factor fgrep file find fmt fold free gawk gcc getent git
    go grep groups gunzip gzip head hexdump hostname iconv id install ip java join jq kill
    last less ln locale ls lsof make mawk md5sum mkdir mktemp more mount mv mysql nice nl
    node nohup npm numfmt od paste patch perl pgrep php ping pip pkill pr printf ps psql
    python read readlink realpath rev rg rm rmdir rsync ruby script sed seq sh sha1sum
    sha256sum sha512sum shred shuf sleep sort split sqlite3 ssh stat strings su sudo sum
    sync systemctl tac tail tar tee test time timeout touch tr tree truncate tsort type
    umount uname uniq unzip uptime vi vim vmstat wc wget which who whoami xargs xxd xz zcat
    zip zsh
"""
_TOOL = rf"(?:/\S*/)?(?:{'|'.join(re.escape(tool) for tool in _TOOLS.split())})[\d.]*"
_REPORT = r"rmdir: removing directory|tar: Removing leading|mkdir: created directory"
"""Beginnings of lines in which a program reports its work."""
_REASONS = (
    r"(?i:no such file(?: or directory)?|permission denied|(?:command )?not found|not a directory"
    r"|is a directory|operation not permitted|invalid argument|binary file matches|text file busy"
    r"|input/output error|exec format error|file exists|directory not empty|syntax error"
    r"|no space left on device|too many levels of symbolic links|cannot execute.*"
    r"|broken pipe|read-only file system|file name too long|bad interpreter.*|killed|terminated"
    r"|segmentation fault|device or resource busy|(?:cannot|can't|could not|failed to) .*)"
)
_MESSAGES = re.compile(
    rf"(?!{_REPORT})(?:"
    rf"{_TOOL}: +(?![\d.,]+[KMGTP]?i?B?$).*"  # except a count for a folder with a tool's name
    rf"|.*: (?:line )?\d+: .*: {_REASONS}\.?"  # the name of a script comes first
    rf"|\S.*: (?:line \d+: )?{_REASONS}\.?"
    r"|\S+: line \d+: .*"
    r"|.*: (?:syntax error|unexpected (?:EOF|end of)|division by).*"
    r"|(?i:usage): ?.*|Try ['`\u2018].*|\w+: usage: .*"
    r"|Traceback \(most recent call last\):"
    r'|\s*File ".*", line \d+.*'
    r"|(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Warning|Interrupt)(?::.*)?"
    r"|(?i:fatal|(?:\w+ )?error|warning|note|hint|panic)(?: \S+)*: .*"
    r"|(?i:unknown|unrecognized|illegal|invalid|bad) (?:option|switch|argument|command)\b.*"
    r"|(?i:syntax|parse|runtime) error\b.*"
    r"|(?i:.*\b(?:try|use|see) ['\"`].*\bhelp\b.*)"
    r"|Can't .*|Cannot .*|Could not .*|Failed to .*|E: .*"
    r"|.* at \S+ line \d+\.?(?: .*)?|\(standard_in\) \d+: .*"
    r")"
)
_READ_COMPLAINT = re.compile(
    rf"(?!{_TOOL}: (?:(?:line )?\d+: |.*\berror\b)){_TOOL}: (?:.*: (?:Permission denied"
    r"|Is a directory|Not a directory|Operation not permitted|Invalid argument)"
    r"|.*/proc/.*: No such file or directory|.*: binary file matches)"
    r"|tar: Removing leading `/' from .*"
)
"""Complaints that may accompany a right answer. A missing file is accepted only under ``/proc``."""


def drop_complaints(lines: Sequence[str]) -> list[str]:
    """Return the lines without complaints of programs about files that they could not read."""
    return [line for line in lines if not _READ_COMPLAINT.fullmatch(line)]


def is_message(line: str) -> bool:
    """Return whether a line is an error message or a usage message of a program."""
    return _MESSAGES.fullmatch(line) is not None
