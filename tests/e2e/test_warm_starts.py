"""What an engine compiled is found again by its next start, and by nothing else; a start that it makes slow is a cold one."""

from pathlib import Path
from typing import Any

from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
FROM_CACHE = "from the cache, took"


def start_log(project: SandboxProject) -> str:
    """Return the server's log since its last start."""
    text = project.docker().api.logs("qwen35").decode()
    return str(text.rpartition("version 0.32.0")[2])


def list_caches(project: SandboxProject) -> list[dict[str, Any]]:
    result = project.run("caches.list", "--host", "sandbox", "--json")
    assert result.code == 0, result.err
    return list(result.events()[0]["caches"])


def cache_folder(project: SandboxProject) -> Path:
    return project.sandbox / "home/.local/share/sparkwright/compile-caches"


def test_the_next_start_is_a_warm_one_and_another_flag_gets_another_cache(project: SandboxProject) -> None:
    project.deployed()
    result = project.run("restart", "--host", "sandbox", "--json")
    assert result.proved, result.out[-2000:]
    assert FROM_CACHE in start_log(project)
    (first,) = list_caches(project)
    assert (first["kept"], first["model"][:8]) == ("in use by qwen35", "Qwen/Qwe")

    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    assert project.deploy().proved
    assert FROM_CACHE not in start_log(project)
    assert {row["kept"] for row in list_caches(project)} == {"in use by qwen35", "the state before it, for a rollback"}

    assert project.run("rollback", "--host", "sandbox", "--json").proved
    assert FROM_CACHE in start_log(project), "a rollback finds what the state before it had compiled"


def test_a_port_or_a_parser_is_no_reason_to_compile_anew(project: SandboxProject) -> None:
    project.deployed()
    project.edit(RECIPE, "tool-call-parser: qwen3_coder", "tool-call-parser: qwen3_xml")
    assert project.deploy().proved
    assert FROM_CACHE in start_log(project)


def test_a_stale_cache_is_moved_aside_and_the_history_says_so(project: SandboxProject) -> None:
    project.deployed()
    project.run("sandbox.fault", "stale-cache")
    result = project.run("restart", "--host", "sandbox", "--json")
    assert result.proved, result.out[-2000:]
    assert FROM_CACHE not in start_log(project)
    rows = project.run("history", "--host", "sandbox", "--json").events()
    assert [row["what"] for row in rows][:2] == ["verified", "cache moved aside"]
    assert "5.7 tok/s" in rows[1]["why"] and "/aside" in rows[1]["why"]
    assert project.containers() == ["qwen35 running"]
    looked = project.run("caches.prune", "--host", "sandbox", "--check", "--json")
    assert looked.code == 2 and looked.events()[0]["freed_bytes"] is None
    assert project.run("caches.prune", "--host", "sandbox", "--yes").code == 0
    assert [row["kept"] for row in list_caches(project)] == ["in use by qwen35"]


def test_a_slow_server_that_started_cold_is_not_started_again(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.run("sandbox.fault", "slow")
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    result = project.deploy()
    assert result.code == 1 and "misconfigured" in result.recap["msg"]
    assert result.task("Move the compile cache of a slow start aside")["status"] == "failed"
    assert not [event for event in result.events() if event.get("name") == "Start the server cold"]
    assert project.serving() == before


def test_what_a_start_that_failed_compiled_is_not_used(project: SandboxProject) -> None:
    project.deployed()
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    project.before("Compare the reference text", 'fail: {msg: "after it was measured"}')
    assert project.deploy().code == 1
    (unkept,) = [row for row in list_caches(project) if not row["kept"]]
    (project.root / "playbooks/parts/prove.yml").write_text(
        (Path(__file__).parents[2] / "playbooks/parts/prove.yml").read_text()
    )
    assert project.deploy().proved
    assert FROM_CACHE not in start_log(project)
    aside = next(row for row in list_caches(project) if row["name"] == f"{unkept['name']}/aside")
    assert aside["why_aside"] == "no server that started with it was verified"


def test_a_server_without_the_mount_runs_on_and_gets_it_with_its_next_change(project: SandboxProject) -> None:
    project.edit(RECIPE, "container:\n", "container:\n  compile_caches: false\n")
    project.deployed()
    assert not cache_folder(project).exists()
    project.edit(RECIPE, "  compile_caches: false\n", "")
    result = project.deploy()
    assert result.task("Write an equivalent docker run script")["status"] == "changed"
    assert result.recap["changed"] == 1, result.out
    assert not cache_folder(project).exists()
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    assert project.deploy().proved
    assert len(list_caches(project)) == 1

    project.edit(RECIPE, "container:\n", "container:\n  compile_caches: false\n")
    plan = project.run("plan", "--host", "sandbox")
    assert plan.code == 2 and "compile caches" in plan.out


def test_a_recipe_that_keeps_its_caches_itself_gets_no_folder(project: SandboxProject) -> None:
    project.edit(RECIPE, "container:\n", "container:\n  env: {VLLM_CACHE_ROOT: /srv/mine}\n")
    project.deployed()
    assert not cache_folder(project).exists()


def test_keep_starts_the_same_container_again_and_says_why_where_it_does_not(project: SandboxProject) -> None:
    project.deployed()
    before = project.docker().api.inspect_container("qwen35")["Id"]
    result = project.run("restart", "--host", "sandbox", "--keep", "--json")
    assert result.proved, result.out[-2000:]
    assert project.docker().api.inspect_container("qwen35")["Id"] == before
    assert result.task("Drop the model's page cache")["msg"].startswith("kept: ")
    assert FROM_CACHE in start_log(project)
    output = project.run("restart", "--host", "sandbox", "--keep")
    assert "  stages: " in output.out and "start " in output.out

    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    refused = project.run("restart", "--host", "sandbox", "--keep", "--json")
    assert refused.code == 5 and "it differs in --max-num-seqs" in refused.recap["msg"]
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 8")
    project.docker().api.stop("qwen35")
    refused = project.run("restart", "--host", "sandbox", "--keep", "--json")
    assert refused.code == 5 and "is not running" in refused.recap["msg"]
