"""After each run, the docker run script, the history and `plan` describe the server that serves."""

from collections.abc import Sequence

from sparkwright.host.records import history, verified_states
from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
SCRIPT = "Write an equivalent docker run script"
OTHER = "vllm/vllm-openai:v0.32.0"


def find_max_num_seqs(words: Sequence[str]) -> str:
    return words[words.index("--max-num-seqs") + 1]


def max_num_seqs(project: SandboxProject) -> str:
    """Return --max-num-seqs of the running server, and check that script, verified state and history agree with it."""
    container = project.container()
    script = (project.sandbox / "home/.local/share/sparkwright/run/qwen35.sh").read_text().replace("\\\n", " ").split()
    verified, act = verified_states.load_last(project.state), history.read(project.state)[0]
    assert verified.container_id == act["container_id"] == container["Id"]
    assert verified.spec["image"] == act["image"] == next(word for word in script if word.startswith("vllm/"))
    assert container["Config"]["Image"].partition("@")[2] == act["image"].partition("@")[2]
    commands = (container["Config"]["Cmd"], script, verified.spec["command"])
    (value,) = {find_max_num_seqs(command) for command in commands}
    return value


def test_script_history_and_plan_describe_the_serving_server(project: SandboxProject) -> None:
    project.deployed()
    assert max_num_seqs(project) == "8"
    project.edit(RECIPE, "max-num-seqs: 8", "max-num-seqs: 4")
    project.edit(RECIPE, r"image: .*", f"image: {OTHER}")
    with project.restored_files():
        project.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
        assert project.deploy().code == 1
    assert max_num_seqs(project) == "8", "the old server is restored"
    assert project.deploy("--tags", "script").code == 0
    assert max_num_seqs(project) == "8", "no script of a server that does not run"
    plan = project.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 2
    assert any("--max-num-seqs" in str(item["after"]) for item in plan.task(SCRIPT)["diff"]), "it shows the new script"
    assert max_num_seqs(project) == "8"

    assert project.deploy().proved
    assert max_num_seqs(project) == "4"
    rolled = project.run("rollback", "--host", "sandbox")
    assert rolled.code in (0, 4), rolled.out[-2000:]
    assert max_num_seqs(project) == "8"
    assert f"image    {OTHER}" not in rolled.out, "no panel of the recipe, which is not running"
    assert project.run("plan", "--host", "sandbox").code == 2


def test_a_deleted_script_is_written_again(project: SandboxProject) -> None:
    project.deployed()
    (project.sandbox / "home/.local/share/sparkwright/run/qwen35.sh").unlink()
    result = project.deploy("--tags", "script")
    assert (result.code, result.recap["changed"]) == (0, 1)
    assert max_num_seqs(project) == "8"
