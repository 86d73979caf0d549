"""Damaged or hostile headers of GGUF files are parsed or refused with a sentence, in little time and memory."""

import functools
import struct

from sparkwright.engines.llama_cpp import advice, files, gguf
from tests.engines.llama_cpp.test_gguf import MODEL, build_header, encode_array, encode_text
from tests.fuzz.harness import damaged_texts, feed

VOCABULARY = {
    "tokenizer.ggml.tokens": encode_array(gguf.TEXT_TYPE, 3, encode_text("a") + encode_text("b") + encode_text("<s>")),
    "tokenizer.ggml.scores": encode_array(6, 2000, bytes(8000)),
    "lists": encode_array(5, 3, struct.pack("<3i", 1, 2, 3)),
}
SEEDS = [build_header(MODEL), build_header({**MODEL, **VOCABULARY}), build_header({**VOCABULARY, **MODEL}, version=2)]


def test_headers() -> None:
    def read(data: bytes) -> None:
        for is_partial in (False, True):
            try:
                advice.kv_bytes(gguf.parse_header(data, partial=is_partial), {"ctx-size": 4096})
            except gguf.NotGguf as error:
                assert "\n" not in str(error)
        header = files.config_of(data)
        assert header is None or len(str(header)) < 100_000

    feed(read, damaged_texts(SEEDS))


def test_expensive_lists() -> None:
    nested = encode_array(gguf.ARRAY_TYPE, 1024, struct.pack("<IQ", 0, 0) * 1024)
    long = encode_array(gguf.TEXT_TYPE, 1 << 20, bytes(8) * (1 << 20))
    short = encode_array(gguf.TEXT_TYPE, 1024, (struct.pack("<Q", 20) + b"x" * 20) * 1024)
    cases = (
        build_header({"n": nested}),
        build_header(dict.fromkeys("abc", long)),
        build_header({str(number): short for number in range(400)}),
        build_header({str(number): encode_array(7, 1024, b"\1" * 1024) for number in range(1000)}),
    )
    feed(functools.partial(gguf.parse_header, partial=True), iter(cases), refuses=(gguf.NotGguf,))
