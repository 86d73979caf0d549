"""GGUF headers are read within bounds: damaged and hostile ones are refused with a sentence."""

import struct

import pytest

from sparkwright.engines.llama_cpp import advice, gguf
from sparkwright.units import GIB, MIB


def encode_text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def build_header(
    values: dict[str, tuple[int, bytes]], *, version: int = 3, tensors: int = 1, pairs: int | None = None
) -> bytes:
    """Return a header made by hand: type number and bytes of each value."""
    head = struct.pack("<4sIQQ", b"GGUF", version, tensors, len(values) if pairs is None else pairs)
    return head + b"".join(encode_text(key) + struct.pack("<I", kind) + data for key, (kind, data) in values.items())


def encode_number(value: int) -> tuple[int, bytes]:
    return 4, struct.pack("<I", value)


def encode_array(kind: int, items: int, data: bytes = b"") -> tuple[int, bytes]:
    return gguf.ARRAY_TYPE, struct.pack("<IQ", kind, items) + data


NESTED_LISTS = encode_array(gguf.ARRAY_TYPE, 1, encode_array(gguf.ARRAY_TYPE, 1, encode_array(4, 1)[1])[1])
EMPTY_TEXTS = encode_array(gguf.TEXT_TYPE, gguf.MAX_SKIPPED_TEXTS, bytes(8) * gguf.MAX_SKIPPED_TEXTS)
MODEL: dict[str, tuple[int, bytes]] = {
    "general.architecture": (gguf.TEXT_TYPE, encode_text("gpt-oss")),
    "gpt-oss.block_count": encode_number(36),
    "gpt-oss.context_length": encode_number(131072),
    "gpt-oss.embedding_length": encode_number(2880),
    "gpt-oss.attention.head_count": encode_number(64),
    "gpt-oss.attention.head_count_kv": encode_number(8),
    "gpt-oss.attention.key_length": encode_number(64),
    "gpt-oss.attention.value_length": encode_number(64),
}


def test_values_of_every_scalar_type_are_read() -> None:
    kinds = {str(kind): (kind, struct.pack(form, 1)) for kind, form in gguf.SCALAR_FORMATS.items()}
    header = gguf.parse_header(build_header(kinds, version=2))
    assert header.values == {str(kind): 1 for kind in gguf.SCALAR_FORMATS}
    assert header.architecture == "" and header.architecture_value("block_count") is None


def test_a_vocabulary_is_skipped() -> None:
    words = b"".join(encode_text(f"w{number}") for number in range(gguf.MAX_KEPT_ARRAY_ITEMS + 1))
    header = gguf.parse_header(
        build_header({"v": encode_array(gguf.TEXT_TYPE, gguf.MAX_KEPT_ARRAY_ITEMS + 1, words), "n": encode_number(7)})
    )
    assert header.values == {"v": None, "n": 7}


def test_the_kv_cache_is_computed_from_the_header() -> None:
    header = gguf.parse_header(build_header(MODEL))
    # 131072 tokens x 36 layers x 8 heads x 64 x (K + V) x 2 bytes
    assert advice.kv_bytes(header, {}) == 131072 * 36 * 8 * 64 * 2 * 2 == 9 * GIB
    assert advice.kv_bytes(header, {"ctx-size": 32768, "parallel": 4}) == 9 * GIB // 4
    quantised = {"ctx-size": 32768, "parallel": 4, "cache-type-k": "q8_0", "cache-type-v": "q8_0"}
    assert advice.kv_bytes(header, quantised) == 9 * GIB // 4 * 34 // 64


def test_layers_may_have_different_numbers_of_heads() -> None:
    heads = encode_array(5, 36, struct.pack("<36i", *([0, 8] * 18)))
    header = gguf.parse_header(build_header({**MODEL, "gpt-oss.attention.head_count_kv": heads}))
    assert advice.kv_bytes(header, {}) == 9 * GIB // 2


@pytest.mark.parametrize("missing", ["gpt-oss.block_count", "general.architecture", "gpt-oss.context_length"])
def test_a_header_without_a_dimension_gives_an_unknown_size(missing: str) -> None:
    header = gguf.parse_header(build_header({key: value for key, value in MODEL.items() if key != missing}))
    assert advice.kv_bytes(header, {}) is None


def test_memory_is_files_cache_prompts_and_overhead() -> None:
    sizes = {"a-00001-of-00002.gguf": 30 * GIB, "a-00002-of-00002.gguf": 30 * GIB, "mmproj.gguf": GIB}
    flags = {"ctx-size": 131072, "parallel": 1, "cache-ram": 2048}
    memory = advice.estimate_memory(sizes, flags, gguf.parse_header(build_header(MODEL)))
    assert (memory.weights, memory.kv, memory.prompt_cache) == (61 * GIB, 9 * GIB, 2 * GIB)
    assert memory.total == 72 * GIB + advice.OVERHEAD_BYTES
    unknown = advice.estimate_memory(sizes, {}, None)
    assert (unknown.prompt_cache, unknown.kv) == (8192 * MIB, 0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "ends within its header, or is damaged"),
        (b"PK\x03\x04" + bytes(40), "does not begin like a GGUF file"),
        (build_header({}, version=1), "is GGUF version 1; 2 and 3 are supported"),
        (build_header({}, tensors=1 << 40), f"claims {1 << 40} tensors, more than any model has"),
        (build_header({}, pairs=1 << 60), f"claims {1 << 60} values, more than any model has"),
        (build_header({"k": (gguf.TEXT_TYPE, struct.pack("<Q", 1 << 62))}), f"claims {1 << 62} bytes of one string, more than any model has"),
        (build_header({"k": encode_array(4, 1 << 50)}), f"claims {1 << 50} items of one list, more than any model has"),
        (build_header({"k": (99, b"")}), "has a value of the unknown type 99"),
        (build_header({"k": encode_array(99, 1)}), "has a value of the unknown type 99"),
        (build_header({"k": encode_array(99, 5000)}), "has a list of the unknown type 99"),
        (build_header({"k": encode_array(gguf.ARRAY_TYPE, 5000)}), "has a list of lists, which llama.cpp does not load"),
        (build_header({"k": NESTED_LISTS}), "has a list of lists, which llama.cpp does not load"),
        (build_header({"a": EMPTY_TEXTS, "b": EMPTY_TEXTS}), f"has lists with more than {gguf.MAX_SKIPPED_TEXTS} strings in total"),
        (build_header({"k": (gguf.TEXT_TYPE, struct.pack("<Q", 2) + b"\xff\xfe")}), "ends within its header, or is damaged"),
        (build_header(MODEL)[:-3], "ends within its header, or is damaged"),
    ],
)  # fmt: skip
def test_an_invalid_header_is_refused_with_a_sentence(data: bytes, problem: str) -> None:
    with pytest.raises(gguf.NotGguf, match=f"^{problem}$"):
        gguf.parse_header(data)


def test_the_number_of_kept_items_is_limited() -> None:
    lists = {str(number): encode_array(0, 1000, bytes(1000)) for number in range(100)}
    header = gguf.parse_header(build_header(lists))
    assert sum(len(value) for value in header.values.values() if value is not None) <= gguf.MAX_KEPT_ITEMS
    assert len(header.values) == 100 and header.values["0"] == [0] * 1000 and header.values["99"] is None
