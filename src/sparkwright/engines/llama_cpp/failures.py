"""Reasons why llama-server did not start or failed: the cause first, then the lines that only follow from it.

Sources: real logs of b10068, b10434 and b11549 in tests/data; llama.cpp's source for the rest, which is marked.
"""

from __future__ import annotations

from sparkwright.engines.log.last_words import Death, death
from sparkwright.engines.log.machine_failures import CRASHES, HOST, IMAGE

NO_MEMORY = "it ran out of memory: a buffer of {0} MiB could not be allocated."

FAILURES: tuple[Death, ...] = (
    # the command line
    death("error: invalid argument: ", r"^error: invalid argument: (\S+)", "the engine does not know: {0}."),
    death(
        "Unsupported cache type: ",
        r"^error while handling argument \"([^\"]+)\": Unsupported cache type: (\S*)",
        "the engine refuses {1} for {0}.",
    ),
    death(
        "expected value for argument",
        r"^error while handling argument \"([^\"]+)\": expected value",
        "{0} needs a value.",
    ),
    death(": stoi", r"^error while handling argument \"([^\"]+)\": stoi", "{0} takes a number."),
    death(
        "failed to open file '",
        r"^error while handling argument \"([^\"]+)\": .{0,40}?failed to open file '([^']+)'",
        "{0}: it cannot open {1}.",
    ),
    death(
        "error while handling argument ",
        r"^error while handling argument \"([^\"]+)\": (.+?)\.?$",
        "the engine refuses {0}: {1}.",
    ),
    death(
        "error: the supplied chat template is not supported", "", "it cannot use the chat template of chat-template."
    ),
    # settings that exclude each other; b10434 has another message for the first
    death(
        "V cache quantization requires flash_attn",
        "",
        "a quantized V cache (cache-type-v) needs flash-attn, which is off.",
        "never",
    ),
    death(
        "quantized V cache requires flash_attn",
        "",
        "a quantized V cache (cache-type-v) needs flash-attn, which is off.",
        "never",
    ),
    death(
        "n_seq_max must be <= ",
        r"n_seq_max must be <= (\d+)",
        "parallel is more than the {0} slots that it can have.",
        "never",
    ),
    # the model's files
    death(
        "failed to open GGUF file '",
        r"failed to open GGUF file '([^']{1,500})' \(([^)]{1,100})\)",
        "it cannot open {0} in the container: {1}.",
        "never",
    ),
    death(
        "data is not within the file bounds", "", "the model's file is cut off: a tensor lies beyond its end.", "never"
    ),
    death(
        "unknown model architecture: '",
        r"unknown model architecture: '([^']+)'",
        "this engine cannot load {0}.",
        "never",
    ),
    death(
        "unknown pre-tokenizer type: '",
        r"unknown pre-tokenizer type: '([^']+)'",
        "this engine does not know the model's tokenizer ({0}): it is too old for it.",
        "never",
    ),
    death("invalid magic characters", "", "the model's file is no GGUF file.", "never"),
    death("failed to read magic", "", "the model is a folder or an empty file, not a GGUF file.", "never"),
    death(
        "gguf_init_from_reader: failed to read ",
        r"gguf_init_from_reader: failed to read (.+?)\.?$",
        "the model's file is cut off or damaged: its {0} cannot be read.",
        "never",
    ),
    # memory; CUDA's words: source
    death(
        "cudaMalloc failed: out of memory",
        r"allocating ([\d.]+) MiB on device",
        "the GPU ran out of memory: a buffer of {0} MiB could not be allocated.",
        "never",
    ),
    death("insufficient memory (attempted to allocate ", r"attempted to allocate ([\d.]+) MB", NO_MEMORY, "never"),
    death("failed to allocate buffer for kv cache", "", "there is no memory for its KV cache.", "never"),
    death("failed to allocate compute pp buffers", "", "there is no memory for its compute buffers.", "never"),
    # the machine and the image; all but the port: source
    death(
        "couldn't bind HTTP server socket",
        r"hostname: (\S+), port: (\d+)",
        "it cannot listen on {0}, port {1}: the port is in use, or the address is not the container's.",
    ),
    *HOST,
    *IMAGE,
    death(
        "error while loading shared libraries: ",
        r"error while loading shared libraries: ([^:]+):",
        "its image lacks {0}.",
    ),
    death("CUDA error: ", r"CUDA error: (.+?)\.?$", "CUDA failed: {0}.", "always"),
    death("GGML_ASSERT(", r"GGML_ASSERT\((.{1,300}?)\) failed", "an assertion of the engine failed: {0}.", "always"),
    death(  # issue 24324
        ": fatal error",
        r"(?:^|/)([\w.-]{1,80}\.(?:cu|cuh|c|cpp):\d{1,6}): fatal error$",
        "it ended with a fatal error of its own ({0}).",
        "always",
    ),
    # consequences of a cause
    death(
        "error loading model: ",
        r"error loading model: (?!llama_model_loader: failed to load)(.+?)\.?$",
        "it cannot load the model: {0}.",
        "never",
    ),
    death(
        "failed to initialize the context: ",
        r"failed to initialize the context: (.+?)\.?$",
        "it cannot make its context: {0}.",
        "never",
    ),
    death(
        "failed to load draft model, '", r"failed to load draft model, '([^']+)'", "it cannot load its draft model {0}."
    ),
    death(
        "failed to load multimodal model, '",
        r"failed to load multimodal model, '([^']+)'",
        "it cannot load {0} (mmproj).",
    ),
    death("failed to load model, '", r"load_model: failed to load model, '([^']+)'", "it cannot load the model {0}."),
    death("failed to create context with model '", "", "it cannot make its context."),
    death("failed to create_context with model '", "", "it cannot make its context."),
    death("exiting due to ", r"(?:llama_server|init|main): exiting due to (.+?)\.?$", "it ended: {0}."),
    *CRASHES,
)
