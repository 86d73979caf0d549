"""A deploy checks its recipe before it changes the host, and again with the version and options that the image reports."""

import json

import yaml

from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"


def find_line(project: SandboxProject, text: str) -> int:
    return (project.root / RECIPE).read_text().splitlines().index(text) + 1


def test_a_lint_error_stops_a_deploy_before_the_image_is_pulled(project: SandboxProject) -> None:
    project.edit(RECIPE, "when_impossible: report", "when_impossible: refuse")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 5
    assert f"{RECIPE}:" in result.out and "prefix caching on a recurrent model needs it" in result.out
    assert "Gather facts" not in result.out
    assert project.containers() == []
    planned = project.run("plan", "--host", "sandbox")
    assert planned.code == 5 and "Turn prefix caching off" in planned.out


def test_an_option_the_image_does_not_list_is_refused_while_the_old_server_serves(project: SandboxProject) -> None:
    project.edit(
        RECIPE, "image: .*", "image: vllm/vllm-openai:cu130-nightly"
    )  # not a release: only the image lists options
    project.deployed()
    before = project.serving()
    project.edit(RECIPE, "  max-num-seqs: 8", "  max-num-sequences: 8")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 5, result.out
    assert "max-num-sequences: the engine does not list it" in result.out
    assert project.serving() == before


def test_the_lock_records_the_engines_version_for_the_next_deploy(project: SandboxProject) -> None:
    project.deployed()
    lock = yaml.safe_load((project.root / ".sandbox/spark.lock").read_text())
    (image,) = lock["images"].values()
    assert image["engine_version"].startswith("0.32.0")
    (model,) = lock["models"].values()
    assert model["config"]["architectures"] == ["Qwen3_5MoeForConditionalGeneration"]
    second_run = project.run("deploy", "--host", "sandbox")
    assert "changed=0" in second_run.out and "reading the image" not in second_run.out


def test_lint_reports_findings_with_lines_and_explain_describes_the_rule(project: SandboxProject) -> None:
    project.edit(RECIPE, "  max-num-seqs: 8", "  max-num-seqs: 8\n  swap-space: 4")
    result = project.run("lint", "--recipe", "qwen3.5-35b", "--engine-version", "0.32.0", "--json")
    assert result.code == 1
    findings = {finding["rule"]: finding for finding in json.loads(result.out)["recipes"][0]["findings"]}
    assert findings["unknown-flag"]["where"] == f"{RECIPE}:{find_line(project, '  swap-space: 4')}"
    explained = project.run("explain", "unknown-flag")
    assert explained.code == 0 and "swap-space: 4" in explained.out
    assert "Did you mean `unknown-flag`?" in project.run("explain", "unknown-flags").err


def test_an_invalid_value_stops_plan_and_deploy(project: SandboxProject) -> None:
    project.edit(RECIPE, "  max-num-seqs: 8", "  max_num_seqs: -3")
    line = find_line(project, "  max_num_seqs: -3")
    for verb in ("plan", "deploy"):
        result = project.run(verb, "--host", "sandbox")
        assert result.code == 5 and f"{RECIPE}:{line}: max-num-seqs must be at least 1, got -3" in result.out
    assert project.containers() == []


def test_the_lock_records_the_images_options_to_check_values(project: SandboxProject) -> None:
    project.edit(RECIPE, "vllm-openai:v0.32.0", "vllm-openai:cu130-nightly")
    project.edit(RECIPE, "  max-num-seqs: 8", "  max-num-seqs: 8\n  dtype: bfloat17")
    doubted = project.run("plan", "--host", "sandbox")
    assert doubted.code == 2 and "dtype must be one of auto," in doubted.out and "may refuse to start" in doubted.out
    refused = project.run("deploy", "--host", "sandbox")
    assert refused.code == 1 and "refuses to start" in refused.out, "the image refuses it before the swap"
    assert project.containers() == []
    (image,) = yaml.safe_load((project.root / ".sandbox/spark.lock").read_text())["images"].values()
    assert image["options"]["differ"]["prefix-match-unit"] is None
    planned = project.run("plan", "--host", "sandbox")
    assert planned.code == 5 and "Write dtype: bfloat16." in planned.out


def test_a_plan_warns_once_of_an_engine_newer_than_the_tables(project: SandboxProject) -> None:
    project.deployed()
    lock = project.root / ".sandbox/spark.lock"
    lock.write_text(lock.read_text().replace("engine_version: 0.32.0", "engine_version: 0.99.0"))
    planned = project.run("plan", "--host", "sandbox")
    assert planned.out.count("vLLM 0.99.0 is newer than 0.33.0") == 1, planned.out


def test_an_unreachable_container_port_stops_a_deploy(project: SandboxProject) -> None:
    project.edit(RECIPE, "ports: .*", 'ports: ["8000:9000"]')
    result = project.run("deploy", "--host", "sandbox")
    line = find_line(project, '  ports: ["8000:9000"]')
    message = "the server listens on port 8000 in its container, but the first published port maps to 9000."
    assert result.code == 5 and f"{RECIPE}:{line}: {message}" in result.out
    assert project.containers() == []


def test_lint_uses_and_mentions_the_sandboxs_lock(project: SandboxProject) -> None:
    before = project.run("lint", "--recipe", "qwen3.5-35b")
    assert "engine version unknown (not pinned yet)" in before.out and "sandbox" not in before.out
    deployed = project.run("deploy", "--host", "sandbox")
    assert "the sandbox's own lock: vllm/vllm-openai:v0.32.0 pinned to sha256:" in deployed.out
    assert "commit it" not in deployed.out and not (project.root / "spark.lock").exists()
    after = project.run("lint", "--recipe", "qwen3.5-35b")
    assert "30 of 40 layers recurrent" in after.out and "vLLM 0.32.0; pinned by the sandbox" in after.out
    assert json.loads(project.run("lint", "--recipe", "qwen3.5-35b", "--json").out)["recipes"][0]["simulated"] is True
    exported = project.run("recipe.export", "qwen3.5-35b")
    assert exported.code == 5 and "The sandbox's pins do not come from a real registry." in exported.err


def test_an_unreadable_recipe_is_named_and_the_others_are_linted(project: SandboxProject) -> None:
    (project.root / "recipes/broken.yml").write_text("image: x\nmodel: : y\n")
    result = project.run("lint")
    assert result.code == 5
    assert "recipes/broken.yml:2: not YAML" in result.err
    recipes = len(list((project.root / "recipes").glob("*.yml")))
    assert "qwen3.5-35b: architecture unknown" in result.out and f"\n{recipes} recipes: 0 errors" in result.out
    assert "1 not readable" in result.out.splitlines()[-1], result.err
    project.edit(RECIPE, "  max-num-seqs: 8", "  max-num-seqs: none")
    assert project.run("lint").code == 1  # a failed check counts for more than what could not be checked
