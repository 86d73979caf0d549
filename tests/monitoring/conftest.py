"""A real Prometheus on loopback that scrapes pages of metrics and evaluates the shipped rules."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from sparkwright.monitoring import alerts

needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="Debian has it as package prometheus")


@dataclass
class Prometheus:
    """A running Prometheus.

    `pages` is the answer of each instance to a scrape; tests change it.
    """

    url: str
    pages: dict[str, str] = field(default_factory=dict)

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the current series of a query."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def until(self, holds: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait for a scrape and an evaluation that make it so."""
        deadline_s = time.monotonic() + timeout_s
        while not _holds(holds):
            assert time.monotonic() < deadline_s, "Prometheus does not show it"
            time.sleep(0.1)


def _holds(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except OSError:
        return False


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(pages.get(self.path.strip("/"), "").encode())

        def log_message(self, *words: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "rules.yml").write_text(alerts.render_rules())
    target = f"127.0.0.1:{server.server_port}"
    jobs = {"spark1": "hosts", "lab": alerts.GATEWAY_JOB, "clients": alerts.CLIENTS_JOB}
    scrapes = [_scrape_config(name, job, target) for name, job in jobs.items()]
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": often, "rule_files": ["rules.yml"], "scrape_configs": scrapes}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}", pages)
    finally:
        running.terminate()
        running.wait(30)
        server.shutdown()
        server.server_close()


def _scrape_config(name: str, job: str, target: str) -> dict[str, Any]:
    static = {"targets": [target], "labels": {"instance": name}}
    return {"job_name": job, "metrics_path": f"/{name}", "static_configs": [static]}
