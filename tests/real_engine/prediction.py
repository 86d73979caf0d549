"""What sparkwright says will happen: the one seam between its knowledge and this test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.real_engine.cases import Case, Prediction


def predicted(case: Case, model_config: Mapping[str, Any]) -> Prediction:
    """The prediction for these flags and this model's config.json (empty when there is no such model).

    For now it is what cases.py expects; `rules.check` of sparkwright.engine is to take its place.
    """
    return case.expected
