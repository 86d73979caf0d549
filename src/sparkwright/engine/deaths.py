"""Why an engine did not start or died, from its last words.

Each row: what the log holds, and the sentence for it; groups of the pattern fill the sentence. More special ones first.
Sources: real start-up failures of vLLM 0.32.0 in tests/data, and vLLM's source and issues for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

DEATHS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"error: unrecognized arguments: (.+)"), "the engine does not know: {0}."),
    (re.compile(r"error: argument (\S+?)[:/].*invalid choice: (\S+)"), "the engine refuses {1} for {0}."),
    (re.compile(r"vllm(?: serve)?: error: (.+)"), "the engine refuses its arguments: {0}."),
    (
        re.compile(r"TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser"),
        "enable-auto-tool-choice needs a tool-call-parser.",
    ),
    (
        re.compile(r"Chunked prefill is required for (mamba cache mode 'align'|Mamba prefix caching)"),
        "prefix caching on this recurrent model needs chunked prefill, which is turned off.",
    ),
    (
        re.compile(r"In Mamba cache align mode, block_size \((\d+)\) must be <= max_num_batched_tokens \((\d+)\)"),
        "the hybrid's block of {0} tokens does not fit into max-num-batched-tokens {1}.",
    ),
    (
        re.compile(r"max_num_batched_tokens \((\d+)\) is smaller than max_model_len \((\d+)\)"),
        "with chunked prefill off, max-num-batched-tokens ({0}) must reach max-model-len ({1}).",
    ),
    (
        re.compile(r"max_num_batched_tokens \((\d+)\) must be greater than or equal to max_num_seqs \((\d+)\)"),
        "max-num-seqs {1} is more than max-num-batched-tokens {0}.",
    ),
    (
        re.compile(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)"),
        "max-num-seqs {0} is more than the {1} Mamba cache blocks there is memory for.",
    ),
    (
        re.compile(r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=([\d.]+)"),
        "max-model-len {0} is more than the model's {1}.",
    ),
    (
        re.compile(
            r"Free memory on device .*?\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory utilization \(([\d.]+), ([\d.]+) GiB\)"
        ),
        "{0} of {1} GiB were free, and the engine wanted {3} (utilization {2}).",
    ),
    (
        re.compile(
            r"Available memory on node \d+ \(([\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than requested .*?\(([\d.]+) GiB"
        ),
        "its KV cache was to take {1} GiB of memory, and {0} GiB were free.",
    ),
    (re.compile(r"No available memory for the cache blocks"), "no memory is left for its KV cache."),
    (re.compile(r"CUDA out of memory|torch\.OutOfMemoryError|NV_ERR_NO_MEMORY"), "it ran out of memory."),
    (re.compile(r"Model architectures? \[?'?(\w+)'?\]? (?:are|is) not supported"), "this engine cannot load {0}."),
    (
        re.compile(r"Model architecture (\w+) was supported in vLLM until v(\S+), and is not supported anymore"),
        "this engine no longer loads {0} (the last that did: {1}).",
    ),
    (re.compile(r"Repo id must be in the form .*: '([^']+)'"), "there is no model at {0} in the container."),
    (
        re.compile(r"(?:FileNotFoundError|SafetensorError|No such file).*?([\w./-]+\.safetensors)"),
        "the model's file {0} is missing or broken.",
    ),
    (
        re.compile(r"Error while deserializing header|MetadataIncompleteBuffer|InvalidHeader"),
        "a file of the model is truncated.",
    ),
    (
        re.compile(r"Invalid repository ID or local directory specified: '([^']+)'"),
        "there is no model at {0} in the container.",
    ),
    (re.compile(r"\[Errno 98\] Address already in use"), "its port is in use inside the container's network."),
    (re.compile(r"could not select device driver"), "the Docker engine has no GPU runtime."),
    (re.compile(r"exec format error"), "the image is for another processor."),
    (re.compile(r"EngineDeadError|EngineCore encountered an issue"), "its engine died while it served a request."),
    (re.compile(r"AssertionError: (.+)|Assertion failed, (.+?) \[type="), "the engine refuses its settings: {0}{1}"),
    (re.compile(r"Value error, (.+?) \[type="), "the engine refuses its settings: {0}"),
    (
        re.compile(
            r"^(?:\(\w+ pid=\d+\) )?(?:ERROR .*?\] )?(?:\w+\.)*(\w+Error): (?!Engine core initialization failed)(.+)"
        ),
        "it failed with {0}: {1}",
    ),
    (re.compile(r"Engine core initialization failed"), "its engine failed to start."),
)


def explain(lines: Iterable[str]) -> tuple[str, str] | None:
    """The sentence and the line it was read from; None when none of these words is there. The most special one wins."""
    best: tuple[int, str, str] | None = None
    for line in lines:
        for rank, (pattern, sentence) in enumerate(DEATHS):
            if best is not None and rank >= best[0]:
                break
            found = pattern.search(line)
            if found:
                best = (rank, sentence.format(*(group or "" for group in found.groups())), line.strip())
                break
    return best[1:] if best else None
