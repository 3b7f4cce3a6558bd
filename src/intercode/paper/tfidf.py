"""The cosine of two texts under TF-IDF, as scikit-learn's `TfidfVectorizer` has it by default.

Fitted on the two texts themselves: a word is two or more word characters, in lower case; its
weight is its count times ``ln((1 + 2) / (1 + df)) + 1``; both vectors are scaled to length 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter

_WORD = re.compile(r"(?u)\b\w\w+\b")


def cosine(first: str, second: str) -> float | None:
    """The similarity of two texts in [0, 1], or None if neither has a word.

    >>> cosine("5 files found", "7 files found")
    1.0
    >>> cosine("", "!") is None
    True
    """
    one = Counter(_WORD.findall(first.lower()))
    two = Counter(_WORD.findall(second.lower()))
    words = one.keys() | two.keys()
    if not words:
        return None
    # ln(3/3) + 1 for a word that both have, ln(3/2) + 1 for a word that one has.
    weight = {w: 1.0 if w in one and w in two else math.log(1.5) + 1.0 for w in words}
    length_one = math.sqrt(math.fsum((n * weight[w]) ** 2 for w, n in one.items()))
    length_two = math.sqrt(math.fsum((n * weight[w]) ** 2 for w, n in two.items()))
    if not length_one or not length_two:
        return 0.0
    product = math.fsum(n * weight[w] * two[w] * weight[w] for w, n in one.items())
    return min(1.0, product / (length_one * length_two))


def similarity(observed: str, expected: str) -> float:
    """`cosine`; of two texts without a word, 1 if they are equal, else 0."""
    value = cosine(observed, expected)
    return float(observed == expected) if value is None else value
