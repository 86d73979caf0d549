"""The key of a server on a real Docker Engine: every user in the container can read it, and `docker inspect` shows none."""

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

import pytest

from sparkwright.engines.vllm import http
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import server_key
from sparkwright.host.records import server_keys
from sparkwright.modules.server.container import Container
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext

pytestmark = pytest.mark.docker

SECRET = "server_key of r"
USERS = {"": 0o600, "root": 0o600, "1234:1234": 0o644, "nobody": 0o644}


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine answers")
    client = docker.DockerClient()
    yield client.api
    client.close()


@pytest.fixture
def name(api: Any) -> Iterator[str]:
    """A name of our own, for containers and images, which go again."""
    value = f"test-key-{secrets.token_hex(4)}"
    yield value
    for container in api.containers(all=True, filters={"name": value}):
        api.remove_container(container["Id"], force=True)
    for image in api.images(value):
        api.remove_image(image["Id"], force=True)


def build_image(api: Any, name: str, user: str) -> str:
    """An image that has nothing but `cat`, run by this user."""
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
def test_the_user_of_the_container_reads_it_and_nobody_else(api: Any, name: str, tmp_path: Path, user: str) -> None:
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
    assert stat.S_IMODE((path.parent / server_keys.SALT).stat().st_mode) == 0o600


def test_the_same_key_is_no_difference_and_another_is_one_that_shows_neither(
    api: Any, name: str, tmp_path: Path
) -> None:
    key, other = "spk-" + secrets.token_hex(20), "spk-" + secrets.token_hex(20)
    spec_data = container_spec(name, build_image(api, name, ""), f"given:{SECRET}")
    looked = run_container(make_context(tmp_path, key, check=True), spec_data)
    assert not (tmp_path / "home/.local/state/sparkwright" / server_keys.FOLDER).exists()  # looking writes nothing
    assert looked.diff[0].field == "container"
    run_container(make_context(tmp_path, key), spec_data)
    assert run_container(make_context(tmp_path, key, check=True), spec_data).data["drift"] == []
    differs = run_container(make_context(tmp_path, other, check=True), spec_data).data["drift"]
    assert [(differ["field"], differ["before"], differ["after"]) for differ in differs] == [
        ("server_key", "set", "changed")
    ]
    assert [
        item["field"]
        for item in run_container(make_context(tmp_path, "", check=True), {**spec_data, "server_key": ""}).data["drift"]
    ] == ["server_key"]
    with pytest.raises(Refused, match="was not sent with this run"):
        run_container(make_context(tmp_path, "", check=True), spec_data)


def test_a_server_is_made_again_with_the_key_it_had_and_without_that_key_not_at_all(
    api: Any, name: str, tmp_path: Path
) -> None:
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


def test_one_hosts_fingerprint_says_nothing_on_another(tmp_path: Path) -> None:
    states = [make_context(tmp_path / host, "").state for host in ("a", "b")]
    collected = set()
    for state in states:
        server_keys.save_key(state, "q", "spk-0123456789abcdef", world_readable=False)
        collected.add(server_keys.fingerprint(state, "spk-0123456789abcdef"))
    assert len(collected) == 2
