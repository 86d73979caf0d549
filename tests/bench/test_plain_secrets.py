"""Results are stored, so a secret in an address, a flag or a variable is refused first, and not repeated."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app import experiments
from sparkwright.bench import experiment
from sparkwright.bench.order import Order
from sparkwright.errors import Refused
from sparkwright.host.records.incidents import redacted
from sparkwright.measure import http_probe

SECRET = "Tr0ub4dor-3-horse"


@pytest.mark.parametrize(
    "url",
    [
        "http://u:SECRET@h:1",
        "http://SECRET@h:1/v1",
        "http://h:1/?key=SECRET",
        "http://h:SECRET/",
        "http://[SECRET",
        "SECRET",
    ],
)
def test_an_address_with_more_in_it_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(Refused, match="^--url ") as caught:
        experiments.at_url(url.replace("SECRET", SECRET), "", Order("smoke"), root=tmp_path)
    assert SECRET not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_key_that_no_header_carries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(experiments.KEY, f"{SECRET}\nX-Other: 1")
    with pytest.raises(Refused, match="no header can carry") as caught:
        experiments.at_url("http://127.0.0.1:1", "", Order("smoke"), root=tmp_path)
    assert SECRET not in str(caught.value)


def test_a_probe_with_such_a_key_says_so_and_not_the_key() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        answer = http_probe.ask(f"http://127.0.0.1:{server.server_port}", "/v1/models", api_key=f"{SECRET}\n")
    finally:
        server.shutdown()
        server.server_close()
    assert (answer.status, answer.error) == (0, "the key is not valid in an HTTP header")


def test_a_flag_with_a_secret_is_refused() -> None:
    base: Any = None  # nothing of the recipe is read before
    with pytest.raises(Refused, match="--flag hf-token: its value looks like a secret") as caught:
        experiment.flag(base, f"hf-token={SECRET}", {})
    assert SECRET not in str(caught.value)


def test_an_incident_hides_what_is_named_like_a_secret_wherever_docker_shows_it() -> None:
    config = {"Env": [f"A_TOKEN={SECRET}"], "Labels": {"db.password": SECRET}, "Entrypoint": ["x", f"--token={SECRET}"]}
    log = {"Type": "splunk", "Config": {"splunk-token": SECRET, "tag": "x"}}
    shown = redacted({"Config": {**config, "Cmd": ["--api-key", SECRET]}, "HostConfig": {"LogConfig": log}, "Args": []})
    assert SECRET not in str(shown)
    assert shown["HostConfig"]["LogConfig"]["Config"]["tag"] == "x"
