"""The full list of options of `vllm serve` in three releases: those of flag_types, and the differences in an older and a newer
one.

Sources: 0.32.0 and 0.33.0: their own `vllm serve --help=all` (tests/data, and the report of 0.33.0 in
tests/data/engine-agreement). 0.22.1: the options that its image's parser lists (261 of them).
"""

from __future__ import annotations

from collections.abc import Collection

from sparkwright.engines.vllm.flags import flag_types

OLDER = "0.22.1"
NEWER = flag_types.VERSION
NEWEST = "0.33.0"

_ONLY_OLDER = "calculate-kv-scales max-long-partial-prefills max-num-partial-prefills override-attention-dtype"

_ONLY_NEWER = """
anthropic-disabled-thinking-effort aux-output-config cohere-format cohere-is-reasoning-model custom-histogram-buckets
dcp-q-replicate device-ids device-memory-utilization diffusion-config dp-sync-interval ec-manager-config
elastic-ep-max-dp-size enable-batch-sharded-sampling enable-fault-tolerance enable-hc-sp
enable-mamba-shared-prefix-checkpoint enable-moe-shared-loras enable-nccl-comm-suspend enable-per-request-metrics
enable-scale-out enable-shm-tensor-arena enable-trace-replay engram-config fault-tolerance-config grpc-port jit-monitor-mode
jit-monitor-verbose kda-decode-backend kda-prefill-backend log-level logging-config long-prefill-token-threshold-adaptive
mamba-ssu-algorithm max-lora-cls-labels max-num-active-seqs max-num-queued-reqs max-num-queued-tokens
max-num-scheduled-tokens mm-device-do-normalize mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-device
model-class-overrides per-request-spec-decode-metrics prefill-schedule-interval prefix-cache-retention-interval
prefix-match-unit replayssm-buffer-len return-sampling-mask sleep-mode-offload-cudagraph sleep-preserve-parameter-names
sparse-indexer-topk-backend sse-keep-alive-interval swa-bounded-replay tool-strict-level trust-request-mm-kwargs
use-replayssm video-pruning-method watermark watermark-config
"""

#: and also `--disable-x` for every switch `--enable-x`, and `--enable-x` for every switch `--disable-x`
_ONLY_NEWEST = "monokernel reasoning-effort-map sleep-mode-backend watchdog-config"


def pair(name: str) -> str:
    """Return the other name of a switch of NEWEST, as disable-lora for enable-lora; "" for an option without one."""
    if name.startswith("enable-"):
        return name.replace("enable-", "disable-", 1)
    return name.replace("disable-", "enable-", 1) if name.startswith("disable-") else ""


_NEWER = frozenset(name for names in flag_types.KINDS.values() for name in names.split()).union(flag_types.ALIASES)
KNOWN: dict[str, frozenset[str]] = {
    OLDER: _NEWER.difference(_ONLY_NEWER.split()).union(_ONLY_OLDER.split()),
    NEWER: _NEWER,
    NEWEST: _NEWER.union(_ONLY_NEWEST.split(), filter(None, map(pair, flag_types.KINDS["switch"].split()))),
}
ANCHORS = (OLDER, NEWER, NEWEST)

#: all names of them
ALL = KNOWN[OLDER] | KNOWN[NEWER] | KNOWN[NEWEST]


def completed(name: str, known: Collection[str]) -> list[str]:
    """Return the options that a name stands for: itself, or all that it is a prefix of; the engine's parser completes an
    unambiguous prefix.

    Seen: 0.32.0 takes --max-num-seq for --max-num-seqs, and calls --max-num ambiguous.
    """
    if name in known:
        return [name]
    return sorted(option for option in known if option.startswith(name) and not option.startswith("no-"))
