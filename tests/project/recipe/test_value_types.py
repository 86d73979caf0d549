"""Values that Docker would refuse or misread are refused with their line and the correct spelling."""

from pathlib import Path

import pytest

from sparkwright.errors import Exit, Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.protocol import expressions

TOP = Path(__file__).parents[3]


def load_recipe(folder: Path, container: str = "", image: str = "a/b:v1") -> recipe.Recipe:
    lines = [f'image: "{image}"', "model: {id: a/b, dir: ~/models/b, mount: /b}", "container:", "  name: box"]
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes/b.yml").write_text("\n".join([*lines, *([f"  {container}"] if container else [])]) + "\n")
    return recipe.load(folder, "b")


@pytest.mark.parametrize(
    ("container", "result"),
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
def test_a_value_that_docker_would_not_understand(container: str, result: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as error:
        load_recipe(tmp_path, container)
    assert result in error.value.message
    assert error.value.where.endswith("recipes/b.yml:5")
    assert error.value.exit is Exit.REFUSED


@pytest.mark.parametrize(
    ("image", "result"),
    [
        ("vllm/vllm-openai:v1 --privileged", "has a tag that is not valid"),
        ("VLLM/openai/X:v1", "is not REPOSITORY:TAG"),
        ("a/../../b:v1", "is not REPOSITORY:TAG"),
        ("--rm", "is not REPOSITORY:TAG"),
        (f"a/b:v1@sha256:{'0' * 64}", "spark.lock pins its digest"),
        (f"{'a/' * 200}b:v1", "is too long"),
    ],
)
def test_an_image_that_is_none(image: str, result: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as error:
        load_recipe(tmp_path, image=image)
    assert result in error.value.message
    assert error.value.where.endswith("recipes/b.yml:1")


@pytest.mark.parametrize(
    "image",
    [
        "debian", "a/b", "nvcr.io/nvidia/vllm:26.10-py3", "[::1]:5000/a__b/c-d.e:x_Y.1", "localhost/a",
        "mirror.lan:5000/a:b",
    ],
)  # fmt: skip
def test_an_image_that_is_one(image: str, tmp_path: Path) -> None:
    assert load_recipe(tmp_path, image=image).image == image


@pytest.mark.parametrize(
    "container",
    ["shm_size: 1.5 GiB", 'gpus: ""', "gpus: device=0,GPU-1a", 'ports: ["[::1]:80:80/udp"]', "entrypoint: []", 'ipc: ""',
     "ulimits: {nofile: 1024:-1}", 'env: {EMPTY: "", ODD NAME: "a=b"}', "labels: {sparkwrightly: x}"],
)  # fmt: skip
def test_values_that_docker_understands(container: str, tmp_path: Path) -> None:
    names = recipe.scope(
        Host("spark1", "spark1"), "ops", load_recipe(tmp_path, container), {"image": None, "model": None}
    )
    assert "docker run" in str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), names))


def test_a_lock_that_names_what_is_no_image_is_refused_with_its_line(tmp_path: Path) -> None:
    from sparkwright.project import lockfile

    text = f"schema: 1\nimages:\n  a/../b:v1:\n    digest: sha256:{'0' * 64}\n"
    (tmp_path / "spark.lock").write_text(text)
    with pytest.raises(Refused, match="is not REPOSITORY:TAG") as error:
        lockfile.load(tmp_path)
    assert error.value.where.endswith("spark.lock:3")


@pytest.mark.parametrize(
    "answer",
    [{"digest": "../x"}, {"platforms": ["\x1b[2J"]}, {"created": "x" * 100}, {"manifests": [{"platform": "a"}]}, {}],
)
def test_a_hosts_answer_that_is_no_lock_entry_is_a_sentence(answer: dict[str, object]) -> None:
    from sparkwright.project.lockfile import Lock

    entry = {"digest": f"sha256:{'0' * 64}", **answer} if answer else {}
    with pytest.raises(Refused, match="a/b:v1"):
        Lock().with_image("a/b:v1", entry)


def load_with_flags(folder: Path, *lines: str) -> recipe.Recipe:
    load_recipe(folder)
    path = folder / "recipes/b.yml"
    path.write_text("\n".join([path.read_text().rstrip(), "vllm:", *(f"  {line}" for line in lines)]) + "\n")
    return recipe.load(folder, "b")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("gpu_memory_utilization", "gpu-memory-utilization"),
        ("device-memory-utilization", "gpu-memory-utilization"),
        ("gpu-memory-util", "gpu-memory-utilization"),
    ],
)
def test_what_is_planned_is_what_stands_there_however_a_flag_is_spelled(
    spelling: str, name: str, tmp_path: Path
) -> None:
    loaded_recipe = load_with_flags(tmp_path, f"{spelling}: 0.5", "served_model_name: me", "port: 9000")
    assert (loaded_recipe.memory_utilization, loaded_recipe.served_name, loaded_recipe.engine_port) == (0.5, "me", 9000)
    assert loaded_recipe.where(name).endswith("recipes/b.yml:6")
    spec = recipe.scope(Host("s", "s"), "ops", loaded_recipe, {})
    assert spec["memory_utilization"] == spec["serve"]["utilization"] == 0.5
    assert "--gpu-memory-utilization" in spec["container"]["command"]


@pytest.mark.parametrize(
    ("lines", "result", "line"),
    [
        (
            ("max-num-seqs: 8", "max_num_seqs: 9"),
            "`vllm.max-num-seqs` and `vllm.max_num_seqs` are the same flag, max-num-seqs.",
            7,
        ),
        (("enable-prefix-caching: true", "no-enable-prefix-caching: true"), "are the same flag, enable-prefix-caching.", 7),
        (("tp: 2", "seed: 1", "tensor-parallel-size: 2"), "are the same flag, tensor-parallel-size.", 8),
        (("--model: /b",), "`vllm.model` is set by `model.mount`.", 6),
        (("api_key: x",), "`vllm.api_key`: a key in the flags is not secret", 6),
    ],
)  # fmt: skip
def test_a_flag_given_twice_or_not_to_be_given_is_refused_with_its_line(
    lines: tuple[str, ...], result: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(Refused) as excinfo:
        load_with_flags(tmp_path, *lines)
    assert result in excinfo.value.message and str(excinfo.value.where).endswith(f"recipes/b.yml:{line}")
    assert excinfo.value.exit is Exit.REFUSED


def test_a_share_of_memory_that_is_none_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    loaded_recipe = load_with_flags(tmp_path, "gpu_memory_utilization: lots")
    with pytest.raises(Refused) as excinfo:
        recipe.scope(Host("s", "s"), "ops", loaded_recipe, {})
    assert excinfo.value.message == "`vllm.gpu-memory-utilization` must be a number, got 'lots'."
    assert str(excinfo.value.where).endswith("recipes/b.yml:6")


@pytest.mark.parametrize("name", ["../recipes/b", "/etc/b", "x/../b", ""])
def test_a_recipe_is_a_file_of_its_folder(name: str, tmp_path: Path) -> None:
    load_recipe(tmp_path)
    with pytest.raises(Refused, match="Name a file of recipes/") as error:
        recipe.load(tmp_path, name, named_at="hosts/spark1.yml:3")
    assert error.value.where == "hosts/spark1.yml:3"
