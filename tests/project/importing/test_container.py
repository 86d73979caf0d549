"""The recipe of a running container, with a real Docker Engine: the container does not differ from it, and it holds no secret."""

import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.containers import container_options
from sparkwright.host.records import incidents
from sparkwright.modules.server.server_inspection import ContainerSettings
from sparkwright.protocol.container import ContainerSpec
from tests.modules.context import RecordingContext
from tests.project.importing.forms import import_running
from tests.project.recipes import load_text, resolve_variables

NAME, IMAGE = "sparkwright-adopted", "sparkwright-adopted:1"
#: the options of `docker create`, and the fields in which the recipe differs
OPTIONS: dict[str, tuple[str, list[str]]] = {
    "the usual ones": (
        "--gpus all --ipc=host --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 -p 8000:8000 -e A=1",
        [],
    ),
    "one published address": (
        "-p 127.0.0.1:9000:8000 --restart unless-stopped --label mine=1 --memory 8g --user 1000:1000",
        [],
    ),
    "host network": (
        "--network host --privileged --cap-add SYS_PTRACE --security-opt seccomp=unconfined --device /dev/null",
        ["ports"],
    ),
    "rare ones": (
        "--hostname spark.lan --pid host --init --stop-signal SIGINT --tmpfs /scratch:size=64m --sysctl net.core.somaxconn=64 "
        "--memory 512m --memory-swap 600m --cpus 1.5 --cpuset-cpus 0 --oom-score-adj 50 --log-opt max-size=10m "
        "--health-cmd true --health-interval 90s --health-retries 4 --dns 10.0.0.1 --add-host hub:10.0.0.1 --group-add 44 "
        "--cap-drop NET_RAW --device /dev/null:/dev/one:rw --workdir /srv",
        [],
    ),
    "profile that a recipe cannot contain": (
        "--security-opt seccomp={folder}/profile.json --security-opt no-new-privileges --no-healthcheck",
        ["security-opt"],
    ),
}


@pytest.fixture(scope="module")
def client(docker_client: Any) -> Iterator[Any]:
    dockerfile = io.BytesIO(b'FROM scratch\nENV OF=image\nENTRYPOINT ["vllm", "serve"]\n')
    docker_client.images.build(fileobj=dockerfile, tag=IMAGE, rm=True, forcerm=True)
    yield docker_client
    docker_client.api.remove_image(IMAGE)


@pytest.fixture
def api(client: Any) -> Iterator[Any]:
    """The engine's API; no container of the test's name is left, before or after."""
    _remove_container(client)
    yield client.api
    _remove_container(client)


def _remove_container(client: Any) -> None:
    for container in client.api.containers(all=True, filters={"name": f"^/{NAME}$"}):
        client.api.remove_container(container["Id"], v=True, force=True)


@pytest.mark.docker
@pytest.mark.parametrize(("options", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_container_does_not_differ_from_its_recipe(options: str, expected: list[str], api: Any, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    command = ["docker", "create", "--name", NAME, *options.format(folder=tmp_path).split()]
    command += ["-v", f"{tmp_path}/m:/models/tiny", IMAGE, "--model", "/models/tiny", "--seed", "7"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    data = ContainerSettings().run(ContainerSettings.Args(NAME), RecordingContext(tmp_path)).data
    imported = import_running(data, "one", model="acme/Tiny")
    spec = ContainerSpec.from_json(resolve_variables(load_text(tmp_path, imported.text))["container"])
    differences = container_options.differences(spec, api.inspect_container(NAME), api.inspect_image(IMAGE))
    fields = [change.field for change in differences if change.field not in ("image", "compile caches")]
    assert fields == expected, (differences, imported.text)


KEY = "Zq7-kX9_wT4mB2nV8pL5"
#: the settings of a container with a key in each place that may hold one
PLANTED = {
    "command": ["-c", f"exec vllm serve acme/Tiny --port 8000 --api-key {KEY}"],
    "entrypoint": ["bash"],
    "environment": {
        "HF_TOKEN": KEY,
        "CONFIG": f'{{"auth": {{"token": "{KEY}"}}}}',
        "DATABASE_URL": f"postgresql://u:{KEY}@db/x",
    },
    "labels": {"app.api-key": KEY, "traefik.http.middlewares.a.basicauth.users": f"ops:{KEY}", "mine": "1"},
    "healthcheck": {"test": ["CMD-SHELL", f"curl -fH 'Authorization: Bearer {KEY}' http://127.0.0.1:8000/health"]},
}


@pytest.mark.docker
def test_import_and_incident_hold_no_key_of_the_container(api: Any, tmp_path: Path) -> None:
    host_config = api.create_host_config(port_bindings={8000: 8000})
    api.create_container(IMAGE, name=NAME, **PLANTED, host_config=host_config, ports=[8000])
    context = RecordingContext(tmp_path)
    settings = ContainerSettings().run(ContainerSettings.Args(NAME), context).data
    bundle = incidents.save(context, NAME, f"it exited: vllm: error: unrecognized arguments: --token {KEY}")
    texts = [path.read_text() for path in bundle.iterdir()]
    assert KEY not in json.dumps(settings) and not any(KEY in text for text in texts)
    assert settings["options"]["labels"]["mine"] == "1" and "--api-key ***" in settings["command"][1]
    inspected = json.loads((bundle / "inspect.json").read_text())
    assert "curl -fH" in inspected["Config"]["Healthcheck"]["Test"][1], "the rest of the command is kept"
    imported = import_running(settings)
    redacted = json.dumps(imported.report.to_json())
    assert "***" not in imported.text and KEY not in redacted
    assert "label app.api-key" in redacted and "healthcheck test" in redacted and "HF_TOKEN" in redacted
