"""Compile caches: reused by the next start of the same configuration only, and moved aside when they make it slow."""

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


def test_a_restart_and_a_rollback_are_warm_and_another_flag_uses_another_cache(project: SandboxProject) -> None:
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
    assert FROM_CACHE in start_log(project), "a rollback uses the cache of its configuration"


def test_another_parser_uses_the_same_cache(project: SandboxProject) -> None:
    project.deployed()
    project.edit(RECIPE, "tool-call-parser: qwen3_coder", "tool-call-parser: qwen3_xml")
    assert project.deploy().proved
    assert FROM_CACHE in start_log(project)


def test_a_stale_cache_is_moved_aside_and_recorded_in_the_history(project: SandboxProject) -> None:
    project.deployed()
    project.run("sandbox.fault", "stale-cache")
    result = project.run("restart", "--host", "sandbox", "--json")
    assert result.proved, result.out[-2000:]
    assert FROM_CACHE not in start_log(project)
    rows = project.history()
    assert [row["what"] for row in rows][:2] == ["verified", "cache moved aside"]
    assert "5.7 tok/s" in rows[1]["why"] and "/aside" in rows[1]["why"]
    assert project.containers() == ["qwen35 running"]
    listed = project.run("caches.prune", "--host", "sandbox", "--check", "--json")
    assert listed.code == 2 and listed.events()[0]["freed_bytes"] is None
    assert project.run("caches.prune", "--host", "sandbox", "--yes").code == 0
    assert [row["kept"] for row in list_caches(project)] == ["in use by qwen35"]


def test_a_slow_cold_start_is_not_repeated(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.run("sandbox.fault", "slow")
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    result = project.deploy()
    assert result.code == 1 and "misconfigured" in result.recap["msg"]
    assert result.task("Move the compile cache of a slow start aside")["status"] == "failed"
    assert not result.task_by_host("Start the server cold")
    assert project.serving() == before


def test_the_cache_of_a_failed_start_is_not_used(project: SandboxProject) -> None:
    project.deployed()
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    with project.restored_files():
        project.before("Compare the reference text", 'fail: {msg: "after it was measured"}')
        assert project.deploy().code == 1
    (unkept,) = [row for row in list_caches(project) if not row["kept"]]
    assert project.deploy().proved
    assert FROM_CACHE not in start_log(project)
    aside = next(row for row in list_caches(project) if row["name"] == f"{unkept['name']}/aside")
    assert aside["why_aside"] == "no server that started with it has been verified"


def test_a_server_without_the_cache_mount_gets_it_with_its_next_replacement(project: SandboxProject) -> None:
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


def test_a_recipe_with_its_own_cache_folder_gets_no_other(project: SandboxProject) -> None:
    project.edit(RECIPE, "container:\n", "container:\n  env: {VLLM_CACHE_ROOT: /srv/mine}\n")
    project.deployed()
    assert not cache_folder(project).exists()


def test_keep_restarts_the_same_container_or_tells_why_not(project: SandboxProject) -> None:
    project.deployed()
    before = project.container()["Id"]
    result = project.run("restart", "--host", "sandbox", "--keep", "--json")
    assert result.proved, result.out[-2000:]
    assert project.container()["Id"] == before
    assert result.task("Drop the model's page cache")["msg"].startswith("page cache kept: ")
    assert FROM_CACHE in start_log(project)
    output = project.run("restart", "--host", "sandbox", "--keep").out
    assert "  stages: " in output and "start " in output

    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 4")
    refused = project.run("restart", "--host", "sandbox", "--keep", "--json")
    assert refused.code == 5 and "it differs in --max-num-seqs" in refused.recap["msg"]
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 8")
    project.docker().api.stop("qwen35")
    refused = project.run("restart", "--host", "sandbox", "--keep", "--json")
    assert refused.code == 5 and "is not running" in refused.recap["msg"]
