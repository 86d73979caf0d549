"""One run of the simulated llama-server, from its arguments to its exit code. Options and log lines are those of b11549."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkwright.engines.llama_cpp import flags
from sparkwright.sandbox.serving.api import metrics_page
from sparkwright.sandbox.serving.generation import PromptCache
from sparkwright.sandbox.serving.process import SIZE_SCALE, Counters, Process, StartError
from sparkwright.units import MIB

#: training context of the simulated models, tokens
TRAINED_CONTEXT = 131072
BATCH_TOKENS = 2048
#: bytes of one token's keys and values in f16: 20 layers, 8 heads of 128
KV_BYTES_PER_TOKEN = 2 * 20 * 8 * 128 * 2
#: size of a KV cache type relative to f16
KV_SHARES = {
    "f32": 2.0,
    "f16": 1.0,
    "bf16": 1.0,
    "q8_0": 0.53,
    "q4_0": 0.28,
    "q4_1": 0.31,
    "q5_0": 0.34,
    "q5_1": 0.37,
    "iq4_nl": 0.28,
}
LOAD_S = 1.2
GGUF_MAGIC = b"GGUF"
CLEANUP_LINE = "srv    operator(): operator(): cleaning up before exit..."
NOT_LOADED_LINE = "exiting due to model loading error"


@dataclass(frozen=True)
class Config:
    """The settings of a llama-server."""

    model: str
    host: str
    port: int
    alias: str
    #: requested context of one slot, tokens
    requested_context: int
    #: actual context of one slot, tokens
    context: int
    max_num_seqs: int
    kv_types: tuple[str, str]
    keys: tuple[str, ...]
    has_metrics: bool
    #: maximum number of prompt tokens in one step
    budget: int = BATCH_TOKENS
    #: chat templates are rendered with tools
    jinja: bool = True
    accepts_pictures: bool = False
    #: thinking is returned in its own field
    parses_thinking: bool = True
    chunked_prefill: bool = True
    #: paths of LoRA adapters, applied to every request
    adapters: tuple[str, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """Size of the KV cache, bytes."""
        share = sum(KV_SHARES.get(kind, 1.0) for kind in self.kv_types) / 2
        return int(self.context * self.max_num_seqs * KV_BYTES_PER_TOKEN * share)


def build_config(words: Sequence[str]) -> Config:
    """Return the settings of a command line. Raises StartError if llama-server rejects it."""
    _check_words(words)
    command = flags.parse_command(words)
    options = command.flags
    if not command.model:
        raise StartError("error: no model is given", "exiting due to model loading error")
    kv_types = str(options.get("cache-type-k") or "f16"), str(options.get("cache-type-v") or "f16")
    if kv_types[1].startswith(("q", "iq")) and flags.is_on(options.get("flash-attn", "auto")) is False:
        raise StartError(
            "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
            f"srv    load_model: failed to create context with model, '{command.model}'",
        )
    context = flags.context(options) or TRAINED_CONTEXT
    keys = tuple(key for key in str(options.get("api-key") or "").split(",") if key)
    return Config(
        model=command.model,
        host=str(options.get(flags.HOST) or "0.0.0.0"),  # set by the image: LLAMA_ARG_HOST
        port=flags.port(options),
        alias=flags.served_names(options, command.model)[0],
        requested_context=context,
        context=min(context, TRAINED_CONTEXT),
        max_num_seqs=flags.slot_count(options),
        kv_types=kv_types,
        keys=keys,
        has_metrics=bool(options.get(flags.METRICS)),
        jinja=flags.is_on(options.get("jinja", True)) is not False,
        accepts_pictures=bool(options.get("mmproj")),
        parses_thinking=options.get("reasoning-format", "auto") != "none",
        adapters=tuple(path for path in str(options.get("lora") or "").split(",") if path),
    )


def _check_words(words: Sequence[str]) -> None:
    """Raise StartError for an unknown option, or a missing or invalid value."""
    remaining_words = list(words)
    while remaining_words:
        word = remaining_words.pop(0)
        option, _ = flags.TABLE.options_by_spelling.get(word.lstrip("-").replace("_", "-"), (None, False))
        if option is None or not word.startswith("-"):
            raise StartError(f"error: invalid argument: {word}")
        if option.kind in ("switch", "bare"):
            continue
        if not remaining_words:
            raise StartError(f'error while handling argument "{word}": expected value for argument')
        value = remaining_words.pop(0)
        if option.kind == "two" and remaining_words:
            remaining_words.pop(0)
        elif flags.value_problem(option.name, value):
            reason = f"Unsupported cache type: {value}" if option.name.startswith("cache-type") else "stoi"
            raise StartError(f'error while handling argument "{word}": {reason}', "", "usage:", f"{word} ...")


class LlamaCounters(Counters):
    """The counters of a llama-server. b11549 counts tokens at the end of a request, but steps immediately (observed)."""

    counts_at_end = True

    def build_metrics_page(self) -> bytes:
        with self.mutex:
            rows = (
                ("prompt_tokens_total", "counter", self.computed_tokens),
                ("prompt_tokens_cached_total", "counter", self.cached_tokens),
                ("tokens_predicted_total", "counter", self.generated_tokens),
                ("tokens_predicted_seconds_total", "counter", round(self.request_s, 3)),
                ("n_decode_total", "counter", self.steps),
                ("requests_processing", "gauge", self.running),
                ("requests_deferred", "gauge", self.waiting),
            )
        return metrics_page("llamacpp", ((name, kind, "", value) for name, kind, value in rows))


class LlamaServer(Process):
    """A simulated llama-server. Every path returns 503 until the model is loaded.

    `argv` is the command line after `llama-server`.
    """

    default_holder = "llama-server"

    config: Config
    counters: LlamaCounters
    loaded = False

    def bind_error_log(self, error: OSError) -> Sequence[str]:
        address = f"hostname: {self.config.host}, port: {self.config.port}"
        return [f"start: couldn't bind HTTP server socket, {address}", "exiting due to HTTP server error"]

    def stop_log(self) -> Sequence[str]:
        return [self._stamp_line("I", CLEANUP_LINE)]

    def exit_log(self) -> Sequence[str]:
        return [self._stamp_line("I", CLEANUP_LINE)]

    def crash_log(self) -> Sequence[str]:
        return [
            "/app/ggml/src/ggml-cuda/ggml-cuda.cu:98: CUDA error",
            "CUDA error: an illegal memory access was encountered",
        ]

    def start_and_serve(self) -> int:
        self._began_s = time.monotonic()
        self.config = self.limits = build_config(self.argv)
        self.loaded, self.cache, self.counters = False, PromptCache(1), LlamaCounters()
        self._log_line(f"srv          init: build_info: {self.version}")
        if not self.config.keys:
            self._log_line("srv          init: security: no API key is set and CORS allows all origins", level="W")
        self.bind(self.config.host, self.config.port).start()
        self._log_line("srv          init: loading model")
        self._log_line(f"srv    load_model: loading model '{self.config.model}'")
        size_bytes = self._weight_bytes()
        self.crash_if_looping()
        if not self.take_memory(size_bytes + self.config.kv_bytes):
            allocation_line = (
                "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers"
            )
            model_line = f"srv    load_model: failed to create context with model, '{self.config.model}'"
            return self.write_last_lines([allocation_line, model_line, NOT_LOADED_LINE], 1)
        self.write_log((wait_s, self._stamp_line("I", line)) for wait_s, line in self._loading_lines(size_bytes))
        self.set_gpu_memory(size_bytes + self.config.kv_bytes)
        if self.wait_while_start_hangs():
            return self._exit_code
        self.loaded = True
        self._log_line("srv          init: model loaded")
        self._log_line(f"srv          init: listening on http://{self.config.host}:{self.config.port}")
        return self.serve_until_stopped()

    def _weight_bytes(self) -> int:
        """Return the simulated size of the model. Raises StartError if it is not a GGUF file or an adapter is missing."""
        path, name = self._host_path(self.config.model), self.config.model
        last_lines = (f"srv    load_model: failed to load model, '{name}'", NOT_LOADED_LINE)
        if not path.is_file():
            raise StartError(
                f"gguf_init_from_file: failed to open GGUF file '{name}' (No such file or directory)", *last_lines
            )
        with path.open("rb") as file:
            if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise StartError("gguf_init_from_reader: invalid magic characters: expected 'GGUF'", *last_lines)
        for adapter in self.config.adapters:
            if not self._host_path(adapter).is_file():
                message = f"common_init_: failed to load lora adapter '{adapter}'"
                raise StartError(message, *last_lines)
        return path.stat().st_size * SIZE_SCALE

    def _loading_lines(self, size_bytes: int) -> Iterator[tuple[float, str]]:
        config, is_cpu = self.config, self.device == "cpu"
        slots_text = f"n_slots = {config.max_num_seqs}, n_ctx_slot = {config.context}"
        yield (
            0.0,
            f"cmn  common_param: device_info: {'' if is_cpu else '- CUDA0 : NVIDIA GB10 (122506 MiB, 118000 MiB free)'}",
        )
        yield (
            LOAD_S,
            f"load_tensors: {'CPU_Mapped' if is_cpu else 'CUDA0'} model buffer size = {size_bytes / MIB:.2f} MiB",
        )
        yield 0.0, "load_tensors: offloaded 37/37 layers to GPU"
        yield 0.0, f"llama_context: n_ctx         = {config.context * config.max_num_seqs}"
        key_type, value_type = config.kv_types
        half_mib = config.kv_bytes / MIB / 2
        cells_text = f"{config.context} cells, 36 layers, {config.max_num_seqs}/{config.max_num_seqs} seqs"
        yield (
            0.0,
            f"llama_kv_cache: size = {half_mib * 2:.2f} MiB ({cells_text}), K ({key_type}): {half_mib:.2f} MiB, "
            f"V ({value_type}): {half_mib:.2f} MiB",
        )
        yield 0.0, f"srv    load_model: initializing, {slots_text}, kv_unified = 'false'"
        if config.requested_context > TRAINED_CONTEXT:
            capped_text = f"exceeds the training context of the model ({TRAINED_CONTEXT}) - capping"
            yield 0.0, f"srv    load_model: the slot context ({config.requested_context}) {capped_text}"

    def _log_line(self, line: str, *, level: str = "I") -> None:
        self.log(self._stamp_line(level, line))

    def _stamp_line(self, level: str, line: str) -> str:
        """Return a log line with the time since the start: minutes, seconds, milliseconds, microseconds."""
        seconds, microseconds = divmod(int((time.monotonic() - self._began_s) * 1e6), 1_000_000)
        stamp = f"{seconds // 60}.{seconds % 60:02}.{microseconds // 1000:03}.{microseconds % 1000:03}"
        return f"{stamp} {level} {line}"
