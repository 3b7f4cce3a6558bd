"""Puzzles about reverse engineering: programs that check a flag without revealing it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from intercode.datasets.puzzles.base import CtfPuzzle, SeededRandom, python
from intercode.errors import TaskError

_CHECKER = """\
import sys
{a}=[{table}]
{b}=[{order}]
{c}=lambda {d}:[(ord({d}[{e}])*{factor}+{e}*{step})%257 for {e} in {b}]
{f}=sys.argv[1] if len(sys.argv)>1 else ""
print("yes" if len({f})==len({b}) and {c}({f})=={a} else "no")
"""


def checker(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about an obfuscated Python program that checks the flag."""
    flag = draw.flag()
    names = [f"O{n:07b}".replace("1", "l").replace("0", "O") for n in draw.sample(range(128), 6)]
    factor, step = draw.randrange(3, 257), draw.randrange(3, 257)
    order = draw.sample(range(len(flag)), len(flag))
    table = [(ord(flag[position]) * factor + position * step) % 257 for position in order]
    source = _CHECKER.format(
        **dict(zip("abcdef", names, strict=True)),
        table=",".join(map(str, table)),
        order=",".join(map(str, order)),
        factor=factor,
        step=step,
    )
    return CtfPuzzle(
        "check.py says yes to the flag, intercode{…}, and no to anything else.",
        flag,
        (
            python(r"""
import re
source = open("check.py").read()
table, order = (list(map(int, part.split(","))) for part in re.findall(r"=\[([\d,]+)\]", source))
factor, step = map(int, re.search(r"\)\*(\d+)\+\w+\*(\d+)", source).groups())
found = {at: (value - at * step) * pow(factor, -1, 257) % 257 for at, value in zip(order, table)}
print("".join(chr(found[at]) for at in sorted(found)))
"""),
        ),
        "medium",
        "reversing",
        {"check.py": source},
        wrong_flags=("yes",),
    )


_DOOR = """\
#include <stdio.h>
#include <string.h>
static const unsigned char key[] = {%s}, table[] = {%s};
int main(int count, char **words)
{
    size_t n, right = 0;
    if (count != 2 || strlen(words[1]) != sizeof table)
        return puts("The door stays shut."), 1;
    for (n = 0; n < sizeof table; n++)
        right += (((unsigned char)words[1][n] ^ key[n %% sizeof key]) + %d * n) %% 256 == table[n];
    puts(right == sizeof table ? "The door opens." : "The door stays shut.");
    return right != sizeof table;
}
"""


def door(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a compiled C program that checks the flag.

    Raises:
        TaskError: The host has no C compiler, or the compiler fails.
    """
    flag, key, step = draw.flag(), draw.randbytes(4), draw.randrange(3, 250, 2)
    table = [((ord(c) ^ key[n % 4]) + step * n) % 256 for n, c in enumerate(flag)]
    source = _DOOR % (", ".join(map(str, key)), ", ".join(map(str, table)), step)
    return CtfPuzzle(
        "door opens to the flag, intercode{…}. It was written in C, and its source is lost.",
        flag,
        (
            python("""
data, start = open("door", "rb").read(), b"intercode{"
for at in range(0, len(data) - 40, 4):  # (letter ^ key[n % 4]) + step * n
    turn = (data[at + 4] - (data[at] ^ start[0] ^ start[4])) % 256
    for step in range(turn // 4, 256, 64) if turn % 4 == 0 else ():
        codes = [(byte - step * n) % 256 for n, byte in enumerate(data[at : at + 64])]
        key = [code ^ letter for code, letter in zip(codes, start)]
        if key[:4] == key[4:8] and key[:2] == key[8:]:
            text = bytes(code ^ key[n % 4] for n, code in enumerate(codes))
            print(text[: text.find(b"}") + 1].decode("ascii", "replace"))
"""),
        ),
        "hard",
        "reversing",
        {"door": _compile_door(source)},
        wrong_flags=("The door opens.",),
        requires=("python3", "libc6"),
        setup="chmod +x door",
    )


@lru_cache(maxsize=8)
def _compile_door(source: str) -> bytes:
    if (compiler := shutil.which("gcc")) is None:
        raise TaskError("there is no C compiler (apt-get install gcc libc6-dev)")
    with tempfile.TemporaryDirectory(prefix="intercode-") as folder:
        target = Path(folder, "door")
        command = [compiler, "-x", "c", "-", "-O1", "-s", "-Wl,--build-id=none", "-o", str(target)]
        result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if result.returncode:
            raise TaskError(f"{compiler} cannot compile a program: {result.stderr.strip()[-300:]}")
        return target.read_bytes()
