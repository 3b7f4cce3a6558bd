"""A parser of the headers of GGUF files, which contain facts about a model and the model's weights.

The parser reads the facts without loading the weights. Specification of the format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from intercode.errors import UsageError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q"}
_SCALARS |= {12: "<d"}
_MOST_KEYS = 10_000
_LONGEST_KEY, _LONGEST_STRING = 1 << 10, 1 << 24
_LONGEST_ARRAY = 1 << 24
_LONGEST_KEPT_ARRAY = 1 << 12
"""Maximum length of an array that the parser retains. The limit retains arrays with one value per
layer, and skips vocabularies."""
_CACHE_VALUE = 2
"""Bytes per value of the key-value cache: llama.cpp's default type is f16."""


@dataclass(frozen=True, slots=True)
class ModelFileHeader:
    """The facts in a model file's header."""

    architecture: str
    name: str
    """The model's name from the file; may be empty."""
    context: int
    """The model's trained context length in tokens; 0: not in the file."""
    cache_values: int
    """The number of key-value cache values per token, summed over all layers."""

    def cache_bytes(self, tokens: int) -> int:
        """Return an upper bound of the key-value cache in bytes for a number of tokens."""
        return self.cache_values * _CACHE_VALUE * tokens


def read_header(path: Path) -> ModelFileHeader:
    """Read the header of a file.

    Raises:
        UsageError: The file cannot be read, or is not a valid GGUF file.
    """
    try:
        with path.open("rb") as file:
            return _header(_metadata(file))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, OverflowError, struct.error, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is not a model in the format GGUF ({error})") from None


def _header(metadata: dict[str, Any]) -> ModelFileHeader:
    architecture = metadata["general.architecture"]

    def number(key: str, default: int = 0) -> int:
        return int(metadata.get(f"{architecture}.{key}", default))

    layers, heads = number("block_count"), metadata.get(f"{architecture}.attention.head_count", 1)
    most_heads = max(heads) if isinstance(heads, list) else int(heads)
    head_size = number("embedding_length") // max(1, most_heads)
    sizes = number("attention.key_length", head_size) + number("attention.value_length", head_size)
    cached_heads = metadata.get(f"{architecture}.attention.head_count_kv", heads)
    total = sum(cached_heads) if isinstance(cached_heads, list) else int(cached_heads) * layers
    return ModelFileHeader(
        architecture=str(architecture),
        name=str(metadata.get("general.name", "")),
        context=number("context_length"),
        cache_values=total * sizes,
    )


def _metadata(file: BinaryIO) -> dict[str, Any]:
    """Read a file's metadata, which precedes the tensors.

    Long arrays and arrays of texts are skipped; their value in the result is None.
    """
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = _scalar(file, "<I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is unknown")
    _scalar(file, "<Q")  # the number of tensors, unused
    count = _scalar(file, "<Q")
    if count > _MOST_KEYS:
        raise ValueError(f"it has {count:,} keys")
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = _string(file, _LONGEST_KEY)
        metadata[key] = _value(file, _scalar(file, "<I"))
    return metadata


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file, _LONGEST_STRING)
    if kind != _ARRAY:
        return _scalar(file, _SCALARS[kind])
    kind, length = _scalar(file, "<I"), _scalar(file, "<Q")
    if length > _LONGEST_ARRAY or kind == _ARRAY:
        raise ValueError(f"it has an array of {length:,} values of kind {kind}")
    if kind == _STRING:
        for _ in range(length):
            _string(file, _LONGEST_STRING)
        return None
    code = _SCALARS[kind]
    if length > _LONGEST_KEPT_ARRAY:
        file.seek(length * struct.calcsize(code), 1)
        return None
    return [_scalar(file, code) for _ in range(length)]


def _scalar(file: BinaryIO, code: str) -> Any:
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


def _string(file: BinaryIO, max_length: int) -> str:
    length = _scalar(file, "<Q")
    if length > max_length:
        raise ValueError(f"it has a text of {length:,} bytes")
    content = file.read(length)
    if len(content) != length:
        raise ValueError("it ends within its header")
    return content.decode("utf-8", "replace")
