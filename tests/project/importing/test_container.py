"""A container that a person made on a real Docker Engine: the recipe of it makes the same, and differs in nothing."""

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
from sparkwright.project import recipe
from sparkwright.project.importing import recipe_builder
from sparkwright.project.importing.container import convert_running
from sparkwright.project.importing.foreign_recipe import ImportReport
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.container import ContainerSpec
from tests.modules.context import RecordingContext

NAME, IMAGE = "sparkwright-adopted", "sparkwright-adopted:1"
#: a line, and what has to differ
LINES = {
    "as guides write it": (
        "--gpus all --ipc=host --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 -p 8000:8000 -e A=1",
        [],
    ),
    "published on one address": (
        "-p 127.0.0.1:9000:8000 --restart unless-stopped --label mine=1 --memory 8g --user 1000:1000",
        [],
    ),
    "on the host's network": (
        "--network host --privileged --cap-add SYS_PTRACE --security-opt seccomp=unconfined --device /dev/null",
        ["ports"],
    ),
    "with options that few use": (
        "--hostname spark.lan --pid host --init --stop-signal SIGINT --tmpfs /scratch:size=64m --sysctl net.core.somaxconn=64 "
        "--memory 512m --memory-swap 600m --cpus 1.5 --cpuset-cpus 0 --oom-score-adj 50 --log-opt max-size=10m "
        "--health-cmd true --health-interval 90s --health-retries 4 --dns 10.0.0.1 --add-host hub:10.0.0.1 --group-add 44 "
        "--cap-drop NET_RAW --device /dev/null:/dev/one:rw --workdir /srv",
        [],
    ),
    "with a profile that a recipe cannot contain": (
        "--security-opt seccomp={folder}/profile.json --security-opt no-new-privileges --no-healthcheck",
        ["security-opt"],
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("no Docker Engine answers")
    value = docker.from_env()
    value.images.build(
        fileobj=io.BytesIO(b'FROM scratch\nENV OF=image\nENTRYPOINT ["vllm", "serve"]\n'),
        tag=IMAGE,
        rm=True,
        forcerm=True,
    )
    yield value
    value.api.remove_image(IMAGE)
    value.close()


@pytest.mark.docker
@pytest.mark.parametrize(("line", "differs"), LINES.values(), ids=LINES)
def test_its_recipe_differs_in_nothing(line: str, differs: list[str], client: Any, tmp_path: Path) -> None:
    _remove_container(client)
    (tmp_path / "profile.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    words = [
        "docker",
        "create",
        "--name",
        NAME,
        *line.format(folder=tmp_path).split(),
        "-v",
        f"{tmp_path}/m:/models/tiny",
        IMAGE,
    ]
    result = subprocess.run(
        [*words, "--model", "/models/tiny", "--seed", "7"], capture_output=True, text=True, check=False, timeout=60
    )
    try:
        assert result.returncode == 0, result.stderr
        data = ContainerSettings().run(ContainerSettings.Args(NAME), RecordingContext(tmp_path)).data
        report = ImportReport({"model": "acme/Tiny"})
        value = recipe_builder.build_recipe(convert_running(data, "spark1", report), "one", report, "spark1")
        (tmp_path / "recipes").mkdir()
        (tmp_path / "recipes/one.yml").write_text(value.text)
        names = recipe.scope(
            Host("spark1", "spark1"), "ops", recipe.load(tmp_path, "one"), {"image": None, "model": None}
        )
        inspected, image = client.api.inspect_container(NAME), client.api.inspect_image(IMAGE)
        differences = container_options.differences(ContainerSpec.from_json(names["container"]), inspected, image)
        drift = [change.field for change in differences if change.field not in ("image", "compile caches")]
        assert drift == differs, (differences, value.text)
    finally:
        _remove_container(client)


def _remove_container(client: Any) -> None:
    for container in client.api.containers(all=True, filters={"name": f"^/{NAME}$"}):
        client.api.remove_container(container["Id"], v=True, force=True)


KEY = "Zq7-kX9_wT4mB2nV8pL5"
#: a container as people make them around a model server, with a key in each place
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
def test_no_key_of_a_real_container_leaves_the_host_by_adoption_or_incident(client: Any, tmp_path: Path) -> None:
    _remove_container(client)
    client.api.create_container(
        IMAGE, name=NAME, **PLANTED, host_config=client.api.create_host_config(port_bindings={8000: 8000}), ports=[8000]
    )
    context = RecordingContext(tmp_path)
    try:
        settings = ContainerSettings().run(ContainerSettings.Args(NAME), context).data
        bundle = incidents.save(context, NAME, f"it exited: vllm: error: unrecognized arguments: --token {KEY}")
        texts = [path.read_text() for path in bundle.iterdir()]
    finally:
        _remove_container(client)
    assert KEY not in json.dumps(settings) and not any(KEY in text for text in texts)
    assert settings["options"]["labels"]["mine"] == "1" and "--api-key ***" in settings["command"][1]
    inspected = json.loads((bundle / "inspect.json").read_text())
    assert "curl -fH" in inspected["Config"]["Healthcheck"]["Test"][1], "what is no secret stays"
    report = ImportReport()
    imported = recipe_builder.build_recipe(convert_running(settings, "spark1", report), "", report, "spark1")
    redacted = json.dumps(report.to_json())
    assert "***" not in imported.text and KEY not in redacted
    assert "label app.api-key" in redacted and "healthcheck test" in redacted and "HF_TOKEN" in redacted
