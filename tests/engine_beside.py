"""A second Docker Engine on this machine."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until


@contextmanager
def second_engine(network: Sequence[str], wrapper: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Run an engine for the block. Yields its address and its API; skips the test if it can't run here.

    network: options of dockerd. wrapper: command that runs `dockerd`.
    """
    import docker
    from docker.errors import DockerException

    if not shutil.which("dockerd") or os.geteuid() != 0:
        pytest.skip("needs dockerd and root")
    folder = Path(tempfile.mkdtemp(prefix="eng-"))  # short: a unix socket's path has a limit
    folders = ("--data-root", f"{folder}/d", "--exec-root", f"{folder}/e", "--pidfile", f"{folder}/p")
    options = ("--host", f"unix://{folder}/s", "--iptables=false", "--ip-masq=false", *network)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*wrapper, "dockerd", *folders, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    client = None
    # no request before the socket exists: docker's SDK keeps the socket of each failed one open until the next garbage collection
    wait_until(lambda: Path(folder, "s").exists() or process.poll() is not None, "the second engine's socket")
    while client is None and process.poll() is None:
        with contextlib.suppress(DockerException):
            client = docker.DockerClient(f"unix://{folder}/s")
    try:
        if client is None:
            pytest.skip("a second dockerd does not start on this machine")
        yield f"unix://{folder}/s", client.api
        client.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)
