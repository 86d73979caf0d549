"""After each act the script on the host, the history and plan tell of the same server: the one that serves."""

from typing import Any

from sparkwright.host.records import good_states, history
from sparkwright.host.state import StateFolder
from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
SCRIPT = "Write an equivalent docker run script"
OTHER = "vllm/vllm-openai:v0.32.0"


def max_num_seqs(words: list[str]) -> str:
    return words[words.index("--max-num-seqs") + 1]


def agreed_max_num_seqs(desk: SandboxProject) -> str:
    """--max-num-seqs of the server that runs, once script, last verified state and newest act say the same of it."""
    runs: dict[str, Any] = desk.docker().api.inspect_container("qwen35")
    script = (desk.sandbox / "home/.local/share/sparkwright/run/qwen35.sh").read_text().replace("\\\n", " ").split()
    state = StateFolder.of(desk.sandbox / "home")
    last_good, act = good_states.load_last(state), history.read(state)[0]
    assert last_good["container_id"] == act["container_id"] == runs["Id"]
    assert last_good["spec"]["image"] == act["image"] == next(word for word in script if word.startswith("vllm/"))
    assert runs["Config"]["Image"].partition("@")[2] == act["image"].partition("@")[2]
    assert max_num_seqs(runs["Config"]["Cmd"]) == max_num_seqs(script) == max_num_seqs(last_good["spec"]["command"])
    return max_num_seqs(script)


def test_script_history_and_plan_tell_of_what_serves(desk: SandboxProject) -> None:
    desk.deployed()
    assert agreed_max_num_seqs(desk) == "8"
    desk.edit(RECIPE, "max-num-seqs: 8", "max-num-seqs: 4")
    desk.edit(RECIPE, r"image: .*", f"image: {OTHER}")
    playbooks = {path: path.read_text() for path in (desk.root / "playbooks").rglob("*.yml")}
    desk.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    assert desk.deploy().code == 1
    assert agreed_max_num_seqs(desk) == "8", "the old server is put back"
    for path, text in playbooks.items():
        path.write_text(text)
    assert desk.deploy("--tags", "script").code == 0
    assert agreed_max_num_seqs(desk) == "8", "a script of what does not run is not left there"
    plan = desk.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 2
    assert any("--max-num-seqs" in str(item["after"]) for item in plan.task(SCRIPT)["diff"]), "it shows the new script"
    assert agreed_max_num_seqs(desk) == "8"

    assert desk.deploy().proved
    assert agreed_max_num_seqs(desk) == "4"
    rolled = desk.run("rollback", "--host", "sandbox")
    assert rolled.code in (0, 4), rolled.out[-2000:]
    assert agreed_max_num_seqs(desk) == "8"
    assert f"image    {OTHER}" not in rolled.out, "no panel of the recipe, which does not serve"
    assert desk.run("plan", "--host", "sandbox").code == 2


def test_a_script_that_is_gone_comes_back(desk: SandboxProject) -> None:
    desk.deployed()
    (desk.sandbox / "home/.local/share/sparkwright/run/qwen35.sh").unlink()
    result = desk.deploy("--tags", "script")
    assert (result.code, result.recap["changed"]) == (0, 1)
    assert agreed_max_num_seqs(desk) == "8"
