"""Rules about the releases of vLLM that serve from several hosts."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm.parallel import split_limits
from sparkwright.engines.vllm.parallel.case import SplitCase, SplitExample, rule

#: the first release whose lines and flags were read
SINCE = "0.17.1"


@rule(
    "parallel-release",
    sources=(
        "vLLM 0.11.1: the first with nnodes, node-rank, master-addr and master-port (engine/arg_utils.py)",
        "vLLM 0.17.1, 0.18.0, 0.19.0, 0.20.0, 0.28.0, 0.32.0 and 0.33.0: flags and log lines read in the source",
    ),
    example=SplitExample(Split(tensor=2), version="0.16.0"),
)
def old_release(case: SplitCase) -> Iterator[Finding]:
    """A cluster needs vLLM 0.17.1 or newer.
    Older releases have no flags for it, or log lines by which the head's place in the group cannot be told, so that a start could not be proved.
    """
    if case.within(SINCE) is False:
        sentence = f"{case.engine} cannot be proved to serve from several hosts: a cluster needs vLLM {SINCE} or newer."
        yield Finding("error", sentence, (Way("use a newer image, e.g. vllm/vllm-openai:v0.32.0"),), "vLLM 0.17.1")


@rule(
    "parallel-pipeline-release",
    sources=(
        "vLLM issue 37933: 0.18.0 fails to run pipeline parallelism across nodes",
        "vLLM #40150: the repair, in 0.20.0",
    ),
    example=SplitExample(Split(pipeline=2), version="0.19.1"),
)
def broken_pipeline(case: SplitCase) -> Iterator[Finding]:
    """Pipeline parallelism over hosts needs vLLM 0.20 or newer.
    It failed in 0.18 and was repaired in 0.20; tensor parallelism was not affected.
    """
    if case.split.pipeline > 1 and split_limits.old_pipeline(case.version):
        sentence = (
            f"{case.engine} fails with pipeline parallelism over hosts (repaired in {split_limits.PIPELINE_SINCE})."
        )
        ways = (Way(f"use an image with vLLM {split_limits.PIPELINE_SINCE} or newer"), *case.ways())
        yield Finding("error", sentence, ways, "vLLM #40150")
