"""Whether a text may be tried read-only first.

On a server every episode begins read-only, and the engine refuses what would write: then the
session gets write access and the statement is run again. To run twice is harmless only if the
text does nothing before it is refused. So what does not plainly read is given write access at
once. An error here is always in that direction, and costs a clone, nothing else.
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"--[^\n]*(?:\n|\Z)|#[^\n]*(?:\n|\Z)|/\*(?!M?!).*?\*/", re.DOTALL)
_READS = re.compile(
    r"[\s(]*(?:SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|VALUES|TABLE|USE|HELP)\b|\s*\Z",
    re.IGNORECASE,
)


def plainly_reads(text: str) -> bool:
    """Whether each statement of a text begins as those do that read.

    Statements are told apart by every ``;``, also by one in a quote: see above.
    """
    if _READS.match(text) and ";" not in text:
        return True
    return all(_READS.match(part) for part in _COMMENT.sub(" ", text).split(";"))
