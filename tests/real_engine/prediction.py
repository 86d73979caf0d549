"""Predictions by sparkwright's rules: the single interface between the rules and these tests."""

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import prediction, rules, versions
from tests.real_engine.cases import Case, Prediction
from tests.real_engine.releases.install import NEWEST

#: what a rule says where the release is not known to refuse
MAY_REFUSE = "may refuse"
#: rules of what is checked only once the weights are loaded: of a case that was only asked about nothing is seen of it
LATE = ("block-over-budget", "seqs-over-mamba-blocks")


def predict(case: Case, model_config: Mapping[str, Any], release: str = NEWEST) -> Prediction:
    """The prediction for these flags and this model's config.json (empty when there is no such model: nothing is said then)."""
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
    effective = prediction.predict_effective(options, kind, version)
    return Prediction(True, effective.chunked_prefill, effective.prefix_caching, effective.mamba_cache_mode)
