"""What sparkwright says will happen: the one seam between its knowledge and this test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.vllm import rules, versions
from sparkwright.engines.vllm.architecture.architecture import classify
from sparkwright.engines.vllm.prediction import predict
from tests.real_engine.cases import Case, Prediction

VERSION = "0.32.0"


def predicted(case: Case, model_config: Mapping[str, Any]) -> Prediction:
    """The prediction for these flags and this model's config.json (empty when there is no such model: nothing is said then)."""
    if not model_config or case.words:
        return Prediction(None)
    asked = rules.Asked(case.settings(), model_by_flag=not case.first_word)
    kind, version = classify(model_config), versions.parse(VERSION)
    errors = [one for one in rules.check(asked, kind, version) if one.severity == "error"]
    if errors:
        return Prediction(False, why=f"{errors[0].rule}: {errors[0].sentence}")
    found = predict.effective(asked, kind, version)
    return Prediction(True, found.chunked_prefill, found.prefix_caching, found.mamba_cache_mode)
