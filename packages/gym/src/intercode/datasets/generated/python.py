"""Generated tasks for Python: functions of a list of numbers, or of a text.

Each function is a composition of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from intercode.datasets.generated.sampling import (
    OperationFilter,
    SeededChoices,
    TaskDraft,
    TaskNamePool,
    join_steps,
)

_KEY = ".key"
_INPUTS = 4
_LENGTH = 9


@dataclass(frozen=True, slots=True)
class _FunctionStep:
    """A step of a function.

    In the code, ``{0}`` stands for the expression of the steps before. ``{n}`` and ``{k}`` stand
    for numbers, ``{w}`` for a word in the input, and ``{v}`` for a new word.
    """

    phrases: tuple[str, ...]
    code: str
    ends: bool = False
    """Whether the step must be the last."""


_NUMBERS = {
    "even": _FunctionStep(
        ("keep even numbers", "take the even ones"), "[x for x in {0} if x % 2 == 0]"
    ),
    "odd": _FunctionStep(("keep odd numbers", "take the odd ones"), "[x for x in {0} if x % 2]"),
    "above": _FunctionStep(
        ("keep numbers above {n}", "take those over {n}"), "[x for x in {0} if x > {n}]"
    ),
    "below": _FunctionStep(
        ("keep numbers below {n}", "take those under {n}"), "[x for x in {0} if x < {n}]"
    ),
    "add": _FunctionStep(("add {n} to each", "increase each by {n}"), "[x + {n} for x in {0}]"),
    "times": _FunctionStep(
        ("multiply each by {k}", "take each {k} times"), "[x * {k} for x in {0}]"
    ),
    "sort": _FunctionStep(("sort them", "put them in order"), "sorted({0})"),
    "turn": _FunctionStep(("reverse the order", "turn the list round"), "{0}[::-1]"),
    "first": _FunctionStep(("take the first {k}", "keep only the first {k}"), "{0}[:{k}]"),
    "last": _FunctionStep(("take the last {k}", "keep only the last {k}"), "{0}[-{k}:]"),
    "unique": _FunctionStep(("drop repeats", "keep each only once"), "list(dict.fromkeys({0}))"),
    "sum": _FunctionStep(("add them up", "return the sum"), "sum({0})", ends=True),
    "most": _FunctionStep(("return the largest", "give the greatest"), "max({0})", ends=True),
    "least": _FunctionStep(("return the smallest", "give the least"), "min({0})", ends=True),
    "size": _FunctionStep(("count them", "return how many there are"), "len({0})", ends=True),
}
_TEXT = {
    "upper": _FunctionStep(("write it in capitals", "make all letters big"), "{0}.upper()"),
    "mirror": _FunctionStep(("read it backwards", "reverse its letters"), "{0}[::-1]"),
    "begin": _FunctionStep(("take the first {k} letters", "keep {k} letters of it"), "{0}[:{k}]"),
    "end": _FunctionStep(("take the last {k} letters", "keep its last {k} letters"), "{0}[-{k}:]"),
    "swap": _FunctionStep(("write {v} for {w}", "replace {w} by {v}"), "{0}.replace('{w}', '{v}')"),
    "before": _FunctionStep(("put {v} before it", "let it begin with {v}"), "'{v}' + {0}"),
    "after": _FunctionStep(("put {v} after it", "let it end with {v}"), "{0} + '{v}'"),
    "length": _FunctionStep(("return its length", "count its letters"), "len({0})", ends=True),
    "often": _FunctionStep(
        ("count {w} in it", "tell how often it has {w}"), "{0}.count('{w}')", ends=True
    ),
}
_OPENINGS = ("Write {f}({x}): ", "Define {f}({x}): ", "Make a function {f}({x}): ")


def draft(
    draw: SeededChoices, pool: TaskNamePool, difficulty: int, is_allowed: OperationFilter
) -> TaskDraft | None:
    """Draft a task with `difficulty` operations.

    If the difficulty is at least 2, one draft in four has a lookup as one of its operations. Then a
    number or word that the function needs is in a file, and not in the query. The arguments are
    those of `intercode.datasets.generated.bash.draft`.

    Returns:
        The draft; None if the random choices make no valid task.
    """
    has_lookup = difficulty > 1 and draw.draw_below(4) == 0
    count = difficulty - has_lookup
    operation_table, parameter = draw.pick(((_NUMBERS, "xs"), (_NUMBERS, "xs"), (_TEXT, "s")))
    names = draw.pick_several(tuple(operation_table), count)
    steps = [operation_table[name] for name in names]
    operations = ("look", *names) if has_lookup else tuple(names)
    if not is_allowed(operations) or any(step.ends for step in steps[:-1]):
        return None
    name, new_word, *words = draw.pick_several(pool.words, 5)
    values = {
        "n": draw.pick(pool.numbers),
        "k": draw.pick(pool.counts),
        "w": words[0],
        "v": new_word,
    }
    inputs = [_input(draw, pool, words, parameter) for _ in range(_INPUTS)]
    gold = _expression(steps, parameter, values)
    shorter_golds = [
        _expression(steps[:position] + steps[position + 1 :], parameter, values)
        for position in range(count)
    ]
    results = _values(gold, parameter, inputs)
    if results is None or any(
        _values(item, parameter, inputs) == results for item in shorter_golds
    ):
        return None
    if all(item == results[0] for item in results):
        return None
    phrases, files, query_values = [draw.pick(step.phrases) for step in steps], {}, dict(values)
    if has_lookup:
        key = "n" if parameter == "xs" else "w"
        if not any(f"{{{key}}}" in text for text in phrases):
            return None
        files = {_KEY: f"{values[key]}\n"}
        query_values[key] = f"the {'number' if key == 'n' else 'word'} in {_KEY}"
    opening_text = draw.pick(_OPENINGS).format(f=name, x=parameter)
    return TaskDraft(
        query=opening_text + join_steps([text.format(**query_values) for text in phrases]) + ".",
        gold=_function(name, parameter, gold),
        wrong_solutions=(_function(name, parameter, draw.pick(shorter_golds)),),
        operations=operations,
        looks=(f"open('{_KEY}').read()",) if has_lookup else (),
        fields={
            "files": files,
            "tests": tuple(
                f"assert {name}({item!r}) == {result!r}"
                for item, result in zip(inputs, results, strict=True)
            ),
        },
    )


def _input(draw: SeededChoices, pool: TaskNamePool, words: list[str], parameter: str) -> object:
    if parameter == "s":
        return " ".join(draw.pick(words) for _ in range(3))
    numbers = draw.pick_several(pool.numbers, _LENGTH - 2)
    return [*numbers, draw.pick(numbers), draw.pick(numbers)]


def _expression(steps: list[_FunctionStep], parameter: str, values: dict[str, object]) -> str:
    code = parameter
    for position, step in enumerate(steps):
        operand_code = f"({code})" if " + " in code and step.code[0] == "{" and position else code
        code = step.code.format(operand_code, **values)
    return code


def _function(name: str, parameter: str, expression: str) -> str:
    return f"def {name}({parameter}): return {expression}"


def _values(expression: str, parameter: str, inputs: list[object]) -> list[object] | None:
    """Evaluate an expression for each input; None if any evaluation raises an exception.

    The expression is generated by this module, so evaluating it is safe.

    Args:
        expression: The expression.
        parameter: The name of the variable that holds the input.
        inputs: The inputs.
    """
    code = compile(expression, "<generated>", "eval")
    try:
        return [eval(code, {parameter: input_value}) for input_value in inputs]
    except (TypeError, ValueError, AttributeError):
        return None
