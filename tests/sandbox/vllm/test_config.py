"""The simulated vLLM accepts and refuses the same settings as the real one, and the rules predict both.

The cases and their outcomes are those of `make test-engine`, run against a real vLLM 0.32.0 (docs/engine-agreement.md).
"""

import json
from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import prediction, rules, versions
from sparkwright.engines.vllm.log import LOG
from sparkwright.sandbox.serving.process import StartError
from sparkwright.sandbox.vllm import command_line, config
from tests.real_engine.cases import CASES, Case, Prediction
from tests.real_engine.prediction import predict

TINY = Path(__file__).parents[2] / "data/tiny"
VERSION = "0.32.0"
NOT_REFUSED = ("kv-scales-on-hybrid",)  # the engine starts, but its output would be wrong
FLAGS: tuple[dict[str, object], ...] = (
    {},
    {"enable-chunked-prefill": False},
    {"enable-prefix-caching": True},
    {"enable-chunked-prefill": False, "enable-prefix-caching": True},
    {"enable-chunked-prefill": False, "enable-prefix-caching": False},
    {"enable-chunked-prefill": False, "max-num-batched-tokens": 1024},
    {"max-num-seqs": 300, "max-num-batched-tokens": 256},
    {"mamba-cache-mode": "all"},
    {"calculate-kv-scales": True},
    {"disable-log-requests": True},
    {"swap-space": 4},
    {"disable-chunked-prefill": True},
    {"max-model-len": 16384},
    {"enable-auto-tool-choice": True},
)


def build_settings(words: tuple[str, ...], folder: Path, version: str) -> tuple[config.Config | None, str]:
    """Return the settings of the simulated engine, or None and its last log lines."""
    try:
        arguments = command_line.parse_arguments(list(words), version)
        settings = config.build_config(arguments, config.read_model_config(arguments.model, folder), folder, version)
        config.check_before_weights(settings, version)
    except StartError as error:
        return None, str(error)
    return settings, ""


def sorted_words(sentence: str) -> list[str]:
    """Return the words of a sentence, sorted, because argparse lists options in another order than the help."""
    return sorted(sentence.replace(",", "").rstrip(".").split())


def write_config(kind: str, folder: Path) -> Path:
    source = TINY / f"{kind}.json"
    if source.exists():
        (folder / "config.json").write_text(source.read_text())
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_simulated_engine_starts_like_the_real_one(case: Case, tmp_path: Path) -> None:
    path = str(write_config(case.model, tmp_path))
    settings, result = build_settings(case.argv(path), tmp_path, VERSION)
    assert (settings is not None) == case.expected.starts, result
    if settings is None:
        expected_reason = case.expected.why.replace("{model}", path)
        assert sorted_words(read_log(result, LOG).failure.value) == sorted_words(expected_reason)
        return
    assert settings.chunked_prefill == case.expected.chunked_prefill
    assert settings.prefix_caching == case.expected.prefix_caching


@pytest.mark.parametrize("case", [case for case in CASES if not case.words], ids=lambda case: case.name)
def test_the_rules_predict_the_start_of_the_real_engine(case: Case) -> None:
    path = TINY / f"{case.model}.json"
    predicted = predict(case, json.loads(path.read_text()) if path.exists() else {})
    if predicted.starts is None:
        return
    assert predicted.starts == case.expected.starts, predicted.why
    if predicted.starts:
        assert predicted.chunked_prefill == case.expected.chunked_prefill
        assert predicted.prefix_caching == case.expected.prefix_caching


@pytest.mark.parametrize("version", ["0.17.1", "0.20.1", "0.26.2", "0.27.1", "0.28.0", "0.32.0"])
@pytest.mark.parametrize("kind", ["dense", "gated_delta"])
def test_rules_and_simulated_engine_agree_in_every_release(kind: str, version: str, tmp_path: Path) -> None:
    path = str(write_config(kind, tmp_path))
    model = json.loads((tmp_path / "config.json").read_text())
    for flags in FLAGS:
        options = rules.VllmRequest({"max-model-len": 4096, **flags})
        findings = rules.check(options, classify(model), versions.parse(version))
        errors = [item.sentence for item in findings if item.severity == "error" and item.rule not in NOT_REFUSED]
        case = Case("", kind, Prediction(None), dict(options.flags))
        settings, result = build_settings(case.argv(path), tmp_path, version)
        assert bool(errors) == (settings is None), f"{flags}: {errors} against {result[-300:]}"
        if settings is not None:
            predicted = prediction.predict_effective_settings(options, classify(model), versions.parse(version))
            assert predicted.chunked_prefill == settings.chunked_prefill
            assert predicted.prefix_caching == settings.prefix_caching
