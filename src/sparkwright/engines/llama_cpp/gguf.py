"""Parser of the header of a GGUF file, which describes the model.

Format (ggml/docs/gguf.md), little-endian: magic, version (2 or 3), number of tensors, number of key-value pairs, the pairs.
The bytes are untrusted: all sizes are limited. Long arrays, such as a vocabulary, are skipped.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from sparkwright.units import MIB

MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: number of bytes to read from a file; the largest known vocabularies take about 15 MiB, including their merges
HEADER_BYTES = 64 * MIB
MAX_PAIRS, MAX_TENSORS, MAX_KEY_BYTES, MAX_TEXT_BYTES = 4096, 1 << 20, 256, 4 * MIB
MAX_ARRAY_ITEMS, MAX_KEPT_ARRAY_ITEMS = 1 << 22, 1024
#: limits for all arrays of a header together. A vocabulary of 262,000 tokens and its merges are 800,000 strings, skipped one after another
MAX_KEPT_ITEMS, MAX_SKIPPED_TEXTS = 1 << 16, 1 << 21

TEXT_TYPE, ARRAY_TYPE = 8, 9
#: struct formats by type number
SCALAR_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class NotGguf(ValueError):
    """The bytes are not a GGUF header. The message is a predicate for the file's name, such as "does not begin like a GGUF file"."""


ARCHITECTURE_KEY = "general.architecture"
TEMPLATE_KEY = "tokenizer.chat_template"
#: keys below general.sampling, by their names in requests. Their values are llama-server's defaults unless flags or requests set others.
#: Source: llama.cpp pull request 17120 (merged November 2025)
SAMPLING_KEYS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
#: decimal places to which the file's 32-bit numbers are rounded
SAMPLING_DIGITS = 6
#: keys below the architecture's name that determine the size of the KV cache
SHAPE_KEYS = (
    *("context_length", "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.value_length"),
)


def is_integer(value: Any) -> bool:
    """Return True for an integer or a non-empty list of integers."""
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(type(item) is int for item in items)


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file."""

    #: version of the file format
    version: int
    #: number of tensors
    tensor_count: int
    #: values by key; None for a long array, which is skipped
    values: dict[str, Any]
    #: False if the bytes ended within the header
    is_complete: bool = True

    @property
    def architecture(self) -> str:
        """The architecture, such as `llama` or `qwen3moe`; empty if the header has none."""
        value = self.values.get(ARCHITECTURE_KEY)
        return value if isinstance(value, str) else ""

    @property
    def template(self) -> str:
        """The chat template that llama-server uses by default; empty if the header has none."""
        value = self.values.get(TEMPLATE_KEY)
        return value if isinstance(value, str) else ""

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling defaults set by the model's authors, by their names in requests."""
        defaults = {name: self.values.get(f"general.sampling.{key}") for name, key in SAMPLING_KEYS.items()}
        return {
            name: round(value, SAMPLING_DIGITS)
            for name, value in defaults.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        }

    def architecture_value(self, key: str) -> Any:
        """Return a value by its key below the architecture's name, such as `block_count`; None if it is missing."""
        return self.values.get(f"{self.architecture}.{key}")


def parse_header(data: bytes, *, partial: bool = False) -> Header:
    """Return the header at the beginning of a file.

    Args:
        data: the beginning of the file.
        partial: accept data that ends within the header. The model's shape precedes its vocabulary.

    Raises:
        NotGguf: data is not a GGUF header, or ends within the header and `partial` is false.
    """
    reader = _ByteReader(data)
    try:
        if reader.read_bytes(4) != MAGIC:
            raise NotGguf("does not begin like a GGUF file")
        version = reader.scalar("<I")
        if version not in VERSIONS:
            raise NotGguf(f"is GGUF version {version}; {' and '.join(map(str, VERSIONS))} are supported")
        tensor_count = reader.count("<Q", MAX_TENSORS, "tensors")
        values: dict[str, Any] = {}
        is_complete = True
        try:
            for _ in range(reader.count("<Q", MAX_PAIRS, "values")):
                key = reader.text(MAX_KEY_BYTES)
                values[key] = reader.value(reader.scalar("<I"))
        except struct.error:
            if not partial:
                raise
            is_complete = False
    except (struct.error, UnicodeDecodeError):
        raise NotGguf("ends within its header, or is damaged") from None
    return Header(version, tensor_count, values, is_complete)


class _ByteReader:
    """A sequential reader; raises struct.error at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0
        self._items_to_keep, self._texts_to_skip = MAX_KEPT_ITEMS, MAX_SKIPPED_TEXTS

    def read_bytes(self, size: int) -> bytes:
        if self._position + size > len(self._data):
            raise struct.error
        self._position += size
        return self._data[self._position - size : self._position]

    def scalar(self, struct_format: str) -> Any:
        return struct.unpack(struct_format, self.read_bytes(struct.calcsize(struct_format)))[0]

    def count(self, struct_format: str, maximum: int, noun: str) -> int:
        number: int = self.scalar(struct_format)
        if number > maximum:
            raise NotGguf(f"claims {number} {noun}, more than any model has")
        return number

    def text(self, maximum: int) -> str:
        return self.read_bytes(self.count("<Q", maximum, "bytes of one string")).decode()

    def value(self, value_type: int) -> Any:
        if value_type == TEXT_TYPE:
            return self.text(MAX_TEXT_BYTES)
        if value_type == ARRAY_TYPE:
            return self._array()
        if value_type not in SCALAR_FORMATS:
            raise NotGguf(f"has a value of the unknown type {value_type}")
        return self.scalar(SCALAR_FORMATS[value_type])

    def _array(self) -> list[Any] | None:
        item_type, item_count = self.scalar("<I"), self.count("<Q", MAX_ARRAY_ITEMS, "items of one list")
        if item_type == ARRAY_TYPE:
            raise NotGguf("has a list of lists, which llama.cpp does not load")
        if item_count <= min(MAX_KEPT_ARRAY_ITEMS, self._items_to_keep):
            self._items_to_keep -= item_count
            return [self.value(item_type) for _ in range(item_count)]
        if item_type in SCALAR_FORMATS:
            self.read_bytes(item_count * struct.calcsize(SCALAR_FORMATS[item_type]))
        elif item_type == TEXT_TYPE:
            self._skip_texts(item_count)
        else:
            raise NotGguf(f"has a list of the unknown type {item_type}")
        return None

    def _skip_texts(self, item_count: int) -> None:
        self._texts_to_skip -= item_count
        if self._texts_to_skip < 0:
            raise NotGguf(f"has lists with more than {MAX_SKIPPED_TEXTS} strings in total")
        unpack_size, data, position, data_size = (
            struct.Struct("<Q").unpack_from,
            self._data,
            self._position,
            len(self._data),
        )
        for _ in range(item_count):
            size = unpack_size(data, position)[0]
            position += 8 + size
            if size > MAX_TEXT_BYTES:
                raise NotGguf(f"claims {size} bytes of one string, more than any model has")
            if position > data_size:
                raise struct.error
        self._position = position
