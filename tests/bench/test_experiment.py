"""The arms of an experiment: one thing changes at a time, and refusals of an engine are predicted."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app import experiments
from sparkwright.bench import axis, experiment
from sparkwright.bench.axis import UNSET, Axis
from sparkwright.bench.bench_options import BenchOptions
from sparkwright.engines.vllm.advice import MAX_UNCHUNKED_TOKENS
from sparkwright.errors import Refused
from sparkwright.host.records.incidents import redact_inspect
from sparkwright.measure import http_probe
from sparkwright.project import recipe
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.container import LAB_LABEL
from tests.bench.conftest import TOP, lock_entries


def test_chunked_prefill_off_disables_prefix_caching_in_both_arms(base: Recipe) -> None:
    on, off = experiment.flag_arms(base, "chunked-prefill", lock_entries())
    for arm in (on, off):
        assert arm.recipe.file.vllm["enable-prefix-caching"] is False
        assert arm.recipe.file.vllm["max-model-len"] == MAX_UNCHUNKED_TOKENS
        assert experiment.find_refusal(arm, lock_entries()) is None
    assert experiment.changed_flags(on, off) == ["enable-chunked-prefill", "max-num-batched-tokens"]
    effective = [arm.effective(lock_entries()) for arm in (on, off)]
    assert [item.chunked_prefill for item in effective] == [True, False]
    assert [item.budget for item in effective] == [4096, MAX_UNCHUNKED_TOKENS]


def test_dense_model_keeps_prefix_caching(base: Recipe) -> None:
    _, off = experiment.flag_arms(base, "chunked-prefill", lock_entries(model="dense"))
    assert off.recipe.file.vllm["enable-prefix-caching"] is True


def test_other_flags_are_compared_with_and_without(base: Recipe) -> None:
    plain, with_it = experiment.flag_arms(base, "enable-chunked-prefill", lock_entries())
    assert plain.recipe.file.vllm == base.file.vllm
    assert with_it.changes == {"enable-chunked-prefill": True}
    _, fewer = experiment.flag_arms(base, "max-num-seqs=4", lock_entries())
    assert fewer.recipe.file.vllm["max-num-seqs"] == 4
    _, off = experiment.flag_arms(base, "no-enable-prefix-caching", lock_entries())
    assert off.recipe.file.vllm["enable-prefix-caching"] is False


def test_step_smaller_than_a_block_is_predicted_as_refused(base: Recipe) -> None:
    planned = experiment.sweep_arms(base, (512, 2048, 4096), lock_entries())
    old = [experiment.find_refusal(arm, lock_entries("0.19.2")) for arm in planned]
    assert [item.rule if item else None for item in old][2] is None
    assert all(item is not None and "block" in item.sentence for item in old[:2])
    assert [experiment.find_refusal(arm, lock_entries("0.32.0")) for arm in planned] == [None, None, None]


def with_expected(base: Recipe, chunked_prefill: str) -> Recipe:
    expect = base.file.expect.model_copy(update={"chunked_prefill": chunked_prefill})
    return replace(base, file=base.file.model_copy(update={"expect": expect}))


def test_expected_chunked_prefill_decides_the_flag_of_an_arm() -> None:
    """A recipe's expectation of chunked prefill decides a flag."""
    unchunked = recipe.load(TOP, "qwen3.5-35b-unchunked")
    chunked = with_expected(unchunked, "any")
    found = [arm.effective(lock_entries()).chunked_prefill for arm in experiment.recipe_arms(chunked, unchunked)]
    assert found == [True, False]
    both = experiment.flag_arms(unchunked, "max-num-seqs=2", lock_entries())
    assert [arm.effective(lock_entries()).chunked_prefill for arm in both] == [False, False]
    assert experiment.changed_flags(*both) == ["max-num-seqs"]
    (large,) = experiment.sweep_arms(unchunked, (262144,), lock_entries())
    assert large.effective(lock_entries()).chunked_prefill is False


def test_one_changed_flag_does_not_disable_chunked_prefill(base: Recipe) -> None:
    """With prefix caching, chunked prefill can't be off, and the recipe continues with it on; one flag is one change."""
    both = experiment.flag_arms(with_expected(base, "disabled"), "no-enable-prefix-caching", lock_entries())
    assert [arm.effective(lock_entries()).chunked_prefill for arm in both] == [True, True]


def test_recipes_with_different_images_are_refused() -> None:
    frozen, other = (recipe.load(TOP, name) for name in ("examples/qwen3.5-35b-frozen", "qwen3.5-35b-unchunked"))
    with pytest.raises(Refused, match="two things would change at once"):
        experiment.recipe_arms(frozen, other)


def test_arm_has_the_lab_label_and_the_name_of_the_server(base: Recipe) -> None:
    (arm,) = experiment.sweep_arms(base, (8192,), lock_entries())
    box = experiment.with_container_name(arm, "production").recipe.file.container
    assert (box.name, box.labels[LAB_LABEL]) == ("production", "8192")


def test_arm_publishes_its_port_on_the_loopback_only(base: Recipe) -> None:
    (arm,) = experiment.sweep_arms(base, (8192,), lock_entries())
    assert experiment.with_container_name(arm, "production").recipe.file.container.ports == ["127.0.0.1:8000:8000"]


def with_speculation(base: Recipe, **config: object) -> Recipe:
    words = {**base.file.flags, "speculative-config": {"method": "mtp", "num_speculative_tokens": 2, **config}}
    return replace(base, file=base.file.with_flags(words))


def test_key_inside_a_json_flag_is_swept_and_other_keys_stay(base: Recipe) -> None:
    depth = Axis("speculative-config.num_speculative_tokens", (1, 3, UNSET))
    planned = experiment.grid_arms(with_speculation(base), [depth], lock_entries())
    assert [arm.name for arm in planned] == ["1", "3", "unset"]
    assert [arm.recipe.file.flags.get("speculative-config") for arm in planned] == [
        {"method": "mtp", "num_speculative_tokens": 1},
        {"method": "mtp", "num_speculative_tokens": 3},
        None,
    ]
    assert [dict(arm.swept_values) for arm in planned][1] == {"speculative-config.num_speculative_tokens": 3}


def test_key_is_swept_in_json_text_and_in_dotted_flags(base: Recipe) -> None:
    text = base.file.with_flags({**base.file.flags, "speculative-config": '{"method":"ngram"}'})
    dotted = base.file.with_flags({**base.file.flags, "speculative-config.method": "ngram"})
    for file in (text, dotted):
        depth = Axis("speculative_config.num_speculative_tokens", (4,))
        (arm,) = experiment.grid_arms(replace(base, file=file), [depth], lock_entries())
        flags = {name: value for name, value in arm.recipe.file.flags.items() if name.startswith("speculative")}
        assert flags == {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}}


def test_two_flags_or_two_keys_of_a_flag_form_a_grid(base: Recipe) -> None:
    planned = experiment.grid_arms(
        base, [Axis("max-num-seqs", (4, 8)), Axis("max-num-batched-tokens", (2048, 4096))], lock_entries()
    )
    assert [arm.name for arm in planned] == ["4-2048", "4-4096", "8-2048", "8-4096"]
    flags = planned[1].recipe.file.flags
    assert (flags["max-num-seqs"], flags["max-num-batched-tokens"]) == (4, 4096)
    keys = [Axis("speculative-config.method", ("mtp",)), Axis("speculative-config.num_speculative_tokens", (5,))]
    (both,) = experiment.grid_arms(with_speculation(base), keys, lock_entries())
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
        experiment.grid_arms(base, [Axis(name, (1, 2))], lock_entries())
    assert fix in error.value.fix


def test_duplicate_flags_and_too_many_arms_are_refused(base: Recipe) -> None:
    with pytest.raises(Refused, match="are the same flag"):
        experiment.grid_arms(base, [Axis("tp", (1,)), Axis("tensor-parallel-size", (1, 2))], lock_entries())
    with pytest.raises(Refused, match="20 arms: an experiment can have at most 16"):
        experiment.grid_arms(base, [Axis("max-num-seqs", tuple(range(1, 21)))], lock_entries())


def test_value_that_the_engine_refuses_is_predicted(base: Recipe) -> None:
    planned = experiment.grid_arms(base, [Axis("max-num-seqs", (-1, 8))], lock_entries())
    rules = [value.rule if (value := experiment.find_refusal(arm, lock_entries())) else "" for arm in planned]
    assert rules == ["flag-value", ""]


def test_ab_takes_a_key_with_a_value_or_two_values_of_a_flag(base: Recipe) -> None:
    mtp = with_speculation(base)
    plain, deeper = experiment.flag_arms(mtp, "speculative-config.num_speculative_tokens=4", lock_entries())
    assert plain.recipe.file.flags["speculative-config"]["num_speculative_tokens"] == 2
    assert deeper.recipe.file.flags["speculative-config"]["num_speculative_tokens"] == 4
    assert (
        "speculative-config"
        not in experiment.flag_arms(mtp, "speculative-config=unset", lock_entries())[1].recipe.file.flags
    )
    pair = experiment.value_arms(mtp, Axis("max-num-seqs", (2, 4)), lock_entries())
    assert [(arm.name, arm.title) for arm in pair] == [("a", "max-num-seqs 2"), ("b", "max-num-seqs 4")]


def test_axis_values_are_parsed_like_recipe_values() -> None:
    (value,) = axis.parse_axes(["--compilation-config"], ["{level: 3}, unset, true, 0.5, FULL_AND_PIECEWISE"])
    assert value == Axis("compilation-config", ({"level": 3}, UNSET, True, 0.5, "FULL_AND_PIECEWISE"))
    assert len(set(axis.arm_names(list(axis.combine_values([value]))))) == 5
    assert all("." not in name for name in axis.arm_names(list(axis.combine_values([value]))))


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


# Results are stored, so a secret in an address, a flag or a variable is refused first, and not repeated.


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
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        answer = http_probe.send_request(f"http://127.0.0.1:{server.server_port}", "/v1/models", api_key=f"{SECRET}\n")
    finally:
        server.shutdown()
        server.server_close()
    assert (answer.status, answer.error) == (0, "the key is not valid in an HTTP header")


def test_flag_with_a_secret_is_refused() -> None:
    base: Any = None  # nothing of the recipe is read before
    with pytest.raises(Refused, match="--flag hf-token: its value looks like a secret") as excinfo:
        experiment.flag_arms(base, f"hf-token={SECRET}", {})
    assert SECRET not in str(excinfo.value)


def test_incident_redacts_secrets_everywhere_in_an_inspect() -> None:
    config = {"Env": [f"A_TOKEN={SECRET}"], "Labels": {"db.password": SECRET}, "Entrypoint": ["x", f"--token={SECRET}"]}
    log = {"Type": "splunk", "Config": {"splunk-token": SECRET, "tag": "x"}}
    redacted = redact_inspect(
        {"Config": {**config, "Cmd": ["--api-key", SECRET]}, "HostConfig": {"LogConfig": log}, "Args": []}
    )
    assert SECRET not in str(redacted)
    assert redacted["HostConfig"]["LogConfig"]["Config"]["tag"] == "x"
