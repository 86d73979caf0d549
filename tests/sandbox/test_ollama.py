"""The simulated Ollama unloads and loads models like the real Ollama, according to its source."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sparkwright.sandbox import ollama
from sparkwright.sandbox.http_server import Server
from sparkwright.sandbox.memory import MemoryPool
from sparkwright.sandbox.ollama import Ollama, OllamaApi
from sparkwright.units import GIB
from tests.waiting import wait_until

#: time limit of each wait
WAIT_TIMEOUT_S = 30.0
#: time after which a model would have been loaded again
RELOADED_BY_S = ollama.RELOAD_DELAY_S + 0.5
UNLOAD = {"model": "qwen3:32b", "keep_alive": 0}


class StepClock:
    """The clock of the simulated Ollama. Pauses end at once, except those that a test holds."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self._held: dict[float, threading.Event] = {}
        self._reached: dict[float, threading.Event] = defaultdict(threading.Event)
        self._pauses: Counter[float] = Counter()

    def sleep(self, seconds: float) -> None:
        self._pauses[seconds] += 1
        self._reached[seconds].set()
        held = self._held.get(seconds)
        if held is None:
            time.sleep(min(seconds, 0.001))
        else:
            assert held.wait(WAIT_TIMEOUT_S)

    @contextmanager
    def hold(self, seconds: float) -> Iterator[None]:
        """Make pauses of this length last until the end of the block."""
        self._held[seconds] = threading.Event()
        try:
            yield
        finally:
            self._held.pop(seconds).set()

    def wait_until_reached(self, seconds: float) -> None:
        assert self._reached[seconds].wait(WAIT_TIMEOUT_S)

    def wait_for_expiry_checks(self, times: int) -> None:
        """Wait for this number of further checks for expired models."""
        count = self._pauses[ollama.EXPIRY_POLL_S] + times
        wait_until(lambda: self._pauses[ollama.EXPIRY_POLL_S] >= count)


class RunningOllama:
    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.busy = self.returns = False
        self.pool = MemoryPool(None)
        self.ollama = Ollama(self.pool, lambda: self.busy, lambda: self.returns)
        self.server = Server(0, OllamaApi, self.ollama)
        self.server.start()

    def request(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = json.dumps(body).encode() if body is not None else None
        method = "POST" if path in ("/api/generate", "/api/chat", "/api/show") else "GET"
        request = urllib.request.Request(f"http://127.0.0.1:{self.server.port}{path}", data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                lines = [json.loads(line) for line in response.read().splitlines()]
                return response.status, lines[0] if len(lines) == 1 else lines
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def list_loaded(self) -> list[str]:
        return [model["name"] for model in self.request("/api/ps")[1]["models"]]

    def wait_until_loaded(self, *names: str) -> None:
        wait_until(lambda: sorted(self.list_loaded()) == sorted(names))


@pytest.fixture
def running_ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningOllama]:
    monkeypatch.delenv("SPARKWRIGHT_SANDBOX_SPEED", raising=False)
    clock = StepClock()
    monkeypatch.setattr(ollama, "time", clock)
    running = RunningOllama(clock)
    yield running
    running.server.stop()


def test_an_unload_is_answered_before_the_memory_is_released(running_ollama: RunningOllama) -> None:
    free = running_ollama.pool.available_bytes
    with running_ollama.clock.hold(ollama.UNLOAD_S):
        status, result = running_ollama.request("/api/generate", UNLOAD)
        assert (status, result["response"], result["done"], result["done_reason"]) == (200, "", True, "unload")
        running_ollama.clock.wait_until_reached(ollama.UNLOAD_S)
        assert running_ollama.list_loaded() == ["qwen3:32b"]
        assert running_ollama.pool.available_bytes == free
    running_ollama.wait_until_loaded()
    wait_until(lambda: running_ollama.pool.available_bytes == free + 20 * GIB)


def test_a_busy_model_remains_loaded_until_its_request_ends(running_ollama: RunningOllama) -> None:
    with running_ollama.clock.hold(ollama.SECONDS_PER_TOKEN):
        body = {"model": "qwen3:32b", "prompt": "x"}
        request = threading.Thread(target=running_ollama.request, args=("/api/generate", body))
        request.start()
        running_ollama.clock.wait_until_reached(ollama.SECONDS_PER_TOKEN)
        running_ollama.request("/api/generate", UNLOAD)
        running_ollama.clock.wait_for_expiry_checks(3)
        assert running_ollama.list_loaded() == ["qwen3:32b"] and request.is_alive()
    request.join()
    running_ollama.wait_until_loaded()


def test_a_client_may_load_a_model_again_after_its_unload(running_ollama: RunningOllama) -> None:
    running_ollama.returns = True
    running_ollama.request("/api/generate", UNLOAD)
    running_ollama.wait_until_loaded()
    running_ollama.wait_until_loaded("qwen3:32b")
    running_ollama.returns = False
    running_ollama.request("/api/generate", UNLOAD)
    running_ollama.wait_until_loaded()
    time.sleep(RELOADED_BY_S)
    assert running_ollama.list_loaded() == []


def test_a_model_that_exceeds_the_memory_is_refused(running_ollama: RunningOllama) -> None:
    running_ollama.pool.claim("vllm", running_ollama.pool.available_bytes - GIB)
    status, result = running_ollama.request("/api/generate", {"model": "gpt-oss:20b"})
    error = "model requires more system memory (14.0 GiB) than is available (1.0 GiB)"
    assert (status, result) == (500, {"error": error})
