"""A simulated Ollama: the API of v0.32, its asynchronous unload, and the memory of loaded models.

python3 -m sparkwright.sandbox.ollama --port 11434      (runs as ollama.service in the ssh test bed)
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sparkwright.sandbox.http_server import Handler, HttpError, Server
from sparkwright.sandbox.memory import MemoryPool
from sparkwright.units import GIB, format_gib

CONTEXT_TOKENS = 262144  # Ollama's default with this much memory
VERSION = "0.32.15"
DEFAULT_KEEP_S = 300.0
EXPIRY_POLL_S = 0.01
FOREVER_S = 1e9
UNLOAD_S = 0.6  # until the runner's process has exited
UNLISTED_S = 0.3  # first phase of a load: /api/ps does not list the model yet, and an unload has no effect
LOAD_S = 2.0  # second phase of a load: /api/ps and unloads wait for the runner's lock
RELOAD_DELAY_S = 0.3
SECONDS_PER_TOKEN = 0.02
DEFAULT_TOKEN_COUNT = 20
ANSWER_WORDS = ("One ", "two ", "three ", "four ")
DURATION_PATTERN = re.compile(r"(?<!\d)(-?\d{1,20}(?:\.\d{1,20})?)(ms|s|m|h)")
SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Model:
    """A model of the simulated Ollama."""

    name: str
    family: str
    parameters: str
    quantization: str
    file_bytes: int
    #: memory of the loaded model
    loaded_bytes: int
    capabilities: tuple[str, ...] = ("completion", "tools")

    @property
    def digest(self) -> str:
        """Digest of the model's manifest."""
        return hashlib.sha256(f"sandbox {self.name}".encode()).hexdigest()

    def details(self) -> dict[str, Any]:
        """Return the `details` of /api/tags, /api/ps and /api/show."""
        family = {"parent_model": "", "format": "gguf", "family": self.family, "families": [self.family]}
        return {**family, "parameter_size": self.parameters, "quantization_level": self.quantization}

    def tags_entry(self) -> dict[str, Any]:
        """Return the model's entry in /api/tags."""
        identity = {
            "name": self.name,
            "model": self.name,
            "modified_at": "2026-10-02T09:14:03.5+00:00",
            "size": self.file_bytes,
        }
        return {**identity, "digest": self.digest, "details": self.details(), "capabilities": list(self.capabilities)}

    def show_response(self) -> dict[str, Any]:
        """Return the body of /api/show."""
        info = {"general.architecture": self.family, f"{self.family}.context_length": CONTEXT_TOKENS}
        fields = {"license": "", "modelfile": f"FROM {self.name}\n", "template": "{{ .Prompt }}", "model_info": info}
        entry = self.tags_entry()
        return {**fields, **{name: entry[name] for name in ("details", "capabilities", "modified_at")}}

    def ps_entry(self, expiry_s: float) -> dict[str, Any]:
        """Return the model's entry in /api/ps."""
        expires_at = datetime.fromtimestamp(min(expiry_s, 2**33), UTC).isoformat()
        identity = {
            "name": self.name,
            "model": self.name,
            "size": self.loaded_bytes,
            "digest": self.digest,
            "details": self.details(),
        }
        return {**identity, "expires_at": expires_at, "size_vram": self.loaded_bytes, "context_length": CONTEXT_TOKENS}


LARGE_MODEL = Model(
    "qwen3:32b", "qwen3", "32.8B", "Q4_K_M", 20_201_253_588, 20 * GIB, ("completion", "tools", "thinking")
)
MODELS = {
    model.name: model
    for model in (
        LARGE_MODEL,
        Model("gpt-oss:20b", "gptoss", "20.9B", "MXFP4", 13_793_441_244, 14 * GIB, ("completion", "tools", "thinking")),
        Model("llama3.1:8b", "llama", "8.0B", "Q4_K_M", 4_920_753_328, 6 * GIB),
    )
}


@dataclass
class Runner:
    """A loaded model."""

    model: Model
    holder: str
    #: time at which the model is unloaded unless a request uses it, seconds since the epoch
    expiry_s: float
    #: requests in progress
    request_count: int = 0
    #: held while the model is loaded or unloaded
    lock: threading.Lock = field(default_factory=threading.Lock)


class Ollama:
    """A simulated Ollama.

    Args:
        pool: memory for the models.
        is_busy: returns True while a client uses the loaded models, which prevents their unload.
        should_reload: returns True if a client loads each model again after its unload.
        starts_loaded: start with the large model loaded.
    """

    def __init__(
        self,
        pool: MemoryPool,
        is_busy: Callable[[], bool] = lambda: False,
        should_reload: Callable[[], bool] = lambda: False,
        *,
        starts_loaded: bool = True,
    ) -> None:
        self._pool = pool
        self._is_busy = is_busy
        self._should_reload = should_reload
        self._runners: dict[str, Runner] = {}
        self._mutex = threading.Lock()
        self._load_lock = threading.Lock()  # one load at a time
        self._instant = os.environ.get("SPARKWRIGHT_SANDBOX_SPEED") == "instant"
        if starts_loaded:
            self.load(LARGE_MODEL, with_delay=False)
        threading.Thread(target=self._expire, daemon=True).start()

    def load(self, model: Model, keep_s: float | None = None, *, with_delay: bool | None = None) -> Runner:
        """Load a model, or extend its time in memory.

        Args:
            keep_s: seconds in memory after the request; None for Ollama's default.
            with_delay: load with delay; None for the sandbox's speed.

        Raises:
            HttpError: too little memory is available.
        """
        with self._load_lock:
            runner = self._extend(model, keep_s)
            if runner is not None:
                return runner
            has_delay = not self._instant if with_delay is None else with_delay
            time.sleep(UNLISTED_S if has_delay else 0)
            expiry_s = time.time() + (DEFAULT_KEEP_S if keep_s is None else keep_s)
            runner = Runner(model, f"ollama {model.name} {secrets.token_hex(4)}", expiry_s)
            if not self._pool.claim(runner.holder, model.loaded_bytes):
                available = format_gib(self._pool.available_bytes)
                sizes = f"({format_gib(model.loaded_bytes)} GiB) than is available ({available} GiB)"
                raise HttpError(500, f"model requires more system memory {sizes}")
            with runner.lock:
                with self._mutex:
                    self._runners[model.name] = runner
                time.sleep(LOAD_S if has_delay else 0)
            return runner

    def unload(self, model: Model) -> None:
        """Mark a model as expired, after its load has finished. It is unloaded when no request uses it."""
        runner = self._runners.get(model.name)
        if runner is not None:
            with runner.lock:
                runner.expiry_s = time.time()

    def generate(self, model: Model, token_count: int, keep_s: float | None) -> Iterator[str]:
        """Yield the words of an answer. The model remains loaded until the last word."""
        runner = self.load(model, keep_s)
        with self._mutex:
            runner.request_count += 1
        try:
            for n in range(token_count):
                time.sleep(SECONDS_PER_TOKEN)
                yield ANSWER_WORDS[n % len(ANSWER_WORDS)]
        finally:
            with self._mutex:
                runner.request_count -= 1
                if keep_s == 0:
                    runner.expiry_s = time.time()

    def list_loaded(self) -> list[dict[str, Any]]:
        """Return the entries of /api/ps, starting with the last to expire. Waits for models that are being loaded."""
        with self._mutex:
            runners = sorted(self._runners.values(), key=lambda runner: -runner.expiry_s)
        entries = []
        for runner in runners:
            with runner.lock:
                entries.append(runner.model.ps_entry(runner.expiry_s))
        return entries

    def _extend(self, model: Model, keep_s: float | None) -> Runner | None:
        """Extend the time that a loaded model stays in memory, and return its runner; None if it is not loaded."""
        with self._mutex:
            runner = self._runners.get(model.name)
            if runner is not None:
                runner.expiry_s = time.time() + (DEFAULT_KEEP_S if keep_s is None else keep_s)
            return runner

    def _expire(self) -> None:
        """Unload expired models that no request uses, one at a time, forever."""
        while True:
            time.sleep(EXPIRY_POLL_S)
            due_runners = [
                runner
                for runner in list(self._runners.values())
                if runner.expiry_s <= time.time() and not runner.request_count
            ]
            if due_runners and not self._is_busy():
                self._unload_runner(due_runners[0])

    def _unload_runner(self, runner: Runner) -> None:
        with self._load_lock:  # requests that arrive during the unload load the model again afterwards
            time.sleep(UNLOAD_S)
            if runner.request_count or runner.expiry_s > time.time():
                return
            with self._mutex:
                self._runners.pop(runner.model.name, None)
            self._pool.release(runner.holder, delay_s=0.2)
        if self._should_reload():
            timer = threading.Timer(RELOAD_DELAY_S, self.load, (runner.model,))
            timer.daemon = True
            timer.start()


class OllamaApi(Handler):
    """Handler of requests to Ollama."""

    @property
    def ollama(self) -> Ollama:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        try:
            self._route()
        except HttpError as error:
            self.reply(error.status, {"error": str(error)})

    def _route(self) -> None:
        match self.command, self.parts:
            case (("GET" | "HEAD"), []):
                self.reply(200, b"Ollama is running")
            case "GET", ["api", "version"]:
                self.reply(200, {"version": VERSION})
            case "GET", ["api", "ps"]:
                self.reply(200, {"models": self.ollama.list_loaded()})
            case "GET", ["api", "tags"]:
                self.reply(200, {"models": [model.tags_entry() for model in MODELS.values()]})
            case "POST", ["api", "show"]:
                self.reply(200, self._model(self._request_body()).show_response())
            case "POST", ["api", "generate"]:
                self._answer(self._request_body(), "response", "prompt")
            case "POST", ["api", "chat"]:
                self._answer(self._request_body(), "message", "messages")
            case _:
                self.reply(404, b"404 page not found")

    def _request_body(self) -> dict[str, Any]:
        body = self.body()
        if not isinstance(body, dict):
            raise HttpError(400, "missing request body")
        return body

    def _model(self, body: dict[str, Any]) -> Model:
        name = str(body.get("model") or body.get("name") or "")
        model = MODELS.get(name if ":" in name else f"{name}:latest")
        if model is None:
            raise HttpError(404, f"model '{name}' not found")
        return model

    def _answer(self, body: dict[str, Any], answer_field: str, prompt_field: str) -> None:
        """Answer a generate or chat request.

        Args:
            answer_field: name of the answer's field in the response.
            prompt_field: name of the prompt's field in the request.
        """
        model, keep_s = self._model(body), parse_keep_alive(body.get("keep_alive"))

        def build_line(text: str, reason: str = "") -> dict[str, Any]:
            content: Any = text if answer_field == "response" else {"role": "assistant", "content": text}
            created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            done_reason = {"done_reason": reason} if reason else {}
            return {
                "model": body["model"],
                "created_at": created_at,
                answer_field: content,
                "done": bool(reason),
                **done_reason,
            }

        if not body.get(prompt_field) and keep_s == 0:
            self.ollama.unload(model)
            self.reply(200, build_line("", "unload"))
        elif not body.get(prompt_field):
            self.ollama.load(model, keep_s)
            self.reply(200, build_line("", "load"))
        else:
            token_count = int((body.get("options") or {}).get("num_predict") or DEFAULT_TOKEN_COUNT)
            pieces = self.ollama.generate(model, token_count, keep_s)
            if body.get("stream", True) is False:
                self.reply(200, build_line("".join(pieces), "stop"))
                return
            first_piece = next(pieces)  # before the stream begins, so that an error becomes an error response
            lines = itertools.chain([build_line(first_piece)], map(build_line, pieces), [build_line("", "stop")])
            self.stream((json.dumps(data).encode() + b"\n" for data in lines), "application/x-ndjson")


def parse_keep_alive(value: Any) -> float | None:
    """Convert a number or a Go duration to seconds; FOREVER_S if negative, None if unset. Raises HttpError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise HttpError(400, f"json: cannot unmarshal into duration: {value!r}")
    if isinstance(value, str) and value != "0":
        parts = DURATION_PATTERN.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise HttpError(400, f'time: invalid duration "{value}"')
        seconds = sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)
    else:
        seconds = float(value)
    return FOREVER_S if seconds < 0 else seconds


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=11434)
    parser.add_argument("--empty", action="store_true", help="start without a loaded model")
    arguments = parser.parse_args()
    Server(arguments.port, OllamaApi, Ollama(MemoryPool(None), starts_loaded=not arguments.empty)).run()


if __name__ == "__main__":
    main()
