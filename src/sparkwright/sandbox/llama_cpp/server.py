"""One run of the simulated llama-server, from its arguments to its exit code. Log lines are those of b11549 at verbosity 4."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from sparkwright.sandbox.llama_cpp.config import TRAINED, Config, Refused, config
from sparkwright.sandbox.serving.counters import Counters
from sparkwright.sandbox.serving.process import Process
from sparkwright.units import MIB

# The /metrics page of a simulated llama-server.
#
# Observed on b11549: tokens are added when a request ends, decodes at each step.


class LlamaCounters(Counters):
    """The counters of a llama-server.

    Attributes:
        decodes: steps so far.
        computed_tokens: prompt tokens that were computed.
        cached_tokens: prompt tokens that the cache held.
        seconds: time of all finished requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decodes = 0
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.seconds = 0.0

    def computed(self, tokens: int, cached: int) -> None:
        with self.mutex:
            self.computed_tokens += tokens - cached
            self.cached_tokens += cached
            self.decodes += 1

    def token(self, count: int, after_s: float) -> None:
        with self.mutex:
            self.decodes += 1

    def ended(self, reason: str, tokens: int, seconds: float) -> None:
        super().ended(reason, tokens, seconds)
        with self.mutex:
            self.generated += tokens
            self.seconds += seconds

    def text(self) -> bytes:
        """Return the /metrics page."""
        with self.mutex:
            rows = (
                ("prompt_tokens_total", "counter", self.computed_tokens),
                ("prompt_tokens_cached_total", "counter", self.cached_tokens),
                ("tokens_predicted_total", "counter", self.generated),
                ("tokens_predicted_seconds_total", "counter", round(self.seconds, 3)),
                ("n_decode_total", "counter", self.decodes),
                ("requests_processing", "gauge", self.running),
                ("requests_deferred", "gauge", self.waiting),
            )
        lines = (f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n" for name, kind, value in rows)
        return "".join(lines).encode()


#: the simulated hub's files have a thousandth of their real size
SCALE = 1000
LOAD_S = 1.2
GGUF = b"GGUF"
CLEANING = "srv    operator(): operator(): cleaning up before exit..."
NOT_LOADED = "exiting due to model loading error"


class LastPrompt:
    """The prompt cache of a slot: the prefix that a prompt shares with the previous one is cached."""

    def __init__(self) -> None:
        self._last: Sequence[int] = ()
        self._mutex = threading.Lock()

    def take(self, prompt: Sequence[int]) -> int:
        """Return the number of leading tokens that are cached. At least one token is always computed again."""
        with self._mutex:
            shared = next((n for n, (a, b) in enumerate(zip(prompt, self._last, strict=False)) if a != b), None)
            most = min(len(prompt), len(self._last)) if shared is None else shared
            self._last = prompt
            return max(0, min(most, len(prompt) - 1))


class LlamaServer(Process):
    """A simulated llama-server. Every path answers 503 until `loaded` is set.

    `argv` is the command line after `llama-server`.
    """

    usual_holder = "llama-server"

    config: Config
    counters: LlamaCounters
    loaded = False

    def serve(self) -> int:
        self._began_s = time.monotonic()
        try:
            return self._started()
        except Refused as refused:
            return self.last_words(refused.lines, 1)
        except OSError:
            at = f"hostname: {self.config.host}, port: {self.config.port}"
            return self.last_words(
                [f"start: couldn't bind HTTP server socket, {at}", "exiting due to HTTP server error"], 1
            )

    def stopping(self) -> Sequence[str]:
        return [self._stamped("I", CLEANING)]

    def dying(self) -> Sequence[str]:
        return [self._stamped("I", CLEANING)]

    def crashing(self) -> Sequence[str]:
        return [
            "/app/ggml/src/ggml-cuda/ggml-cuda.cu:98: CUDA error",
            "CUDA error: an illegal memory access was encountered",
        ]

    def _started(self) -> int:
        self.config = self.limits = config(self._argv)
        self.loaded, self.cache, self.counters = False, LastPrompt(), LlamaCounters()
        self._tell(f"srv          init: build_info: {self.version}")
        if not self.config.keys:
            self._tell("srv          init: security: no API key is set and CORS allows all origins", level="W")
        self.bind(self.config.host, self.config.port).start()
        self._tell("srv          init: loading model")
        self._tell(f"srv    load_model: loading model '{self.config.model}'")
        size_bytes = self._weights()
        if self.fault() == "crash-loop":
            self.stopped.wait(0.3)
            return self.last_words(self.crashing(), 1)
        if not self.take_memory(size_bytes + self.config.kv_bytes):
            failed = "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers"
            model = f"srv    load_model: failed to create context with model, '{self.config.model}'"
            return self.last_words([failed, model, NOT_LOADED], 1)
        self.say((wait_s, self._stamped("I", line)) for wait_s, line in self._loading(size_bytes))
        self.hold_gpu(size_bytes + self.config.kv_bytes)
        if self.held_back():
            return self._code
        self.loaded = True
        self._tell("srv          init: model loaded")
        self._tell(f"srv          init: listening on http://{self.config.host}:{self.config.port}")
        return self.until_stopped()

    def _weights(self) -> int:
        """Return the size of its model. Raises Refused if the file is no model."""
        path, name = self._folder_of(self.config.model), self.config.model
        ended = (f"srv    load_model: failed to load model, '{name}'", NOT_LOADED)
        if not path.is_file():
            raise Refused(f"gguf_init_from_file: failed to open GGUF file '{name}' (No such file or directory)", *ended)
        with path.open("rb") as file:
            if file.read(len(GGUF)) != GGUF:
                raise Refused("gguf_init_from_reader: invalid magic characters: expected 'GGUF'", *ended)
        for adapter in self.config.adapters:
            if not self._folder_of(adapter).is_file():
                failed = f"common_init_: failed to load lora adapter '{adapter}'"
                raise Refused(failed, *ended)
        return path.stat().st_size * SCALE

    def _loading(self, size_bytes: int) -> Iterator[tuple[float, str]]:
        made, cpu = self.config, self.device == "cpu"
        slots = f"n_slots = {made.max_num_seqs}, n_ctx_slot = {made.context}"
        yield (
            0.0,
            f"cmn  common_param: device_info: {'' if cpu else '- CUDA0 : NVIDIA GB10 (122506 MiB, 118000 MiB free)'}",
        )
        yield LOAD_S, f"load_tensors: {'CPU_Mapped' if cpu else 'CUDA0'} model buffer size = {size_bytes / MIB:.2f} MiB"
        yield 0.0, "load_tensors: offloaded 37/37 layers to GPU"
        yield 0.0, f"llama_context: n_ctx         = {made.context * made.max_num_seqs}"
        k, v = made.kv_types
        half = made.kv_bytes / MIB / 2
        cells = f"{made.context} cells, 36 layers, {made.max_num_seqs}/{made.max_num_seqs} seqs"
        yield (
            0.0,
            f"llama_kv_cache: size = {half * 2:.2f} MiB ({cells}), K ({k}): {half:.2f} MiB, V ({v}): {half:.2f} MiB",
        )
        yield 0.0, f"srv    load_model: initializing, {slots}, kv_unified = 'false'"
        if made.asked > TRAINED:
            capped = f"exceeds the training context of the model ({TRAINED}) - capping"
            yield 0.0, f"srv    load_model: the slot context ({made.asked}) {capped}"

    def _tell(self, line: str, *, level: str = "I") -> None:
        self.log(self._stamped(level, line))

    def _stamped(self, level: str, line: str) -> str:
        """Return a log line with its timestamp: minutes, seconds, milliseconds, microseconds since the start."""
        micro_s = int((time.monotonic() - self._began_s) * 1e6)
        seconds, rest = divmod(micro_s, 1_000_000)
        return f"{seconds // 60}.{seconds % 60:02}.{rest // 1000:03}.{rest % 1000:03} {level} {line}"
