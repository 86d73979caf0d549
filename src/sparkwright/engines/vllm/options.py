"""The kind, choices, range and other names of each option of `vllm serve`.

Sources: kinds, choices and short names: the actions of 0.32.0's own parser (tests/data/vllm-0.32.0/parser.json). The kinds in
KINDS are the same in 0.11.2 and 0.22.1 where those have the option. Ranges: the `Field` of the config class that a row names, in
the release it names and all later ones that were read (0.11.2, 0.22.1, 0.32.0).
"""

from __future__ import annotations

from collections.abc import Collection

#: release of these options
VERSION = "0.32.0"
#: the oldest release that KINDS and RANGES were compared with
OLDEST = "0.11.2"

#: options by the kind of their value. `?`: also "" and "None", for none. `+`: several words. size: a whole number, or one with a
#: unit, as 32k or 1.5m or 32K. switch: --x and --no-x. bare switch: --x alone. object: a JSON object.
#: module: NAME=PATH, or JSON.
KINDS: dict[str, str] = {
    "switch": """
        allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model cudagraph-metrics
        data-parallel-external-lb data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn
        disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager
        disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
        enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep
        enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance
        enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage enable-hc-sp
        enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
        enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
        enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
        enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
        enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
        enable-return-routed-experts enable-scale-out enable-server-load-tracking enable-shm-tensor-arena
        enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora
        enable-trace-replay enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation
        fully-sharded-loras interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill
        language-model-only log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize
        mm-encoder-only numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids
        scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph
        specialize-active-lora swa-bounded-replay tokens-only trust-remote-code trust-request-chat-template
        trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
    """,
    "bare switch": """
        aggregate-engine-logging data-parallel-multi-port-external-lb disable-log-stats grpc headless
    """,
    "int": """
        api-server-count block-size cp-kv-cache-interleave-size data-parallel-rank data-parallel-rpc-port
        data-parallel-size data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port
        dbo-decode-token-threshold dbo-prefill-token-threshold dcp-kv-cache-interleave-size
        decode-context-parallel-size dp-supervisor-probe-failure-threshold dp-sync-interval elastic-ep-max-dp-size
        h11-max-header-count h11-max-incomplete-event-size long-prefill-token-threshold mamba-cache-philox-rounds
        master-port max-cudagraph-capture-size max-logprobs max-lora-rank max-loras max-num-seqs
        mm-shm-cache-max-object-size-mb nnodes node-rank offload-group-size offload-num-in-group offload-prefetch-step
        pipeline-parallel-size port prefill-context-parallel-size prefill-schedule-interval renderer-num-workers
        replayssm-buffer-len safetensors-prefetch-num-threads seed shutdown-timeout spec-tokens
        sse-keep-alive-interval ssl-cert-reqs stream-interval tensor-parallel-size ubatch-size
    """,
    "int?": """
        cpu-distributed-timeout-seconds distributed-timeout-seconds grpc-port mamba-block-size max-cpu-loras
        max-log-len max-lora-cls-labels max-num-active-seqs max-num-queued-reqs max-parallel-loading-workers
        num-gpu-blocks-override prefix-cache-retention-interval prefix-match-unit
    """,
    "int+": "cudagraph-capture-sizes",
    "int?+": "numa-bind-nodes",
    "size": "max-num-batched-tokens safetensors-prefetch-block-size",
    "size?": "kv-cache-memory-bytes max-num-queued-tokens max-num-scheduled-tokens",
    "size or auto": "max-model-len",
    "float": """
        cpu-offload-gb dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s gpu-memory-utilization
        kv-cache-metrics-sample mm-encoder-fp8-scale-save-margin mm-ipc-gpu-memory-gb mm-processor-cache-gb watermark
    """,
    "float?": "kv-offloading-size video-pruning-rate",
    "text": """
        all2all-backend allowed-local-media-path anthropic-disabled-thinking-effort chat-template-content-format
        cohere-format config config-format convert data-parallel-address data-parallel-backend device-ids dtype
        expert-placement-strategy fingerprint-mode gdn-prefill-backend generation-config jit-monitor-mode
        kda-decode-backend kda-prefill-backend kv-cache-dtype kv-offloading-backend linear-backend load-format
        log-config-file log-level logprobs-mode lora-dtype mamba-backend mamba-cache-dtype mamba-cache-mode
        mamba-ssm-cache-dtype master-addr mm-encoder-tp-mode mm-hasher-algorithm mm-processor-cache-type
        mm-processor-device mm-tensor-ipc model model-impl moe-backend offload-backend optimization-level
        per-request-spec-decode-metrics performance-mode prefix-caching-hash-algo reasoning-parser
        reasoning-parser-plugin response-role runner scheduling-policy sparse-indexer-topk-backend tokenizer
        tokenizer-mode tool-parser-plugin tool-strict-level uvicorn-log-level video-pruning-method worker-cls
        worker-extension-cls
    """,
    "text?": """
        attention-backend chat-template code-revision dcp-comm-backend disable-access-log-for-endpoints
        distributed-executor-backend download-dir fingerprint-value hf-config-path host io-processor-plugin
        mamba-ssu-algorithm mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
        mm-encoder-fp8-scale-save-path otlp-traces-endpoint quantization revision root-path safetensors-load-strategy
        scheduler-cls show-hidden-metrics-for-version spec-method spec-model ssl-ca-certs ssl-certfile ssl-ciphers
        ssl-keyfile tokenizer-revision tool-call-parser tool-server uds
    """,
    "text+": """
        cpu-offload-params ignore-patterns kv-cache-dtype-skip-layers offload-params sleep-preserve-parameter-names
    """,
    "text?+": """
        allowed-media-domains api-key collect-detailed-traces logits-processors lora-target-modules
        numa-bind-cpus served-model-name
    """,
    "module?+": "lora-modules",
    "text repeated": "middleware",
    "text or nothing": "hf-token",
    "text or json": "additional-config hf-overrides model-loader-extra-config pt-load-map-location",
    "json": """
        allowed-headers allowed-methods allowed-origins default-chat-template-kwargs limit-mm-per-prompt
        media-io-kwargs model-class-overrides override-generation-config
    """,
    "json?": """
        custom-histogram-buckets default-mm-loras diffusion-config mm-processor-kwargs speculative-config
        watermark-config
    """,
    "object": """
        attention-config aux-output-config compilation-config ec-manager-config eplb-config fault-tolerance-config
        ir-op-priority kernel-config logging-config profiler-config structured-outputs-config
    """,
    "object?": """
        ec-transfer-config engram-config kv-events-config kv-transfer-config pooler-config quantization-config
        reasoning-config weight-transfer-config
    """,
}

#: all that an option takes, where that is all; each release has its own
CHOICES: dict[str, str] = {
    "all2all-backend": """
        allgather_reducescatter deepep_high_throughput deepep_low_latency deepep_v2 flashinfer_all2allv
        flashinfer_nvlink_one_sided flashinfer_nvlink_two_sided moonep mori_high_throughput mori_low_latency naive
        nixl_ep pplx
    """,
    "anthropic-disabled-thinking-effort": "auto high low max medium none xhigh",
    "chat-template-content-format": "auto openai string",
    "collect-detailed-traces": "all model worker",
    "convert": "auto classify embed none",
    "dcp-comm-backend": "a2a ag_rs",
    "dtype": "auto bfloat16 float float16 float32 half",
    "expert-placement-strategy": "linear round_robin",
    "fingerprint-mode": "custom full hash none",
    "gdn-prefill-backend": "flashinfer triton cutedsl aiter_flydsl",
    "jit-monitor-mode": "error warn",
    "kda-decode-backend": "auto native flashinfer triton",
    "kda-prefill-backend": "auto triton flashkda flashinfer fused",
    "kv-cache-dtype": """
        auto bfloat16 float16 fp8 fp8_ds_mla fp8_e4m3 fp8_e5m2 fp8_inc fp8_per_token_head int4_per_token_head
        int8_per_token_head nvfp4 nvfp4_4over6 nvfp4_ds_mla turboquant_3bit_nc turboquant_4bit_nc turboquant_k3v4_nc
        turboquant_k8v4 ultraquant_4bit
    """,
    "kv-offloading-backend": "lmcache native",
    "linear-backend": """
        aiter auto b12x conch cutlass deep_gemm emulation exllama fbgemm flashinfer_b12x flashinfer_cudnn
        flashinfer_cutedsl flashinfer_cutlass flashinfer_trtllm humming machete marlin torch triton xpu xpu_woq
    """,
    "log-level": "CRITICAL ERROR WARNING INFO DEBUG NOTSET",
    "logprobs-mode": "processed_logits processed_logprobs raw_logits raw_logprobs",
    "lora-dtype": "auto bfloat16 float16",
    "mamba-cache-dtype": "auto bfloat16 float16 float32",
    "mamba-cache-mode": "align none",
    "mamba-ssm-cache-dtype": "auto bfloat16 float16 float32",
    "mamba-ssu-algorithm": "auto horizontal simple vertical",
    "max-lora-rank": "1 8 16 32 64 128 256 320 512",
    "mm-encoder-attn-dtype": "fp8",
    "mm-encoder-tp-mode": "data weights",
    "mm-hasher-algorithm": "blake3 sha256 sha512",
    "mm-processor-cache-type": "lru shm",
    "mm-processor-device": "auto cpu",
    "mm-tensor-ipc": "direct_rpc torch_shm",
    "moe-backend": """
        aiter aiter_mega_moe aiter_triton_mxfp4_bf16 auto b12x batched_triton cutlass deep_gemm deep_gemm_mega_moe
        emulation flashinfer_b12x flashinfer_cutedsl flashinfer_cutlass flashinfer_moe_ep_cutedsl
        flashinfer_moe_ep_mega_deep_gemm flashinfer_trtllm flydsl hpc humming marlin rdna3 triton triton_unfused
    """,
    "offload-backend": "auto prefetch uva",
    "per-request-spec-decode-metrics": "detailed none summary",
    "performance-mode": "balanced interactivity throughput",
    "prefix-caching-hash-algo": "sha256 sha256_cbor xxhash xxhash_cbor",
    "runner": "auto draft generate pooling",
    "safetensors-load-strategy": "eager lazy prefetch torchao",
    "scheduling-policy": "fcfs priority",
    "sparse-indexer-topk-backend": "aiter auto cooperative deep_select flashinfer per_row persistent torch",
    "spec-method": """
        bailing_hybrid_mtp bailing_hybrid_v3_mtp custom_class deepseek_mtp dflash dots3_note_mtp draft_model dspark
        eagle eagle3 ernie_mtp exaone4_5_mtp exaone_moe_mtp extract_hidden_states gemma4_mtp glm4_moe_lite_mtp
        glm4_moe_mtp glm5_next_mtp glm_ocr_mtp hy_v3_mtp hy_v4_mtp inkling_mtp kimi_k3_mtp longcat_flash_mtp medusa
        mimo_mtp mimo_v2_mtp minimax_m3_mtp mlp_speculator mtp nemotron_h_mtp ngram ngram_gpu pangu_ultra_moe_mtp
        qwen3_5_mtp qwen3_next_mtp qwen4_exp_mtp step3p5_mtp suffix
    """,
    "tool-strict-level": "auto function parameter",
    "uvicorn-log-level": "critical debug error info trace warning",
    "video-pruning-method": "evs vidcom2",
}
#: options for which the parser also takes capitals and dashes
FOLDED = frozenset({"linear-backend", "moe-backend", "sparse-indexer-topk-backend"})

#: names that a plugin can add to, by the option that loads the plugin. Checked when the server starts, not by the parser.
PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
#: options whose names are listed in the help
LISTED = frozenset({"tool-call-parser"})
REGISTERED: dict[str, str] = {
    "reasoning-parser": """
        cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45 glm47
        granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3 ling3
        mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse_glimmer nemotron_v3 olmo3
        openai_gptoss plamo3 poolside_v1 qwen3 seed_oss step3 step3p5
    """,
    "tool-call-parser": """
        apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots
        ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf hunyuan_a13b
        hy_v3 hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json
        llama4_pythonic longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse_glimmer olmo3 openai phi4_mini_json
        plamo3 poolside_v1 pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 xlam
    """,
}

#: option, oldest release with the range, config class, range
RANGES = """
block-size 0.32.0 CacheConfig >0
cpu-offload-gb 0.22.1 UVAOffloadConfig >=0
data-parallel-rank 0.32.0 ParallelConfig >=0
data-parallel-rpc-port 0.32.0 ParallelConfig >=1 <=65535
data-parallel-size 0.32.0 ParallelConfig >=1
data-parallel-size-local 0.32.0 ParallelConfig >=0
dbo-decode-token-threshold 0.32.0 ParallelConfig >=0
dbo-prefill-token-threshold 0.32.0 ParallelConfig >=0
decode-context-parallel-size 0.32.0 ParallelConfig >=1
dp-sync-interval 0.32.0 ParallelConfig >=1
elastic-ep-max-dp-size 0.32.0 ParallelConfig >=1
gpu-memory-utilization 0.11.2 CacheConfig >0 <=1
kv-cache-metrics-sample 0.22.1 ObservabilityConfig >0 <=1
long-prefill-token-threshold 0.32.0 SchedulerConfig >=0
mamba-block-size 0.11.2 CacheConfig >0
max-logprobs 0.32.0 ModelConfig >=-1
max-lora-cls-labels 0.32.0 LoRAConfig >=1
max-loras 0.11.2 LoRAConfig >=1
max-model-len 0.22.1 ModelConfig >=-1
max-num-active-seqs 0.32.0 SchedulerConfig >=1
max-num-batched-tokens 0.11.2 SchedulerConfig >=1
max-num-queued-reqs 0.32.0 SchedulerConfig >=0
max-num-queued-tokens 0.32.0 SchedulerConfig >=0
max-num-scheduled-tokens 0.32.0 SchedulerConfig >=1
max-num-seqs 0.11.2 SchedulerConfig >=1
max-parallel-loading-workers 0.32.0 ParallelConfig >=1
mm-encoder-fp8-scale-save-margin 0.22.1 MultiModalConfig >0
mm-ipc-gpu-memory-gb 0.32.0 MultiModalConfig >=0
mm-processor-cache-gb 0.11.2 MultiModalConfig >=0
mm-shm-cache-max-object-size-mb 0.11.2 MultiModalConfig >=0
nnodes 0.32.0 ParallelConfig >=1
node-rank 0.32.0 ParallelConfig >=0
offload-group-size 0.22.1 PrefetchOffloadConfig >=0
offload-num-in-group 0.22.1 PrefetchOffloadConfig >=1
offload-prefetch-step 0.22.1 PrefetchOffloadConfig >=0
pipeline-parallel-size 0.32.0 ParallelConfig >=1
port 0.11.2 socket.bind >=0 <=65535
prefill-context-parallel-size 0.32.0 ParallelConfig >=1
prefill-schedule-interval 0.32.0 SchedulerConfig >=1
prefix-cache-retention-interval 0.32.0 CacheConfig >=0
prefix-match-unit 0.32.0 CacheConfig >0
replayssm-buffer-len 0.32.0 CacheConfig >0
safetensors-prefetch-block-size 0.22.1 LoadConfig >=1
safetensors-prefetch-num-threads 0.22.1 LoadConfig >=1
shutdown-timeout 0.22.1 VllmConfig >=0
sse-keep-alive-interval 0.32.0 validate_parsed_serve_args >=0
stream-interval 0.11.2 SchedulerConfig >=1
tensor-parallel-size 0.32.0 ParallelConfig >=1
ubatch-size 0.32.0 ParallelConfig >=0
video-pruning-rate 0.11.2 MultiModalConfig >=0 <1
watermark 0.32.0 SchedulerConfig >=0 <1
"""

#: other long names, and short ones
ALIASES = {"device-memory-utilization": "gpu-memory-utilization"}
SHORT: dict[str, str] = dict(
    pair.split("=")
    for pair in """
        O=optimization-level ac=attention-config asc=api-server-count cc=compilation-config dc=diffusion-config
        dcp=decode-context-parallel-size dp=data-parallel-size dpa=data-parallel-address dpb=data-parallel-backend
        dpe=data-parallel-external-lb dph=data-parallel-hybrid-lb dpl=data-parallel-size-local
        dpm=data-parallel-multi-port-external-lb dpn=data-parallel-rank dpp=data-parallel-rpc-port
        dpr=data-parallel-start-rank ep=enable-expert-parallel n=nnodes pcp=prefill-context-parallel-size
        pp=pipeline-parallel-size q=quantization r=node-rank sc=speculative-config tp=tensor-parallel-size
    """.split()
)


# The full list of options of `vllm serve` in three releases: those of flag_types, and the differences in an older and
# a newer one.
#
# Sources: 0.32.0 and 0.33.0: their own `vllm serve --help=all` (tests/data, and the report of 0.33.0 in
# tests/data/engine-agreement). 0.22.1: the options that its image's parser lists (261 of them).


OLDER = "0.22.1"
NEWER = VERSION
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


def switch_pair(name: str) -> str:
    """Return the other name of a switch of NEWEST, as disable-lora for enable-lora; "" for an option without one."""
    if name.startswith("enable-"):
        return name.replace("enable-", "disable-", 1)
    return name.replace("disable-", "enable-", 1) if name.startswith("disable-") else ""


_NEWER = frozenset(name for names in KINDS.values() for name in names.split()).union(ALIASES)
KNOWN: dict[str, frozenset[str]] = {
    OLDER: _NEWER.difference(_ONLY_NEWER.split()).union(_ONLY_OLDER.split()),
    NEWER: _NEWER,
    NEWEST: _NEWER.union(_ONLY_NEWEST.split(), filter(None, map(switch_pair, KINDS["switch"].split()))),
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
