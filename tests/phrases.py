"""Phrases and private words that the project's prose avoids, each with its rule and better words.

The tables come from the reviews of the documentation and of names, as far as a regular expression
can judge. Readers judge the rest: "place" for a workspace, or a thing that "says" something.
Code in backticks is a word of underscores here, as `prose` makes it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

END = r"(?=[,.;:)]|$)"
"""The end of a clause."""
IDIOMS = {
    r"some (hundred|thousand|million|dozen|ten|\d[\d,]*\w?)s?": "about 100, several hundred",
    r"(is|are|was|were|be|been) told": "receives, is reported, is shown",
    r"tells": "states, reports, distinguishes",
    r"says (so|what|which|whether|how|why|where|when|once)": "states, defines, specifies",
    r"hand(s|ed|ing)?( \w+){0,2} in(?! (an?|the|its|their|which|one)\b)": "submit",
    r"in turns": "alternating",
    rf"[\w`']+, as `_+`{END}": "such as `…` (an example), like `…` (a comparison)",
    r"[\w`')]+, so that": "so (a result), to … (a purpose)",
    r"also (if|where|when|without)": "even if, even where",
    r"of (its|their|your|our|his) own": "its own …, a separate …",
    r"of (ours|yours|theirs)": "our …, InterCode's …",
    r"[\w`')]+; else|^else": "otherwise",
    rf"(is|are|was|were) there({END}| (already|at all|now))": "exists, is present",
    r"what there is": "the contents, the existing …",
    r"(come|comes|came|coming) about": "arises, is created",
    r"(come|comes|came|become|becomes) of (it|them)": "the result, the outcome",
    r"begun": "started",
    r"(throw|throws|threw|thrown|throwing) away": "discard",
    r"stands? (in(?! place)|on|at|there|beside|behind|below|above)(?! for\b)": "is, is located",
    rf"from (?!now|then)(\w+ ){{1,3}}on{END}": "from … onwards, starting with",
    r"for good": "permanently",
    r"takes? no part": "is ignored",
    r"ma(ke|kes|de) no sense": "is invalid",
    r"once for all": "shared by all, one for all",
    r"again and again": "repeatedly",
    r"(is|are|was|were|be|been) asked for": "requested",
    r"an? half of": "half of",
}
"""Idiom, a regular expression → better words."""
WORDS = {
    r"workplaces?": "workspace",
    r"(task|agent|episode)'s places?": "workspace",
    r"seats?": "session, slot",
    r"hardness": "difficulty",
    r"rights": "privileges, permissions",
    r"(recorded|limited) gates?": "gateway",
    r"veils?": "secret filter",
    r"vaults?": "frozen layers",
    r"obstacles?": "failed check, reason",
    r"outside agents?": "external agent",
}
"""Private word, a regular expression → the word of the glossary."""
TABLES = {"an idiom of ours": IDIOMS, "a private word": WORDS}
PHRASES = [
    (re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE), rule, better)
    for rule, table in TABLES.items()
    for phrase, better in table.items()
]


def refused_phrases(words: Sequence[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield index of a word, phrase, rule and better words of each refused phrase of a sentence."""
    text = " ".join(words)
    starts = list(accumulate((len(word) + 1 for word in words), initial=0))
    for pattern, rule, better in PHRASES:
        for match in pattern.finditer(text):
            yield bisect_right(starts, match.start()) - 1, match[0], rule, better
