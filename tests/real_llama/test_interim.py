"""The only server of a model is replaced behind a gateway: real llama-servers and the real HAProxy, in containers of the real Docker Engine."""

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
from tests.gateway.steady import Steady
from tests.real_llama.container_desk import GGUF_REPO, GOOD, Desk, Images, docker, published
from tests.remote.sshd import free_port

HAPROXY = shutil.which("haproxy") or ""
SHORT = "haproxy:2.6"


def image_of(program: str) -> bytes:
    """The tar of an image that holds this program of the machine and what it is linked with."""
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
    with published(tmp_path_factory.mktemp("registry")) as made:
        path = f"ENV PATH {Path(HAPROXY).parent}"
        docker("import", "--change", path, "-", made.name(SHORT), given=image_of(HAPROXY))
        docker("push", "-q", made.name(SHORT))
        yield made


@pytest.fixture
def desk(tmp_path: Path, images: Images, tiny: Path) -> Iterator[Desk]:
    with own_hub.serve_models({GGUF_REPO: {GOOD: tiny.read_bytes()}}) as hub:
        value = Desk(tmp_path, images, hub)
        try:
            yield value
        finally:
            value.close()
            for name in (f"{value.name}-interim", "gateway", "gateway-previous"):
                docker("rm", "-fv", name, check=False)


def test_a_deploy_and_a_restart_of_the_only_server_fail_no_request(desk: Desk) -> None:
    port = free_port()
    gateway = {"host": "here", "port": port, "tls": "none", "image": desk.images.name(SHORT), "limits": {"check_s": 1}}
    (desk.root / "hosts/groups.yml").write_text(json.dumps({"box": {"hosts": ["here"], "gateway": gateway}}))
    desk.llama()
    assert (result := desk.deploy()).proved, result.out[-3000:] + result.err
    assert (result := desk.run("gateway.deploy", "--host", "box", "--json")).code == 0, result.out[-3000:] + result.err
    before = desk.container()["Id"]
    steady = Steady(port, "tiny", tokens=8)
    with steady.running():
        steady.answered(10)
        desk.llama(ctx_size=4096)
        deployed = desk.deploy()
        steady.answered(10)
        after = desk.container()
        restarted = desk.run("restart", "--host", "here", "--json")
        steady.answered(10)
    for result in (deployed, restarted):
        assert result.code in (0, 4), result.out[-3000:] + result.err
        why = result.task("Check whether a second server fits beside it")["msg"]
        assert result.task("Send requests to interim server")["msg"] == "gets requests from box", why
    assert after["Id"] != before
    assert desk.container()["State"]["StartedAt"] != after["State"]["StartedAt"]
    assert not steady.wrong
    names = docker("ps", "-a", "--format", "{{.Names}}").splitlines()
    assert desk.name in names and f"{desk.name}-interim" not in names
