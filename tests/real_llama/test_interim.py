"""Replacement of a model's only server behind a gateway, with real llama-servers and HAProxy in containers."""

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import own_hub
from tests.gateway.steady import SteadyClients
from tests.real_llama.container_desk import GGUF_REPO, GOOD, Images, Project, published, run_docker
from tests.real_llama.test_container import deploy_proved
from tests.remote.sshd import free_port

HAPROXY = shutil.which("haproxy") or ""
HAPROXY_IMAGE = "haproxy:2.6"


def build_image(program: str) -> bytes:
    """Return the tar of an image with a program of this machine and its libraries."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as archive:
        for path in sorted({program, *re.findall(r"(/\S+) \(0x", linked)}):
            archive.add(path, path.lstrip("/"))
    return out.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    if not HAPROXY:
        pytest.skip("needs haproxy (Debian's package)")
    with published(tmp_path_factory.mktemp("registry")) as registry_images:
        path = f"ENV PATH {Path(HAPROXY).parent}"
        run_docker("import", "--change", path, "-", registry_images.name(HAPROXY_IMAGE), stdin=build_image(HAPROXY))
        run_docker("push", "-q", registry_images.name(HAPROXY_IMAGE))
        yield registry_images


@pytest.fixture
def project(tmp_path: Path, images: Images, tiny: Path) -> Iterator[Project]:
    with own_hub.serve_models({GGUF_REPO: {GOOD: tiny.read_bytes()}}) as hub:
        new_project = Project(tmp_path, images, hub)
        try:
            yield new_project
        finally:
            new_project.close()
            for name in (f"{new_project.name}-interim", "gateway", "gateway-previous"):
                run_docker("rm", "-fv", name, check=False)


def test_replacing_and_restarting_the_only_server_fails_no_request(project: Project) -> None:
    port = free_port()
    image = project.images.name(HAPROXY_IMAGE)
    gateway = {"host": "here", "port": port, "tls": "none", "image": image, "limits": {"check_s": 1}}
    (project.root / "hosts/groups.yml").write_text(json.dumps({"box": {"hosts": ["here"], "gateway": gateway}}))
    deploy_proved(project.serve_llama())
    result = project.run("gateway.deploy", "--host", "box", "--json")
    assert result.code == 0, result.out[-3000:] + result.err
    before = project.container()["Id"]
    steady = SteadyClients(port, "tiny", tokens=8)
    with steady.running():
        steady.wait_for_answers(10)
        deployed = project.serve_llama(ctx_size=4096).deploy()
        steady.wait_for_answers(10)
        after = project.container()
        restarted = project.run("restart", "--host", "here", "--json")
        steady.wait_for_answers(10)
    for result in (deployed, restarted):
        assert result.code in (0, 4), result.out[-3000:] + result.err
        reason = result.task("Check whether a second server fits next to it")["msg"]
        assert result.task("Send requests to interim server")["msg"] == "receives requests from box", reason
    assert after["Id"] != before
    assert project.container()["State"]["StartedAt"] != after["State"]["StartedAt"]
    assert not steady.wrong
    names = run_docker("ps", "-a", "--format", "{{.Names}}").splitlines()
    assert project.name in names and f"{project.name}-interim" not in names
