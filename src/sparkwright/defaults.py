"""Default values, and choices of options, that commands, playbook modules, models of files and checks share.

Fields that take a default from here refer to it by name, such as `defaults.READY_TIMEOUT_S`. Defaults that only one kind of
file has are in its model, project/*/models.py, and vLLM's own defaults in engines/vllm/prediction.py.
"""

from typing import Literal, get_args

#: intervals of `health.install`: between checks, at least between two healing restarts, and between decode rate measurements
HEALTH_INTERVAL, MIN_HEAL_INTERVAL, SMOKE_INTERVAL = "5m", "1h", "6h"
#: choices of `health.install`: `--heal` and `--webhook-format`
HealMode = Literal["none", "restart"]
WebhookFormat = Literal["auto", "json", "slack", "discord", "ntfy", "alertmanager"]
HEAL_MODES: tuple[str, ...] = get_args(HealMode)
WEBHOOK_FORMATS: tuple[str, ...] = get_args(WebhookFormat)
#: number of tokens in each run of the throughput test
SMOKE_TOKENS = 128
#: how long an engine may take to start, in seconds; `expect.ready_s` of a recipe
READY_TIMEOUT_S = 900
#: how long a server may take to answer a check with a token, in seconds
TOKEN_TIMEOUT_S = 30
#: how long requests may take to finish before a server is stopped, and how long a stop may take before it is killed, in seconds
DRAIN_TIMEOUT_S, STOP_TIMEOUT_S = 30, 60
#: how long an awake server on demand keeps its turn against requests for another one
MIN_AWAKE_TIME = "10m"
#: memory that must stay free in addition to the engine's, in GiB
RESERVE_GIB = 4
#: limit on all compile caches of a host together, in GiB
MAX_CACHES_GIB = 20
#: GPU temperature from which a host counts as too hot, in degrees C, for `doctor`, health checks and alerts
HOT_GPU_C = 90.0
#: number of hosts that are handled at once
FORKS = 16
#: port where the runs on a cluster's members meet; `cluster:` of a group
BARRIER_PORT = 29499
#: image of a gateway, whose HAProxy the tests use; `gateway:` of a group
GATEWAY_IMAGE = "haproxy:2.6"
#: limits of a gateway: the number of connections, and in seconds how long a request may wait for a server, how long an answering
#: server may be silent, and the interval of checks
GATEWAY_MAX_CONNECTIONS, GATEWAY_QUEUE_TIMEOUT_S, GATEWAY_SILENCE_TIMEOUT_S, GATEWAY_CHECK_INTERVAL_S = 256, 60, 120, 10
#: time without progress after which a server is stuck, in seconds; an engine's step takes less unless a long prompt is unchunked
GATEWAY_STUCK_TIMEOUT_S = 12
