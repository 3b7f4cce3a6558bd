"""Puzzles about encodings of the flag."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable

from intercode.datasets.puzzles.base import CtfPuzzle, SeededRandom, python

_LAYERS: dict[str, tuple[Callable[[str], str], str]] = {
    "base64": (lambda text: base64.b64encode(text.encode()).decode(), "base64 -d"),
    "base32": (lambda text: base64.b32encode(text.encode()).decode(), "base32 -d"),
    "hexadecimal": (lambda text: text.encode().hex().upper(), "basenc --base16 -d"),
    "rot13": (lambda text: codecs.encode(text, "rot13"), "tr A-Za-z N-ZA-Mn-za-m"),
    "reversal": (lambda text: text[::-1], "rev"),
}

_LETTERS = "\0E\nA SIU\rDRJNFCKTZLWHYPQOBG\0MXV\0"
_FIGURES = "\0003\n- '87\r\0004\0,\0:(5+)2\0006019?\0\0./=\0"
_FIGURES_SHIFT, _LETTERS_SHIFT = 27, 31


def layers(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a flag that is encoded several times, by common encodings."""
    flag = text = draw.flag()
    order = [*draw.sample(sorted(_LAYERS), len(_LAYERS)), "base64"]
    # The repeated layer must not follow a layer of its kind: the pair would be easy to recognise.
    if order[-2] == "base64":
        order[-1] = "hexadecimal"
    for layer in order:
        text = _LAYERS[layer][0](text)
    commands = " | ".join(_LAYERS[layer][1] for layer in reversed(order))
    sender = draw.people(1)[0].capitalize()
    return CtfPuzzle(
        f"{sender} has wrapped a message in base64, base32, hexadecimal, rot13 and reversal, in "
        "some order and one of them twice. It is in parcel.txt. Find the flag, intercode{…}.",
        flag,
        (f"cat parcel.txt | {commands}",),
        "easy",
        "encoding",
        {"parcel.txt": f"{text}\n"},
        wrong_flags=(text, flag[::-1]),
        requires=("util-linux",),
    )


def tape(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a punched tape in ITA2, a teleprinter code with five bits."""
    flag_draw = draw.flags
    body = (
        "".join(flag_draw.words(2)).upper()
        + str(flag_draw.randrange(100, 1000))
        + flag_draw.word().upper()
    )
    rows = "".join(f"|{_holes(code)}|\n" for code in _ita2(f"KEY {body}"))
    return CtfPuzzle(
        "tape.txt is a teleprinter's tape (ITA2; the first bit of a character is on the left, the "
        "point is the sprocket's hole, o is a hole). After the word KEY it says KEY's value: the "
        "flag is intercode{VALUE}, in capitals or not.",
        f"intercode{{{body.lower()}}}",
        (python(_READ_TAPE.format(letters=_LETTERS, figures=_FIGURES)),),
        "medium",
        "encoding",
        {"tape.txt": rows},
        accepted_flags=(f"intercode{{{body}}}",),
        wrong_flags=(f"intercode{{{body[::-1].lower()}}}", body),
    )


def _ita2(text: str) -> list[int]:
    codes, is_shifted = [_LETTERS_SHIFT], False
    for character in text:
        if character not in (_FIGURES if is_shifted else _LETTERS):
            is_shifted = not is_shifted
            codes.append(_FIGURES_SHIFT if is_shifted else _LETTERS_SHIFT)
        codes.append((_FIGURES if is_shifted else _LETTERS).index(character))
    return codes


def _holes(code: int) -> str:
    hole_marks = "".join("o" if code >> bit & 1 else " " for bit in range(5))
    return f"{hole_marks[:3]}.{hole_marks[3:]}"


_READ_TAPE = """
tables = {{31: {letters!r}, 27: {figures!r}}}
table, text = tables[31], ""
for row in open("tape.txt"):
    holes = row.strip("|\\n").replace(".", "")
    code = sum(1 << bit for bit, hole in enumerate(holes) if hole == "o")
    if code in tables:
        table = tables[code]
    else:
        text += table[code]
print("intercode{{" + text.split()[1].lower() + "}}")
"""


def alphabet(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about base64 with a secret alphabet.

    A message is known in plain text and in encoded form, which reveals the alphabet.
    """
    flag = draw.flag()
    standard_alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    translation = str.maketrans(standard_alphabet, "".join(draw.sample(standard_alphabet, 64)))
    required_characters = set(_base64(flag))
    old_message = draw.sentence()
    while not required_characters <= set(_base64(old_message)):
        old_message += f" {draw.flag()[9:]} {draw.sentence()}"
    first_person, second_person = draw.people(2)
    return CtfPuzzle(
        f"{first_person.capitalize()} and {second_person.capitalize()} write to each other in "
        "base64, but with an "
        "alphabet of their own. old.txt is an old message, old.enc what they had made of it. "
        "new.enc is new. Find the flag, intercode{…}.",
        flag,
        (
            python("""
import base64
usual = base64.b64encode(open("old.txt", "rb").read())
table = bytes.maketrans(open("old.enc", "rb").read().strip(), usual)
print(base64.b64decode(open("new.enc", "rb").read().strip().translate(table)).decode())
"""),
        ),
        "medium",
        "encoding",
        {
            "old.txt": old_message,
            "old.enc": _base64(old_message).translate(translation) + "\n",
            "new.enc": _base64(flag).translate(translation) + "\n",
        },
        wrong_flags=(
            "intercode" + old_message[old_message.index("{") : old_message.index("}") + 1],
        )
        if "{" in old_message
        else (),
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def blanks(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a flag whose bits are spaces and tabs at the ends of lines."""
    flag = draw.flag()
    ends = [f"{code:08b}".translate({48: " ", 49: "\t"}) for code in flag.encode()]
    ends += [""] * draw.randint(3, 9)
    poem = "".join(f"{draw.sentence()}{end}\n" for end in ends)
    poet = draw.people(1)[0].capitalize()
    return CtfPuzzle(
        f"{poet}'s poem in poem.txt is nothing much, but it is longer than it looks. "
        "Find the flag, intercode{…}.",
        flag,
        (
            python(r"""
import re
for line in open("poem.txt"):
    if bits := re.search(r"[ \t]+$", line.rstrip("\n")):
        code = bits[0].replace(" ", "0").replace("\t", "1")
        print(chr(int(code, 2)), end="")
"""),
        ),
        "medium",
        "steganography",
        {"poem.txt": poem},
        wrong_flags=(f"intercode{{{poet.lower()}}}",),
    )
