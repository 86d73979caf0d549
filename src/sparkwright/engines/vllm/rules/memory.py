"""Rules about the engine's share of the memory that CPU and GPU share."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.rules.rule import Case, Example, rule

SAFE = 0.85


@rule(
    "memory-utilization",
    sources=(
        "#38284: the default went from 0.9 to 0.92 in 0.20",
        "DGX Spark forums and playbooks: 0.80 to 0.85; 'Free memory ... is less than desired GPU memory utilization'",
    ),
    example=Example({"max-num-seqs": 8}),
)
def memory_utilization(case: Case) -> Iterator[Finding]:
    """gpu-memory-utilization is a share of the memory that the host needs too.
    On a GB10 CPU and GPU share 119.7 GiB, with the system, the page cache and every other process. The default was 0.9 and is 0.92,
    which a Spark can rarely provide, and memory that the engine takes is missing on the host, up to the loss of sshd. 0.80 to 0.85
    works; `memory-budget` tells of a share that does not.
    """
    if case.asked.platform != "gb10" or case.flag(flags.KV_BYTES) is not None:
        return
    if case.flag(flags.MEMORY_UTILIZATION) is None:
        usual = case.effective.memory_utilization
        known = usual if usual is not None else "0.9, 0.92 from 0.20 on"
        default = f"the engine's default ({known})"
        sentence = f"gpu-memory-utilization is not set, and {default} is too high for shared memory."
        way = Way(f"set it to {SAFE}", {flags.MEMORY_UTILIZATION: SAFE})
        yield Finding("warning", sentence, (way,), "vLLM #38284; DGX Spark reports", flags.MEMORY_UTILIZATION)
