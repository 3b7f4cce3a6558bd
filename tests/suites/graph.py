"""The import graph of the project: which files a file needs, by what it imports.

Imports are read from the source, wherever they stand in it. Besides, a name of a module in a string
is an import (``"intercode.envs.bash:BashEnv"``, ``-m intercode.cli``), since registries, commands
and scripts of tests name what they load so. An import for type checkers alone is none.

A package whose names are imported when they are first used needs their modules only for who uses
the names: ``from intercode import make`` needs `make`'s module, and ``import intercode.errors``
none but that one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

_DOTTED = re.compile(r"\b[a-z_]\w*(?:\.\w+)+")
_BEGUN = re.compile(r"""\b([a-z_]\w*(?:\.\w+)+)\.(?=["'{]|$)""")
"""A package name before a dot, as in ``"intercode.cli." + name``: the rest is known at run time."""
_IMPORTED = re.compile(r"\bimport +(\w+)\b")


@dataclass
class References:
    """The references of one Python file.

    Attributes:
        modules: Dotted names that are imported; the last parts may be attributes.
        bare: Those of which no name is used where they are imported.
        told: Those in strings.
        deferred: Those of a package's ``__init__`` that are imported when a name is first used.
        names: Names in the file → the dotted names that they stand for.
        below: Packages all of whose modules may be imported, by a name made at run time.
    """

    modules: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    below: set[str] = field(default_factory=set)


class Graph:
    """The files of a project and what they need.

    Args:
        root: The project's folder.
        files: All its files, relative to `root`.
        packages: Globs of the folders with packages that are installed. These need no other.
        others: Globs of other folders from which modules are imported.
    """

    def __init__(
        self, root: Path, files: Iterable[str], packages: Iterable[str], others: Iterable[str]
    ) -> None:
        self._root, self._files = root, sorted(files)

        def folders(globs: Iterable[str]) -> list[str]:
            return sorted({str(p.relative_to(root)) for glob in globs for p in root.glob(glob)})

        self._packages, self._others = folders(packages), folders(others)
        self._read: dict[str, References] = {}
        self._needed: dict[str, set[str]] = {}

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Dotted name → file, for all modules; a package is its ``__init__.py``."""
        return {**self._modules(self._others), **self._installed}

    @cached_property
    def _installed(self) -> Mapping[str, str]:
        return self._modules(self._packages)

    def needed(self, tests: Iterable[str], imports: Iterable[str] = ()) -> set[str]:
        """Find all files that some tests need: themselves, what they import, and what lies beside.

        Args:
            tests: Files of Python.
            imports: Modules that they need besides, all of their names included.

        Returns:
            Files, relative to the project. What lies beside a file is data, and modules that no
            other imports, in its folder or below it, as far as there is no package in between.
        """
        found: set[str] = set()
        to_do = [*tests, *(file for name in imports for file in self._files_of(name, self.modules))]
        while to_do:
            file = to_do.pop()
            if file not in found:
                found.add(file)
                to_do += self._needs(file)
                to_do += self._beside.get(str(PurePosixPath(file).parent), ())
        return found

    @cached_property
    def _beside(self) -> Mapping[str, list[str]]:
        """Folder with modules → what lies beside them."""
        modules = set(self.modules.values())
        folders = {str(PurePosixPath(file).parent) for file in modules}
        imported: set[str] = set()
        for name, file in self.modules.items():
            imported |= self._needs(file) - {file}
            if file.endswith("/__init__.py"):
                imported |= {*self._files_of(name, self.modules)} - {file}
        data = {file for file in self._files if file not in modules}
        alone = {f for f in self._installed.values() if f not in imported}
        beside: dict[str, list[str]] = {}
        for file in data | {f for f in alone if not f.endswith("/__init__.py")}:
            above = (str(folder) for folder in PurePosixPath(file).parents)
            if (nearest := next((f for f in above if f in folders), None)) is not None:
                beside.setdefault(nearest, []).append(file)
        return beside

    def _modules(self, folders: Iterable[str]) -> dict[str, str]:
        """Return the modules below some folders; in a folder of packages, those of packages."""
        found = {name: file for file in self._files for name in _names(file, folders)}
        if folders is not self._packages:
            return found
        packages = {name for name, file in found.items() if file.endswith("/__init__.py")}

        def is_module(name: str) -> bool:
            parts = name.split(".")
            return all(".".join(parts[:end]) in packages for end in range(1, len(parts)))

        return {name: file for name, file in found.items() if is_module(name)}

    def _needs(self, file: str) -> set[str]:
        """Return the files that one file needs at once."""
        if file not in self._needed:
            is_installed = any(file.startswith(f"{folder}/") for folder in self._packages)
            modules = self._installed if is_installed else self.modules
            references = self._references(file)
            # Much in a string looks like a module of tests and one of its names: "serve.c".
            told = {
                n for n in references.told if n in modules or n.partition(".")[0] in self._installed
            }
            named = references.modules | told
            found = {f for name in named for f in self._files_of(name, modules)}
            for name in references.bare:
                found |= {*self._files_of(name, modules, is_used=False)}
            for package in references.below:
                found |= {f for name, f in modules.items() if name.startswith(f"{package}.")}
            if not is_installed:
                above = [str(folder / "conftest.py") for folder in PurePosixPath(file).parents]
                found |= set(above).intersection(self._files)
            self._needed[file] = found
        return self._needed[file]

    def _files_of(
        self, name: str, modules: Mapping[str, str], *, is_used: bool = True
    ) -> Iterator[str]:
        """Yield the files of a module or of a name in one, and of the packages around it.

        Args:
            name: A dotted name.
            modules: The modules that there are.
            is_used: Whether a package's names are used, and not only modules in it.
        """
        parts = name.split(".")
        lengths = range(len(parts), 0, -1)
        length = next((n for n in lengths if ".".join(parts[:n]) in modules), 0)
        above = (".".join(parts[:end]) for end in range(1, length + 1))
        yield from (modules[package] for package in above if package in modules)
        module = ".".join(parts[:length])
        if module and length == len(parts) and f"{module}.__main__" in modules:
            yield modules[f"{module}.__main__"]
        if module and is_used and modules[module].endswith("__init__.py"):
            references = self._references(modules[module])
            given = parts[length] if length < len(parts) else ""
            if given in references.names:
                yield from self._files_of(references.names[given], modules)
            else:
                for other in references.deferred - {module}:
                    is_inside = other.startswith(f"{module}.")
                    yield from self._files_of(other, modules, is_used=not is_inside)

    def _references(self, file: str) -> References:
        if file not in self._read:
            self._read[file] = References()
            if file.endswith(".py"):
                (name, *_) = [*_names(file, [*self._packages, *self._others]), ""]
                is_package = file.endswith("/__init__.py")
                reader = _Reader(name if is_package else name.rpartition(".")[0], is_package)
                reader.visit(ast.parse((self._root / file).read_bytes()))
                self._read[file] = reader.references
        return self._read[file]


def _names(file: str, folders: Iterable[str]) -> Iterator[str]:
    """Yield the dotted names under which a file can be imported from some folders."""
    for folder in folders:
        if file.endswith(".py") and file.startswith(f"{folder}/"):
            parts = file.removeprefix(f"{folder}/").removesuffix(".py").split("/")
            if parts[-1] == "__init__":
                parts.pop()
            if parts and all(part.isidentifier() for part in parts):
                yield ".".join(parts)


class _Reader(ast.NodeVisitor):
    """Reads a file's references."""

    def __init__(self, package: str, is_package: bool) -> None:
        self.references = References()
        self._package, self._is_package = package, is_package
        self._is_for_types = False
        self._bound: dict[str, str] = {}
        """Names in the file → the packages that ``import`` has bound to them."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)
            return
        self._is_for_types = True
        for each in node.body:
            self.visit(each)
        self._is_for_types = False
        for each in node.orelse:
            self.visit(each)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bound[alias.asname or bound] = bound
            if not self._is_for_types:
                self.references.bare.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            above = self._package.split(".")
            module = ".".join(filter(None, [*above[: len(above) - node.level + 1], module]))
        for alias in node.names:
            name = f"{module}.{alias.name}"
            self._bound[alias.asname or alias.name] = name
            self.references.names[alias.asname or alias.name] = name
            self._add(name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note a chain of names, as in ``intercode.errors.UsageError``."""
        parts, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self._bound:
            self._add(".".join([self._bound[inner.id], *reversed(parts)]))
        else:
            self.visit(inner)

    def visit_Name(self, node: ast.Name) -> None:
        """Note a module that is used as a whole."""
        if node.id in self._bound:
            self._add(self._bound[node.id])

    def visit_Call(self, node: ast.Call) -> None:
        """Pass over Gymnasium's registry: an entry point is imported when its name is made."""
        if ast.unparse(node.func) != "gymnasium.register":
            self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Note the names that a package gives: ``{"make": "intercode.project:create"}``."""
        for key, value in zip(node.keys, node.values, strict=True):
            pair = [part.value if isinstance(part, ast.Constant) else None for part in (key, value)]
            if self._is_package and all(isinstance(part, str) for part in pair):
                name, module = str(pair[0]), str(pair[1]).replace(":", ".")
                self.references.names.setdefault(name, module)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Pass over docstrings."""
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._text(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Note the names of modules that are made at run time: ``f"{__package__}.{name}"``."""
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{" for part in node.values
        )
        first = node.values[0] if node.values else None
        value = first.value if isinstance(first, ast.FormattedValue) else None
        is_own = isinstance(value, ast.Name) and value.id in {"__package__", "__name__"}
        if is_own and text.startswith("{.{"):
            self.references.below.add(self._package)
        self._text(text)
        self.generic_visit(node)

    def _text(self, text: str) -> None:
        told = self.references.deferred if self._is_package else self.references.told
        told.update(_DOTTED.findall(text), _IMPORTED.findall(text))
        self.references.below.update(_BEGUN.findall(text))

    def _add(self, name: str) -> None:
        if not self._is_for_types:
            self.references.modules.add(name)
        elif self._is_package:
            self.references.deferred.add(name)
