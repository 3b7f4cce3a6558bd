"""Generated tasks for Bash: pipelines over the lines of a file, and changes of chosen files.

Each operation is simulated here, too, so that a task is kept only if each of its steps matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intercode.datasets.generated.draw import Draft, Draw, Pool, Wanted, joined

Lines = list[str]
_KEY = ".key"
_CHANCE = {"0", "1", "2", "42"}
"""Results that a guess might have."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """An operation on lines; ``{w}`` is a word of theirs, ``{v}`` a new one, ``{n}`` a number."""

    says: tuple[str, ...]
    code: str
    does: Callable[[Lines, str, str, int], Lines]
    reads: str = " "
    """The text between the command and the file that it reads."""
    pairs: bool = False
    """Whether it needs lines of a word and a number."""
    ends: bool = False
    """Whether nothing can follow."""


def _of(line: str, column: int) -> str:
    return line.split(" ")[column]


_LINES = {
    "keep": _Filter(
        ("keep lines with {w}", "take the lines that have {w}"),
        "grep {w}",
        lambda lines, w, v, n: [one for one in lines if w in one],
    ),
    "drop": _Filter(
        ("drop lines with {w}", "leave out lines that have {w}"),
        "grep -v {w}",
        lambda lines, w, v, n: [one for one in lines if w not in one],
    ),
    "sort": _Filter(
        ("sort the lines", "sort them by name"),
        "sort",
        lambda lines, w, v, n: sorted(lines),
    ),
    "rank": _Filter(
        ("sort by number", "order them by number"),
        "sort -nk2",
        lambda lines, w, v, n: sorted(lines, key=lambda one: int(_of(one, 1))),
        pairs=True,
    ),
    "turn": _Filter(
        ("reverse the order", "put the last line first"),
        "tac",
        lambda lines, w, v, n: lines[::-1],
    ),
    "first": _Filter(
        ("take the first {n}", "keep only the first {n}"),
        "head -n{n}",
        lambda lines, w, v, n: lines[:n],
    ),
    "last": _Filter(
        ("take the last {n}", "keep only the last {n}"),
        "tail -n{n}",
        lambda lines, w, v, n: lines[-n:],
    ),
    "names": _Filter(
        ("give only the names", "keep just the names"),
        "cut -d' ' -f1",
        lambda lines, w, v, n: [_of(one, 0) for one in lines],
        pairs=True,
    ),
    "numbers": _Filter(
        ("give only the numbers", "keep just the numbers"),
        "cut -d' ' -f2",
        lambda lines, w, v, n: [_of(one, 1) for one in lines],
        pairs=True,
    ),
    "unique": _Filter(
        ("sort without repeats", "give each once, sorted"),
        "sort -u",
        lambda lines, w, v, n: sorted(set(lines)),
    ),
    "upper": _Filter(
        ("write in capitals", "make all letters big"),
        "tr a-z A-Z",
        lambda lines, w, v, n: [one.upper() for one in lines],
        reads=" < ",
    ),
    "swap": _Filter(
        ("write {v} for {w}", "replace {w} by {v}"),
        "sed s/{w}/{v}/",
        lambda lines, w, v, n: [one.replace(w, v, 1) for one in lines],
    ),
    "count": _Filter(
        ("count the lines", "tell how many there are"),
        "wc -l",
        lambda lines, w, v, n: [str(len(lines))],
        reads=" < ",
        ends=True,
    ),
    "sum": _Filter(
        ("add up the numbers", "give the sum of the numbers"),
        "awk '{{s+=$2}}END{{print s}}'",
        lambda lines, w, v, n: [str(sum(int(_of(one, 1)) for one in lines))],
        pairs=True,
        ends=True,
    ),
    "save": _Filter(
        ("save that in {v}", "write the result to {v}"),
        "> {v}",
        lambda lines, w, v, n: [f"> {v}", *lines],
        ends=True,
    ),
}
_OPENINGS = ("Of {f}: ", "In {f}: ", "With {f}: ", "Read {f}: ")


def draft(draw: Draw, pool: Pool, difficulty: int, wanted: Wanted) -> Draft | None:
    """Draft a task; from two steps on, the first of one in four is a look at a file."""
    looks = difficulty > 1 and draw.below(4) == 0
    steps = difficulty - looks
    family = _lines if steps > 3 or draw.below(5) < 3 else _files
    return family(draw, pool, steps, wanted, looks)


def _lines(draw: Draw, pool: Pool, count: int, wanted: Wanted, looks: bool) -> Draft | None:
    """Draft a pipeline over the lines of a file."""
    names = [draw.pick(tuple(_LINES)) for _ in range(count)]
    steps = [_LINES[name] for name in names]
    operations = ("look", *names) if looks else tuple(names)
    if len(set(names)) < count or not wanted(operations) or not _fits(names):
        return None
    words = draw.some(pool.words, 3)
    new, *files = draw.some([word for word in pool.words if word not in words], 2 + count * 2)
    n, w = draw.pick(pool.few), draw.pick(words)
    contents = {name: _content(draw, pool, words, 6 + 2 * count) for name in files}
    file = files[0]
    given = {"w": w, "v": new, "n": n}
    results = [
        _through([one for at, one in enumerate(steps) if at != left], contents[file], w, new, n)
        for left in range(-1, count)
    ]
    if not results[0] or results[0] in results[1:] or results[0][0] in _CHANCE:
        return None
    told = [draw.pick(step.says) for step in steps]
    if looks:
        if not any("{w}" in text for text in told) or results[0] == [w]:  # the look's own output
            return None
        contents[_KEY] = [w]
    asked = {**given, "w": f"the word in {_KEY}"} if looks else given
    query = draw.pick(_OPENINGS).format(f=file) + joined([t.format(**asked) for t in told]) + "."
    left = draw.below(count)
    return Draft(
        query=query,
        gold=_pipeline(steps, file).format(**given),
        wrong=(_pipeline([*steps[:left], *steps[left + 1 :]], file).format(**given),),
        operations=operations,
        looks=(f"cat {_KEY}",) if looks else (),
        fields={"files": {name: _text(lines) for name, lines in contents.items()}},
    )


def _fits(names: list[str]) -> bool:
    """Whether each operation can be done on what the ones before it leave."""
    pairs = True
    for at, name in enumerate(names):
        step = _LINES[name]
        if (step.pairs and not pairs) or (step.ends and at < len(names) - 1):
            return False
        pairs = pairs and name not in ("names", "numbers")
    return True


def _content(draw: Draw, pool: Pool, words: list[str], count: int) -> Lines:
    return [f"{draw.pick(words)} {number}" for number in draw.some(pool.numbers, count)]


def _through(steps: list[_Filter], lines: Lines, w: str, v: str, n: int) -> Lines:
    for step in steps:
        lines = step.does(lines, w, v, n)
    return lines


def _pipeline(steps: list[_Filter], file: str) -> str:
    """Return the commands, the first of which reads the file."""
    if not steps or steps[0].code.startswith(">"):
        first, rest = f"cat {file}", steps
    else:
        first, rest = f"{steps[0].code}{steps[0].reads}{file}", steps[1:]
    return first + "".join(
        f" {step.code}" if step.code.startswith(">") else f" | {step.code}" for step in rest
    )


Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Action:
    """An operation on files; ``{s}`` is how words or the shell choose them."""

    says: tuple[str, ...]
    code: str
    does: Callable[[Files, list[str], str, str], object]
    typed: bool = False
    """Whether only files of one type can be meant: another glob would take the folder, too."""


def _without(files: Files, chosen: list[str], w: str, v: str) -> object:
    return {name: text for name, text in files.items() if name not in chosen}


def _moved(files: Files, chosen: list[str], w: str, v: str) -> object:
    return {f"{v}/{name}" if name in chosen else name: text for name, text in files.items()}


def _longer(files: Files, chosen: list[str], w: str, v: str) -> object:
    return {name: text + v if name in chosen else text for name, text in files.items()}


def _changed(files: Files, chosen: list[str], w: str, v: str) -> object:
    return {name: text.replace(w, v) if name in chosen else text for name, text in files.items()}


_CHOICES: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((),),
    (("type",), ("holding",)),
    (("type", "holding"),),
)
"""By the number of conditions: how files can be chosen."""
_ACTIONS = {
    "list": _Action(
        ("List the {s}.", "Name the {s}."),
        "ls {s}",
        lambda files, chosen, w, v: sorted(chosen),
    ),
    "number": _Action(
        ("Count the {s}.", "How many {s} are here?"),
        "ls {s} | wc -l",
        lambda files, chosen, w, v: [str(len(chosen))],
    ),
    "delete": _Action(("Delete the {s}.", "Remove the {s}."), "rm {s}", _without),
    "move": _Action(
        ("Move the {s} to a new folder {v}.", "Make a folder {v} for the {s}."),
        "mkdir {v}; mv {s} {v}",
        _moved,
        typed=True,
    ),
    "append": _Action(
        ("Add the line {v} to the {s}.", "Put a line {v} at the end of the {s}."),
        "for f in {s}; do echo {v} >> $f; done",
        _longer,
    ),
    "change": _Action(
        ("Write {v} for {w} in the {s}.", "Replace {w} by {v} in the {s}."),
        "sed -i s/{w}/{v}/ {s}",
        _changed,
    ),
}


def _files(draw: Draw, pool: Pool, count: int, wanted: Wanted, looks: bool) -> Draft | None:
    """Draft a choice of files, and what is done with them."""
    chosen = draw.pick(_CHOICES[count - 1])
    name = draw.pick(tuple(_ACTIONS))
    operations = (*(("look",) if looks else ()), *chosen, name)
    action = _ACTIONS[name]
    if (action.typed and "type" not in chosen) or not wanted(operations):
        return None
    words, ends = draw.some(pool.words, 3), draw.some(pool.ends, 2)
    new, *stems = draw.some([word for word in pool.words if word not in words], 5 + 2 * count)
    files = {
        f"{stem}.{draw.pick(ends)}": f"{draw.pick(words)} {draw.pick(pool.numbers)}\n"
        for stem in stems
    }
    w, end = words[0], ends[0]
    full, *less = (
        tuple(one for at, one in enumerate(chosen) if at != left) for left in range(-1, count - 1)
    )

    def result(kinds: tuple[str, ...]) -> object:
        taken = [
            path
            for path, text in files.items()
            if ("type" not in kinds or path.endswith(f".{end}"))
            and ("holding" not in kinds or w in text)
        ]
        return action.does(files, taken, w, new) if taken else None

    def code(kinds: tuple[str, ...]) -> str:
        glob = f"*.{end}" if "type" in kinds else "*"
        if "holding" not in kinds:
            everything = glob == "*" and action.code.startswith("ls")
            command = action.code.replace(" {s}", "") if everything else action.code
            return command.format(s=glob, w=w, v=new)
        found = f"grep -l {w} {glob}"
        if action.code.startswith("ls"):
            return action.code.replace("ls {s}", found)
        return action.code.format(s=f"$({found})", w=w, v=new)

    done = result(full)
    if done is None or done == files or any(done == result(kinds) for kinds in less):
        return None
    if isinstance(done, list) and done[0] in _CHANCE:
        return None
    said = draw.pick(action.says)
    if looks:
        if "{w}" not in said and "holding" not in chosen:
            return None
        files[_KEY] = f"{w}\n"
    word = f"the word in {_KEY}" if looks else w
    noun = f".{end} files" if "type" in chosen else "files"
    noun += f" with {word}" if "holding" in chosen else ""
    wrong = code(draw.pick(less)) if less else ("ls -a" if name != "list" else "ls | head -n1")
    return Draft(
        query=said.format(s=noun, w="that word" if "holding" in chosen and looks else word, v=new),
        gold=code(full),
        wrong=(wrong,),
        operations=operations,
        looks=(f"cat {_KEY}",) if looks else (),
        fields={"files": dict(files)},
    )


def _text(lines: Lines) -> str:
    return "".join(f"{line}\n" for line in lines)
