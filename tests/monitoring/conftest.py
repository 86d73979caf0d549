"""A real Prometheus on loopback: it scrapes pages of metrics and evaluates the shipped rules."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from sparkwright.monitoring import alerts
from tests.http_servers import QuietHandler, in_background
from tests.remote.sshd import free_port
from tests.waiting import wait_until

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is in Debian's package prometheus")
needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's package prometheus")


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str
    #: answer to a scrape, by instance
    pages: dict[str, str] = field(default_factory=dict)

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the current series of a query."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
            series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return series

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a query confirms the condition. Until Prometheus listens, queries fail."""

        def is_met() -> bool:
            try:
                return condition()
            except OSError:
                return False

        wait_until(is_met, "the expected state of Prometheus")


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    pages: dict[str, str] = {}

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, pages.get(self.path.strip("/"), ""), {"Content-Type": "text/plain; version=0.0.4"})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = free_port()
    (tmp_path / "rules.yml").write_text(alerts.render_rules())
    target = f"127.0.0.1:{server.server_port}"
    jobs = {"spark1": "hosts", "lab": alerts.GATEWAY_JOB, "clients": alerts.CLIENTS_JOB}
    scrapes = [_scrape_config(name, job, target) for name, job in jobs.items()]
    intervals = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": intervals, "rule_files": ["rules.yml"], "scrape_configs": scrapes}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{port}"
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    ]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with in_background(server):
        try:
            yield Prometheus(f"http://{address}", pages)
        finally:
            running.terminate()
            running.wait(30)


def _scrape_config(name: str, job: str, target: str) -> dict[str, Any]:
    static = {"targets": [target], "labels": {"instance": name}}
    return {"job_name": job, "metrics_path": f"/{name}", "static_configs": [static]}
