"""A server that a user started with `docker run` on a real Docker Engine is imported as a recipe and verified without a restart."""

import yaml

from tests.bed.conftest import BUSY_CODES, INSTANT_SANDBOX, BedProject

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"


def server_state(lab: BedProject) -> str:
    return lab.on("spark1", "docker inspect -f '{{.Id}} {{.State.StartedAt}} {{.State.Running}}' mine")


def test_running_server_is_adopted_without_a_restart(bare: BedProject) -> None:
    assert bare.run("deploy", "--host", "spark1", "--tags", "image,model").code == 0
    image = yaml.safe_load((bare.root / "recipes/bed.yml").read_text())["image"]
    command = (
        "docker run -d --name mine --restart always --gpus all --ipc=host --shm-size 1g -p 8000:8000 "
        f"-e {INSTANT_SANDBOX.replace(': ', '=')} -v ~/models/qwen35-35b-hf:/models/it {image} "
        "--model /models/it --served-model-name mine --max-model-len 32768 --gpu-memory-utilization 0.3"
    )
    assert bare.on("spark1", command)
    try:
        before = server_state(bare)
        answers = ("--answer", f"model={MODEL}", "--name", "adopted")
        imported = bare.run("recipe.import", "--from-host", "spark1", "--container", "mine", *answers)
        assert imported.code == 0 and "changed nothing on spark1" in imported.out, imported.out + imported.err
        recipe = yaml.safe_load((bare.root / "recipes/adopted.yml").read_text())
        assert recipe["model"]["dir"] == "~/models/qwen35-35b-hf" and recipe["container"]["restart"] == "always"
        (bare.root / "hosts/spark1.yml").write_text("address: spark1\nrecipe: adopted\n")
        deployed = bare.deployed(codes=BUSY_CODES)
        compared = deployed.task("Compare running container with recipe")
        assert compared["status"] == "ok" and not compared["diff"], compared
        assert deployed.task("Check that it generates")["status"] == "ok"
        assert server_state(bare) == before and before.endswith("true")
    finally:
        bare.on("spark1", "docker rm -f mine")
