"""A linter of docstrings and comments: ``python tests/docstrings.py [--share] [PATH…]``.

A function's docstring begins with an imperative verb, a class's, a module's and an attribute's with
a noun phrase. A sentence has a noun as its subject, at most `MAXIMUM` words, and no phrase of
tests/phrases.py; of pages, only phrases are checked. With paths, each finding is printed. Without,
the findings per 100 sentences of each package and rule are compared with `LIMITS`; `--share` prints
them in the form of that table.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

from lemminflect import getAllInflections, getAllLemmas

from names import CLASS, part_of_speech, with_article
from phrases import refused_phrases
from prose import Sentence, files, passages, sentences

LIMITS = {
    "gym": {"opening": 0.0, "subject": 0.0, "length": 0.1, "phrase": 0.2},
    "integrations": {"opening": 0.0, "subject": 0.0, "length": 0.1, "phrase": 0.0},
    "paper": {"opening": 0.0, "subject": 0.0, "length": 0.0, "phrase": 0.0},
    "sandbox": {"opening": 0.0, "subject": 0.0, "length": 0.0, "phrase": 0.0},
    "docs": {"phrase": 0.9},
}
"""Package → rule → findings that 100 sentences may have. A limit only falls; the aim is 0."""
SLACK = 0.2
"""Findings by which a share may lie below its limit before the limit must follow."""
MAXIMUM = 25
"""Words of a sentence; code in backticks is one."""
FOLDERS = {"docs": ["docs", "README.md"]}
"""Name in `LIMITS` → its folders and files, if it is no package."""
VALUES = {"property", "generator", "truth", "value"}
"""Kinds of docstrings that may describe a value, also of functions."""
FUNCTIONS = {"function", "truth", "property", "generator"}
"""Kinds of docstrings that may begin with an imperative."""
SUBSTITUTES = {"same", "one", "ones", "other", "others", "whole", "rest"}
"""Words after "the" that stand for a noun, if none follows."""
QUANTITIES = {"many", "much", "long", "often", "far"}
PRONOUNS = "it that this these those one none such there here what who"
"""First words that are no subject, if a verb follows."""
PLURAL = {"these", "those", "such", "there"}
POSSESSIVES = {"my", "your", "his", "her", "its", "our", "their"}
RELATIVE = {"that", "which", "who", "whose", "whom"}
ADVERBS = (
    "also always already even ever hardly mostly never not now often only rarely soon still "
    "then therefore thus too usually"
)
"""Words that may stand between a subject and its verb."""
MODALS = {"may", "might", "will", "would", "shall", "cannot", "needs", "isn't", "doesn't", "can't"}
PLAIN_VERBS = "do give go have keep let make put read see take tell write"
"""Verbs that the lexicon calls nouns, too, and that begin no noun phrase ("See …")."""
VERBS = {"redact"}
"""Verbs that the lexicon lacks."""
OBJECTS = {"this", "these", "those", "itself", "themselves", "him", "it", "them", "only"}
REPLACEMENTS = {
    "it": "repeat the noun",
    "that": "repeat the noun",
    "this": "this + noun",
    "these": "these + noun",
    "those": "those + noun",
    "one": "a + noun",
    "none": "no + noun",
    "such": "such a + noun",
    "there": "make the noun the subject",
    "here": "make the noun the subject",
    "what": "the + noun + that",
    "who": "the agent, client or user that",
}
"""Word → better words, where it is no subject."""


class Finding(NamedTuple):
    """A refused word of a sentence, with the rule that refuses it."""

    line: int
    rule: str
    """opening, subject, length or phrase."""
    word: str
    reason: str
    better: str

    def __str__(self) -> str:
        word = re.sub(r"_{2,}", "…", self.word)
        return f"{self.line}: {word!r} {self.reason} (better: {self.better})"


@cache
def is_verb(word: str, *tags: str) -> bool:
    """Tell whether a word is a form of a verb: VB (base), VBZ (third person), VBD or VBN."""
    lemmas = {*getAllLemmas(word).get("VERB", ())}
    stem = re.sub(r"^(re|un|de|pre|over)-?(?=\w{3})", "", word)
    if word in VERBS:
        return "VB" in tags
    if not lemmas and stem != word:  # "rescore", "unpickle": no lexicon has them all
        return is_verb(stem, *tags)
    forms = {lemma: getAllInflections(lemma, "VERB") for lemma in lemmas}
    return ("VB" in tags and word in lemmas and word not in CLASS) or any(
        word in table.get(tag, ()) for table in forms.values() for tag in tags
    )


@cache
def is_plural(word: str) -> bool:
    """Tell whether a word may be a noun's plural."""
    lemmas = getAllLemmas(word).get("NOUN", ())
    return any(
        word != lemma and word in getAllInflections(lemma, "NOUN").get("NNS", ())
        for lemma in lemmas
    )


def strip_punctuation(word: str) -> str:
    """Return a word in lower case, without punctuation; code is a backtick."""
    return "`" if "`" in word else word.lower().strip(".,;:!?()[]*\"'…")


def is_end(word: str) -> bool:
    """Tell whether punctuation follows a word."""
    return word.endswith((".", ",", ";", ":", "!", "?", ")"))


def is_cut(words: Sequence[str]) -> bool:
    """Tell whether a phrase ends after its first word, which then has no noun."""
    if len(words) == 1 or is_end(words[0]) or words[1] == "→":
        return True
    successor = strip_punctuation(words[1])
    return successor in RELATIVE or CLASS.get(successor) in ("preposition", "auxiliary")


def begins_object(word: str) -> bool:
    """Tell whether a word begins the object of a verb before it."""
    return CLASS.get(word) == "determiner" or word in POSSESSIVES | OBJECTS


def refuse_opening(kind: str, words: Sequence[str]) -> tuple[str, str] | None:
    """Return reason and better words for the first word of a docstring, if it is refused."""
    word, successor = (
        strip_punctuation(words[0]),
        strip_punctuation(words[1]) if len(words) > 1 else "",
    )
    if (kind in VALUES and word == "whether") or (kind == "value" and words[0] == "None:"):
        return None
    if kind in FUNCTIONS:
        is_modified = word == "do" or word.endswith("ly")
        is_noun = (
            successor == "of" and "NOUN" in getAllLemmas(word) and word not in PLAIN_VERBS.split()
        )
        if (is_verb(word, "VB") or word in ("do", "have", "be")) and not is_noun:
            return None
        if is_modified and is_verb(successor, "VB"):
            return None
        if kind in ("function", "truth"):
            better = "Tell whether …" if kind == "truth" else "Return …"
            return "is no imperative: a function's docstring begins with its verb", better
    if words[0].isupper() and len(words[0]) > 1:  # a name, such as US
        return None
    if not (speech := speech_of_opening(kind, words)):
        return None
    reason = f"is {with_article(speech)}: {with_article(kind)}'s docstring begins with a noun"
    return reason, "The …, Factory of …, Number of …"


def speech_of_opening(kind: str, words: Sequence[str]) -> str:
    """Return the part of speech of a first word that begins no noun phrase; "" for others."""
    word, successor = (
        strip_punctuation(words[0]),
        strip_punctuation(words[1]) if len(words) > 1 else "",
    )
    speech, follows, lemmas = CLASS.get(word, ""), CLASS.get(successor, ""), getAllLemmas(word)
    is_name = len(words) > 1 and words[1][0].isupper() and not is_end(words[0])
    if not word[:1].isalpha() or words[0].endswith(("'", "'s")):
        return ""
    if word == "the":
        return "pronoun" if successor in SUBSTITUTES and is_cut(words[1:]) else ""
    if word in ("another", "one", "other", "own", "such", "these", "this", "those", "what"):
        return "pronoun" if is_cut(words) or word == "what" else ""
    if speech == "determiner":
        is_pronoun = is_cut(words) and word not in ("all", "less", "more", "a", "an")
        return "pronoun" if is_pronoun else ""
    if speech:
        is_quantity = word == "how" and successor in QUANTITIES and kind in VALUES
        is_adjective = word in ("inside", "outside") and not begins_object(successor)
        return "" if is_quantity or is_adjective or word in ("our", "their", "your") else speech
    if is_verb(word, "VBZ"):
        has_noun = is_cut(words) or follows in ("conjunction", "adverb") or successor == "other"
        has_noun = has_noun or successor.endswith("ing") or is_verb(successor, "VBD", "VBN")
        is_noun = is_plural(word) and has_noun
        return "" if is_noun or successor in ("of", "that") else "verb"
    if is_verb(word, "VB"):
        is_noun = "NOUN" in lemmas and word not in PLAIN_VERBS.split()
        is_adjective = "ADJ" in lemmas or "ADV" in getAllLemmas(f"{word}ly")
        is_clause = begins_object(successor) and not is_end(words[0])
        return "" if is_name or ((is_noun or is_adjective) and not is_clause) else "verb"
    speech = part_of_speech(word)
    if speech == "participle":
        is_gerund = word.endswith("ing")
        return speech if begins_object(successor) or (is_cut(words) and not is_gerund) else ""
    return speech if speech == "adverb" else ""


def refuse_subject(words: Sequence[str]) -> tuple[str, str] | None:
    """Return reason and better words for the first word of a sentence, if it is no subject."""
    word = strip_punctuation(words[0])
    successors = [part for part in map(strip_punctuation, words[1:]) if part not in ADVERBS.split()]
    if (
        word not in PRONOUNS.split()
        or is_end(words[0])
        or not successors
        or words[-1].endswith("?")
    ):
        return None
    verb, complement = successors[0], successors[1] if len(successors) > 1 else ""
    if word == "that" and verb == "is" and is_end(words[1]):  # "that is, …"
        return None
    if words[0] == "None" and verb in ("means", "stands", "is"):  # the value of Python
        return None
    if word in ("it", "what", "who") or CLASS.get(verb) == "auxiliary" or verb in MODALS:
        is_refused = True
    elif word in PLURAL:
        is_refused = is_verb(verb, "VB") and {*getAllLemmas(verb)} == {"VERB"}
    else:
        is_noun = is_plural(verb) and complement and complement not in CLASS  # "one results file"
        is_past = is_verb(verb, "VBD") and begins_object(complement)
        is_refused = (is_verb(verb, "VBZ") and not is_noun) or is_past
    if word in ("that", "those", "one", "none") and not is_refused:
        is_part = word in ("one", "none") and verb == "of"  # "one of the tasks" has its noun
        is_preposition = CLASS.get(verb) == "preposition" and verb != "per"
        is_refused = not is_part and (verb in RELATIVE or is_preposition)
    return ("is no subject: a sentence's is a noun", REPLACEMENTS[word]) if is_refused else None


def refuse(sentence: Sentence) -> Iterator[Finding]:
    """Yield the findings of a sentence."""
    kind, _, lines, words = sentence
    if kind != "page":
        is_opening = sentence.is_opening and kind not in ("comment", "command", "callable")
        opening = refuse_opening(kind, words) if is_opening else None
        subject = None if opening else refuse_subject(words)
        word = words[0].strip(".,;:")
        if opening:
            yield Finding(lines[0], "opening", word, *opening)
        if subject:
            yield Finding(lines[0], "subject", word, *subject)
        count = sum(word != "→" for word in words)
        if count > MAXIMUM:
            reason = f"begins a sentence of {count} words: at most {MAXIMUM}"
            yield Finding(lines[0], "length", word, reason, "two sentences, or a list")
    for index, phrase, rule, better in refused_phrases(words):
        yield Finding(lines[index], "phrase", phrase, f"is {rule}", better)


def check(path: Path) -> tuple[int, list[tuple[Path, Finding]]]:
    """Count the sentences of a file or folder, and list the findings."""
    prose = [
        (file, sentence)
        for file in files(path)
        for passage in passages(file)
        for sentence in sentences(passage)
    ]
    findings = [(file, finding) for file, sentence in prose for finding in refuse(sentence)]
    return len(prose), sorted(findings)


def main(arguments: list[str]) -> int:
    """Print the findings of paths, or compare packages with their limits; return the exit code."""
    paths = [Path(argument) for argument in arguments if not argument.startswith("--")]
    findings = [finding for path in paths for finding in check(path)[1]]
    for file, finding in findings:
        print(f"{file}:{finding}")
    return int(bool(findings)) if paths else compare("--share" in arguments)


def compare(is_printed: bool) -> int:
    """Compare each package's findings per 100 sentences with its limits; return the exit code."""
    code = 0
    root = Path(__file__).parents[1]
    for package, limits in LIMITS.items():
        folders = FOLDERS.get(package, [f"packages/{package}/src"])
        counts, results = zip(*(check(root / folder) for folder in folders), strict=True)
        rules = Counter(finding.rule for result in results for _, finding in result)
        shares = {rule: 100 * rules[rule] / sum(counts) for rule in limits}
        if is_printed:
            row = ", ".join(f'"{rule}": {ceil(10 * share) / 10}' for rule, share in shares.items())
            print(f'    "{package}": {{{row}}},  # {dict(rules)} of {sum(counts)} sentences')
        for rule, share in shares.items():
            if limits[rule] - SLACK <= share <= limits[rule]:
                continue
            is_above = share > limits[rule]
            advice = f"run python {sys.argv[0]} {' '.join(folders)}" if is_above else "lower it"
            message = f"{share:.2f} findings per 100 sentences, limit {limits[rule]}"
            print(f"tests/docstrings.py: {package}, {rule}: {message}: {advice}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
