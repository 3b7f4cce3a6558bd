"""The shape of JSON values: a line for each path, with the types that are found there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

ABSENT = "absent"
_TYPES = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "integer",
    list: "array",
    str: "string",
    type(None): "null",
}
Shape = dict[str, str]


def shape(
    values: Iterable[Any],
    *,
    data: Iterable[str] = (),
    declared: Mapping[str, str] | None = None,
    part: Callable[[str, Any], str | None] = lambda path, value: None,
) -> Shape:
    """The shape that all of these values have: path → types.

    Args:
        values: The values, of one kind.
        data: The paths of objects whose keys are data, as task ids are: each of them is `*`.
        declared: Path → types, where the types found depend on the machine; other types than these
            are recorded as they are found.
        part: Given an object and its path, the name under which its own shape is recorded, if so.
    """
    found: dict[str, list[str]] = defaultdict(list)
    keys_are_data = frozenset(data)

    def walk(value: Any, path: str) -> None:
        if name := part(path, value) if isinstance(value, dict) else None:
            found[path].append(name)
            return
        found[path].append(_TYPES[type(value)])
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{'*' if path in keys_are_data else key}")
        elif isinstance(value, list):
            for item in value:
                walk(item, f"{path}[]")

    for value in values:
        walk(value, "")
    lines = {path: _types(path, found) for path in found}
    for path, types in (declared or {}).items():
        seen = {ABSENT} if path not in lines else set(lines[path].split(" | "))
        if _parent(path) in found and seen <= set(types.split(" | ")):
            lines[path] = types
    # A container's line says nothing that the lines of what is in it do not say.
    return {
        path: types for path, types in sorted(lines.items()) if not _implied(path, types, lines)
    }


def _types(path: str, found: Mapping[str, list[str]]) -> str:
    types = set(found[path])
    is_key = not path.endswith(("[]", ".*")) and path
    if is_key and len(found[path]) < found.get(_parent(path), []).count("object"):
        types.add(ABSENT)
    return " | ".join(sorted(types))


def _parent(path: str) -> str:
    return path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]


def _implied(path: str, types: str, lines: Iterable[str]) -> bool:
    return types in ("array", "object") and any(_parent(other) == path != other for other in lines)
