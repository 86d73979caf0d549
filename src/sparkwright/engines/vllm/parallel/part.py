"""vLLM's implementation of engines.parallel.Parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from sparkwright.engines.findings import Finding
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.parallel import ClusterMember, Share, Split
from sparkwright.engines.vllm.flags import flags as own
from sparkwright.engines.vllm.parallel import member_flags, proof
from sparkwright.engines.vllm.parallel.rules import SPLITS
from sparkwright.engines.vllm.parallel.split import SplitCase

MASTER_PORT = member_flags.DEFAULT_MASTER_PORT
SET_BY: Mapping[str, str] = member_flags.SET_BY
VARIABLES: Sequence[str] = member_flags.VARIABLES
TRACE = member_flags.TRACED_BY
member = proof.member
of_another = proof.of_another


def share(member: ClusterMember) -> Share:
    """Return the settings with which a member is started."""
    return Share(
        member_flags.flags_of(member),
        member_flags.variables_of(member),
        member_flags.options(member),
        member_flags.STOP_TIMEOUT_S,
    )


def check(split: Split, flags: Mapping[str, Any], model: Mapping[str, Any], version: Version | None) -> list[Finding]:
    """Return the findings about this split of this model, errors first. flags: of the recipe, in any spelling."""
    return SPLITS.check(SplitCase(split, own.named(flags), classify(model), version))
