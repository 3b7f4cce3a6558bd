"""Check the parts of speech of names: ``python tests/names.py [--share] [PATH…]``.

A value's name is a noun, a function's a verb with its object or the noun of its result, a truth
value's an adjective or `is_…`. A lexicon (lemminflect's) knows the part of speech; only closed
classes (pronouns, prepositions, determiners) are listed here. With paths, each finding is printed,
or with `--table` a row of tab-separated fields. Without, each package's share of refused names is
compared with `LIMITS`; `--share` prints it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from lemminflect import getAllInflections, getAllLemmas

LIMITS = {"gym": 0.3, "integrations": 0.4, "paper": 0.1, "sandbox": 0.3}
"""Package → percent of its names that may be refused. A limit only falls; the aim is 0.5."""
RECORDED = Path(__file__).parent / "golden/recorded"
SLACK = 0.1
"""Percentage points by which a share may lie below its limit before the limit must follow."""
CLOSED = {
    "pronoun": "i me my mine you your yours he him his she her hers it its we us our ours they "
    "them their theirs one ones oneself itself who whom whose what which whatever whichever "
    "whoever this that these those none nothing something anything everything somebody anybody "
    "nobody someone anyone everyone other others another own",
    "determiner": "a an the all any both each either every few many more most much neither no "
    "several some such same whole rest enough less least first last next",
    "preposition": "about above across after against along amid among around as at before behind "
    "below beneath beside besides between beyond by despite down during except for from in inside "
    "into like near of off on onto out outside over past per since than through throughout till to "
    "toward towards under until unto up upon via with within without",
    "auxiliary": "is are was were be been has have had do does did can could should must would",
    "conjunction": "and but or nor if unless because although though while whereas whether",
    "adverb": "how why when where whence whither then there here now once twice thus so",
}
"""Closed class → its words: these classes have no other members."""
CLASS = {word: kind for kind, words in CLOSED.items() for word in words.split()}
NO_NOUNS = (
    "given known left following running missing closing coming doing failing filling resting "
    "taking small old young wrong free full plain real clean"
)
"""Words that the lexicon calls nouns ("the known"), and that are none as a name."""
NOUNS = {
    "having": "a clause of SQL",
    "now": "the current time, as in datetime.now",
    "reasoning": "a model's",
    "reset": "Gymnasium's verb; the lexicon takes it for a past form",
    "terminated": "Gymnasium's",
    "truncated": "Gymnasium's",
    "unwrapped": "Gymnasium's",
    "upstream": "the server behind a proxy",
}
"""Word → why it is no finding here, whatever the lexicon says."""
LEADING = {"on", "per"}
"""Prepositions that may begin a noun phrase: callbacks (`on_close`), and rates."""
TRUTH = {"is", "are", "was", "has", "have", "had", "can", "could", "should", "must", "may", "will"}
TRUTHFUL = {"all", "any", "bool", "callable", "endswith", "hasattr", "isinstance", "startswith"}
"""Calls that return a truth value."""
INDICES = set("ijkn")
INSTEAD = {
    "found": "match, entry, row, path",
    "one": "the item's noun",
    "said": "message, text, config",
    "told": "message, text, config",
    "given": "options, arguments",
    "known": "names, registry",
    "asked": "request",
    "kept": "entries, retained_…",
    "left": "remaining_…",
    "made": "result_…",
    "why": "reason",
    "how": "mode, policy, run_options",
}
"""Word → its usual replacements, by the project's page on naming."""


class Name(NamedTuple):
    """A name that a file binds in a scope."""

    line: int
    scope: str
    name: str
    kind: str
    """value, attribute, parameter, function or class."""
    is_truth: bool = False
    """Whether it may be an adjective: a truth value, or a constant that is a status."""
    is_short: bool = False
    """Whether it may have one letter: in a comprehension, in a lambda, for a number."""


class Finding(NamedTuple):
    """A refused name, with its word and the rule that refuses it."""

    name: Name
    word: str
    rule: str

    def __str__(self) -> str:
        instead = INSTEAD.get(self.word)
        better = f" (better: {instead})" if instead else ""
        return f"{self.name.line}: {self.name.name}: {self.word!r} is {self.rule}{better}"


@cache
def part_of_speech(word: str) -> str:
    """Return the part of speech for which a word is refused as a noun; "" for a noun."""
    if word in NOUNS:
        return ""
    if word in CLASS:
        return CLASS[word]
    lemmas = getAllLemmas(word)
    may_be_noun = word not in NO_NOUNS.split()
    is_noun = "NOUN" in lemmas and may_be_noun
    for verb in {*lemmas.get("VERB", ())} - {word}:
        forms = getAllInflections(verb, "VERB")
        plurals = {*getAllInflections(word, "NOUN").get("NNS", ())} - {word}
        if word in (*forms.get("VBN", ()), *forms.get("VBD", ()), *forms.get("VBG", ())):
            return "" if is_noun and plurals else "participle"
    is_gradable = "JJR" in getAllInflections(word, "ADJ")
    if is_noun or ("VERB" in lemmas and not is_gradable and may_be_noun):
        return ""
    return "adjective" if "ADJ" in lemmas else "adverb" if "ADV" in lemmas else ""


def is_verb(word: str) -> bool:
    """Tell whether a word is the base form of a verb."""
    lemmas = getAllLemmas(word).get("VERB", ())
    third = any(word in getAllInflections(verb, "VERB").get("VBZ", ()) for verb in lemmas)
    return word in lemmas or third or word in ("as", "to", "from")


def words(name: str) -> list[str]:
    """Split a name into its words, in lower case and without trailing digits."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    parts = [part.rstrip("0123456789").lower() for part in spaced.split("_")]
    return [part for part in parts if part]


def refuse(name: Name) -> Finding | None:
    """Return the finding of a name, if a rule refuses it."""
    parts = words(name.name)
    if not parts or name.name.startswith("__"):
        return None
    if parts[0] in TRUTH and len(parts) > 1:
        return None
    if len(parts) == len(parts[0]) == 1:
        is_fine = name.is_short or name.kind == "class"
        return None if is_fine else Finding(name, parts[0], "one letter, and no index")
    is_function = name.kind == "function"
    first, *_, head = (*parts, parts[-1])
    speech = part_of_speech(head)
    if len(parts) > 1:
        is_clause = is_function and is_verb(first)
        is_gerund = speech == "participle" and head.endswith("ing")
        is_phrase = is_gerund or speech == "adjective"
        if head != "of" and (is_clause or name.is_truth or is_phrase):
            return None
        if not is_function and first not in LEADING and CLASS.get(first) == "preposition":
            head, speech = first, "preposition"
    if not speech or (name.is_truth and speech in ("adjective", "participle")):
        return None
    demand = "a verb with its object" if is_function else "a noun"
    return Finding(name, head, f"{with_article(speech)}: {with_article(name.kind)} is {demand}")


def with_article(noun: str) -> str:
    """Put the indefinite article before a noun."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def is_truth(node: ast.expr | None) -> bool:
    """Tell whether an expression is certainly a truth value."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_truth, node.values))
    if isinstance(node, ast.Call):
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
        return called in TRUTHFUL or called.lstrip("_").split("_")[0] in TRUTH
    is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, bool)
    return is_negation or is_constant or isinstance(node, ast.Compare)


def is_bool(annotation: ast.expr | None) -> bool:
    """Tell whether an annotation is that of a truth value, which may be missing."""
    return annotation is not None and bool(
        re.search(r"\bbool\b", re.sub(r"\[.*", "", ast.unparse(annotation)))
    )


def is_text(value: ast.expr | None) -> bool:
    """Tell whether an expression is a constant text, such as a status, or begins with a code."""
    is_code = isinstance(value, ast.Tuple) and all(isinstance(v, ast.Constant) for v in value.elts)
    return is_code or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def is_number(value: ast.expr | None, annotation: ast.expr | None) -> bool:
    """Tell whether a name is one of mathematics, which may have one letter."""
    is_type = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("TypeVar")
    stated = annotation is not None and ast.unparse(annotation) in ("int", "float")
    return is_type or stated or isinstance(value, ast.BinOp | ast.UnaryOp)


class Names:
    """Collects the names that a module binds, each once in its scope."""

    def __init__(self, source: str) -> None:
        self.names: dict[tuple[str, str], Name] = {}
        self.visit(ast.parse(source), (), ())

    def add(self, scope: tuple[str, ...], line: int, name: str, kind: str, *marks: bool) -> None:
        """Add a name, unless its scope has it; it is a truth value if any binding says so."""
        place = ".".join(scope) or "*module*"
        binding = Name(line, place, name, kind, *marks)
        earlier = self.names.setdefault((place, name), binding)
        is_truth = earlier.is_truth or binding.is_truth
        self.names[place, name] = earlier._replace(is_truth=is_truth)

    def visit(self, node: ast.AST, scope: tuple[str, ...], owner: tuple[str, ...]) -> None:
        """Add the names of a node and of all below it; `owner` is the class around it."""
        inside = scope
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.bind(target, scope, owner, value)
            case ast.AnnAssign(target=target, value=value, annotation=annotation):
                self.bind(target, scope, owner, value, annotation)
            case ast.NamedExpr(target=target, value=value):
                self.bind(target, scope, owner, value)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                self.bind(target, scope, owner)
            case ast.comprehension(target=target):
                self.bind(target, scope, owner, is_short=True)
            case ast.withitem(optional_vars=ast.expr() as target):
                self.bind(target, scope, owner)
            case ast.ExceptHandler(name=str(name)):
                self.add(scope, node.lineno, name, "value")
            case ast.alias(name=name, asname=str(alias)) if alias != name:
                self.add(scope, node.lineno, alias, "value")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.add(scope, node.lineno, name, "function", is_bool(node.returns))
                inside = (*scope, name)
                self.bind_parameters(node, inside)
            case ast.Lambda():
                self.bind_parameters(node, scope)
            case ast.ClassDef(name=name):
                self.add(scope, node.lineno, name, "class")
                inside = owner = (*scope, name)
        for child in ast.iter_child_nodes(node):
            self.visit(child, inside, owner)

    def bind(
        self,
        target: ast.expr,
        scope: tuple[str, ...],
        owner: tuple[str, ...],
        value: ast.expr | None = None,
        annotation: ast.expr | None = None,
        is_short: bool = False,
    ) -> None:
        """Add the names of a target of an assignment, a loop or a `with`."""
        source = (
            self.names.get((".".join(scope), value.id)) if isinstance(value, ast.Name) else None
        )
        truth = is_truth(value) or is_bool(annotation) or bool(source and source.is_truth)
        match target:
            case ast.Name(id=name):
                is_status = name.isupper() and is_text(value)
                is_short = is_short or name in INDICES or is_number(value, annotation)
                self.add(scope, target.lineno, name, "value", truth or is_status, is_short)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if owner:
                self.add(owner, target.lineno, name, "attribute", truth)
            case ast.Starred(value=element):
                self.bind(element, scope, owner, is_short=is_short)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple) else []
                for element, part in zip_longest(targets, values[: len(targets)]):
                    self.bind(element, scope, owner, part, is_short=is_short)

    def bind_parameters(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: tuple[str, ...]
    ) -> None:
        """Add the parameters of a function; one with a default True or False is a truth value."""
        is_lambda = isinstance(node, ast.Lambda)
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [*reversed(arguments.defaults)]
        pairs = [*zip_longest(reversed(positional), defaults)][::-1]
        pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        pairs += [(arg, None) for arg in (arguments.vararg, arguments.kwarg) if arg]
        for arg, default in pairs:
            if arg.arg == "other" and scope[-1].startswith("__"):
                continue
            is_short = is_lambda or is_number(default, arg.annotation)
            truth = is_bool(arg.annotation) or is_truth(default)
            self.add(scope, arg.lineno, arg.arg, "parameter", truth, is_short)


def names(source: str) -> list[Name]:
    """List the names that a module binds."""
    return list(Names(source).names.values())


def files(path: Path) -> Iterator[Path]:
    """Yield the source files of a folder, or the file itself."""
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        if "repository" not in file.parts:
            yield file


@cache
def recorded_words() -> frozenset[str]:
    """Return the words of all recorded interfaces: run folders, printed JSON, options."""
    texts = (file.read_text() for file in RECORDED.glob("*.json"))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def fields(bound: list[Name]) -> list[Name]:
    """List the names that are a class's fields and stand in a recorded interface.

    These are written to files and printed, so that a better name would lose what users have.
    """
    classes = {
        f"{name.scope}.{name.name}".removeprefix("*module*.")
        for name in bound
        if name.kind == "class"
    }
    return [n for n in bound if n.scope in classes and n.name in recorded_words()]


def check(path: Path) -> tuple[int, list[tuple[Path, Finding]]]:
    """Count the names of a file or folder, and list the findings."""
    count, refused = 0, []
    for file in files(path):
        bound = names(file.read_text())
        count += len(bound)
        exempt = set(fields(bound))
        findings = (refuse(name) for name in bound if name not in exempt)
        refused += [(file, finding) for finding in findings if finding]
    return count, sorted(refused, key=lambda pair: (pair[0], pair[1].name.line))


def main(arguments: list[str]) -> int:
    """Print the findings of paths, or compare packages with their limits; return the exit code."""
    paths = [Path(argument) for argument in arguments if not argument.startswith("--")]
    listed = [finding for path in paths for finding in check(path)[1]]
    for file, finding in listed:
        row = (str(file), finding.name.scope, finding.name.name, "?")
        print("\t".join(row) if "--table" in arguments else f"{file}:{finding}")
    return int(bool(listed)) if paths else compare("--share" in arguments)


def compare(is_printed: bool) -> int:
    """Compare each package's share of refused names with its limit; return the exit code."""
    code = 0
    for package, limit in LIMITS.items():
        folder = Path(__file__).parents[1] / "packages" / package / "src"
        count, findings = check(folder)
        share = 100 * len(findings) / count
        if is_printed:
            print(f"{package}: {len(findings)} of {count} names, {share:.2f} % (limit {limit} %)")
            frequent = Counter(finding.name.name for _, finding in findings).most_common(40)
            print("   ", ", ".join(f"{name} {times}" for name, times in frequent))
        if share > limit or share < limit - SLACK:
            advice = f"run python tests/names.py {folder}" if share > limit else "lower the limit"
            print(f"tests/names.py: {package}: {share:.2f} % refused, limit {limit} %: {advice}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
