"""Predictions by sparkwright's rules: the only interface between the rules and these tests."""

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import prediction, rules, versions
from tests.real_engine.cases import Case, Prediction
from tests.real_engine.releases.install import NEWEST

#: part of a finding's sentence if it is unknown whether the release refuses
MAY_REFUSE = "may refuse"
#: rules about checks after the weights are loaded, which do not happen if arguments are only parsed
LATE = ("block-over-budget", "seqs-over-mamba-blocks")


def predict(case: Case, model_config: Mapping[str, Any], release: str = NEWEST) -> Prediction:
    """Return the prediction for a case. model_config: empty if there is no such model, which predicts nothing."""
    if not model_config or case.words:
        return Prediction(None)
    options = rules.VllmRequest(case.settings())
    kind, version = classify(model_config), versions.parse(release)
    findings = rules.check(options, kind, version)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        return Prediction(False, why=f"{errors[0].rule}: {errors[0].sentence}")
    if any(MAY_REFUSE in finding.sentence for finding in findings):
        return Prediction(None)
    effective = prediction.predict_effective_settings(options, kind, version)
    return Prediction(True, effective.chunked_prefill, effective.prefix_caching, effective.mamba_cache_mode)
