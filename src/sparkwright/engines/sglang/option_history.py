"""Options of SGLang that came or went, by release. Written by `make engine-release ENGINE=sglang`; don't edit.

A row: NAME KIND FIRST..LAST -> INSTEAD. FIRST and LAST are the oldest and the newest release that have it, empty where it is older or
newer than all that were asked. INSTEAD is what the engine names in its place, or SUCCESSORS of options.py. Options without a row are
in every release.
"""

#: the releases whose own parser was asked, oldest first
RELEASES = """
0.5.6 0.5.7 0.5.8 0.5.9 0.5.10 0.5.11 0.5.12 0.5.13 0.5.14 0.5.15 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21
0.5.22 0.5.23
"""

ROWS = """
admin-api-key text 0.5.8..
allowed-media-domains list 0.5.18..
asr-max-buffer-seconds int 0.5.13..
asr-max-concurrent-sessions int 0.5.13..
attention-context-parallel-size int 0.5.9..
attention-data-parallel-size int 0.5.22..
attn-cp-size int 0.5.9..
attn-dp-size int 0.5.22..
batch-notify-size int 0.5.11..
bf16-gemm-backend text 0.5.15..
boundary-reduction text 0.5.21..
c128-page-size int 0.5.18..
collect-tokens-histogram switch ..0.5.19 -> nothing
constrained-json-max-whitespace-cnt int 0.5.21..
context-bucket size 0.5.21..
cp-strategy text 0.5.14..
cuda-graph-backend-decode text 0.5.14..
cuda-graph-backend-prefill text 0.5.14..
cuda-graph-bs list ..0.5.19 -> cuda-graph-bs-decode
cuda-graph-bs-decode list 0.5.14..
cuda-graph-bs-prefill list 0.5.14..
cuda-graph-config text 0.5.14..
cuda-graph-max-bs int ..0.5.19 -> cuda-graph-max-bs-decode
cuda-graph-max-bs-decode int 0.5.14..
cuda-graph-max-bs-prefill int 0.5.14..
cuda-graph-max-seq-len-prefill int 0.5.21..
cuda-graph-prefill-max-context size 0.5.21..
cuda-graph-tc-compiler text 0.5.14..0.5.21
custom-sigquit-handler text 0.5.7..0.5.13
dcp-comm-backend text 0.5.17..
dcp-replicate-q-proj both 0.5.17..
dcp-size int 0.5.15..
debug-cuda-graph switch 0.5.11..
debug-tensor-dump-inject text ..0.5.13 -> nothing
decode-context-parallel-size int 0.5.15..
decoupled-spec-bind-endpoint text 0.5.15..
decoupled-spec-connect-endpoints json 0.5.15..
decoupled-spec-rank int 0.5.15..
decoupled-spec-role text 0.5.15..
deepep-dispatcher-output-dtype text 0.5.13..
deepep-v2-mode text 0.5.19..
default-chat-template-kwargs json 0.5.16..
default-priority-value int 0.5.10..
detokenizer-worker-num int 0.5.12..
disable-aiter-allreduce-fusion-in-decode switch 0.5.21..
disable-aiter-allreduce-fusion-in-prefill switch 0.5.21..
disable-attn-tp-gather switch 0.5.13..
disable-decode-cuda-graph switch 0.5.14..
disable-flashinfer-autotune switch 0.5.7..
disable-hicache-numa-detect switch 0.5.8..0.5.9 -> nothing
disable-piecewise-cuda-graph switch 0.5.10..0.5.19 -> cuda-graph-backend-prefill=disabled
disable-prefill-cuda-graph switch 0.5.14..
disable-priority-preemption switch 0.5.10..
disaggregation-decode-allocation-policy text 0.5.22..
disaggregation-decode-dp int ..0.5.9
disaggregation-decode-enable-fake-auto switch 0.5.7..0.5.8
disaggregation-decode-enable-radix-cache switch 0.5.11..
disaggregation-decode-extra-slots int 0.5.14..
disaggregation-decode-host-receive-threshold float 0.5.21..
disaggregation-decode-retraction-backup text 0.5.18..
disaggregation-decode-tp int ..0.5.9
disaggregation-enable-kv-checksum switch 0.5.21..
disaggregation-prefill-pp int ..0.5.9
dllm-algorithm-config text 0.5.7..
dllm-block-size int ..0.5.6
dllm-fdfo both 0.5.16..
ds-channel-config-path text ..0.5.10 -> nothing
ds-heavy-channel-num int ..0.5.10 -> nothing
ds-heavy-channel-type text ..0.5.10 -> nothing
ds-heavy-token-num int ..0.5.10 -> nothing
ds-sparse-decode-threshold int ..0.5.10 -> nothing
dsa-decode-backend text 0.5.13..
dsa-paged-mqa-logits-backend text 0.5.15..
dsa-prefill-backend text 0.5.13..
dsa-prefill-cp-mode text 0.5.13..0.5.19 -> cp-strategy
dsa-topk-backend text 0.5.13..
dsa-triton-union int 0.5.22..
dsv4-attn-backend text 0.5.20..
dsv4-prefill-backend text 0.5.19..
dwdp-size int 0.5.17..
elastic-ep-initial-size int 0.5.16..
elastic-ep-join-mode text 0.5.16..
elastic-ep-join-rank-offset int 0.5.16..
elastic-ep-rejoin switch 0.5.11..0.5.20 -> elastic-ep-join-mode=recover
elastic-ep-scale-timeout float 0.5.16..
enable-adaptive-dispatch-to-encoder switch 0.5.10..
enable-aiter-allreduce-fusion switch 0.5.10..
enable-amd-monokernel switch 0.5.23..
enable-breakable-cuda-graph switch 0.5.11..0.5.19 -> cuda-graph-backend-prefill=breakable
enable-cp-decode-attn-tp switch 0.5.17..
enable-decoder-swa-bounded-replay both 0.5.21..
enable-deepep-waterfill switch 0.5.12..0.5.15 -> enable-waterfill
enable-deepseek-v4-fp4-indexer switch 0.5.13..
enable-dense-mlp-attn-tp switch 0.5.19..
enable-double-sparsity switch ..0.5.10 -> nothing
enable-dp-attention-local-control-broadcast switch 0.5.11..
enable-dsa-cache-layer-split switch 0.5.16..
enable-dsa-fused-indexer both 0.5.22..
enable-dsa-prefill-context-parallel switch 0.5.13..0.5.19 -> enable-prefill-cp
enable-dynamic-chunking switch 0.5.7..
enable-elastic-expert-backup switch 0.5.10..
enable-encoder-swa-bounded-replay switch 0.5.21..
enable-expert-distribution-metrics switch ..0.5.17 -> expert-balancedness-report-mode=prometheus
enable-flashinfer-autotune switch ..0.5.6 -> nothing
enable-flexkv switch 0.5.16..
enable-forward-pass-metrics switch 0.5.12..
enable-fused-moe-sum-all-reduce switch 0.5.10..
enable-fused-qk-norm-rope both 0.5.7..
enable-gdn-replayssm-spec switch 0.5.16..0.5.19 -> enable-linear-replayssm-spec
enable-hicache switch 0.5.23..
enable-hisparse switch 0.5.10..
enable-http-worker-reuseport switch 0.5.23..
enable-http2 switch 0.5.11..
enable-int8-mamba-checkpoint switch 0.5.14..
enable-kv-cache-sharding switch 0.5.22..
enable-layernorm-sp switch 0.5.19..
enable-lean-attention switch 0.5.19..
enable-linear-replayssm switch 0.5.15..
enable-linear-replayssm-spec switch 0.5.17..
enable-linker-mla-dedup switch 0.5.21..
enable-lora-overlap-loading switch 0.5.8..
enable-mamba-cache-stochastic-rounding switch 0.5.15..
enable-megamoe-for-layernorm-sp switch 0.5.23..
enable-mfu-metrics switch 0.5.10..
enable-mis switch 0.5.11..
enable-mm-global-cache switch 0.5.10..
enable-multi-layer-eagle switch 0.5.7..
enable-nan-detection switch ..0.5.12
enable-nsa-prefill-context-parallel switch ..0.5.19 -> enable-prefill-cp
enable-nvidia-megakernel switch 0.5.23..
enable-page-major-kv-layout switch 0.5.15..
enable-paged-experts switch 0.5.23..
enable-pd-role-switch switch 0.5.21..
enable-piecewise-cuda-graph switch ..0.5.13 -> nothing
enable-precise-embedding-interpolation switch 0.5.7..
enable-prefill-context-parallel switch 0.5.10..0.5.19 -> enable-prefill-cp
enable-prefill-cp switch 0.5.14..
enable-prefill-delayer switch 0.5.8..
enable-prefix-mm-cache switch 0.5.7..
enable-quant-communications switch 0.5.11..
enable-response-store switch 0.5.20..
enable-return-aux-hidden-states switch 0.5.23..
enable-return-indexer-topk switch 0.5.12..
enable-return-routed-experts switch 0.5.7..
enable-scattered-sconv switch 0.5.16..
enable-session-radix-cache switch 0.5.15..
enable-shared-experts-attn-tp switch 0.5.19..
enable-ssl-refresh switch 0.5.10..
enable-streaming-session switch 0.5.10..
enable-strict-thinking switch 0.5.12..
enable-tf32-matmul both 0.5.15..
enable-tp-lm-head-all-to-all both 0.5.18..
enable-unified-cache-external-linker switch 0.5.20..
enable-unified-memory switch 0.5.15..
enable-w4a4-mxfp4-megamoe switch 0.5.19..
enable-waterfill switch 0.5.16..
enable-watermark switch 0.5.22..
encoder-bootstrap-port int 0.5.13..
encoder-only switch 0.5.7..
encoder-register-urls list 0.5.13..
encoder-transfer-backend text 0.5.7..
encoder-urls list 0.5.7..
enforce-disable-flashinfer-allreduce-fusion switch 0.5.10..
enforce-piecewise-cuda-graph switch 0.5.10..0.5.19 -> cuda-graph-backend-prefill=tc_piecewise
enforce-shared-experts-fusion switch 0.5.11..
engine-info-bootstrap-port int 0.5.10..
expert-balancedness-report-mode text 0.5.18..
experts-shared-outer-loras both 0.5.10..
extra-metric-labels json 0.5.9..
flashinfer-a2a-dispatch-type text 0.5.20..
flashinfer-allreduce-fusion-backend text 0.5.14..
flashinfer-autotune-skip-ops list 0.5.17..
flexkv-config-file text 0.5.16..
forward-pass-metrics-ipc-name text 0.5.12..
forward-pass-metrics-worker-id text 0.5.12..
fp4-gemm-backend text 0.5.8..
fp8-gemm-backend text 0.5.7..
fuseep-mode int 0.5.16..
gated-launch-port int 0.5.19..
gc-threshold list 0.5.10..
grpc-http-sidecar-port int 0.5.11..
grpc-port int 0.5.16..
grpc-response-timeout-secs int 0.5.21..
hf-chat-template-name text 0.5.8..
hicache-host-memory-fraction float 0.5.21..
hicache-host-memory-mode text 0.5.19..
hicache-storage-prefetch-retry-max-attempts int 0.5.19..
hicache-storage-prefetch-retry-poll-interval int 0.5.19..
hierarchical-sparse-attention-extra-config text 0.5.8..
hisparse-config text 0.5.10..
http2-initial-connection-window-size int 0.5.19..
http2-max-concurrent-streams int 0.5.18..
hybrid-kvcache-ratio switch ..0.5.13 -> swa-full-tokens-ratio
image-processor-backend text 0.5.18..
incremental-streaming-output switch 0.5.10..
int8-mamba-ckpt-size int 0.5.14..
keep-mm-feature-on-device switch ..0.5.20 -> mm-feature-transport=cuda_ipc
kv-canary text 0.5.13..
kv-canary-real-data text 0.5.13..
kv-canary-sweep-interval int 0.5.13..
language-model-only switch 0.5.18..
language-only switch 0.5.7..
limit-mm-data-per-request json 0.5.7..
linear-attn-backend text 0.5.10..
linear-attn-decode-backend text 0.5.10..
linear-attn-prefill-backend text 0.5.10..
linear-attn-verify-backend text 0.5.17..
linear-replayssm-cache-len int 0.5.15..
lmcache-config-file text 0.5.13..
load-publish-endpoint text 0.5.19..
load-snapshot-publish-interval int 0.5.13..
load-watch-interval float ..0.5.6
log-requests-format text 0.5.7..
log-requests-target list 0.5.8..
lora-drain-wait-threshold float 0.5.12..
lora-strict-loading both 0.5.11..
lora-use-virtual-experts switch 0.5.11..
mamba-backend text 0.5.9..
mamba-cache-philox-rounds int 0.5.15..
mamba-max-states-per-path int 0.5.17..
mamba-radix-cache-strategy text 0.5.14..
mamba-scheduler-strategy text 0.5.7..0.5.19 -> mamba-radix-cache-strategy
mamba-track-interval int 0.5.7..
max-ep-size int 0.5.16..
media-url-max-file-size-mb int 0.5.18..
min-free-slots-delay int 0.5.15..
mlx-enable-sampling switch 0.5.18..
mm-feature-transport text 0.5.16..
mm-global-cache-backend text 0.5.18..
mm-io-worker-num int 0.5.17..
mm-max-concurrent-calls int ..0.5.9
mm-per-request-timeout int ..0.5.9
mm-preprocess-cache-size-mb int 0.5.18..
mm-processor-worker-num int 0.5.17..
model-checksum text 0.5.8..
model-config-parser text 0.5.12..
modelexpress-config text 0.5.10..
moe-data-parallel-size int 0.5.9..
moe-dp-size int 0.5.9..
monokernel-backend switch 0.5.23..
msprobe-dump-config text 0.5.11..
multi-item-scoring-delimiter int ..0.5.10 -> enable-mis=true
nsa-decode-backend text ..0.5.19 -> dsa-decode-backend
nsa-prefill-backend text ..0.5.19 -> dsa-prefill-backend
nsa-prefill-cp-mode text 0.5.8..0.5.19 -> cp-strategy
optimistic-prefill-attempts int 0.5.16..
optimistic-prefill-retries int 0.5.13..0.5.15 -> optimistic-prefill-attempts
otlp-service-name text 0.5.21..
paged-experts-num-resident int 0.5.23..
piecewise-cuda-graph-compiler text ..0.5.19 -> cuda-graph-tc-compiler
piecewise-cuda-graph-max-tokens int ..0.5.19 -> cuda-graph-max-bs-prefill
piecewise-cuda-graph-tokens list ..0.5.19 -> cuda-graph-bs-prefill
ple-offload-backend text 0.5.20..
ple-offload-dir text 0.5.20..
ple-offload-embedding both 0.5.20..
pp-async-batch-depth int 0.5.7..
pre-warm-nccl switch 0.5.10..
prefill-cp-mode text 0.5.10..0.5.19 -> cp-strategy
prefill-decode-interval int 0.5.19..
prefill-decode-interval-min-bs int 0.5.23..
prefill-delayer-forward-passes-buckets list 0.5.8..
prefill-delayer-max-delay-ms float 0.5.12..
prefill-delayer-max-delay-passes int 0.5.8..
prefill-delayer-queue-min-ratio float 0.5.12..
prefill-delayer-token-usage-low-watermark float 0.5.8..
prefill-delayer-wait-seconds-buckets list 0.5.8..
prefill-kv-cache-dequant-dtype text 0.5.21..
prefill-max-requests int 0.5.7..
prefill-only-disable-kv-cache switch 0.5.12..
prefill-round-robin-balance switch ..0.5.19 -> nothing
qsa-indexer-dtype text 0.5.22..
radix-cache-backend text 0.5.13..
radix-eviction-policy-config json 0.5.20..
record-nolora-graph both 0.5.11..0.5.12 -> nothing
remote-instance-weight-loader-backend text 0.5.7..
remote-instance-weight-loader-start-seed-via-transfer-engine switch 0.5.7..
retraction-policy text 0.5.16..
return-aux-hidden-state-layer-ids list 0.5.23..
return-hidden-states-mode text 0.5.17..
return-input-ids switch 0.5.20..
return-output-ids switch 0.5.20..
rl-quant-profile text 0.5.7..
sampling-mask-max-tokens int 0.5.20..
shared-experts-tp-size int 0.5.21..
sidecar text 0.5.16..
sidecar-args json 0.5.16..
smg-grpc-mode switch 0.5.16..
smg-http-sidecar-port int 0.5.16..
soft-watchdog-timeout float 0.5.7..
spec-trace-dir text 0.5.15..
speculative-adaptive switch 0.5.11..
speculative-adaptive-config text 0.5.11..
speculative-dflash-block-size int 0.5.11..
speculative-dflash-draft-window-size int 0.5.11..0.5.19 -> speculative-draft-window-size
speculative-domino-candidate-pool-size int 0.5.20..
speculative-draft-attention-backend text 0.5.7..
speculative-draft-kv-cache-dtype text 0.5.18..
speculative-draft-model-quantization text 0.5.7..
speculative-draft-sink-size int 0.5.21..
speculative-draft-window-size int 0.5.12..
speculative-dsa-topk-backend text 0.5.19..
speculative-dspark-align-verify-tokens-to-graph-tier switch 0.5.16..
speculative-dspark-block-size int 0.5.16..
speculative-dspark-confidence-sts-path text 0.5.16..
speculative-dspark-sps-table-path text 0.5.16..
speculative-enable-w4a4-mxfp4-megamoe both 0.5.22..
speculative-moe-a2a-backend text 0.5.7..
speculative-ngram-branch-length int ..0.5.9 -> speculative-ngram-max-trie-depth
speculative-ngram-external-corpus-max-tokens int 0.5.11..
speculative-ngram-external-corpus-path text 0.5.11..
speculative-ngram-external-sam-budget int 0.5.11..
speculative-ngram-max-match-window-size int ..0.5.9
speculative-ngram-max-trie-depth int 0.5.10..
speculative-ngram-min-match-window-size int ..0.5.9
speculative-skip-dp-mlp-sync switch 0.5.11..0.5.22
speculative-use-block-verification switch 0.5.22..
speculative-use-rejection-sampling switch 0.5.14..
ssl-ca-certs text 0.5.10..
ssl-certfile text 0.5.10..
ssl-keyfile text 0.5.10..
ssl-keyfile-password text 0.5.10..
startup-weight-load-mode text 0.5.18..
stream-output switch ..0.5.19 -> incremental-streaming-output
stream-response-default-include-usage switch 0.5.10..
strip-thinking-cache switch 0.5.11..
swa-prefix-tails int 0.5.21..
tokenizer-backend text 0.5.11..
torchao-config text ..0.5.17
trace-modules text 0.5.13..
trust-mm-content-hashes switch 0.5.18..
trust-request-chat-template switch 0.5.21..
unified-cache-external-linker-backend text 0.5.20..
unified-cache-external-linker-config json 0.5.23..
uno-lora-path text 0.5.20..
use-ray switch 0.5.10..
uvicorn-access-log-exclude-prefixes list 0.5.8..
watermark-config text 0.5.22..
weight-cache-mode text 0.5.17..
weight-cache-socket text 0.5.17..
weight-cache-timeout int 0.5.17..
weight-loader-drop-cache-after-load switch 0.5.12..
weight-loader-prefetch-checkpoints switch 0.5.11..
weight-loader-prefetch-num-threads int 0.5.11..
"""
