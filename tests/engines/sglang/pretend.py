"""The sandbox's simulated SGLang on a free port, as in `deploy --host sandbox`.

It proves nothing about the real SGLang: docs/engine-agreement.md.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.sandbox.serving.process import SIZE_SCALE, Process
from sparkwright.sandbox.sglang import start_log
from sparkwright.sandbox.sglang.api import SglangApi
from sparkwright.sandbox.sglang.server import SglangServer
from tests.remote.sshd import free_port

WEIGHTS = 5 * 10**9
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 131072}


@dataclass
class FakeSglang:
    """A simulated SGLang server."""

    port: int = field(default_factory=free_port)
    #: the sandbox's current fault
    fault: str = ""
    #: lines of the log
    lines: list[str] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def paths(self) -> list[str]:
        """The requested paths, from the log."""
        return [line.split('"')[1].split()[1] for line in self.lines if "HTTP/1.1" in line]

    def append_line(self, line: str) -> None:
        self.lines.append(line)
        if line.endswith(start_log.READY_LINE):
            self.ready.set()

    def server(self, folder: Path, *flags: str, published: int | None = None) -> SglangServer:
        """Return a server before its start. folder: for its model. published: the port of its container."""
        folder.joinpath("config.json").write_text(json.dumps(CONFIG))
        folder.joinpath("model.safetensors").write_bytes(bytes(WEIGHTS // SIZE_SCALE))
        words = ("--model-path", str(folder), "--port", str(self.port), "--served-model-name", "m", *flags)
        return SglangServer(
            words,
            api=SglangApi,
            version="0.5.23",
            log=self.append_line,
            host_path=Path,
            listen=None if published is None else ("127.0.0.1", published),
            fault=lambda: self.fault,
        )


@contextmanager
def serving(plan: FakeSglang, folder: Path, *flags: str, published: int | None = None) -> Iterator[Process]:
    """Listen on loopback while the block runs."""
    server = plan.server(folder, *(flags or ("--enable-metrics",)), published=published)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert plan.ready.wait(20), plan.log
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def wait_for_exit(server: SglangServer) -> int:
    """Return the exit code of a server that fails to start."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(server.run()), daemon=True)
    thread.start()
    thread.join(20)
    if not codes:
        server.stop()
        raise AssertionError("the server serves")
    return codes[0]
