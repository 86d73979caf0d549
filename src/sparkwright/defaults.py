"""The defaults that commands, playbook modules and checks share.

vLLM's own are in engines/vllm/prediction.py; those of a recipe or host are in its model, project/*/models.py.
"""

#: `health.install`: a check, at most one restart that heals, a measurement of the decode rate
HEALTH_EVERY, HEAL_EVERY, SMOKE_EVERY = "5m", "1h", "6h"
#: tokens of each run of the throughput test
SMOKE_TOKENS = 128
#: how long a start of the engine may take, seconds; `expect.ready_s` of a recipe
READY_S = 900
#: how long a server may take to answer a check with a token, seconds
TOKEN_S = 30
#: how long requests may take to end before a server is stopped, and a stop before it kills, seconds
DRAIN_S, STOP_S = 30, 60
#: how long a server on demand that is awake keeps its turn against requests for another one
STAY_AWAKE = "10m"
#: memory that must stay free in addition to the engine's, GiB
RESERVE_GIB = 4
#: the limit of all compile caches of a host together, GiB
CACHES_GIB = 20
#: number of hosts that are handled at once
FORKS = 16
#: `cluster:` of a group: the port where the runs on its members meet
BARRIER_PORT = 29499
#: `gateway:` of a group: the image, of the HAProxy that the tests use; connections at a time; how long a request may wait for a
#: server, and a server that answers may be silent; between two checks, seconds
GATEWAY_IMAGE = "haproxy:2.6"
GATEWAY_CLIENTS, GATEWAY_QUEUE_S, GATEWAY_ANSWER_S, GATEWAY_CHECK_S = 256, 60, 120, 10
#: a single step of an engine takes less, except where it reads a long prompt in one piece
GATEWAY_STUCK_S = 12
