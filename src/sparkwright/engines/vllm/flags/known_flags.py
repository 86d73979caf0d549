"""The options of `vllm serve` in two releases, whole. What they take: flag_types.

Sources: 0.32.0: its own `vllm serve --help=all` (tests/data). 0.22.1: the options that its image's parser lists (261 of them).
"""

from __future__ import annotations

from collections.abc import Collection

OLDER = "0.22.1"
NEWER = "0.32.0"

_BOTH = """
additional-config aggregate-engine-logging all2all-backend allow-credentials allow-deprecated-quantization allowed-headers
allowed-local-media-path allowed-media-domains allowed-methods allowed-origins api-key api-server-count async-scheduling
attention-backend attention-config block-size chat-template chat-template-content-format code-revision
collect-detailed-traces compilation-config config config-format convert cp-kv-cache-interleave-size
cpu-distributed-timeout-seconds cpu-offload-gb cpu-offload-params cudagraph-capture-sizes cudagraph-metrics
data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb
data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold
dcp-comm-backend dcp-kv-cache-interleave-size decode-context-parallel-size default-chat-template-kwargs default-mm-loras
disable-access-log-for-endpoints disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce
disable-fastapi-docs disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization
disable-sliding-window disable-uvicorn-access-log distributed-executor-backend distributed-timeout-seconds download-dir
dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dtype ec-transfer-config
enable-auto-tool-choice enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter
enable-eplb enable-expert-parallel enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage
enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests enable-logging-iteration-details
enable-lora enable-mamba-cache-stochastic-rounding enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
enable-offline-docs enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
enable-return-routed-experts enable-server-load-tracking enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint
enable-tower-connector-lora enforce-eager eplb-config exclude-tools-when-tool-choice-none expert-placement-strategy
fail-on-environ-validation fingerprint-mode fingerprint-value fully-sharded-loras gdn-prefill-backend generation-config
gpu-memory-utilization grpc h11-max-header-count h11-max-incomplete-event-size headless hf-config-path hf-overrides hf-token
host ignore-patterns interleave-mm-strings io-processor-plugin ir-op-priority kernel-config kv-cache-dtype
kv-cache-dtype-skip-layers kv-cache-memory-bytes kv-cache-metrics kv-cache-metrics-sample kv-events-config
kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill kv-transfer-config language-model-only limit-mm-per-prompt
linear-backend load-format log-config-file log-error-stack logits-processors logprobs-mode long-prefill-token-threshold
lora-dtype lora-modules lora-target-modules mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode
mamba-cache-philox-rounds mamba-ssm-cache-dtype master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len
max-logprobs max-lora-rank max-loras max-model-len max-num-batched-tokens max-num-seqs max-parallel-loading-workers
media-io-kwargs middleware mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only mm-encoder-tp-mode mm-processor-cache-gb
mm-processor-cache-type mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-impl
model-loader-extra-config moe-backend nnodes node-rank num-gpu-blocks-override numa-bind numa-bind-cpus numa-bind-nodes
offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step optimization-level
otlp-traces-endpoint override-generation-config performance-mode pipeline-parallel-size pooler-config port
prefill-context-parallel-size prefix-caching-hash-algo profiler-config pt-load-map-location quantization quantization-config
ray-workers-use-nsight reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers response-role
return-tokens-as-token-ids revision root-path runner safetensors-load-strategy safetensors-prefetch-block-size
safetensors-prefetch-num-threads scheduler-cls scheduler-reserve-full-isl scheduling-policy seed served-model-name
show-hidden-metrics-for-version shutdown-timeout skip-mm-profiling skip-tokenizer-init spec-method spec-model spec-tokens
specialize-active-lora speculative-config ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval
structured-outputs-config tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tokens-only tool-call-parser
tool-parser-plugin tool-server trust-remote-code trust-request-chat-template ubatch-size uds use-fp64-gumbel
use-tqdm-on-load uvicorn-log-level video-pruning-rate weight-transfer-config worker-cls worker-extension-cls
"""

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

KNOWN: dict[str, frozenset[str]] = {
    OLDER: frozenset((_BOTH + _ONLY_OLDER).split()),
    NEWER: frozenset((_BOTH + _ONLY_NEWER).split()),
}

#: all names of both
ALL = KNOWN[OLDER] | KNOWN[NEWER]


def completed(name: str, known: Collection[str]) -> list[str]:
    """The options that a name means: itself, or all that it begins, for the engine's parser completes what begins one only.

    Seen: 0.32.0 takes --max-num-seq for --max-num-seqs, and calls --max-num ambiguous.
    """
    if name in known:
        return [name]
    return sorted(option for option in known if option.startswith(name) and not option.startswith("no-"))
