"""The arms of an experiment: one setting changes at a time, and refusals of the engine are predicted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app import experiments
from sparkwright.bench import axis, experiment
from sparkwright.bench.axis import UNSET, Axis
from sparkwright.bench.bench_options import BenchOptions
from sparkwright.bench.experiment import Arm
from sparkwright.engines.vllm.advice import MAX_UNCHUNKED_TOKENS
from sparkwright.errors import Refused
from sparkwright.host.records.incidents import redact_inspect
from sparkwright.measure import http_probe
from sparkwright.project import recipe
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.container import LAB_LABEL
from tests.bench.conftest import DENSE_LOCK, LOCK, TOP, make_lock_entries
from tests.measure.json_server import json_server


def test_chunked_prefill_off_disables_prefix_caching_in_both_arms(base: Recipe) -> None:
    on, off = experiment.flag_arms(base, "chunked-prefill", LOCK)
    for arm in (on, off):
        assert arm.recipe.file.vllm["enable-prefix-caching"] is False
        assert arm.recipe.file.vllm["max-model-len"] == MAX_UNCHUNKED_TOKENS
        assert experiment.find_refusal(arm, LOCK) is None
    assert experiment.changed_flags(on, off) == ["enable-chunked-prefill", "max-num-batched-tokens"]
    effective = [arm.effective_settings(LOCK) for arm in (on, off)]
    settings = [(item.chunked_prefill, item.budget) for item in effective]
    assert settings == [(True, 4096), (False, MAX_UNCHUNKED_TOKENS)]


def test_dense_model_keeps_prefix_caching(base: Recipe) -> None:
    _, off = experiment.flag_arms(base, "chunked-prefill", DENSE_LOCK)
    assert off.recipe.file.vllm["enable-prefix-caching"] is True


def test_other_flags_are_compared_with_and_without(base: Recipe) -> None:
    plain, with_it = experiment.flag_arms(base, "enable-chunked-prefill", LOCK)
    assert plain.recipe.file.vllm == base.file.vllm
    assert with_it.changes == {"enable-chunked-prefill": True}
    _, fewer = experiment.flag_arms(base, "max-num-seqs=4", LOCK)
    assert fewer.recipe.file.vllm["max-num-seqs"] == 4
    _, off = experiment.flag_arms(base, "no-enable-prefix-caching", LOCK)
    assert off.recipe.file.vllm["enable-prefix-caching"] is False


def predict_refusals(arms: Sequence[Arm], lock: dict[str, Any] = LOCK) -> list[str]:
    """Return the rule that refuses each arm; empty for an arm that would start."""
    refusals = [experiment.find_refusal(arm, lock) for arm in arms]
    return [refusal.rule if refusal else "" for refusal in refusals]


def get_chunked_prefill(arms: Sequence[Arm]) -> list[bool | None]:
    return [arm.effective_settings(LOCK).chunked_prefill for arm in arms]


def test_step_smaller_than_a_block_is_predicted_as_refused(base: Recipe) -> None:
    arms = experiment.sweep_arms(base, (512, 2048, 4096), LOCK)
    assert predict_refusals(arms, make_lock_entries("0.19.2")) == ["block-over-budget", "block-over-budget", ""]
    assert predict_refusals(arms) == ["", "", ""]


def with_expected(base: Recipe, chunked_prefill: str) -> Recipe:
    expect = base.file.expect.model_copy(update={"chunked_prefill": chunked_prefill})
    return replace(base, file=base.file.model_copy(update={"expect": expect}))


def test_expected_chunked_prefill_decides_the_flag_of_an_arm() -> None:
    unchunked = recipe.load(TOP, "qwen3.5-35b-unchunked")
    chunked = with_expected(unchunked, "any")
    assert get_chunked_prefill(experiment.recipe_arms(chunked, unchunked)) == [True, False]
    arms = experiment.flag_arms(unchunked, "max-num-seqs=2", LOCK)
    assert get_chunked_prefill(arms) == [False, False]
    assert experiment.changed_flags(*arms) == ["max-num-seqs"]
    assert get_chunked_prefill(experiment.sweep_arms(unchunked, (262144,), LOCK)) == [False]


def test_one_changed_flag_does_not_disable_chunked_prefill(base: Recipe) -> None:
    """The recipe keeps chunked prefill because of its prefix caching; an arm without prefix caching keeps it, too."""
    arms = experiment.flag_arms(with_expected(base, "disabled"), "no-enable-prefix-caching", LOCK)
    assert get_chunked_prefill(arms) == [True, True]


def test_recipes_with_different_images_are_refused() -> None:
    frozen, other = (recipe.load(TOP, name) for name in ("examples/qwen3.5-35b-frozen", "qwen3.5-35b-unchunked"))
    with pytest.raises(Refused, match="two things would change at once"):
        experiment.recipe_arms(frozen, other)


def test_arm_has_the_label_of_the_lab_the_name_of_the_server_and_a_loopback_port(base: Recipe) -> None:
    (arm,) = experiment.sweep_arms(base, (8192,), LOCK)
    container = experiment.with_container_name(arm, "production").recipe.file.container
    assert (container.name, container.labels[LAB_LABEL]) == ("production", "8192")
    assert container.ports == ["127.0.0.1:8000:8000"]


def with_speculation(base: Recipe) -> Recipe:
    flags = {**base.file.flags, "speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}
    return replace(base, file=base.file.with_flags(flags))


def test_key_inside_a_json_flag_is_swept_and_other_keys_stay(base: Recipe) -> None:
    depth = Axis("speculative-config.num_speculative_tokens", (1, 3, UNSET))
    arms = experiment.grid_arms(with_speculation(base), [depth], LOCK)
    assert [arm.name for arm in arms] == ["1", "3", "unset"]
    one, three = ({"method": "mtp", "num_speculative_tokens": tokens} for tokens in (1, 3))
    assert [arm.recipe.file.flags.get("speculative-config") for arm in arms] == [one, three, None]
    assert dict(arms[1].swept_values) == {"speculative-config.num_speculative_tokens": 3}


def test_key_is_swept_in_json_text_and_in_dotted_flags(base: Recipe) -> None:
    text = base.file.with_flags({**base.file.flags, "speculative-config": '{"method":"ngram"}'})
    dotted = base.file.with_flags({**base.file.flags, "speculative-config.method": "ngram"})
    for file in (text, dotted):
        depth = Axis("speculative_config.num_speculative_tokens", (4,))
        (arm,) = experiment.grid_arms(replace(base, file=file), [depth], LOCK)
        flags = {name: value for name, value in arm.recipe.file.flags.items() if name.startswith("speculative")}
        assert flags == {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}}


def test_two_flags_or_two_keys_of_a_flag_form_a_grid(base: Recipe) -> None:
    axes = [Axis("max-num-seqs", (4, 8)), Axis("max-num-batched-tokens", (2048, 4096))]
    arms = experiment.grid_arms(base, axes, LOCK)
    assert [arm.name for arm in arms] == ["4-2048", "4-4096", "8-2048", "8-4096"]
    flags = arms[1].recipe.file.flags
    assert (flags["max-num-seqs"], flags["max-num-batched-tokens"]) == (4, 4096)
    keys = [Axis("speculative-config.method", ("mtp",)), Axis("speculative-config.num_speculative_tokens", (5,))]
    (both,) = experiment.grid_arms(with_speculation(base), keys, LOCK)
    assert both.recipe.file.flags["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 5}


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("max-num-batched-tokenz", "no release from", "max-num-batched-tokens"),
        ("model", "recipes set it under `model.mount`", "two recipes"),
        ("max-num-seqs.key", "not a JSON object", "max-num-seqs"),
    ],
)
def test_flag_that_cannot_be_swept_is_refused_with_a_fix(base: Recipe, name: str, message: str, fix: str) -> None:
    with pytest.raises(Refused, match=message) as error:
        experiment.grid_arms(base, [Axis(name, (1, 2))], LOCK)
    assert fix in error.value.fix


def test_duplicate_flags_and_too_many_arms_are_refused(base: Recipe) -> None:
    with pytest.raises(Refused, match="are the same flag"):
        experiment.grid_arms(base, [Axis("tp", (1,)), Axis("tensor-parallel-size", (1, 2))], LOCK)
    with pytest.raises(Refused, match="20 arms: an experiment can have at most 16"):
        experiment.grid_arms(base, [Axis("max-num-seqs", tuple(range(1, 21)))], LOCK)


def test_value_that_the_engine_refuses_is_predicted(base: Recipe) -> None:
    arms = experiment.grid_arms(base, [Axis("max-num-seqs", (-1, 8))], LOCK)
    assert predict_refusals(arms) == ["flag-value", ""]


def test_ab_takes_a_key_with_a_value_or_two_values_of_a_flag(base: Recipe) -> None:
    mtp = with_speculation(base)
    plain, deeper = experiment.flag_arms(mtp, "speculative-config.num_speculative_tokens=4", LOCK)
    assert plain.recipe.file.flags["speculative-config"]["num_speculative_tokens"] == 2
    assert deeper.recipe.file.flags["speculative-config"]["num_speculative_tokens"] == 4
    _, unset = experiment.flag_arms(mtp, "speculative-config=unset", LOCK)
    assert "speculative-config" not in unset.recipe.file.flags
    pair = experiment.value_arms(mtp, Axis("max-num-seqs", (2, 4)), LOCK)
    assert [(arm.name, arm.title) for arm in pair] == [("a", "max-num-seqs 2"), ("b", "max-num-seqs 4")]


def test_axis_values_are_parsed_like_recipe_values() -> None:
    (value,) = axis.parse_axes(["--compilation-config"], ["{level: 3}, unset, true, 0.5, FULL_AND_PIECEWISE"])
    assert value == Axis("compilation-config", ({"level": 3}, UNSET, True, 0.5, "FULL_AND_PIECEWISE"))
    names = axis.arm_names(list(axis.combine_values([value])))
    assert len(set(names)) == 5 and not any("." in name for name in names)


@pytest.mark.parametrize(
    ("names", "texts", "message"),
    [
        (["a"], [], "come in pairs"),
        (["a", "b", "c"], ["1", "2", "3"], "one flag or two"),
        (["a;b"], ["1"], "not the name of a flag"),
        (["a"], ["1,1"], "a value twice"),
        (["a"], ["1,{"], "not YAML"),
        (["api-key"], ["sk-aaaaaaaaaaaaaaaaaaaaaaaa"], "look like secrets"),
    ],
)
def test_invalid_axes_are_refused(names: list[str], texts: list[str], message: str) -> None:
    with pytest.raises(Refused, match=message):
        axis.parse_axes(names, texts)


SECRET = "Tr0ub4dor-3-horse"


@pytest.mark.parametrize(
    "url",
    [
        "http://u:SECRET@h:1", "http://SECRET@h:1/v1", "http://h:1/?key=SECRET", "http://h:SECRET/", "http://[SECRET",
        "SECRET",
    ],
)  # fmt: skip
def test_url_with_credentials_is_refused_without_showing_them(tmp_path: Path, url: str) -> None:
    with pytest.raises(Refused, match="^--url ") as excinfo:
        experiments.run_at_url(url.replace("SECRET", SECRET), "", BenchOptions("smoke"), root=tmp_path)
    assert SECRET not in str(excinfo.value) and not list(tmp_path.iterdir())


def test_key_that_is_invalid_in_a_header_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(experiments.KEY_VARIABLE, f"{SECRET}\nX-Other: 1")
    with pytest.raises(Refused, match="invalid in an HTTP header") as excinfo:
        experiments.run_at_url("http://127.0.0.1:1", "", BenchOptions("smoke"), root=tmp_path)
    assert SECRET not in str(excinfo.value)


def test_probe_with_an_invalid_key_fails_without_showing_it() -> None:
    with json_server(lambda path, body: (200, {})) as url:
        answer = http_probe.send_request(url, "/v1/models", api_key=f"{SECRET}\n")
    assert (answer.status, answer.error) == (0, "the key is not valid in an HTTP header")


def test_flag_with_a_secret_is_refused(base: Recipe) -> None:
    with pytest.raises(Refused, match="--flag hf-token: its value looks like a secret") as excinfo:
        experiment.flag_arms(base, f"hf-token={SECRET}", LOCK)
    assert SECRET not in str(excinfo.value)


def test_incident_redacts_secrets_everywhere_in_an_inspect() -> None:
    config = {"Env": [f"A_TOKEN={SECRET}"], "Labels": {"db.password": SECRET}, "Entrypoint": ["x", f"--token={SECRET}"]}
    log = {"Type": "splunk", "Config": {"splunk-token": SECRET, "tag": "x"}}
    config["Cmd"] = ["--api-key", SECRET]
    redacted = redact_inspect({"Config": config, "HostConfig": {"LogConfig": log}, "Args": []})
    assert SECRET not in str(redacted)
    assert redacted["HostConfig"]["LogConfig"]["Config"]["tag"] == "x"
