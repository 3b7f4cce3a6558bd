"""The API pages of the site: public names of each module in docs/api.md, read from the source.

A page begins with the import line, the summary and a table of names. Names of `intercode` have the
order and the groups of docs/api.md; names of other modules are grouped by kind.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from griffe import ModulesCollection

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
PACKAGES = {
    "intercode_sandbox": "sandbox",
    "intercode": "gym",
    "intercode_integrations": "integrations",
    "intercode_paper": "paper",
}
OTHER_GROUPS = ("Functions", "Classes", "Data", "Errors")


def modules() -> list[str]:
    """Return `intercode` and the modules that the page of the API has in its table."""
    text = PAGE.read_text(encoding="utf-8")
    return ["intercode", *re.findall(r"^\| `(intercode[_.][\w.]+)` \|", text, re.MULTILINE)]


def path(module: str) -> str:
    """Return the page of a module."""
    return f"api/{module}.md"


def public_names(module: str) -> dict[str, str]:
    """Return the names of a module's `__all__`, or else its own classes and functions.

    Returns:
        Name → place of its definition. A table `PUBLIC_NAMES` has the places of names that are
        imported at their first use.
    """
    name = module.replace(".", "/")
    files = (f"packages/*/src/{name}.py", f"packages/*/src/{name}/__init__.py")
    file = next(file for pattern in files for file in ROOT.glob(pattern))
    body = ast.parse(file.read_text(encoding="utf-8")).body
    tables = {ast.unparse(n.targets[0]): n.value for n in body if isinstance(n, ast.Assign)}
    if "PUBLIC_NAMES" in tables:
        sources = ast.literal_eval(tables["PUBLIC_NAMES"])
        return {name: source.replace(":", ".") for name, source in sources.items()}
    if "__all__" in tables:
        names = [name for name in ast.literal_eval(tables["__all__"]) if name[:2] != "__"]
    else:
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = [node.name for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    return {name: f"{module}.{name}" for name in names}


def groups(module: str) -> dict[str, list[str]]:
    """Group a module's public names, in the order of its page."""
    names = public_names(module)
    result: dict[str, list[str]] = {}
    if module == "intercode":
        for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
            title, _, text = section.partition("\n")
            rows = re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE)
            cells = [name for row in rows for name in re.findall(r"`(\w+)(?=[`(])", row)]
            if entries := [name for name in cells if name in names]:
                result[title] = entries
    documented_names = {name for entries in result.values() for name in entries}
    groups = result | {title: result.get(title, []) for title in OTHER_GROUPS}
    for name, source in names.items():
        if name not in documented_names:
            groups[_kind(name, definition(source))].append(name)
    return {title: entries for title, entries in groups.items() if entries}


def _kind(name: str, entry: Any) -> str:
    if name.endswith("Error"):
        return "Errors"
    return {"function": "Functions", "class": "Classes"}.get(entry.kind.value, "Data")


def page(module: str) -> str:
    """Return the source of a module's page, with a directive for each name."""
    names = public_names(module)
    parts = [_opening(module, "[`{name}`][{source}]")]
    for title, entries in groups(module).items():
        parts.append(f"## {title}\n")
        parts += [
            f"::: {names[name]}\n    options: {{ heading: {name}, toc_label: {name} }}\n"
            for name in entries
        ]
    return "\n".join(parts)


def rename_signatures(html: str, module: str) -> str:
    """Put the public name into a signature whose function has another name, as `make` has."""
    for name, source in public_names(module).items():
        function = source.rpartition(".")[2]
        if name != function:
            pattern = rf'(<h3 id="{re.escape(source)}".*?<span class="nf">){function}<'
            html = re.sub(pattern, rf"\g<1>{name}<", html, count=1, flags=re.DOTALL)
    return html


def markdown(module: str) -> str:
    """Return a module's page as Markdown that needs no tool: signatures and docstrings."""
    names = public_names(module)
    parts = [_opening(module, "`{name}`")]
    for title, entries in groups(module).items():
        parts.append(f"## {title}\n")
        for name in entries:
            entry = definition(names[name])
            parts.append(f"### {name}\n\n```python\n{_declaration(name, entry)}\n```\n")
            parts.append(f"{_docstring(entry)}\n")
            if methods := _methods(entry):
                parts.append("\n".join(["Methods:\n", *methods, ""]))
    return "\n".join(parts)


def summary(source: str) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join(_docstring(definition(source)).split("\n\n")[0].split())


@cache
def definition(source: str) -> Any:
    """Return griffe's object for a dotted path."""
    entry = _source_tree()[source]
    return entry.final_target if entry.is_alias else entry


@cache
def _source_tree() -> ModulesCollection:
    from griffe import GriffeLoader

    folders = [ROOT / "packages" / name / "src" for name in PACKAGES.values()]
    loader = GriffeLoader(search_paths=folders)
    for package in PACKAGES:
        loader.load(package)
    return loader.modules_collection


def _opening(module: str, link: str) -> str:
    """Return title, import line, summary and table of names."""
    names = public_names(module)
    lines = [f"# {module}\n", f"{summary(module)}\n", f"```python\nimport {module}\n```\n"]
    for title, entries in groups(module).items():
        lines += [f"| {title} | |", "|---|---|"]
        for name in entries:
            cell = summary(names[name]).replace("|", "\\|")
            lines.append(f"| {link.format(name=name, source=names[name])} | {cell} |")
        lines.append("")
    return "\n".join(lines)


def _declaration(name: str, entry: Any) -> str:
    if entry.is_attribute:
        return name
    keyword = "class" if entry.is_class else "def"
    text = str(entry.signature(name=name) or name)
    return f"{keyword} {text.removeprefix('def ').removeprefix('class ')}"


def _methods(entry: Any) -> list[str]:
    """Return a line for each public method of a class, with inherited methods."""
    if not entry.is_class:
        return []
    return [
        f"- `{method.signature()}`: {summary(method.path)}"
        for name, method in entry.all_members.items()
        if name[0] != "_" and method.is_function and method.docstring
    ]


def _docstring(entry: Any) -> str:
    return inspect.cleandoc(entry.docstring.value) if entry.docstring else ""
