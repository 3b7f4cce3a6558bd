"""Parsing of numbers, and of yes or no, in the words of an output.

An output gives one number if it contains exactly one, and all other words are permitted. Permitted
are units, one path, words of the question, and the few of `_FRAME`. Hedges that no list contains
are therefore rejected, too. The outputs "certainly not 5", "5 or so", "five or 5" and an error
message with a 5 all contain words that are not permitted. Words of the question that negate or
compare are not permitted either (`_DOUBT_WORDS`). All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

_LINES, _CHARACTERS = 3, 200
"""The most lines and characters of an output that can give one number."""
_NUMBER = re.compile(
    r"(-?(?:(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,60})(?:\.\d{1,60})?|\.\d{1,60}))([A-Za-z%]*)"
)
_PATH = re.compile(
    r"(?:~|\.{0,2})/[\w./~+@%:-]*|(?=.*[A-Za-z])[\w/+@%-]+(?:\.[\w+@%-]+)*\.[A-Za-z]\w{0,4}|[.-]"
)
_FOLDER = re.compile(r"/?[\w.-]+(?:/[\w.-]+)*/?")
_WORD_BREAK = re.compile(r"\s+|(?<=[:=])(?=[-\d])|(?<=\w)=(?=\S)")
_PUNCTUATION = "\"'`()[]{},;:*="
_UNIT_REQUEST = re.compile(r"\b(?:in|as)\s+(\w+)|\b(percent|percentage|share)\b|(%)", re.IGNORECASE)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMES_OF_UNITS = {
    "b": "b byte bytes",
    "k": "k kb kib kilobyte kilobytes kibibyte kibibytes",
    "m": "m mb mib megabyte megabytes mebibyte mebibytes",
    "g": "g gb gib gigabyte gigabytes gibibyte gibibytes",
    "t": "t tb tib terabyte terabytes tebibyte tebibytes",
    "p": "p pb pib petabyte petabytes",
    "%": "% percent percentage share",
    "s": "s sec secs second seconds",
    "ms": "ms millisecond milliseconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
}
_UNITS = {word: unit for unit, words in _NAMES_OF_UNITS.items() for word in words.split()}
_FRAME = _word_set(
    """
    a an the this that these there it its is are was were has have of in on for with all
    answer result output value number count total totals totalling sum amount size length equals
    exactly only found counted
    """
)
"""Words that may accompany a number, in addition to those of the question."""
_COUNTABLE_NOUNS = _word_set(
    """
    file files line lines word words directory directories folder folders character characters
    user users entry entries item items row rows
    """
)
"""Nouns for the counted thing. If the question contains none of them, all of them are permitted."""
_DOUBT_WORDS = _word_set(
    """
    not no never none neither nor without n't isn't aren't wasn't doesn't don't less fewer lower
    smaller more greater larger bigger higher than least most minimum maximum up upto about
    approximately approx approx. around almost nearly roughly circa ca ca. some several many any
    maybe perhaps possibly probably likely might may could would should if unless whether except
    but or either between unsure guess think believe wrong incorrect false untrue other others
    different error errors failed fail cannot can't plus minus times half double twice zero one
    two three four five six seven eight nine ten eleven twelve dozen hundred thousand million
    billion
    """
)
"""Words that negate, compare, doubt or count, and so change the meaning of a number nearby."""
_BOUND_WORDS = _word_set(
    """
    - under below over above beyond within near past before after until till by to from in on for
    at with and per versus vs file line word directory folder character user entry item row
    """
)
"""Words that, directly before a number, make the number a bound, a part or a name: no answer."""
_CHOICE = re.compile(r"(?:.*(?::|=|\bis))?\s*(\w+)[.!]?\s*|\s*(\w+)[,.:;!].*")
"""A line that gives one word: at its end, after the question, or at its beginning."""
_CHOICES = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit."""

    digits: str
    unit: str = ""

    @classmethod
    def parse(cls, token: str) -> Quantity | None:
        """Return the quantity that a word denotes; None if the word is not a quantity."""
        match = _NUMBER.fullmatch(token)
        if match is None or (match[2] and match[2].casefold() not in _UNITS):
            return None
        return cls(match[1].replace(",", ""), _UNITS.get(match[2].casefold(), ""))

    @property
    def value(self) -> Decimal:
        """The number without its unit."""
        return Decimal(self.digits)

    def equals(self, quantity: Quantity) -> bool:
        """Return whether two numbers agree within the precision of the less precise number.

        If the numbers of decimals differ, the tolerance is half a unit of the last decimal of the
        less precise number. A number without decimals is exact. Units are not compared.
        """
        decimal_counts = [
            len(operand_quantity.digits.partition(".")[2]) for operand_quantity in (self, quantity)
        ]
        if min(decimal_counts) == max(decimal_counts) or 0 in decimal_counts:
            return self.value == quantity.value
        return abs(self.value - quantity.value) <= Decimal(5).scaleb(-min(decimal_counts) - 1)


@dataclass(frozen=True, slots=True)
class QuestionWords:
    """The words of a task's question that an answer may repeat."""

    words: frozenset[str] = frozenset()
    """The words that may accompany an answer, in lower case."""
    units: frozenset[str] = frozenset()
    """The units that the question requests: "in megabytes", "the percentage of"."""
    folders: frozenset[str] = frozenset()
    """The folders that the question names, each as an absolute path; ``a/b`` counts as ``/a/b``."""

    @classmethod
    def parse(cls, text: str) -> QuestionWords:
        """Parse the text of a question."""
        question_tokens = [*tokens(text)]
        words = {word.casefold() for word in question_tokens if any(map(str.isalpha, word))}
        # A prefix of three letters joins "file" and "files".
        noun_prefixes = {word[:3] for word in words & _COUNTABLE_NOUNS}
        counted_nouns = {
            noun for noun in _COUNTABLE_NOUNS if noun[:3] in noun_prefixes
        } or _COUNTABLE_NOUNS
        units = (next(filter(None, match)).casefold() for match in _UNIT_REQUEST.findall(text))
        return cls(
            frozenset((_FRAME | words | counted_nouns) - _DOUBT_WORDS),
            frozenset(_UNITS[unit] for unit in units if unit in _UNITS),
            frozenset(
                f"/{name.strip('/')}"
                for name in question_tokens
                if "/" in name and _FOLDER.fullmatch(name)
            ),
        )

    def explains(self, token: str) -> bool:
        """Return whether a word may accompany an answer: a word of the question, or a path."""
        word = token.casefold()
        if word in _DOUBT_WORDS or word.partition(".")[0] in _DOUBT_WORDS:
            return False
        if word in self.words:
            return True
        is_number = any(map(str.isdigit, word)) and not any(map(str.isalpha, word))
        return not is_number and _PATH.fullmatch(token) is not None


def tokens(text: str) -> Iterator[str]:
    """Yield the words of a text without surrounding punctuation."""
    for word in _WORD_BREAK.split(text):
        token = word.strip(_PUNCTUATION)
        token = token[:-1] if token.endswith(".") and len(token) > 1 else token
        if token := token.strip(_PUNCTUATION):
            yield token


def is_doubt(word: str) -> bool:
    """Return whether a word negates, compares, doubts or counts."""
    return word.casefold() in _DOUBT_WORDS


def is_unit(word: str) -> bool:
    """Return whether a word after a number is the number's unit, or names the counted thing."""
    return word.casefold() in _COUNTABLE_NOUNS or bool(_parse_unit(word))


def quantities(lines: Sequence[str]) -> list[Quantity]:
    """Return all numbers of an output, each with its unit."""
    words = [token for line in lines for token in tokens(line)]
    return [
        Quantity(quantity.digits, quantity.unit or _parse_unit(next_word))
        for word, next_word in zip(words, [*words[1:], ""], strict=False)
        if (quantity := Quantity.parse(word)) is not None
    ]


def _parse_unit(word: str) -> str:
    """Return the unit that a separate word names; empty if none. A single letter names no unit."""
    return _UNITS.get(word.casefold(), "") if len(word) > 1 or word == "%" else ""


def parse_quantity(lines: Sequence[str], question: QuestionWords) -> Quantity | None:
    """Return the only number of a short output whose other words are permitted; None otherwise."""
    if len(lines) > _LINES or sum(map(len, lines)) > _CHARACTERS:
        return None
    words = [token for line in lines for token in tokens(line)]
    positions = [position for position, word in enumerate(words) if Quantity.parse(word)]
    other_words = [word for word in words if not Quantity.parse(word)]
    non_unit_words = [word for word in other_words if not _parse_unit(word)]
    if len(positions) != 1 or not all(map(question.explains, non_unit_words)):
        return None
    if sum(word.casefold() not in question.words for word in non_unit_words) > 1:
        return None  # more than one path: the number describes only one of them
    if positions[0] and words[positions[0] - 1].casefold() in _BOUND_WORDS:
        return None
    units = {*map(_parse_unit, other_words)} - {""}
    quantity = Quantity.parse(words[positions[0]])
    assert quantity is not None
    units |= {quantity.unit} - {""}
    return Quantity(quantity.digits, "".join(units)) if len(units) < 2 else None


def parse_choice(lines: Sequence[str], question: QuestionWords) -> bool | None:
    """Return the choice of a line that begins or ends with yes or no (True: yes); None: neither.

    A bare 0 or 1 is neither: the digit has opposite meanings as a truth value and as an exit code.
    """
    match = _CHOICE.fullmatch(lines[0]) if len(lines) == 1 else None
    words = [token.casefold() for line in lines for token in tokens(line)]
    choices = [word for word in words if word in _CHOICES]
    if match is None or [(match[1] or match[2]).casefold()] != choices:
        return None
    other_words = [word for word in words if word not in _CHOICES]
    return _CHOICES[choices[0]] if all(map(question.explains, other_words)) else None
