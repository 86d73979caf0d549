"""The gateway of a sandbox: this machine's HAProxy, which exits with the sandbox."""

import contextlib
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.app.runs import gateway
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.errors import Refused
from sparkwright.host.gateway import haproxy_sockets
from sparkwright.project import starter
from sparkwright.sandbox import haproxy
from tests.remote.sshd import free_port
from tests.waiting import wait_until

#: program that runs HAProxy like the sandbox's daemon, in the folder of its argument
DAEMON = """
import pathlib, sys
from sparkwright.sandbox import haproxy
folder = pathlib.Path(sys.argv[1])
words = ["-W", "-db", "-f", "haproxy.cfg"]
haproxy.Haproxy(words, api=haproxy.NoApi, version="", log=print, host_path=lambda _: folder, listen=None).run()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a gateway on the sandbox, on a machine without HAProxy."""
    starter.write_starter(tmp_path)
    settings = {"host": "sandbox", "port": 8080, "tls": "none"}
    groups = {"lab": {}, "box": {"hosts": ["sandbox"], "gateway": settings}}
    (tmp_path / "hosts/groups.yml").write_text(json.dumps(groups))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(haproxy, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", [gateway.deploy, gateway.rollback])
def test_a_gateway_is_refused_without_haproxy_before_any_change(project: Path, command: Callable[..., Any]) -> None:
    with pytest.raises(Refused) as excinfo:
        command(DeployOptions(host="box"))
    assert excinfo.value.exit == 5
    message = str(excinfo.value)
    assert message.startswith("hosts/groups.yml:1: a gateway on the sandbox needs `haproxy` on this machine.")
    assert "apt-get install haproxy" in message and "brew install haproxy" in message
    assert not (project / ".sandbox").exists()


@pytest.mark.skipif(not haproxy.find_executable(), reason="needs haproxy")
def test_haproxy_exits_when_the_sandbox_is_killed(tmp_path: Path) -> None:
    port = free_port()
    config = f"frontend clients\n  mode http\n  timeout client 5s\n  bind 127.0.0.1:{port}\n  http-request return status 200\n"
    (tmp_path / "haproxy.cfg").write_text(config)
    with subprocess.Popen([sys.executable, "-c", DAEMON, tmp_path], stdout=subprocess.DEVNULL) as daemon:
        try:
            wait_until(lambda: is_answering(port))
            children = {child.name(): child for child in psutil.Process(daemon.pid).children(recursive=True)}
        finally:
            daemon.kill()
    assert "haproxy" in children
    assert psutil.wait_procs(children.values(), timeout=10)[1] == []


def test_a_gateway_socket_with_a_long_path_is_found_without_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: the folder's path is longer than that of a socket may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(haproxy_sockets, "FD_FOLDER", tmp_path / "no-proc")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):
        listener.bind("admin.sock")
        listener.listen()
        with haproxy_sockets.socket_path(folder, "admin.sock") as path, socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def is_answering(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return bool(answer.status == 200)
    return False
