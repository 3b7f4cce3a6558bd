"""Recognition of harmless tests, which leave their process unchanged, by their source alone.

A harmless test computes with values, calls the submission, and binds names that are discarded. Such
a test uses only some builtins, ``math``, and the public attributes of data types. An attribute of a
frame, a function or a module would lead to state that the next tests in the process use.
"""

from __future__ import annotations

import ast
import builtins
import math

_FUNCTIONS = """
abs all any ascii bin bool bytearray bytes callable chr complex dict divmod enumerate filter float
format frozenset hash hex int isinstance issubclass iter len list map max min next oct ord pow print
range repr reversed round set slice sorted str sum tuple type zip
"""
_EXCEPTIONS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
_NAMES = {*_FUNCTIONS.split(), *_EXCEPTIONS}
_DATA = str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset
_ATTRIBUTES = {name for owner in (*_DATA, math) for name in dir(owner) if not name.startswith("_")}
_STATEMENTS = (
    *(ast.Module, ast.Assert, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Pass),
    *(ast.Return, ast.Break, ast.Continue, ast.Try, ast.Raise),
)
_EXPRESSIONS = (
    *(ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Slice, ast.Starred),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.IfExp),
    *(ast.Lambda, ast.arguments, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.comprehension, ast.JoinedStr, ast.FormattedValue),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def is_harmless(node: ast.AST) -> bool:
    """Return whether a node of a test is free of lasting effects; children are not examined."""
    if isinstance(node, ast.Name):
        builtin = hasattr(builtins, node.id) and node.id not in _NAMES
        return not builtin and _is_allowed_name(node.id)
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Load) and node.attr in _ATTRIBUTES
    if isinstance(node, ast.FunctionDef):
        return _is_allowed_name(node.name)
    if isinstance(node, ast.arg):
        return _is_allowed_name(node.arg)
    if isinstance(node, ast.ExceptHandler):
        return _is_allowed_name(node.name or "")
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names] == ["math"]
    if isinstance(node, ast.ImportFrom):
        return node.module == "math"
    if isinstance(node, ast.alias):
        return _is_allowed_name(node.asname or "")
    return isinstance(node, (*_STATEMENTS, *_EXPRESSIONS))


def _is_allowed_name(name: str) -> bool:
    return not name.startswith("__")
