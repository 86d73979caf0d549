"""The header of a GGUF file, which a stranger wrote: values, or a sentence, in little time and memory."""

import struct

from sparkwright.engines.llama_cpp import advice, files, gguf
from tests.engines.llama_cpp.test_gguf import MODEL, many, text, written
from tests.fuzz.harness import feed, texts

VOCABULARY = {
    "tokenizer.ggml.tokens": many(gguf.TEXT_TYPE, 3, text("a") + text("b") + text("<s>")),
    "tokenizer.ggml.scores": many(6, 2000, bytes(8000)),
    "lists": many(5, 3, struct.pack("<3i", 1, 2, 3)),
}
SEEDS = [written(MODEL), written({**MODEL, **VOCABULARY}), written({**VOCABULARY, **MODEL}, version=2)]


def test_headers() -> None:
    def read(data: bytes) -> None:
        for reader in (gguf.parse_header, gguf.parse_partial_header):
            try:
                advice.kv_bytes(reader(data), {"ctx-size": 4096})
            except gguf.NotGguf as error:
                assert "\n" not in str(error)
        found = files.config_of(data)
        assert found is None or len(str(found)) < 100_000

    feed(read, texts(SEEDS))


def test_lists_that_cost_much() -> None:
    nested = many(gguf.ARRAY_TYPE, 1024, struct.pack("<IQ", 0, 0) * 1024)
    long = many(gguf.TEXT_TYPE, 1 << 20, bytes(8) * (1 << 20))
    short = many(gguf.TEXT_TYPE, 1024, (struct.pack("<Q", 20) + b"x" * 20) * 1024)
    cases = (
        written({"n": nested}),
        written(dict.fromkeys("abc", long)),
        written({str(number): short for number in range(400)}),
        written({str(number): many(7, 1024, b"\1" * 1024) for number in range(1000)}),
    )
    feed(gguf.parse_partial_header, iter(cases), refuses=(gguf.NotGguf,))
