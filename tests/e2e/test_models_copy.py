"""`models.copy` between hosts of a project."""

import shutil

import psutil

from tests.e2e.conftest import SandboxProject

SERVER_MODULE = "sparkwright.host.models.peer"


def model_servers(project: SandboxProject) -> list[psutil.Process]:
    """Return the processes that serve a model of the project's sandbox to other hosts."""
    processes = psutil.process_iter(["cmdline", "environ"])
    return [
        process
        for process in processes
        if SERVER_MODULE in (process.info["cmdline"] or ())
        and str(project.sandbox) in (process.info["environ"] or {}).get("HOME", "")
    ]


def test_no_server_is_left_for_a_host_that_is_unreachable(project: SandboxProject) -> None:
    project.deployed()
    shutil.copy(project.sandbox / "spark.lock", project.root)
    (project.root / "hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: qwen3.5-35b\n")
    copied = project.run("models.copy", "--from", "sandbox", "--to", "away")
    assert copied.code == 3 and "refuses connections" in copied.out + copied.err, copied
    assert model_servers(project) == []
