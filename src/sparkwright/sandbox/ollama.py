"""A pretend Ollama: the API of v0.32, its asynchronous unload, and models that hold memory.

python3 -m sparkwright.sandbox.ollama --port 11434      (the ssh test bed runs it as ollama.service)
"""

from __future__ import annotations

import argparse
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sparkwright.sandbox.memory import GIB, Pool
from sparkwright.sandbox.web import Handler, Server

MODEL = "qwen3:32b"
MODEL_BYTES = 20 * GIB
UNLOAD_S = 0.6
VERSION = "0.32.15"


class Ollama:
    """pool: where its models' memory comes from. busy: whether a request is using the loaded model."""

    def __init__(self, pool: Pool, busy: Callable[[], bool] = lambda: False, *, loaded: bool = True) -> None:
        self._pool = pool
        self._busy = busy
        self._loaded: dict[str, tuple[float, str]] = {}  # name: until when, the holder of its memory
        self._mutex = threading.Lock()
        if loaded:
            self.load(MODEL)

    def load(self, name: str) -> None:
        """Bring a model into memory."""
        with self._mutex:
            holder = self._loaded[name][1] if name in self._loaded else f"ollama {name} {secrets.token_hex(4)}"
            if self._pool.claim(holder, MODEL_BYTES):
                self._loaded[name] = (time.time() + 300, holder)

    def unload(self, name: str) -> None:
        """Queue its expiry: it goes when nobody uses it any more."""
        with self._mutex:
            if name in self._loaded:
                self._loaded[name] = (time.time(), self._loaded[name][1])
                threading.Thread(target=self._expire, args=(name,), daemon=True).start()

    def rows(self) -> list[dict[str, Any]]:
        """What /api/ps lists."""
        with self._mutex:
            return [self._row(name, until) for name, (until, _) in self._loaded.items()]

    def _expire(self, name: str) -> None:
        time.sleep(UNLOAD_S)
        while self._busy():
            time.sleep(0.05)
        with self._mutex:
            found = self._loaded.pop(name, None)
        if found is not None:
            self._pool.release(found[1], after_s=0.2)

    @staticmethod
    def _row(name: str, until: float) -> dict[str, Any]:
        expires = datetime.fromtimestamp(until, UTC).astimezone() if until else datetime.now() + timedelta(minutes=5)
        details = {"parent_model": "", "format": "gguf", "family": "qwen3", "families": ["qwen3"]}
        return {
            "name": name,
            "model": name,
            "size": MODEL_BYTES,
            "digest": "0" * 64,
            "details": {**details, "parameter_size": "32.8B", "quantization_level": "Q4_K_M"},
            "expires_at": expires.isoformat(),
            "size_vram": MODEL_BYTES,
            "context_length": 262144,
        }


class OllamaApi(Handler):
    """Ollama over HTTP."""

    def route(self) -> None:
        ollama: Ollama = self.server.owner  # type: ignore[attr-defined]
        match self.command, self.parts:
            case (("GET" | "HEAD"), []):
                self.reply(200, b"Ollama is running")
            case "GET", ["api", "version"]:
                self.reply(200, {"version": VERSION})
            case "GET", ["api", "ps"]:
                self.reply(200, {"models": ollama.rows()})
            case "GET", ["api", "tags"]:
                self.reply(200, {"models": [{"name": MODEL, "model": MODEL, "size": MODEL_BYTES, "digest": "0" * 64}]})
            case "POST", ["api", "generate" | "chat"]:
                self._generate(ollama)
            case _:
                self.reply(404, b"404 page not found")

    def _generate(self, ollama: Ollama) -> None:
        body = self.body()
        if not isinstance(body, dict):
            self.reply(400, {"error": "missing request body"})
        elif body.get("model") != MODEL:
            self.reply(404, {"error": f"model '{body.get('model')}' not found"})
        elif body.get("keep_alive") in (0, "0") and not body.get("prompt"):
            ollama.unload(MODEL)
            self._done("unload")
        else:
            ollama.load(MODEL)
            self._done("load")

    def _done(self, reason: str) -> None:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self.reply(200, {"model": MODEL, "created_at": now, "response": "", "done": True, "done_reason": reason})


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=11434)
    parser.add_argument("--empty", action="store_true", help="nothing loaded")
    given = parser.parse_args()
    Server(given.port, OllamaApi, Ollama(Pool(None), loaded=not given.empty)).run()


if __name__ == "__main__":
    main()
