"""Validation of untrusted data files: only values that JSON can represent.

YAML can represent values that JSON lacks: aliases that multiply data or form cycles, dates, and
numbers as keys. Documents of both formats can have nesting and numbers that later steps cannot
process. The readers of task files and skills call `check_plain` directly after parsing, so the
error message can name the file and the location in it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from intercode.json_limits import MAX_DEPTH

_MAX_DOCUMENT_BYTES = 64_000_000
"""The approximate size limit of a document in bytes, with its aliases expanded."""
_VALUE = 16
"""Bytes that `check_plain` counts for each value. JSON, which lacks aliases, has at most one value
in two characters; therefore ``_VALUE`` bytes for each character never refuse plain JSON."""
_INTEGER_BITS = 1023
"""The maximum number of bits in a whole number: a float can hold numbers of this magnitude."""
_NONE_TYPE = type(None)


def check_plain(document: object, length: int) -> None:
    """Refuse a document that JSON cannot represent, or that is too deep or too large.

    Args:
        document: The parsed document.
        length: The length of the unparsed text, in characters.

    Raises:
        ValueError: The document is nested more than `MAX_DEPTH` levels deep, or is too large with
            its aliases expanded. Or the document contains a number above 1,023 bits, a key that is
            not text, or a type that JSON lacks. The message names the problem.
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
    """Parse YAML text to values of JSON types. A date stays text; a repeated key is an error.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: The text is not YAML, or fails `check_plain`.
    """
    import yaml

    try:
        document = yaml.load(text, _loader())
    # For a malformed scalar such as ``!!bool x`` or ``!!int ""``, PyYAML raises other exceptions
    # than YAMLError.
    except (yaml.YAMLError, AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ValueError("not YAML that can be read: nested too deeply") from None
    check_plain(document, len(text))
    return document


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dictionary from pairs of field and value, and refuse a repeated field.

    A plain parser would silently keep the last of several values for a field.

    Raises:
        ValueError: A field appears twice.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = set[str]()
        duplicate = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"field {duplicate!r} is given twice in one object")
    return members


@cache
def _loader() -> Any:
    """Return a subclass of PyYAML's SafeLoader that keeps dates as text and refuses equal keys."""
    import yaml

    class UndatedYamlLoader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
            first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            build_object([(k.value, v) for k, v in node.value if isinstance(k, yaml.ScalarNode)])
            return node

    return UndatedYamlLoader
