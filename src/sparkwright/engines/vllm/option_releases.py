"""Options by the releases of vLLM that have them: FIRST..LAST, then names; without LAST the newest has it.

Source: `arg_utils.py`, `cli_args.py` and `serve.py` in the wheel of each of RELEASES. Written by tests/real_engine/releases/sources.py; do not edit.
"""

from __future__ import annotations

#: the releases that were read, oldest first
RELEASES = """
0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.1 0.15.1 0.16.0 0.17.1 0.18.1 0.19.1 0.20.2 0.21.0 0.22.1 0.23.0
   0.24.0 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""

TABLE = """
0.10.2.. additional-config allow-credentials allowed-headers allowed-local-media-path allowed-methods allowed-origins
   api-key api-server-count async-scheduling block-size chat-template chat-template-content-format code-revision
   collect-detailed-traces compilation-config config config-format convert cpu-offload-gb data-parallel-address
   data-parallel-backend data-parallel-hybrid-lb data-parallel-rank data-parallel-rpc-port data-parallel-size
   data-parallel-size-local data-parallel-start-rank decode-context-parallel-size default-mm-loras
   disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
   disable-hybrid-kv-cache-manager disable-log-stats disable-sliding-window disable-uvicorn-access-log
   distributed-executor-backend download-dir dtype enable-auto-tool-choice enable-chunked-prefill enable-eplb
   enable-expert-parallel enable-force-include-usage enable-log-outputs enable-log-requests enable-lora
   enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
   enable-server-load-tracking enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enforce-eager
   eplb-config exclude-tools-when-tool-choice-none fully-sharded-loras generation-config gpu-memory-utilization
   h11-max-header-count h11-max-incomplete-event-size headless help hf-config-path hf-overrides hf-token host
   ignore-patterns interleave-mm-strings io-processor-plugin kv-cache-dtype kv-cache-memory-bytes kv-events-config
   kv-sharing-fast-prefill kv-transfer-config limit-mm-per-prompt load-format log-config-file log-error-stack
   logits-processors logprobs-mode long-prefill-token-threshold lora-dtype lora-modules mamba-cache-dtype
   mamba-ssm-cache-dtype max-cpu-loras max-log-len max-logprobs max-lora-rank max-loras max-model-len
   max-num-batched-tokens max-num-seqs max-parallel-loading-workers media-io-kwargs middleware mm-encoder-tp-mode
   mm-processor-cache-gb mm-processor-kwargs model model-impl model-loader-extra-config num-gpu-blocks-override
   otlp-traces-endpoint override-generation-config pipeline-parallel-size port prefix-caching-hash-algo
   pt-load-map-location quantization ray-workers-use-nsight reasoning-parser response-role return-tokens-as-token-ids
   revision root-path runner safetensors-load-strategy scheduler-cls scheduling-policy seed served-model-name
   show-hidden-metrics-for-version skip-mm-profiling skip-tokenizer-init speculative-config ssl-ca-certs ssl-cert-reqs
   ssl-certfile ssl-keyfile tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser
   tool-parser-plugin tool-server trust-remote-code uds use-tqdm-on-load uvicorn-log-level worker-cls
   worker-extension-cls
0.10.2..0.10.2 disable-async-output-proc guided-decoding-backend guided-decoding-disable-additional-properties
   guided-decoding-disable-any-whitespace guided-decoding-disable-fallback max-seq-len-to-capture preemption-mode
   scheduler-delay-factor
0.10.2..0.11.0 enable-lora-bias rope-scaling rope-theta
0.10.2..0.11.2 eplb-log-balancedness eplb-step-interval eplb-window-size lora-extra-vocab-size num-lookahead-slots
   num-redundant-experts override-pooler-config
0.10.2..0.12.0 cuda-graph-sizes disable-mm-preprocessor-cache enable-multimodal-encoder-data-parallel task
0.10.2..0.16.0 logits-processor-pattern
0.10.2..0.16.0,0.33.0.. disable-log-requests
0.10.2..0.17.1 swap-space
0.10.2..0.18.1 disable-frontend-multiprocessing
0.10.2..0.26.0 max-long-partial-prefills max-num-partial-prefills
0.10.2..0.27.1 calculate-kv-scales override-attention-dtype
0.11.0.. allowed-media-domains dbo-decode-token-threshold dbo-prefill-token-threshold enable-dbo
   expert-placement-strategy mm-processor-cache-type mm-shm-cache-max-object-size-mb pooler-config
   structured-outputs-config trust-request-chat-template video-pruning-rate
0.11.1.. aggregate-engine-logging all2all-backend cudagraph-capture-sizes data-parallel-external-lb
   dcp-kv-cache-interleave-size disable-nccl-for-dp-synchronization ec-transfer-config enable-mm-embeds
   kv-offloading-backend kv-offloading-size mamba-block-size master-addr master-port max-cudagraph-capture-size
   mm-encoder-attn-backend nnodes node-rank reasoning-parser-plugin stream-interval tokens-only
0.12.0.. cp-kv-cache-interleave-size kv-cache-metrics kv-cache-metrics-sample optimization-level
   prefill-context-parallel-size
0.13.0.. attention-backend attention-config cudagraph-metrics enable-layerwise-nvtx-tracing profiler-config
0.14.1.. allow-deprecated-quantization default-chat-template-kwargs enable-log-deltas enable-logging-iteration-details
   enable-mfu-metrics enable-offline-docs enable-return-routed-experts enable-tower-connector-lora ubatch-size
0.15.1.. mamba-cache-mode mm-encoder-only ssl-ciphers
0.16.0.. disable-access-log-for-endpoints enable-flashinfer-autotune kernel-config specialize-active-lora
   weight-transfer-config
0.17.1.. cpu-offload-params enable-elastic-ep fail-on-environ-validation language-model-only moe-backend
   offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step performance-mode
0.17.1..0.17.1 use-gpu-for-pooling-score
0.18.1.. dcp-comm-backend distributed-timeout-seconds enable-ep-weight-filter gdn-prefill-backend grpc
   shutdown-timeout
0.19.1.. kv-cache-dtype-skip-layers lora-target-modules mm-tensor-ipc reasoning-config renderer-num-workers
   scheduler-reserve-full-isl
0.20.2.. enable-flash-late-interaction enable-mamba-cache-stochastic-rounding ir-op-priority mamba-backend
   mamba-cache-philox-rounds numa-bind numa-bind-cpus numa-bind-nodes
0.21.0.. fingerprint-mode fingerprint-value mm-encoder-attn-dtype mm-encoder-fp8-scale-path
   mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path safetensors-prefetch-block-size
   safetensors-prefetch-num-threads
0.22.1.. cpu-distributed-timeout-seconds data-parallel-multi-port-external-lb data-parallel-supervisor-port
   dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
   enable-cumem-allocator enable-mixed-moe-lora-format linear-backend quantization-config spec-method spec-model
   spec-tokens use-fp64-gumbel
0.24.0.. device-ids diffusion-config jit-monitor-verbose prefill-schedule-interval watermark
0.25.1.. enable-per-request-metrics jit-monitor-mode mm-ipc-gpu-memory-gb model-class-overrides
0.26.0.. enable-moe-shared-loras max-num-scheduled-tokens prefix-match-unit
0.26.0..0.29.0 enable-bf16x3-router-gemm
0.27.1.. cohere-format cohere-is-reasoning-model enable-fault-tolerance fault-tolerance-config kda-prefill-backend
   mamba-ssu-algorithm mm-hasher-algorithm replayssm-buffer-len use-replayssm video-pruning-method
0.28.0.. ec-manager-config mm-device-do-normalize mm-processor-device return-sampling-mask
0.29.0.. dcp-q-replicate enable-batch-sharded-sampling enable-trace-replay max-num-queued-reqs max-num-queued-tokens
   per-request-spec-decode-metrics prefix-cache-retention-interval sse-keep-alive-interval
0.30.0.. dp-sync-interval elastic-ep-max-dp-size enable-nccl-comm-suspend enable-scale-out engram-config
   kda-decode-backend sparse-indexer-topk-backend watermark-config
0.30.0..0.30.0 enable-mamba-fine-grained-prefix-cache
0.31.0.. anthropic-disabled-thinking-effort aux-output-config device-memory-utilization
   enable-mamba-shared-prefix-checkpoint log-level logging-config long-prefill-token-threshold-adaptive
   max-lora-cls-labels max-num-active-seqs sleep-preserve-parameter-names swa-bounded-replay tool-strict-level
   trust-request-mm-kwargs
0.32.0.. custom-histogram-buckets enable-hc-sp enable-shm-tensor-arena grpc-port sleep-mode-offload-cudagraph
0.33.0.. disable-auto-tool-choice disable-batch-sharded-sampling disable-chunked-prefill disable-cumem-allocator
   disable-dbo disable-elastic-ep disable-ep-weight-filter disable-eplb disable-expert-parallel
   disable-fault-tolerance disable-flash-late-interaction disable-flashinfer-autotune disable-force-include-usage
   disable-hc-sp disable-layerwise-nvtx-tracing disable-log-deltas disable-log-outputs
   disable-logging-iteration-details disable-lora disable-mamba-cache-stochastic-rounding
   disable-mamba-shared-prefix-checkpoint disable-mfu-metrics disable-mixed-moe-lora-format disable-mm-embeds
   disable-moe-shared-loras disable-nccl-comm-suspend disable-offline-docs disable-per-request-metrics
   disable-prefix-caching disable-prompt-embeds disable-prompt-tokens-details disable-request-id-headers
   disable-return-routed-experts disable-scale-out disable-server-load-tracking disable-shm-tensor-arena
   disable-sleep-mode disable-ssl-refresh disable-tokenizer-info-endpoint disable-tower-connector-lora
   disable-trace-replay enable-cascade-attn enable-chunked-mm-input enable-custom-all-reduce enable-fastapi-docs
   enable-hybrid-kv-cache-manager enable-nccl-for-dp-synchronization enable-sliding-window enable-uvicorn-access-log
   monokernel reasoning-effort-map sleep-mode-backend watchdog-config
"""
