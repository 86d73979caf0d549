"""Spellings of Docker's options: what recipes and a real Docker Engine accept, and the resulting container."""

import io
import json
import secrets
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Exit, Refused
from sparkwright.host.containers import container_options
from sparkwright.project import recipe
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from tests.project.docker_words import SPELLINGS, Spelling
from tests.project.recipes import load_text, render_script, resolve_variables

IMAGE = "sparkwright-words:1"
FLAGS = {
    "ports": "-p",
    "volumes": "-v",
    "env": "-e",
    "labels": "--label",
    "ulimits": "--ulimit",
    "shm_size": "--shm-size",
    **{name: option.flag for name, option in DOCKER_OPTIONS.items() if option.description},
}
TYPES = {name: str(field.type) for name, field in ContainerSpec.__dataclass_fields__.items()}
FIELDS = list(dict.fromkeys(spelling.field for spelling in SPELLINGS))
#: the first three lines of a recipe
HEAD = "image: a/b:v1\nmodel: {id: a/b, dir: ~/b, mount: /model}\ncontainer:\n"


def load_spelling(folder: Path, spelling: Spelling) -> recipe.Recipe:
    value: object = spelling.text
    if TYPES.get(spelling.field, "").startswith("tuple"):
        value = [spelling.text]
    elif TYPES.get(spelling.field, "").startswith("dict"):
        name, _, rest = spelling.text.partition("=")
        value = {name: rest}
    container = {"name": f"words-{secrets.token_hex(4)}", "gpus": "", "ports": [], "ipc": "", spelling.field: value}
    fields = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in container.items())
    return load_text(folder, HEAD.replace("a/b:v1", IMAGE) + fields)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: f"{spelling.field} {spelling.text}")
def test_recipe_accepts_or_refuses_spelling(spelling: Spelling, tmp_path: Path) -> None:
    if not spelling.message:
        load_spelling(tmp_path, spelling)
        return
    with pytest.raises(Refused) as excinfo:
        load_spelling(tmp_path, spelling)
    assert spelling.message in excinfo.value.message
    line = {"name": 4, "gpus": 5, "ports": 6, "ipc": 7}.get(spelling.field, 8)
    assert excinfo.value.where.endswith(f"recipes/one.yml:{line}")
    assert excinfo.value.exit is Exit.REFUSED


@pytest.fixture(scope="module")
def client(docker_client: Any) -> Iterator[Any]:
    """The Docker Engine, with an image of one file; what the tests make from it is removed afterwards."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    docker_client.api.import_image_from_data(archive.getvalue(), *IMAGE.split(":"))
    yield docker_client
    for row in docker_client.api.containers(all=True, filters={"ancestor": IMAGE}):
        docker_client.api.remove_container(row["Id"], v=True, force=True)
    docker_client.api.remove_image(IMAGE)
    for volume in docker_client.api.volumes(filters={"name": "words-test"})["Volumes"] or ():
        docker_client.api.remove_volume(volume["Name"])


def create_container(*command: str) -> tuple[bool, str]:
    """Run `docker create`: return True and the container's id, or False and the error."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode == 0, (result.stdout if result.returncode == 0 else result.stderr).strip()


@pytest.mark.docker
@pytest.mark.parametrize("field", FIELDS)
def test_docker_accepts_or_refuses_spellings_of_field(client: Any, field: str) -> None:
    actual, expected = {}, {}
    for spelling in SPELLINGS:
        if spelling.field != field or spelling.docker is None:
            continue
        flag = FLAGS.get(field, f"--{field}")
        expected[spelling.text] = spelling.docker
        actual[spelling.text], result = create_container("docker", "create", flag, spelling.text, IMAGE, "/x")
        if actual[spelling.text]:
            client.api.remove_container(result, v=True)
    assert actual == expected


@pytest.mark.docker
@pytest.mark.parametrize("field", FIELDS)
def test_script_and_deploy_create_the_same_container(client: Any, field: str, tmp_path: Path) -> None:
    """Both match the recipe: no later plan finds a difference."""
    image = client.api.inspect_image(IMAGE)
    for spelling in SPELLINGS:
        if spelling.field != field or spelling.message:
            continue
        variables = resolve_variables(load_spelling(tmp_path, spelling))
        spec = ContainerSpec.from_json(variables["container"])
        script = render_script(variables).replace("docker run -d", "docker create")
        is_created, container_id = create_container("sh", "-c", script)
        assert is_created, (spelling, container_id)
        inspected = [client.api.inspect_container(container_id)]
        client.api.remove_container(container_id, v=True)
        body = container_options.build_create_body(spec)
        container_id = client.api.create_container_from_config(body, spec.name)["Id"]
        inspected.append(client.api.inspect_container(container_id))
        client.api.remove_container(container_id, v=True)
        assert [container_options.differences(spec, item, image) for item in inspected] == [[], []], spelling


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('ports: ["8000:8000", "127.0.0.1:8000:8001"]', "publishes the host's port of '127.0.0.1:8000:8001' twice"),
        ("ports: [22:22]", "quote it"),
        ('volumes: ["/a:/c", "/b:/c/"]', "'/a:/c' is already mounted at /c"),
        ('volumes: ["/a:/model/"]', "the model's folder is already mounted at /model"),
    ],
)
def test_conflicting_values_are_refused(field: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as excinfo:
        load_text(tmp_path, f"{HEAD}  name: box\n  {field}\n")
    assert message in excinfo.value.message
    assert excinfo.value.where.endswith("recipes/one.yml:5")


def test_host_port_that_the_recipe_publishes_too_is_refused(tmp_path: Path) -> None:
    loaded_recipe = load_text(tmp_path, f"{HEAD}  name: box\n  ports: ['8000:8000', '9000:9000']\n")
    with pytest.raises(Refused, match="`serve_port: 9000` is also published by") as excinfo:
        resolve_variables(loaded_recipe, serve_port=9000, where="hosts/spark1.yml")
    assert excinfo.value.where == "hosts/spark1.yml"


@pytest.mark.parametrize(("key", "value"), [("dir", "models/b"), ("dir", "/a:b"), ("mount", "model"), ("mount", "/")])
def test_invalid_path_of_model_is_refused(key: str, value: str, tmp_path: Path) -> None:
    model = json.dumps({"id": "a/b", "dir": "~/b", "mount": "/b", key: value})
    with pytest.raises(Refused) as excinfo:
        load_text(tmp_path, f"image: a/b:v1\nmodel: {model}\ncontainer: {{name: box}}\n")
    assert f"`model.{key}`" in excinfo.value.message
    assert excinfo.value.where.endswith("recipes/one.yml:2")
