"""The key of a server on a real Docker Engine: the container's user can read it, and `docker inspect` does not show it."""

import io
import json
import os
import secrets
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.engines.vllm import http
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import server_key
from sparkwright.host.records import server_keys
from sparkwright.modules.server.container import Container
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.host.containers.test_log_reader import engine
from tests.modules.context import RecordingContext

__all__ = ["engine"]
pytestmark = pytest.mark.docker

SECRET = "server_key of r"
#: mode of the key's file by the user of the image
USERS = {"": 0o600, "root": 0o600, "1234:1234": 0o644, "nobody": 0o644}


@pytest.fixture
def api(engine: docker.DockerClient) -> Any:
    return engine.api


@pytest.fixture
def name(api: Any) -> Iterator[str]:
    """A name for containers and images, which are removed afterwards."""
    value = f"test-key-{secrets.token_hex(4)}"
    yield value
    for container in api.containers(all=True, filters={"name": value}):
        api.remove_container(container["Id"], force=True)
    for image in api.images(value):
        api.remove_image(image["Id"], force=True)


def build_image(api: Any, name: str, user: str) -> str:
    """Build an image that has only `cat`, run by this user."""
    libraries = subprocess.run(["ldd", "/bin/cat"], capture_output=True, text=True, check=True).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as archive:
        for path in ["/bin/cat", *(word for word in libraries if word.startswith("/"))]:
            archive.add(path, path.lstrip("/"))
        passwd = b"root:x:0:0::/:/bin/cat\nnobody:x:65534:65534::/:/bin/cat\n"
        info = tarfile.TarInfo("etc/passwd")
        info.size = len(passwd)
        archive.addfile(info, io.BytesIO(passwd))
    changes = ['ENTRYPOINT ["/bin/cat"]', *([f"USER {user}"] if user else [])]
    api.import_image_from_data(out.getvalue(), repository=name, tag="v1", changes=changes)
    return f"{name}:v1"


def container_spec(name: str, image: str, key: str) -> dict[str, Any]:
    plain = {"name": name, "image": image, "gpus": "", "ipc": "private", "restart": "no"}
    return {**plain, "command": [http.KEY_FILE_MOUNT], "server_key": key}


def make_context(folder: Path, key: str, *, check: bool = False) -> RecordingContext:
    return RecordingContext(folder / "home", secrets={SECRET: Secret(key)} if key else {}, check=check)


def run_container(context: RecordingContext, spec_data: dict[str, Any]) -> Result:
    return Container().run(Container.Args(spec_data), context)


@pytest.mark.parametrize("user", USERS)
def test_only_the_containers_user_reads_the_key(api: Any, name: str, tmp_path: Path, user: str) -> None:
    key = "spk-" + secrets.token_hex(20)
    spec_data = container_spec(name, build_image(api, name, user), f"given:{SECRET}")
    before = os.umask(0)
    try:
        assert run_container(make_context(tmp_path, key), spec_data).changed
    finally:
        os.umask(before)
    assert api.wait(name)["StatusCode"] == 0
    assert api.logs(name).decode() == http.render_key_file(key)
    inspected = api.inspect_container(name)
    assert key not in json.dumps(inspected)
    context = make_context(tmp_path, "")
    assert server_key.read_container_key(context.state, inspected) == key
    (path,) = (context.state.path / server_keys.FOLDER).glob(f"{name}-*.yaml")
    assert stat.S_IMODE(path.stat().st_mode) == USERS[user]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((path.parent / server_keys.SALT_FILE).stat().st_mode) == 0o600


def test_another_key_is_a_difference_that_shows_no_key(api: Any, name: str, tmp_path: Path) -> None:
    key, other = "spk-" + secrets.token_hex(20), "spk-" + secrets.token_hex(20)
    spec_data = container_spec(name, build_image(api, name, ""), f"given:{SECRET}")

    def check(key: str, **fields: Any) -> Result:
        return run_container(make_context(tmp_path, key, check=True), {**spec_data, **fields})

    assert check(key).diff[0].field == "container"
    assert not (tmp_path / "home/.local/state/sparkwright" / server_keys.FOLDER).exists()  # check mode writes nothing
    run_container(make_context(tmp_path, key), spec_data)
    assert check(key).data["drift"] == []
    (change,) = check(other).data["drift"]
    assert (change["field"], change["before"], change["after"]) == ("server_key", "set", "changed")
    assert [change["field"] for change in check("", server_key="").data["drift"]] == ["server_key"]
    with pytest.raises(Refused, match="was not sent with this run"):
        check("")


def test_a_container_is_created_again_only_with_its_stored_key(api: Any, name: str, tmp_path: Path) -> None:
    key = "spk-" + secrets.token_hex(20)
    spec_data = container_spec(name, build_image(api, name, ""), f"given:{SECRET}")
    context = make_context(tmp_path, key)
    run_container(context, spec_data)
    kept = {**spec_data, "server_key": f"kept:{server_keys.fingerprint(context.state, key)}"}
    api.remove_container(name, force=True)
    run_container(make_context(tmp_path, ""), kept)
    api.wait(name)
    assert api.logs(name).decode() == http.render_key_file(key)
    server_keys.remove_unneeded(context.state, name, ())
    assert server_keys.list_keys(context.state) == []
    api.remove_container(name, force=True)
    with pytest.raises(Failed, match="no longer on this host"):
        run_container(make_context(tmp_path, ""), kept)
    assert api.containers(all=True, filters={"name": name}) == []


def test_a_key_has_another_fingerprint_on_each_host(tmp_path: Path) -> None:
    fingerprints = set()
    for host in ("a", "b"):
        state = make_context(tmp_path / host, "").state
        server_keys.save_key(state, "q", "spk-0123456789abcdef", world_readable=False)
        fingerprints.add(server_keys.fingerprint(state, "spk-0123456789abcdef"))
    assert len(fingerprints) == 2
