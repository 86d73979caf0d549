"""Docker's words on the real engine: each row of the table, with `docker create`, a recipe, and the resulting container."""

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
from sparkwright.project.inventory.host import Host
from sparkwright.protocol import expressions
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from tests.project import docker_option_words, docker_words
from tests.project.docker_words import Word

TOP = Path(__file__).parents[3]
IMAGE = "sparkwright-words:1"
WORDS = [*docker_words.WORDS, *docker_option_words.WORDS]
FLAGS = {
    "ports": "-p",
    "volumes": "-v",
    "env": "-e",
    "labels": "--label",
    "ulimits": "--ulimit",
    "shm_size": "--shm-size",
    **{name: option.flag for name, option in DOCKER_OPTIONS.items() if option.about},
}
KINDS = {name: field.type for name, field in ContainerSpec.__dataclass_fields__.items()}
FIELDS = list(dict.fromkeys(word.field for word in WORDS))


def load_recipe(folder: Path, word: Word) -> recipe.Recipe:
    value: object = word.text
    kind = str(KINDS.get(word.field))
    if kind.startswith("tuple"):
        value = [word.text]
    elif kind.startswith("dict"):
        name, _, rest = word.text.partition("=")
        value = {name: rest}
    container = {"name": f"words-{secrets.token_hex(4)}", "gpus": "", "ports": [], "ipc": ""} | {word.field: value}
    lines = [f"image: {IMAGE}", "model: {id: a/b, dir: ~/models/b, mount: /model}", "container:"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in container.items()]
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes/words.yml").write_text("\n".join(lines) + "\n")
    return recipe.load(folder, "words")


@pytest.mark.parametrize("word", WORDS, ids=lambda word: f"{word.field} {word.text}")
def test_a_recipe_takes_what_the_table_says_and_refuses_the_rest_with_its_line(word: Word, tmp_path: Path) -> None:
    if not word.message:
        load_recipe(tmp_path, word)
        return
    with pytest.raises(Refused) as error:
        load_recipe(tmp_path, word)
    assert word.message in error.value.message
    line = 4 if word.field == "name" else 8 if word.field not in ("gpus", "ports", "ipc") else None
    assert error.value.where.endswith(f"recipes/words.yml:{line or 5 + ('gpus', 'ports', 'ipc').index(word.field)}")
    assert error.value.exit is Exit.REFUSED


def test_what_docker_refuses_a_recipe_refuses() -> None:
    assert not [word for word in WORDS if word.docker is False and not word.message]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """The Docker Engine here, with an image of one file; what was made of it is removed."""
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine answers")
    value = docker.from_env()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    value.api.import_image_from_data(archive.getvalue(), *IMAGE.split(":"))
    yield value
    for row in value.api.containers(all=True, filters={"ancestor": IMAGE}):
        value.api.remove_container(row["Id"], v=True, force=True)
    value.api.remove_image(IMAGE)
    for volume in value.api.volumes(filters={"name": "words-test"})["Volumes"] or ():
        value.api.remove_volume(volume["Name"])
    value.close()


def create_container(*words: str) -> tuple[bool, str]:
    """Return True and the container's id if `docker create` takes the words; otherwise False and the error."""
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode == 0, (result.stdout if result.returncode == 0 else result.stderr).strip()


@pytest.mark.docker
@pytest.mark.parametrize("field", FIELDS)
def test_the_engine_says_what_the_table_says(client: Any, field: str) -> None:
    actual, expected = {}, {}
    for word in (word for word in WORDS if word.field == field and word.docker is not None):
        expected[word.text] = word.docker
        actual[word.text], result = create_container(
            "docker", "create", FLAGS.get(field, f"--{field}"), word.text, IMAGE, "/x"
        )
        if actual[word.text]:
            client.api.remove_container(result, v=True)
    assert actual == expected


@pytest.mark.docker
@pytest.mark.parametrize("field", FIELDS)
def test_what_a_recipe_takes_makes_the_same_container_by_hand_and_by_deploy(
    client: Any, field: str, tmp_path: Path
) -> None:
    """Both match the recipe: no later plan finds a difference."""
    image = client.api.inspect_image(IMAGE)
    script = (TOP / "templates/docker-run.sh.j2").read_text().replace("docker run -d", "docker create")
    for word in (word for word in WORDS if word.field == field and not word.message):
        names = recipe.scope(
            Host("spark1", "spark1"), "ops", load_recipe(tmp_path, word), {"image": None, "model": None}
        )
        spec = ContainerSpec.from_json(names["container"])
        took, by_hand = create_container("sh", "-c", str(expressions.render(script, names)))
        assert took, (word, by_hand)
        rows = [client.api.inspect_container(by_hand)]
        client.api.remove_container(by_hand, v=True)
        container_id = client.api.create_container_from_config(container_options.build_create_body(spec), spec.name)[
            "Id"
        ]
        rows.append(client.api.inspect_container(container_id))
        client.api.remove_container(container_id, v=True)
        assert [container_options.differences(spec, row, image) for row in rows] == [[], []], word


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        ('ports: ["8000:8000", "127.0.0.1:8000:8001"]', "publishes the host's port of '127.0.0.1:8000:8001' twice"),
        ("ports: [22:22]", "quote it"),
        ('volumes: ["/a:/c", "/b:/c/"]', "'/a:/c' is mounted at /c already"),
        ('volumes: ["/a:/model/"]', "the model's folder is mounted at /model already"),
    ],
)
def test_what_can_not_stand_together(lines: str, result: str, tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    head = "image: a/b:v1\nmodel: {id: a/b, dir: ~/b, mount: /model}\ncontainer:\n  name: box\n"
    (tmp_path / "recipes/words.yml").write_text(f"{head}  {lines}\n")
    with pytest.raises(Refused) as error:
        recipe.load(tmp_path, "words")
    assert result in error.value.message
    assert error.value.where.endswith("recipes/words.yml:5")


def test_a_host_that_publishes_the_server_where_the_recipe_has_another_port(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    head = "image: a/b:v1\nmodel: {id: a/b, dir: ~/b, mount: /model}\n"
    (tmp_path / "recipes/words.yml").write_text(f"{head}container: {{name: box, ports: ['8000:8000', '9000:9000']}}\n")
    host = Host("spark1", "spark1", serve_port=9000, where="hosts/spark1.yml")
    with pytest.raises(Refused, match="`serve_port: 9000` is also published by") as error:
        recipe.scope(host, "ops", recipe.load(tmp_path, "words"), {"image": None, "model": None})
    assert error.value.where == "hosts/spark1.yml"


@pytest.mark.parametrize(("key", "value"), [("dir", "models/b"), ("dir", "/a:b"), ("mount", "model"), ("mount", "/")])
def test_a_model_that_can_not_be_mounted(key: str, value: str, tmp_path: Path) -> None:
    model = {"id": "a/b", "dir": "~/b", "mount": "/b"} | {key: value}
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/words.yml").write_text(
        f"image: a/b:v1\nmodel: {json.dumps(model)}\ncontainer: {{name: box}}\n"
    )
    with pytest.raises(Refused) as error:
        recipe.load(tmp_path, "words")
    assert f"`model.{key}`" in error.value.message
    assert error.value.where.endswith("recipes/words.yml:2")
