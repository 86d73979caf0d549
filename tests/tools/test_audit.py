"""The real pip-audit with a vulnerability service on loopback."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from sparkwright.remote import runtime
from tests.http_servers import QuietHandler, in_background

AUDIT = [sys.executable, str(Path(__file__).parents[2] / "tools" / "audit.py"), "--vulnerability-service", "osv"]

IDNA = f"idna {runtime.pinned_requirements()['idna'].version}"


class OsvHandler(QuietHandler):
    """Reports the packages in `vulnerable`, which maps names to the version with the fix."""

    vulnerable: ClassVar[dict[str, str]] = {}

    def do_POST(self) -> None:
        name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
        self.reply(200, json.dumps({"vulns": [self.entry(name)]} if name in self.vulnerable else {}))

    def entry(self, name: str) -> dict[str, object]:
        events = [{"fixed": self.vulnerable[name]}] if self.vulnerable[name] else []
        ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, *events]}]
        affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": ranges}]
        return {"id": "PYSEC-2026-1", "modified": "2026-01-01T00:00:00Z", "details": "bad", "affected": affected}


@pytest.fixture
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OsvHandler)
    with in_background(server):
        yield f"http://127.0.0.1:{server.server_port}/v1/query"


def run_audit(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AUDIT, "--osv-url", url], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("vulnerable", "code", "message"),
    [
        ({}, 0, f"{len(runtime.pinned_requirements())} packages checked, 0 vulnerabilities known"),
        ({"idna": "99.0"}, 1, f"{IDNA}: PYSEC-2026-1, fixed in 99.0"),
        ({"idna": ""}, 0, f"{IDNA}: PYSEC-2026-1, no version fixes it yet"),
    ],
)
def test_audit_fails_for_a_vulnerability_with_a_fix(
    service: str, monkeypatch: pytest.MonkeyPatch, vulnerable: dict[str, str], code: int, message: str
) -> None:
    monkeypatch.setattr(OsvHandler, "vulnerable", vulnerable)
    result = run_audit(service)
    assert message in result.stdout, result.stderr
    assert "pip-audit: this environment: " in result.stdout
    assert result.returncode == code


def test_unreachable_service_is_reported_without_a_failure() -> None:
    result = run_audit("http://127.0.0.1:9/v1/query")
    assert result.stdout.startswith("pip-audit: no vulnerability data reachable, not checked")
    assert result.returncode == 0
