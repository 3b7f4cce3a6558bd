"""Validation of untrusted data files: only values that JSON can represent.

YAML has more than JSON: aliases that multiply or form cycles, dates, and numbers as keys. Both
formats can have nesting and numbers that later steps cannot process. The readers of data files call
`check_plain` on each document, so errors name the file and location.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from intercode.json_limits import MAX_DEPTH

_MAX_DOCUMENT_BYTES = 64_000_000
"""The approximate size limit of any document in bytes, with its aliases expanded."""
_VALUE = 16
"""Bytes charged for a value. JSON without aliases has at most one value in two characters."""
_INTEGER_BITS = 1023
"""The maximum bits of a whole number, which a float can still represent in magnitude."""
_NONE_TYPE = type(None)


def check_plain(document: object, length: int) -> None:
    """Refuse a document that JSON cannot represent, or that is too deep or too large.

    Args:
        document: The parsed document.
        length: The length of the document's text, in characters.

    Raises:
        ValueError: The document has more than `MAX_DEPTH` levels, an expanded size above the limit,
            a number above 1,023 bits, a key that is not text, or a type that JSON lacks. The
            message names the problem.
    """
    max_bytes = max(_MAX_DOCUMENT_BYTES, _VALUE * length)
    stack = [(document, 0)]
    while stack:
        value, depth = stack.pop()
        kind = type(value)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested too deeply: more than {MAX_DEPTH} levels")
        if kind in (str, dict, list):
            max_bytes -= len(value) * (1 if kind is str else _VALUE)  # type: ignore[arg-type]
            if max_bytes < 0:
                raise ValueError("its aliases expand to too much data")
        if kind is dict:
            for key in value:  # type: ignore[attr-defined]
                if type(key) is not str:
                    raise ValueError(f"the key {str(key)[:50]} is not a text: put it in quotes")
                max_bytes -= len(key)
            stack += [(item, depth + 1) for item in value.values()]  # type: ignore[attr-defined]
        elif kind is list:
            stack += [(item, depth + 1) for item in value]  # type: ignore[attr-defined]
        elif kind is int:
            if value.bit_length() > _INTEGER_BITS:  # type: ignore[attr-defined]
                raise ValueError("a number has too many digits")
        elif kind not in (str, bool, float, _NONE_TYPE):
            raise ValueError(f"holds a {kind.__name__}, which JSON has not: write it as a text")


def read_yaml(text: str) -> Any:
    """Parse YAML to values of JSON types: a date stays text, and a repeated field is an error.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: The text is not YAML, or fails `check_plain`.
    """
    import yaml

    try:
        document = yaml.load(text, _loader())
    # PyYAML's constructors leak other exceptions on malformed scalars: !!bool x, !!int "".
    except (yaml.YAMLError, AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ValueError("not YAML that can be read: nested too deeply") from None
    check_plain(document, len(text))
    return document


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object from pairs; a parser would silently keep the last of repeated fields.

    Raises:
        ValueError: A field is given twice.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = set[str]()
        duplicate = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"field {duplicate!r} is given twice in one object")
    return members


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader without dates; it refuses repeated fields."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
            first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            build_object([(k.value, v) for k, v in node.value if isinstance(k, yaml.ScalarNode)])
            return node

    return Loader
