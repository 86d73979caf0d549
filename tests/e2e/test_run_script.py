"""After each act the script on the host, the history and plan tell of the same server: the one that serves."""

from typing import Any

from sparkwright.host.records import history, verified_states
from sparkwright.host.state import StateFolder
from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
SCRIPT = "Write an equivalent docker run script"
OTHER = "vllm/vllm-openai:v0.32.0"


def max_num_seqs(words: list[str]) -> str:
    return words[words.index("--max-num-seqs") + 1]


def agreed_max_num_seqs(project: SandboxProject) -> str:
    """--max-num-seqs of the server that runs, once script, last verified state and newest act say the same of it."""
    runs: dict[str, Any] = project.docker().api.inspect_container("qwen35")
    script = (project.sandbox / "home/.local/share/sparkwright/run/qwen35.sh").read_text().replace("\\\n", " ").split()
    state = StateFolder.in_home(project.sandbox / "home")
    last_good, act = verified_states.load_last(state), history.read(state)[0]
    assert last_good["container_id"] == act["container_id"] == runs["Id"]
    assert last_good["spec"]["image"] == act["image"] == next(word for word in script if word.startswith("vllm/"))
    assert runs["Config"]["Image"].partition("@")[2] == act["image"].partition("@")[2]
    assert max_num_seqs(runs["Config"]["Cmd"]) == max_num_seqs(script) == max_num_seqs(last_good["spec"]["command"])
    return max_num_seqs(script)


def test_script_history_and_plan_tell_of_what_serves(project: SandboxProject) -> None:
    project.deployed()
    assert agreed_max_num_seqs(project) == "8"
    project.edit(RECIPE, "max-num-seqs: 8", "max-num-seqs: 4")
    project.edit(RECIPE, r"image: .*", f"image: {OTHER}")
    playbooks = {path: path.read_text() for path in (project.root / "playbooks").rglob("*.yml")}
    project.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    assert project.deploy().code == 1
    assert agreed_max_num_seqs(project) == "8", "the old server is put back"
    for path, text in playbooks.items():
        path.write_text(text)
    assert project.deploy("--tags", "script").code == 0
    assert agreed_max_num_seqs(project) == "8", "a script of what does not run is not left there"
    plan = project.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 2
    assert any("--max-num-seqs" in str(item["after"]) for item in plan.task(SCRIPT)["diff"]), "it shows the new script"
    assert agreed_max_num_seqs(project) == "8"

    assert project.deploy().proved
    assert agreed_max_num_seqs(project) == "4"
    rolled = project.run("rollback", "--host", "sandbox")
    assert rolled.code in (0, 4), rolled.out[-2000:]
    assert agreed_max_num_seqs(project) == "8"
    assert f"image    {OTHER}" not in rolled.out, "no panel of the recipe, which does not serve"
    assert project.run("plan", "--host", "sandbox").code == 2


def test_a_script_that_is_gone_comes_back(project: SandboxProject) -> None:
    project.deployed()
    (project.sandbox / "home/.local/share/sparkwright/run/qwen35.sh").unlink()
    result = project.deploy("--tags", "script")
    assert (result.code, result.recap["changed"]) == (0, 1)
    assert agreed_max_num_seqs(project) == "8"
