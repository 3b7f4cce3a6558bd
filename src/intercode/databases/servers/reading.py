"""Whether a text may be tried read-only first.

On a server every episode begins read-only, and the engine refuses what would write: then the
session gets write access and the statement is run again. To run twice is harmless only if the
text does nothing before it is refused. So what does not plainly read is given write access at
once. An error here is always in that direction, and costs a clone, nothing else.
"""

from __future__ import annotations

import re

# To PostgreSQL a carriage return ends a comment, and comments nest: one that does is none here.
_COMMENT = r"--[^\r\n]*(?:[\r\n]|\Z)|#[^\n]*(?:\n|\Z)|/\*(?!M?!)(?:(?!/\*|\*/).)*\*/"
_READS = re.compile(
    rf"(?:\s|\(|{_COMMENT})*"
    r"(?:\Z|(?:SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|VALUES|TABLE|USE|HELP)\b)",
    re.IGNORECASE | re.DOTALL,
)


def plainly_reads(text: str) -> bool:
    """Whether each statement of a text begins as those do that read.

    Statements are told apart by every ``;``, also by one in a quote or a comment: what looks like
    the one may be in the other.
    """
    return all(map(_READS.match, text.split(";")))
