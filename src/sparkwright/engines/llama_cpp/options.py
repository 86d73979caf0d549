"""The options of llama-server, one per line in the order of its --help, with the kind of value that its parser accepts.

NAME KIND ALIASES... {choices} VARIABLE. The name is the last of the long names; aliases like `--no-x` turn it off. Kinds: switch (on and
off), bare (only on), on (on, off or auto; {on,off}: not auto), int, float, layers (a number, auto or all), json, two (words), text.
Sources: `llama-server --help` of the two builds (tests/data/llama.cpp), and the newer build's parser, tested with values of every
kind (tests/real_llama/test_flags.py). It parses numbers as C does: 128k is 128, and 1.5 is 1.
"""

OLDER, NEWER = 10434, 11549

OPTIONS = """
threads int -t LLAMA_ARG_THREADS
threads-batch int -tb
cpu-mask text -C
cpu-range text -Cr
cpu-strict int
prio int
poll int
cpu-mask-batch text -Cb
cpu-range-batch text -Crb
cpu-strict-batch int
prio-batch int
poll-batch int
ctx-size int -c LLAMA_ARG_CTX_SIZE
n-predict int -n --predict LLAMA_ARG_N_PREDICT
batch-size int -b LLAMA_ARG_BATCH
ubatch-size int -ub LLAMA_ARG_UBATCH
keep int
swa-full bare LLAMA_ARG_SWA_FULL
flash-attn on -fa LLAMA_ARG_FLASH_ATTN
perf switch --no-perf LLAMA_ARG_PERF
escape switch -e --no-escape
rope-scaling text {none,linear,yarn} LLAMA_ARG_ROPE_SCALING_TYPE
rope-scale float LLAMA_ARG_ROPE_SCALE
rope-freq-base float LLAMA_ARG_ROPE_FREQ_BASE
rope-freq-scale float LLAMA_ARG_ROPE_FREQ_SCALE
yarn-orig-ctx int LLAMA_ARG_YARN_ORIG_CTX
yarn-ext-factor float LLAMA_ARG_YARN_EXT_FACTOR
yarn-attn-factor float LLAMA_ARG_YARN_ATTN_FACTOR
yarn-beta-slow float LLAMA_ARG_YARN_BETA_SLOW
yarn-beta-fast float LLAMA_ARG_YARN_BETA_FAST
kv-offload switch -kvo -nkvo --no-kv-offload LLAMA_ARG_KV_OFFLOAD
repack switch -nr --no-repack LLAMA_ARG_REPACK
no-host bare LLAMA_ARG_NO_HOST
cache-type-k text -ctk {f32,f16,bf16,q8_0,q4_0,q4_1,iq4_nl,q5_0,q5_1} LLAMA_ARG_CACHE_TYPE_K
cache-type-v text -ctv {f32,f16,bf16,q8_0,q4_0,q4_1,iq4_nl,q5_0,q5_1} LLAMA_ARG_CACHE_TYPE_V
defrag-thold text -dt LLAMA_ARG_DEFRAG_THOLD
rpc text LLAMA_ARG_RPC
load-mode text -lm LLAMA_ARG_LOAD_MODE
lazy-mode text -lzm LLAMA_ARG_LAZY_MODE
numa text LLAMA_ARG_NUMA
device text -dev LLAMA_ARG_DEVICE
override-tensor text -ot LLAMA_ARG_OVERRIDE_TENSOR
cpu-moe bare -cmoe LLAMA_ARG_CPU_MOE
n-cpu-moe int -ncmoe LLAMA_ARG_N_CPU_MOE
moe-cache-mib int LLAMA_ARG_MOE_CACHE_MIB
n-cpu-ffn int -ncffn LLAMA_ARG_N_CPU_FFN
n-gpu-layers layers -ngl --gpu-layers LLAMA_ARG_N_GPU_LAYERS
split-mode text -sm {none,layer,row,tensor} LLAMA_ARG_SPLIT_MODE
tensor-split text -ts LLAMA_ARG_TENSOR_SPLIT
main-gpu int -mg LLAMA_ARG_MAIN_GPU
fit on -fit {on,off} LLAMA_ARG_FIT
fit-target text -fitt LLAMA_ARG_FIT_TARGET
fit-ctx int -fitc LLAMA_ARG_FIT_CTX
check-tensors bare
override-kv text
op-offload switch --no-op-offload
lora text
lora-scaled text
control-vector text
control-vector-scaled text
control-vector-layer-range two
model text -m LLAMA_ARG_MODEL
model-url text -mu LLAMA_ARG_MODEL_URL
docker-repo text -dr LLAMA_ARG_DOCKER_REPO
hf-repo text -hf -hfr LLAMA_ARG_HF_REPO
hf-file text -hff LLAMA_ARG_HF_FILE
hf-token text -hft HF_TOKEN
log-disable bare
log-file text LLAMA_ARG_LOG_FILE
log-jsonl switch --no-log-jsonl LLAMA_ARG_LOG_JSONL
log-colors on LLAMA_ARG_LOG_COLORS
log-verbose bare -v --verbose
offline bare LLAMA_ARG_OFFLINE
log-verbosity int -lv --verbosity LLAMA_ARG_LOG_VERBOSITY
log-prefix switch --no-log-prefix LLAMA_ARG_LOG_PREFIX
log-timestamps switch --no-log-timestamps LLAMA_ARG_LOG_TIMESTAMPS
cache-type-k-draft text --spec-draft-type-k -ctkd {f32,f16,bf16,q8_0,q4_0,q4_1,iq4_nl,q5_0,q5_1} LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K
cache-type-v-draft text --spec-draft-type-v -ctvd {f32,f16,bf16,q8_0,q4_0,q4_1,iq4_nl,q5_0,q5_1} LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V
samplers text
seed int -s
sampling-seq text --sampler-seq
ignore-eos bare
temperature float --temp LLAMA_ARG_TEMPERATURE
top-k int LLAMA_ARG_TOP_K
top-p float LLAMA_ARG_TOP_P
min-p float LLAMA_ARG_MIN_P
top-n-sigma float --top-nsigma
xtc-probability float
xtc-threshold float
typical-p float --typical
repeat-last-n int
repeat-penalty float LLAMA_ARG_REPEAT_PENALTY
presence-penalty float LLAMA_ARG_PRESENCE_PENALTY
frequency-penalty float LLAMA_ARG_FREQUENCY_PENALTY
dry-multiplier float
dry-base float
dry-allowed-length int
dry-penalty-last-n int
dry-sequence-breaker text
adaptive-target float
adaptive-decay float
dynatemp-range float
dynatemp-exp float
mirostat int
mirostat-lr float
mirostat-ent float
logit-bias text -l
grammar text
grammar-file text
json-schema json -j
json-schema-file text -jf
backend-sampling bare -bs LLAMA_ARG_BACKEND_SAMPLING
hf-repo-draft text --spec-draft-hf -hfd -hfrd LLAMA_ARG_SPEC_DRAFT_HF_REPO
threads-draft int --spec-draft-threads -td
threads-batch-draft int --spec-draft-threads-batch -tbd
cpu-mask-draft text --spec-draft-cpu-mask -Cd
cpu-range-draft text --spec-draft-cpu-range -Crd
cpu-strict-draft int --spec-draft-cpu-strict
prio-draft int --spec-draft-prio
poll-draft int --spec-draft-poll
cpu-mask-batch-draft text --spec-draft-cpu-mask-batch -Cbd
cpu-strict-batch-draft int --spec-draft-cpu-strict-batch
prio-batch-draft int --spec-draft-prio-batch
poll-batch-draft int --spec-draft-poll-batch
override-tensor-draft text --spec-draft-override-tensor -otd
cpu-moe-draft bare --spec-draft-cpu-moe -cmoed LLAMA_ARG_SPEC_DRAFT_CPU_MOE
n-cpu-moe-draft int --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE
spec-draft-n-max int LLAMA_ARG_SPEC_DRAFT_N_MAX
spec-draft-n-min int LLAMA_ARG_SPEC_DRAFT_N_MIN
spec-synth-len float LLAMA_ARG_SPEC_SYNTH_LEN
spec-synth-rates text LLAMA_ARG_SPEC_SYNTH_RATES
draft-p-split float --spec-draft-p-split LLAMA_ARG_SPEC_DRAFT_P_SPLIT
draft-p-min float --spec-draft-p-min LLAMA_ARG_SPEC_DRAFT_P_MIN
spec-draft-backend-sampling switch --no-spec-draft-backend-sampling LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING
spec-draft-sampling text {greedy,probabilistic} LLAMA_ARG_SPEC_DRAFT_SAMPLING
device-draft text --spec-draft-device -devd
n-gpu-layers-draft layers --spec-draft-ngl -ngld --gpu-layers-draft LLAMA_ARG_N_GPU_LAYERS_DRAFT
model-draft text --spec-draft-model -md LLAMA_ARG_SPEC_DRAFT_MODEL
spec-type text LLAMA_ARG_SPEC_TYPE
spec-ngram-mod-n-min int
spec-ngram-mod-n-max int
spec-ngram-mod-n-match int
spec-ngram-simple-size-n int
spec-ngram-simple-size-m int
spec-ngram-simple-min-hits int
spec-ngram-map-k-size-n int
spec-ngram-map-k-size-m int
spec-ngram-map-k-min-hits int
spec-ngram-map-k4v-size-n int
spec-ngram-map-k4v-size-m int
spec-ngram-map-k4v-min-hits int
lookup-cache-static text -lcs
lookup-cache-dynamic text -lcd
kv-unified-per-slot int LLAMA_ARG_KV_UNIFIED_PER_SLOT
swa-checkpoints int -ctxcp --ctx-checkpoints LLAMA_ARG_CTX_CHECKPOINTS
checkpoint-min-step int -cms LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT
cache-ram int -cram LLAMA_ARG_CACHE_RAM
kv-unified switch -kvu -no-kvu --no-kv-unified LLAMA_ARG_KV_UNIFIED
cache-idle-slots switch --no-cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS
context-shift switch --no-context-shift LLAMA_ARG_CONTEXT_SHIFT
reverse-prompt text -r
special bare -sp
warmup switch --no-warmup
spm-infill bare
pooling text {none,mean,cls,last,rank} LLAMA_ARG_POOLING
parallel int -np LLAMA_ARG_N_PARALLEL
cont-batching switch -cb -nocb --no-cont-batching LLAMA_ARG_CONT_BATCHING
mmproj text -mm LLAMA_ARG_MMPROJ
mmproj-url text -mmu LLAMA_ARG_MMPROJ_URL
mmproj-auto switch --no-mmproj --no-mmproj-auto LLAMA_ARG_MMPROJ_AUTO
mmproj-offload switch --no-mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD
mmproj-device text -mmdev MTMD_BACKEND_DEVICE
image-min-tokens int LLAMA_ARG_IMAGE_MIN_TOKENS
image-max-tokens int LLAMA_ARG_IMAGE_MAX_TOKENS
mtmd-batch-max-tokens int LLAMA_ARG_MTMD_BATCH_MAX_TOKENS
video-fps float LLAMA_ARG_VIDEO_FPS
video-timestamp-interval int LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL
video-ffmpeg-dir text LLAMA_ARG_VIDEO_FFMPEG_DIR
alias text -a LLAMA_ARG_ALIAS
tags text LLAMA_ARG_TAGS
embd-normalize int
host text LLAMA_ARG_HOST
port int LLAMA_ARG_PORT
reuse-port bare LLAMA_ARG_REUSE_PORT
path text LLAMA_ARG_STATIC_PATH
cors-origins text LLAMA_ARG_CORS_ORIGINS
cors-methods text LLAMA_ARG_CORS_METHODS
cors-headers text LLAMA_ARG_CORS_HEADERS
cors-credentials switch --no-cors-credentials LLAMA_ARG_CORS_CREDENTIALS
api-prefix text LLAMA_ARG_API_PREFIX
webui-config text --ui-config LLAMA_ARG_UI_CONFIG
webui-config-file text --ui-config-file LLAMA_ARG_UI_CONFIG_FILE
webui-mcp-proxy switch --ui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY
tools text LLAMA_ARG_TOOLS
tools-runtime text LLAMA_ARG_TOOLS_RUNTIME
mcp-servers-config text LLAMA_ARG_MCP_SERVERS_CONFIG
mcp-servers-json text LLAMA_ARG_MCP_SERVERS_JSON
agent switch -ag -no-ag --no-agent LLAMA_ARG_AGENT
webui switch --ui --no-ui --no-webui LLAMA_ARG_UI
embeddings bare --embedding LLAMA_ARG_EMBEDDINGS
reranking bare --rerank LLAMA_ARG_RERANKING
api-key text LLAMA_API_KEY
api-key-file text LLAMA_ARG_API_KEY_FILE
ssl-key-file text LLAMA_ARG_SSL_KEY_FILE
ssl-cert-file text LLAMA_ARG_SSL_CERT_FILE
chat-template-kwargs json LLAMA_ARG_CHAT_TEMPLATE_KWARGS
timeout int -to LLAMA_ARG_TIMEOUT
sse-ping-interval int LLAMA_ARG_SSE_PING_INTERVAL
threads-http int LLAMA_ARG_THREADS_HTTP
cache-prompt switch --no-cache-prompt LLAMA_ARG_CACHE_PROMPT
cache-reuse int LLAMA_ARG_CACHE_REUSE
metrics bare LLAMA_ARG_ENDPOINT_METRICS
props bare LLAMA_ARG_ENDPOINT_PROPS
slots switch --no-slots LLAMA_ARG_ENDPOINT_SLOTS
slot-save-path text LLAMA_ARG_SLOT_SAVE_PATH
media-path text
models-dir text LLAMA_ARG_MODELS_DIR
models-preset text LLAMA_ARG_MODELS_PRESET
models-max int LLAMA_ARG_MODELS_MAX
models-autoload switch --no-models-autoload LLAMA_ARG_MODELS_AUTOLOAD
jinja switch --no-jinja LLAMA_ARG_JINJA
reasoning-format text LLAMA_ARG_THINK
reasoning on -rea LLAMA_ARG_REASONING
reasoning-effort text LLAMA_ARG_REASONING_EFFORT
reasoning-budget int LLAMA_ARG_THINK_BUDGET
reasoning-budget-message text LLAMA_ARG_THINK_BUDGET_MESSAGE
reasoning-preserve switch --no-reasoning-preserve LLAMA_ARG_REASONING_PRESERVE
chat-template text LLAMA_ARG_CHAT_TEMPLATE
chat-template-file text LLAMA_ARG_CHAT_TEMPLATE_FILE
skip-chat-parsing switch --no-skip-chat-parsing LLAMA_ARG_SKIP_CHAT_PARSING
prefill-assistant switch --no-prefill-assistant LLAMA_ARG_PREFILL_ASSISTANT
slot-prompt-similarity float -sps
lora-init-without-apply bare
sleep-idle-seconds int
log-prompts-dir text
embd-gemma-default bare
fim-qwen-1.5b-default bare
fim-qwen-3b-default bare
fim-qwen-7b-default bare
fim-qwen-7b-spec bare
fim-qwen-14b-spec bare
fim-qwen-30b-default bare
gpt-oss-20b-default bare
gpt-oss-120b-default bare
vision-gemma-4b-default bare
vision-gemma-12b-default bare
spec-default bare
"""

#: removed in NEWER, with all aliases; the long names of other removed options are in option_history.json
GONE = """
mlock bare LLAMA_ARG_MLOCK
mmap switch --no-mmap LLAMA_ARG_MMAP
direct-io switch -dio -ndio --no-direct-io LLAMA_ARG_DIO
"""

#: choices of some text options, which the help describes in prose
CHOICES: dict[str, tuple[str, ...]] = {
    "load-mode": ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
    "reasoning-format": ("none", "auto", "deepseek", "deepseek-legacy"),
}

#: minimum values, where known
AT_LEAST = {"n-cpu-moe": 0, "parallel": -1, "repeat-last-n": 0, "checkpoint-min-step": 0, "ctx-size": 0, "port": 1}

#: flags that download an unpinned model when the server starts
DOWNLOADS = ("hf-repo", "hf-file", "hf-repo-draft", "model-url", "mmproj-url", "docker-repo")

#: successors of removed options, where their last build does not name one; "nothing": there is none
SUCCESSORS: dict[str, str] = {
    "clear-idle": "cache-idle-slots",  # b8929: the same sentence in its help
    "direct-io": "load-mode=dio",  # b10434: "DEPRECATED in favor of `--load-mode`", as of mlock and mmap
    "draft": "spec-draft-n-max",  # b10434: "the argument has been removed. use --spec-draft-n-max"
    "draft-max": "spec-draft-n-max",
    "draft-min": "spec-draft-n-min",
    "draft-n": "spec-draft-n-max",
    "draft-n-min": "spec-draft-n-min",
    "license": "nothing",
    "mlock": "load-mode=mlock",
    "mmap": "load-mode=mmap|none",
    "spec-ngram-min-hits": "spec-ngram-simple-min-hits",  # b10434: "use the respective" option of the type
    "spec-ngram-size-m": "spec-ngram-simple-size-m",
    "spec-ngram-size-n": "spec-ngram-simple-size-n",
}
