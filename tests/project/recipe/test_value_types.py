"""Values that Docker would refuse or misread are refused with their line and the correct spelling."""

from pathlib import Path

import pytest

from sparkwright.errors import Exit, Refused
from sparkwright.project import recipe
from tests.project.recipes import load_text, render_script, resolve_variables


def load_recipe(folder: Path, field: str = "", image: str = "a/b:v1", flags: str = "") -> recipe.Recipe:
    """Load a recipe whose line 5 is a field of the container. flags: of vLLM, from line 6 without such a field."""
    model = "model: {id: a/b, dir: ~/models/b, mount: /b}"
    text = f'image: "{image}"\n{model}\ncontainer:\n  name: box\n'
    return load_text(folder, text + (f"  {field}\n" if field else "") + flags)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("labels: {a: b, sparkwright.run: x}", "labels that start with `sparkwright.` are reserved"),
        ('labels: {"": x}', "a label needs a name"),
        ("shm_size: 64gbx", "is not a size: write 64gb"),
        ("shm_size: -1g", "is not a size"),
        ("gpus: none", "is not a choice of GPUs"),
        ('ports: ["8000"]', "write HOST:CONTAINER"),
        ('ports: ["8000:8000", "lan:8000:8000"]', "write HOST:CONTAINER"),
        ('ports: ["99999:8000"]', "is not a published port"),
        ("gpus: 2", "`container.gpus` must be a string, got 2; quote it."),
        ("restart: no", "got False; quote it."),
        ("env: {A: 1}", "`container.env.A` must be a string, got a number; quote it."),
        ("ulimits: {memlock: unlimited}", "-1 is unlimited"),
        ('env: {"A=B": x}', "can't be an environment variable"),
        ('env: {A: "x\\0y"}', "can't be an environment variable"),
    ],
)
def test_invalid_field_is_refused_with_its_line(field: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, field)
    assert message in excinfo.value.message
    assert excinfo.value.where.endswith("recipes/one.yml:5")
    assert excinfo.value.exit is Exit.REFUSED


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/", "is more than a model's folder"),
        ("//", "is more than a model's folder"),
        ("~/", "is more than a model's folder"),
        ("~/models/..", "is more than a model's folder"),
        ("~/../other", "is more than a model's folder"),
        ("models", "must begin with / or ~/"),
        ("models/b", "must begin with / or ~/"),
        ("~", "must begin with / or ~/"),
    ],
)
def test_root_home_and_relative_folders_are_refused_for_a_model(folder: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as excinfo:
        load_text(
            tmp_path, f"image: a/b:v1\nmodel:\n  id: a/b\n  dir: '{folder}'\n  mount: /b\ncontainer: {{name: box}}\n"
        )
    assert message in excinfo.value.message
    assert excinfo.value.where.endswith("recipes/one.yml:4")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("vllm/vllm-openai:v1 --privileged", "has an invalid tag"),
        ("VLLM/openai/X:v1", "is not REPOSITORY:TAG"),
        ("a/../../b:v1", "is not REPOSITORY:TAG"),
        ("--rm", "is not REPOSITORY:TAG"),
        (f"a/b:v1@sha256:{'0' * 64}", "spark.lock pins its digest"),
        (f"{'a/' * 200}b:v1", "is too long"),
    ],
)
def test_invalid_image_is_refused_with_its_line(image: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, image=image)
    assert message in excinfo.value.message
    assert excinfo.value.where.endswith("recipes/one.yml:1")


@pytest.mark.parametrize(
    "image",
    [
        "debian", "a/b", "nvcr.io/nvidia/vllm:26.10-py3", "[::1]:5000/a__b/c-d.e:x_Y.1", "localhost/a",
        "mirror.lan:5000/a:b",
    ],
)  # fmt: skip
def test_valid_image_is_accepted(image: str, tmp_path: Path) -> None:
    assert load_recipe(tmp_path, image=image).image == image


@pytest.mark.parametrize(
    "field",
    ["shm_size: 1.5 GiB", 'gpus: ""', "gpus: device=0,GPU-1a", 'ports: ["[::1]:80:80/udp"]', "entrypoint: []", 'ipc: ""',
     "ulimits: {nofile: 1024:-1}", 'env: {EMPTY: "", ODD NAME: "a=b"}', "labels: {sparkwrightly: x}"],
)  # fmt: skip
def test_valid_field_is_accepted(field: str, tmp_path: Path) -> None:
    assert "docker run" in render_script(resolve_variables(load_recipe(tmp_path, field)))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("gpu_memory_utilization", "gpu-memory-utilization"),
        ("device-memory-utilization", "gpu-memory-utilization"),
        ("gpu-memory-util", "gpu-memory-utilization"),
    ],
)
def test_flag_counts_in_any_spelling(spelling: str, name: str, tmp_path: Path) -> None:
    flags = f"vllm:\n  {spelling}: 0.5\n  served_model_name: me\n  port: 9000\n"
    loaded_recipe = load_recipe(tmp_path, flags=flags)
    assert (loaded_recipe.memory_utilization, loaded_recipe.served_name, loaded_recipe.engine_port) == (0.5, "me", 9000)
    assert loaded_recipe.where(name).endswith("recipes/one.yml:6")
    variables = resolve_variables(loaded_recipe)
    assert variables["memory_utilization"] == variables["serve"]["utilization"] == 0.5
    assert "--gpu-memory-utilization" in variables["container"]["command"]


@pytest.mark.parametrize(
    ("flags", "message", "line"),
    [
        ("  enable-prefix-caching: true\n  no-enable-prefix-caching: true\n", "are the same flag, enable-prefix-caching.", 7),
        ("  tp: 2\n  seed: 1\n  tensor-parallel-size: 2\n", "are the same flag, tensor-parallel-size.", 8),
        ("  --model: /b\n", "`vllm.model` is set by `model.mount`.", 6),
    ],
)  # fmt: skip
def test_invalid_flag_is_refused_with_its_line(flags: str, message: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(Refused) as excinfo:
        load_recipe(tmp_path, flags=f"vllm:\n{flags}")
    assert message in excinfo.value.message and str(excinfo.value.where).endswith(f"recipes/one.yml:{line}")
    assert excinfo.value.exit is Exit.REFUSED


def test_invalid_share_of_memory_is_refused_when_resolved(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, flags="vllm:\n  gpu_memory_utilization: lots\n")
    with pytest.raises(Refused) as excinfo:
        resolve_variables(loaded_recipe)
    assert excinfo.value.message == "`vllm.gpu-memory-utilization` must be a number, got 'lots'."
    assert str(excinfo.value.where).endswith("recipes/one.yml:6")


@pytest.mark.parametrize("name", ["../recipes/one", "/etc/one", "x/../one", ""])
def test_recipe_name_must_be_a_file_of_its_folder(name: str, tmp_path: Path) -> None:
    load_recipe(tmp_path)
    with pytest.raises(Refused, match="Name a file in recipes/") as excinfo:
        recipe.load(tmp_path, name, named_at="hosts/spark1.yml:3")
    assert excinfo.value.where == "hosts/spark1.yml:3"
