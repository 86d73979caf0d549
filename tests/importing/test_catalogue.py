"""`recipe.list` and `recommend`: no figure without its source, yours before others', and what does not fit comes last and says why."""

from __future__ import annotations

import json
import re

from sparkwright.app import catalogue as shown
from sparkwright.project import catalogue, recipe, starter
from tests.e2e.conftest import Desk, desk  # noqa: F401 - a fixture

TOP = starter.source()


def row(name: str, *proofs: shown.Proof) -> shown.Row:
    return shown.Row(recipe.load(TOP, name), catalogue.of(name), {}, proofs)


def test_every_shipped_recipe_is_known_and_every_report_has_a_source() -> None:
    assert set(catalogue.KNOWN) == set(recipe.names(TOP))
    for known in catalogue.KNOWN.values():
        assert known.uses and set(known.uses) <= set(catalogue.USES)
        assert known.reported is None or (known.reported.source and known.reported.tok_per_s > 0)


def test_a_measurement_of_yours_comes_before_a_report_and_a_ceiling_is_called_one() -> None:
    measured = row("qwen3.5-35b", shown.Proof("spark1", "2026-11-01", 44.0), shown.Proof("spark1", "2026-11-02", None))
    assert measured.evidence == (
        "proved",
        44.0,
        "44 tok/s measured on spark1, 2026-11-01, with this image, model and arguments",
    )
    kind, rate, sentence = row("qwen3.5-35b").evidence
    assert (kind, rate) == ("reported", 47.0) and "ai-muninn.com" in sentence and "2026-03-05" in sentence
    kind, rate, sentence = row("llama-3.1-8b").evidence
    assert kind == "ceiling" and round(rate) == 17 and sentence.startswith("no figure; at most 17")
    assert row("glm-4.7-flash").evidence[:2] == ("unknown", 0.0)


def test_what_does_not_fit_says_so() -> None:
    assert shown._fit(row("qwen3-coder-next"), 120 * 2**30)[0]
    fits, why = shown._fit(row("qwen3-coder-next"), 64 * 2**30)
    assert not fits and "54 GiB, of which 80 GB are weights" in why


def test_a_server_that_was_verified_on_the_host_counts_as_proved(desk: Desk) -> None:  # noqa: F811
    desk.deployed()
    listed = desk.run("recipe.list", "--host", "sandbox", "--json")
    found = {one["recipe"]: one for one in json.loads(listed.out)["recipes"]}
    assert found["qwen3.5-35b"]["evidence"] == "proved" and found["qwen3.5-35b"]["proved_on"]
    other = found["qwen3.5-35b-200k"]  # the same image and model, another context
    assert other["proved_on"] and other["evidence"] == "reported"
    assert found["gpt-oss-120b"]["proved_on"] == [] and found["gpt-oss-120b"]["evidence"] == "reported"
    ranked = desk.run("recommend", "--host", "sandbox", "--for", "coding")
    assert ranked.code == 0, ranked.err
    assert re.search(r"1\. qwen3\.5-35b[^:]*: .* measured on sandbox", ranked.out), ranked.out
    assert "llama-3.1-8b" not in ranked.out
    refused = desk.run("recommend", "--host", "sandbox", "--for", "codin")
    assert refused.code == 5 and "Did you mean `coding`?" in refused.err
