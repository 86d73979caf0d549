"""Default values and choices of options that are shared by commands, playbook modules, file models and checks.

Defaults for a single kind of file are in its model, project/*/models.py, and vLLM's own defaults in engines/vllm/prediction.py.
"""

from typing import Literal, get_args

#: interval between checks, for `health.install`
HEALTH_INTERVAL = "5m"
#: minimum interval between restarts that heal a server, for `health.install`
MIN_HEAL_INTERVAL = "1h"
#: interval between measurements of the decode rate, for `health.install`
SMOKE_INTERVAL = "6h"
#: choices of `health.install`: `--heal` and `--webhook-format`
HealMode = Literal["none", "restart"]
WebhookFormat = Literal["auto", "json", "slack", "discord", "ntfy", "alertmanager"]
HEAL_MODES: tuple[str, ...] = get_args(HealMode)
WEBHOOK_FORMATS: tuple[str, ...] = get_args(WebhookFormat)
#: number of changes that `history` lists for each host
HISTORY_ENTRIES = 20
#: number of tokens in each run of the throughput test
SMOKE_TOKEN_COUNT = 128
#: time limit for the start of an engine, in seconds; `expect.ready_s` of a recipe
READY_TIMEOUT_S = 900
#: time limit for the first token of a check, in seconds
TOKEN_TIMEOUT_S = 30
#: time limit for running requests before a server is stopped, in seconds
DRAIN_TIMEOUT_S = 30
#: time limit for a server to stop before it is killed, in seconds
STOP_TIMEOUT_S = 60
#: minimum time that an on-demand server stays awake when another one is requested
MIN_AWAKE_TIME = "10m"
#: memory that must stay free in addition to the engine's, in GiB
RESERVE_GIB = 4
#: limit on the total size of a host's compile caches, in GiB
MAX_CACHES_GIB = 20
#: GPU temperature from which `doctor`, health checks and alerts report a host as too hot, in degrees C
HOT_GPU_C = 90.0
#: utilization above which a GPU counts as busy, so that a low clock or power is a fault and not idleness
BUSY_GPU_PERCENT = 90.0
#: maximum number of hosts processed in parallel
FORKS = 16
#: port on which the runs of a cluster's members synchronize; `cluster:` of a group
BARRIER_PORT = 29499
#: image of a gateway, also used by the tests; `gateway:` of a group
GATEWAY_IMAGE = "haproxy:2.6"
#: maximum number of connections to a gateway
GATEWAY_MAX_CONNECTIONS = 256
#: maximum time that a request waits in a gateway for a server, in seconds
GATEWAY_QUEUE_TIMEOUT_S = 60
#: maximum pause in a response through a gateway, in seconds
GATEWAY_SILENCE_TIMEOUT_S = 120
#: interval between a gateway's checks of its servers, in seconds
GATEWAY_CHECK_INTERVAL_S = 10
#: seconds without progress after which a server counts as stuck; an engine step is shorter unless a long prompt is unchunked
GATEWAY_STUCK_TIMEOUT_S = 12
