"""Generated tasks for Bash: pipelines over the lines of a file, and changes of selected files.

For each operation, the module has phrases for the query, a command for gold, and a Python function
that computes the result of the command. A draft of a task is valid only if the omission of any step
changes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from intercode.datasets.generated.sampling import (
    OperationFilter,
    SeededChoices,
    TaskDraft,
    TaskNamePool,
    join_steps,
)

Lines = list[str]
_KEY = ".key"
_CHANCE = {"0", "1", "2", "42"}
"""The results that are too easy to guess. No task has one of these results."""


@dataclass(frozen=True, slots=True)
class _LineFilter:
    """An operation on the lines of a text.

    In phrases and code, ``{w}`` stands for a word in the lines, ``{v}`` for a new word, and ``{n}``
    for a number.
    """

    phrases: tuple[str, ...]
    code: str
    transform: Callable[[Lines, str, str, int], Lines]
    input_separator: str = " "
    """The text between the command and its input file."""
    pairs: bool = False
    """Whether the operation needs lines that consist of a word and a number."""
    ends: bool = False
    """Whether the operation must be the last."""


def _column(line: str, column: int) -> str:
    return line.split(" ")[column]


_LINES = {
    "keep": _LineFilter(
        ("keep lines with {w}", "take the lines that have {w}"),
        "grep {w}",
        lambda lines, w, v, n: [line for line in lines if w in line],
    ),
    "drop": _LineFilter(
        ("drop lines with {w}", "leave out lines that have {w}"),
        "grep -v {w}",
        lambda lines, w, v, n: [line for line in lines if w not in line],
    ),
    "sort": _LineFilter(
        ("sort the lines", "sort them by name"),
        "sort",
        lambda lines, w, v, n: sorted(lines),
    ),
    "rank": _LineFilter(
        ("sort by number", "order them by number"),
        "sort -nk2",
        lambda lines, w, v, n: sorted(lines, key=lambda line: int(_column(line, 1))),
        pairs=True,
    ),
    "turn": _LineFilter(
        ("reverse the order", "put the last line first"),
        "tac",
        lambda lines, w, v, n: lines[::-1],
    ),
    "first": _LineFilter(
        ("take the first {n}", "keep only the first {n}"),
        "head -n{n}",
        lambda lines, w, v, n: lines[:n],
    ),
    "last": _LineFilter(
        ("take the last {n}", "keep only the last {n}"),
        "tail -n{n}",
        lambda lines, w, v, n: lines[-n:],
    ),
    "names": _LineFilter(
        ("give only the names", "keep just the names"),
        "cut -d' ' -f1",
        lambda lines, w, v, n: [_column(line, 0) for line in lines],
        pairs=True,
    ),
    "numbers": _LineFilter(
        ("give only the numbers", "keep just the numbers"),
        "cut -d' ' -f2",
        lambda lines, w, v, n: [_column(line, 1) for line in lines],
        pairs=True,
    ),
    "unique": _LineFilter(
        ("sort without repeats", "give each once, sorted"),
        "sort -u",
        lambda lines, w, v, n: sorted(set(lines)),
    ),
    "upper": _LineFilter(
        ("write in capitals", "make all letters big"),
        "tr a-z A-Z",
        lambda lines, w, v, n: [line.upper() for line in lines],
        input_separator=" < ",
    ),
    "swap": _LineFilter(
        ("write {v} for {w}", "replace {w} by {v}"),
        "sed s/{w}/{v}/",
        lambda lines, w, v, n: [line.replace(w, v, 1) for line in lines],
    ),
    "count": _LineFilter(
        ("count the lines", "tell how many there are"),
        "wc -l",
        lambda lines, w, v, n: [str(len(lines))],
        input_separator=" < ",
        ends=True,
    ),
    "sum": _LineFilter(
        ("add up the numbers", "give the sum of the numbers"),
        "awk '{{s+=$2}}END{{print s}}'",
        lambda lines, w, v, n: [str(sum(int(_column(line, 1)) for line in lines))],
        pairs=True,
        ends=True,
    ),
    "save": _LineFilter(
        ("save that in {v}", "write the result to {v}"),
        "> {v}",
        lambda lines, w, v, n: [f"> {v}", *lines],
        ends=True,
    ),
}
_OPENINGS = ("Of {f}: ", "In {f}: ", "With {f}: ", "Read {f}: ")


def draft(
    draw: SeededChoices, pool: TaskNamePool, difficulty: int, is_allowed: OperationFilter
) -> TaskDraft | None:
    """Draft a task with `difficulty` operations.

    If the difficulty is at least 2, one draft in four has a lookup as one of its operations. Then a
    word that the solution needs is in a file, and not in the query.

    Args:
        draw: The source of random choices.
        pool: The names and values of the split.
        difficulty: The number of operations.
        is_allowed: A function that returns whether operations, in their order, belong to the split.

    Returns:
        The draft; None if the random choices make no valid task.
    """
    has_lookup = difficulty > 1 and draw.draw_below(4) == 0
    steps = difficulty - has_lookup
    family = _lines if steps > 3 or draw.draw_below(5) < 3 else _files
    return family(draw, pool, steps, is_allowed, has_lookup)


def _lines(
    draw: SeededChoices,
    pool: TaskNamePool,
    count: int,
    is_allowed: OperationFilter,
    has_lookup: bool,
) -> TaskDraft | None:
    """Draft a task whose solution is a pipeline over the lines of a file; None: not valid."""
    names = [draw.pick(tuple(_LINES)) for _ in range(count)]
    steps = [_LINES[name] for name in names]
    operations = ("look", *names) if has_lookup else tuple(names)
    if len(set(names)) < count or not is_allowed(operations) or not _fits(names):
        return None
    words = draw.pick_several(pool.words, 3)
    new_word, *files = draw.pick_several(
        [word for word in pool.words if word not in words], 2 + count * 2
    )
    n, filter_word = draw.pick(pool.counts), draw.pick(words)
    contents = {name: _content(draw, pool, words, 6 + 2 * count) for name in files}
    file = files[0]
    values = {"w": filter_word, "v": new_word, "n": n}
    results = [
        _run_steps(
            [
                filter_step
                for position, filter_step in enumerate(steps)
                if position != omitted_index
            ],
            contents[file],
            filter_word,
            new_word,
            n,
        )
        for omitted_index in range(-1, count)
    ]
    if not results[0] or results[0] in results[1:] or results[0][0] in _CHANCE:
        return None
    phrases = [draw.pick(step.phrases) for step in steps]
    if has_lookup:
        # The result must not be the word itself, because the lookup alone would then solve the
        # task.
        if not any("{w}" in text for text in phrases) or results[0] == [filter_word]:
            return None
        contents[_KEY] = [filter_word]
    query_values = {**values, "w": f"the word in {_KEY}"} if has_lookup else values
    query = (
        draw.pick(_OPENINGS).format(f=file)
        + join_steps([t.format(**query_values) for t in phrases])
        + "."
    )
    omitted_index = draw.draw_below(count)
    return TaskDraft(
        query=query,
        gold=_pipeline(steps, file).format(**values),
        wrong_solutions=(
            _pipeline([*steps[:omitted_index], *steps[omitted_index + 1 :]], file).format(**values),
        ),
        operations=operations,
        looks=(f"cat {_KEY}",) if has_lookup else (),
        fields={"files": {name: _text(lines) for name, lines in contents.items()}},
    )


def _fits(names: list[str]) -> bool:
    """Return whether each operation can process the output of the operations before it."""
    pairs = True
    for position, name in enumerate(names):
        step = _LINES[name]
        if (step.pairs and not pairs) or (step.ends and position < len(names) - 1):
            return False
        pairs = pairs and name not in ("names", "numbers")
    return True


def _content(draw: SeededChoices, pool: TaskNamePool, words: list[str], count: int) -> Lines:
    return [f"{draw.pick(words)} {value}" for value in draw.pick_several(pool.numbers, count)]


def _run_steps(
    steps: list[_LineFilter], lines: Lines, old_word: str, new_word: str, n: int
) -> Lines:
    for step in steps:
        lines = step.transform(lines, old_word, new_word, n)
    return lines


def _pipeline(steps: list[_LineFilter], file: str) -> str:
    """Return the code of a pipeline, in which the first command reads the file."""
    if not steps or steps[0].code.startswith(">"):
        first_command, later_steps = f"cat {file}", steps
    else:
        first_command, later_steps = f"{steps[0].code}{steps[0].input_separator}{file}", steps[1:]
    return first_command + "".join(
        f" {step.code}" if step.code.startswith(">") else f" | {step.code}" for step in later_steps
    )


Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class _FileOperation:
    """An operation on selected files.

    ``{s}`` stands for the selected files: in phrases for a description, in code for arguments of
    the shell. ``{w}`` stands for a word in the files, and ``{v}`` for a new word.
    """

    phrases: tuple[str, ...]
    code: str
    transform: Callable[[Files, list[str], str, str], object]
    typed: bool = False
    """Whether the files must be selected by type (their suffix). The operation makes a new folder,
    which the glob ``*`` would match, too."""


def _delete_files(files: Files, selected_files: list[str], old_word: str, new_word: str) -> object:
    return {name: text for name, text in files.items() if name not in selected_files}


def _move_files(files: Files, selected_files: list[str], old_word: str, new_word: str) -> object:
    return {
        f"{new_word}/{name}" if name in selected_files else name: text
        for name, text in files.items()
    }


def _append_word(files: Files, selected_files: list[str], old_word: str, new_word: str) -> object:
    return {
        name: text + new_word if name in selected_files else text for name, text in files.items()
    }


def _replace_word(files: Files, selected_files: list[str], old_word: str, new_word: str) -> object:
    return {
        name: text.replace(old_word, new_word) if name in selected_files else text
        for name, text in files.items()
    }


_CHOICES: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((),),
    (("type",), ("holding",)),
    (("type", "holding"),),
)
"""The possible conditions of a selection of files; the entry at index N has N conditions."""
_ACTIONS = {
    "list": _FileOperation(
        ("List the {s}.", "Name the {s}."),
        "ls {s}",
        lambda files, selected_files, w, v: sorted(selected_files),
    ),
    "number": _FileOperation(
        ("Count the {s}.", "How many {s} are here?"),
        "ls {s} | wc -l",
        lambda files, selected_files, w, v: [str(len(selected_files))],
    ),
    "delete": _FileOperation(("Delete the {s}.", "Remove the {s}."), "rm {s}", _delete_files),
    "move": _FileOperation(
        ("Move the {s} to a new folder {v}.", "Make a folder {v} for the {s}."),
        "mkdir {v}; mv {s} {v}",
        _move_files,
        typed=True,
    ),
    "append": _FileOperation(
        ("Add the line {v} to the {s}.", "Put a line {v} at the end of the {s}."),
        "for f in {s}; do echo {v} >> $f; done",
        _append_word,
    ),
    "change": _FileOperation(
        ("Write {v} for {w} in the {s}.", "Replace {w} by {v} in the {s}."),
        "sed -i s/{w}/{v}/ {s}",
        _replace_word,
    ),
}


def _files(
    draw: SeededChoices,
    pool: TaskNamePool,
    count: int,
    is_allowed: OperationFilter,
    has_lookup: bool,
) -> TaskDraft | None:
    """Draft a task whose solution is an operation on selected files; None: not valid."""
    conditions = draw.pick(_CHOICES[count - 1])
    name = draw.pick(tuple(_ACTIONS))
    operations = (*(("look",) if has_lookup else ()), *conditions, name)
    action = _ACTIONS[name]
    if (action.typed and "type" not in conditions) or not is_allowed(operations):
        return None
    words, ends = draw.pick_several(pool.words, 3), draw.pick_several(pool.ends, 2)
    new_word, *stems = draw.pick_several(
        [word for word in pool.words if word not in words], 5 + 2 * count
    )
    files = {
        f"{stem}.{draw.pick(ends)}": f"{draw.pick(words)} {draw.pick(pool.numbers)}\n"
        for stem in stems
    }
    search_word, end = words[0], ends[0]
    all_conditions, *partial_conditions = (
        tuple(
            condition for position, condition in enumerate(conditions) if position != omitted_index
        )
        for omitted_index in range(-1, count - 1)
    )

    def result(kinds: tuple[str, ...]) -> object:
        paths = [
            path
            for path, text in files.items()
            if ("type" not in kinds or path.endswith(f".{end}"))
            and ("holding" not in kinds or search_word in text)
        ]
        return action.transform(files, paths, search_word, new_word) if paths else None

    def code(kinds: tuple[str, ...]) -> str:
        glob = f"*.{end}" if "type" in kinds else "*"
        if "holding" not in kinds:
            is_unfiltered = glob == "*" and action.code.startswith("ls")
            command = action.code.replace(" {s}", "") if is_unfiltered else action.code
            return command.format(s=glob, w=search_word, v=new_word)
        grep_command = f"grep -l {search_word} {glob}"
        if action.code.startswith("ls"):
            return action.code.replace("ls {s}", grep_command)
        return action.code.format(s=f"$({grep_command})", w=search_word, v=new_word)

    expected_result = result(all_conditions)
    if (
        expected_result is None
        or expected_result == files
        or any(expected_result == result(kinds) for kinds in partial_conditions)
    ):
        return None
    if isinstance(expected_result, list) and expected_result[0] in _CHANCE:
        return None
    phrase = draw.pick(action.phrases)
    if has_lookup:
        if "{w}" not in phrase and "holding" not in conditions:
            return None
        files[_KEY] = f"{search_word}\n"
    word = f"the word in {_KEY}" if has_lookup else search_word
    noun = f".{end} files" if "type" in conditions else "files"
    noun += f" with {word}" if "holding" in conditions else ""
    wrong_command = (
        code(draw.pick(partial_conditions))
        if partial_conditions
        else ("ls -a" if name != "list" else "ls | head -n1")
    )
    return TaskDraft(
        query=phrase.format(
            s=noun, w="that word" if "holding" in conditions and has_lookup else word, v=new_word
        ),
        gold=code(all_conditions),
        wrong_solutions=(wrong_command,),
        operations=operations,
        looks=(f"cat {_KEY}",) if has_lookup else (),
        fields={"files": dict(files)},
    )


def _text(lines: Lines) -> str:
    return "".join(f"{line}\n" for line in lines)
