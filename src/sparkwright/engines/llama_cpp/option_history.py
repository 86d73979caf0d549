"""Options of llama-server that came or went, by release. Written by `make engine-release ENGINE=llama_cpp`; don't edit.

A row: NAME KIND FIRST..LAST -> INSTEAD. FIRST and LAST are the oldest and the newest release that have it, empty where it is older or
newer than all that were asked. INSTEAD is what the engine names in its place, or SUCCESSORS of options.py. Options without a row are
in every release.
"""

#: the releases whose own parser was asked, oldest first
RELEASES = """
b8672 b8929 b9093 b9294 b9538 b9713 b9873 b10068 b10229 b10434 b10566 b10809 b11063 b11549
"""

ROWS = """
agent switch b9873..
cache-idle-slots switch b8929..
checkpoint-every-n-tokens text ..b9294
checkpoint-min-step text b9538..
clear-idle switch ..b8672 -> cache-idle-slots
cors-credentials switch b10068..
cors-headers text b10068..
cors-methods text b10068..
cors-origins text b10068..
cpu-mask-batch-draft text b9093..
cpu-mask-draft text b9093..
cpu-range-draft text b9093..
cpu-strict-batch-draft text b9093..
cpu-strict-draft text b9093..
ctx-size-draft text ..b9093
direct-io switch ..b10809 -> load-mode=dio
draft text ..b8929 -> spec-draft-n-max
draft-max text ..b8929 -> spec-draft-n-max
draft-min text ..b8929 -> spec-draft-n-min
draft-n text ..b8929 -> spec-draft-n-max
draft-n-min text ..b8929 -> spec-draft-n-min
draft-p-split text b9093..
embd-normalize text b9294..
hf-file-v text ..b10229
hf-repo-v text ..b10229
kv-unified-per-slot text b10809..
lazy-mode text b10809..
license bare ..b9294 -> nothing
load-mode text b10229..
log-jsonl switch b11063..
log-prompts-dir text b9713..
mcp-servers-config text b10229..
mcp-servers-json text b10229..
mlock bare ..b10809 -> load-mode=mlock
mmap switch ..b10809 -> load-mode=mmap|none
mmproj-device text b10566..
model-vocoder text ..b10229
moe-cache-mib text b11549..
mtmd-batch-max-tokens text b9713..
n-cpu-ffn text b10809..
poll-batch-draft text b9093..
poll-draft text b9093..
prio-batch-draft text b9093..
prio-draft text b9093..
reasoning-effort text b10434..
reasoning-preserve switch b9873..
rpc text b10434..
spec-default bare b8929..
spec-draft-backend-sampling switch b9294..
spec-draft-cpu-mask text b9093..
spec-draft-cpu-mask-batch text b9093..
spec-draft-cpu-moe bare b9093..
spec-draft-cpu-range text b9093..
spec-draft-cpu-strict text b9093..
spec-draft-cpu-strict-batch text b9093..
spec-draft-ctx-size text b9093..b9093
spec-draft-device text b9093..
spec-draft-hf text b9093..
spec-draft-model text b9093..
spec-draft-n-cpu-moe text b9093..
spec-draft-n-max text b9093..
spec-draft-n-min text b9093..
spec-draft-ncmoe text b9093..
spec-draft-ngl text b9093..
spec-draft-override-tensor text b9093..
spec-draft-p-min text b9093..
spec-draft-p-split text b9093..
spec-draft-poll text b9093..
spec-draft-poll-batch text b9093..
spec-draft-prio text b9093..
spec-draft-prio-batch text b9093..
spec-draft-replace two b9093..b9093
spec-draft-sampling text b11549..
spec-draft-threads text b9093..
spec-draft-threads-batch text b9093..
spec-draft-type-k text b9093..
spec-draft-type-v text b9093..
spec-ngram-map-k-min-hits text b9093..
spec-ngram-map-k-size-m text b9093..
spec-ngram-map-k-size-n text b9093..
spec-ngram-map-k4v-min-hits text b9093..
spec-ngram-map-k4v-size-m text b9093..
spec-ngram-map-k4v-size-n text b9093..
spec-ngram-min-hits text ..b8929 -> spec-ngram-simple-min-hits
spec-ngram-mod-n-match text b9093..
spec-ngram-mod-n-max text b9093..
spec-ngram-mod-n-min text b9093..
spec-ngram-simple-min-hits text b9093..
spec-ngram-simple-size-m text b9093..
spec-ngram-simple-size-n text b9093..
spec-ngram-size-m text ..b8929 -> spec-ngram-simple-size-m
spec-ngram-size-n text ..b8929 -> spec-ngram-simple-size-n
spec-replace two ..b9093
spec-synth-len text b10809..
spec-synth-rates text b10809..
sse-ping-interval text b9538..
tools-runtime text b10434..
tts-use-guide-tokens bare ..b10229
ui switch b9294..
ui-config text b9294..
ui-config-file text b9294..
ui-mcp-proxy switch b9294..
video-ffmpeg-dir text b10809..
video-fps text b10809..
video-timestamp-interval text b10809..
"""
