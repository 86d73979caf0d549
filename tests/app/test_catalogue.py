"""`recipe.list` and `recommend`: every figure has its source, and unsuitable recipes a reason."""

import json
import re
from typing import Any

import pytest

from sparkwright.app import catalogue as shown
from sparkwright.app.setup.proposal import HostMemory
from sparkwright.engines.budget import SYSTEM_ROW, StartFacts
from sparkwright.host.records.start_memory import StartMemory
from sparkwright.project import catalogue, recipe, shipped_files
from sparkwright.units import GIB
from tests.e2e.conftest import SandboxProject
from tests.e2e.conftest import project as desk  # noqa: F401 - a fixture

TOP = shipped_files.shipped_folder()


def catalogue_row(name: str, *proofs: shown.Proof) -> shown.CatalogueRow:
    return shown.CatalogueRow(recipe.load(TOP, name), catalogue.ENTRIES[name], {}, proofs)


def test_recipe_that_makers_serve_is_ranked_between_reports_and_ceilings() -> None:
    kind, rate, sentence = catalogue_row("gemma-4-26b").evidence
    assert (kind, rate) == ("served", 0.0) and "vllm-project/recipes #916" in sentence and "2026-09-02" in sentence
    reported, served, ceiling = map(shown.EVIDENCE_ORDER.index, ("reported", "served", "ceiling"))
    assert reported < served < ceiling


def test_recipe_older_than_six_months_is_marked_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "today", lambda: "2026-11-26")
    old, new, undated = catalogue_row("qwen3.5-35b"), catalogue_row("qwen3.6-35b"), catalogue_row("qwen3-coder-next")
    entry = "\n".join(shown._format_entry(old, hosts_answered=False))
    assert old.to_json()["old"] and "of 2026-03-05, older than six months" in entry
    assert not new.to_json()["old"] and new.to_json()["date"] == "2026-08-31"
    assert undated.to_json()["date"] is None and not undated.to_json()["old"]


def test_catalogue_has_every_shipped_recipe_and_a_source_for_every_figure() -> None:
    assert set(catalogue.ENTRIES) == set(recipe.names(TOP))
    for name, entry in catalogue.ENTRIES.items():
        assert entry.model == recipe.load(TOP, name).file.model.id
        assert entry.uses and set(entry.uses) <= set(catalogue.USES)
        assert entry.reported_rate is None or (entry.reported_rate.source and entry.reported_rate.tok_per_s > 0)
        assert entry.vendor_run is None or (entry.vendor_run.source and entry.vendor_run.date)


def test_evidence_is_measured_reported_a_ceiling_or_unknown() -> None:
    proofs = shown.Proof("spark1", "2026-11-01", 44.0), shown.Proof("spark1", "2026-11-02", None)
    measured = "44 tok/s measured on spark1, 2026-11-01, with this image, model and arguments"
    assert catalogue_row("qwen3.5-35b", *proofs).evidence == ("proved", 44.0, measured)
    kind, rate, sentence = catalogue_row("qwen3.5-35b").evidence
    assert (kind, rate) == ("reported", 47.0) and "ai-muninn.com" in sentence and "2026-03-05" in sentence
    kind, rate, sentence = catalogue_row("llama-3.1-8b").evidence
    assert kind == "ceiling" and round(rate) == 17 and sentence.startswith("no figure; at most 17")
    assert catalogue_row("glm-4.7-flash").evidence[:2] == ("unknown", 0.0)


@pytest.mark.parametrize(
    ("name", "memory_gib", "reserve_gib", "verdict", "reasons"),
    [
        ("qwen3-coder-next", 120, 4, "fits", ()),
        ("qwen3-coder-next", 64, 4, "too large", ("80 GB of weights alone, 4 GiB of 64.0 must stay free",)),
        ("qwen3-coder-next", 84, 4, "too large", ("74.5 GiB of files, but the engine may use only 71.4 of 84.0 GiB",)),
        ("qwen3-coder-next", 120, 24, "too large", ("7.0 on the host's side", "24.0 reserve")),
        pytest.param("qwen3-coder-next", 0, 4, "unknown", (), id="unknown memory"),
        pytest.param("glm-4.7-flash", 120, 4, "unknown", (), id="unknown size of the weights"),
        pytest.param("gpt-oss-120b-gguf", 120, 4, "unknown", (), id="unknown memory of the engine"),
        pytest.param("gpt-oss-120b-gguf", 60, 4, "too large", (), id="weights larger than the memory"),
    ],
)
def test_fit(name: str, memory_gib: float, reserve_gib: float, verdict: str, reasons: tuple[str, ...]) -> None:
    fit = shown._evaluate_fit(catalogue_row(name), HostMemory(int(memory_gib * GIB), reserve_gib), StartFacts())
    assert fit.verdict == verdict
    assert all(reason in fit.reason for reason in reasons)


def test_figures_of_the_sandbox_are_simulated_evidence() -> None:
    simulated = shown.Proof("sandbox", "2026-11-01", 47.0, simulated=True)
    assert catalogue_row("qwen3.5-35b", simulated).evidence[0] == "reported"
    row = catalogue_row("glm-4.7-flash", simulated)
    assert row.evidence[0] == "simulated" and row.evidence[2] == "no figure; the sandbox simulates 47 tok/s"
    assert row.to_json()["proved_on"] == [] and row.to_json()["simulated_on"] == ["sandbox"]


def test_system_memory_is_the_minimum_held_before_a_start() -> None:
    fields: dict[str, Any] = {**dict.fromkeys(("name", "image", "model", "arguments"), "x"), "cold": True}
    # another server ran before the second start
    starts = [
        StartMemory(**fields, at=0.0, before_bytes=before * GIB, lowest_bytes=1, after_bytes=1) for before in (110, 60)
    ]
    row = shown._system_memory_row(starts, 120 * GIB)
    assert (row.size_bytes, row.about) == (10 * GIB, "host") and row.source.startswith("in use before a verified start")
    assert shown._system_memory_row((), 120 * GIB) == SYSTEM_ROW


def test_server_verified_on_the_sandbox_is_listed_and_ranked_with_its_source(desk: SandboxProject) -> None:  # noqa: F811
    desk.deployed()
    result = desk.run("recipe.list", "--host", "sandbox", "--json")
    data = {recipe["recipe"]: recipe for recipe in json.loads(result.out)["recipes"]}
    assert data["qwen3.5-35b"]["evidence"] == "reported" and data["qwen3.5-35b"]["simulated_on"] == ["sandbox"]
    other = data["qwen3.5-35b-200k"]  # the same image and model, another context
    assert other["simulated_on"] and other["evidence"] == "reported" and other["proved_on"] == []
    assert data["gpt-oss-120b"]["simulated_on"] == [] and data["gpt-oss-120b"]["evidence"] == "reported"
    ranked = desk.run("recommend", "--host", "sandbox", "--for", "coding")
    assert ranked.code == 0, ranked.err
    assert re.search(r"1\. qwen3\.6-35b-nvfp4: .* reported by vllm-project/recipes #918", ranked.out), ranked.out
    assert re.search(r"2\. qwen3\.6-35b: .*\n  3\. gpt-oss-120b: .* reported by kubis.ai", ranked.out), ranked.out
    assert "llama-3.1-8b" not in ranked.out
    assert "The memory of qwen3.6-35b-nvfp4:" in ranked.out and "in use before a verified start" in ranked.out
    ranked = desk.run("recommend", "--host", "sandbox", "--for", "coding", "--json")
    budgets = {recipe["recipe"]: recipe["budget"] for recipe in json.loads(ranked.out)["recipes"]}
    rows = {row["name"]: row for row in budgets["qwen3.5-35b"]["rows"]}
    assert rows["host's side"]["source"].startswith("measured") and not rows["host's side"]["assumed"]
    refused = desk.run("recommend", "--host", "sandbox", "--for", "codin")
    assert refused.code == 5 and "Did you mean `coding`?" in refused.err


def test_recipes_for_one_host_are_ranked_for_a_member_of_a_cluster(desk: SandboxProject) -> None:  # noqa: F811
    assert desk.run("sandbox.pair").code == 0
    ranked = desk.run("recommend", "--host", "sandbox1", "--for", "coding")
    assert (ranked.code, ranked.err) == (0, "")
    assert "1. qwen3.6-35b-nvfp4: 97.7 tok/s reported" in ranked.out
    assert desk.run("recipe.list", "--host", "sandbox1").code == 0


def test_shipped_figures_are_not_used_for_another_model_under_the_same_name(desk: SandboxProject) -> None:  # noqa: F811
    desk.edit("recipes/qwen3.5-35b.yml", "id: Qwen/Qwen3.5-35B-A3B-FP8", "id: acme/Tiny-30B")
    rows = {recipe["recipe"]: recipe for recipe in json.loads(desk.run("recipe.list", "--json").out)["recipes"]}
    assert rows["qwen3.5-35b"]["evidence"] == "unknown" and rows["qwen3.5-35b"]["weights_gb"] is None
    assert rows["qwen3.5-35b-200k"]["evidence"] == "reported"


def test_invalid_recipes_are_reported_and_the_others_listed(desk: SandboxProject) -> None:  # noqa: F811
    shipped = len(recipe.names(TOP))
    (desk.root / "recipes/broken.yml").write_text("image: x\nmodel: : y\n")
    (desk.root / "recipes/wrong.yml").write_text("image: x\nmodle: y\n")
    result = desk.run("recipe.list")
    assert result.code == 5
    assert "recipes/broken.yml:2: not YAML" in result.err and "recipes/wrong.yml:2: unknown key `modle`" in result.err
    assert "qwen3.5-35b: Qwen/Qwen3.5-35B-A3B-FP8" in result.out and f"{shipped} recipes." in result.out
    lines = [json.loads(line) for line in desk.run("recipe.list", "--json").out.splitlines()]
    assert [line["exit"] for line in lines if "error" in line] == [5, 5]
    assert len(next(line["recipes"] for line in lines if "recipes" in line)) == shipped
