"""Render a gateway's files, among them its configuration for HAProxy 2.6 and newer.

Without `option http-no-delay`, the first token is delayed by 200 ms. A request's key, path, method, announced length and headers
are checked, in this order, before its body is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from sparkwright.engines import tasks
from sparkwright.gateway import answers, clients, listeners, operations, progress, reload_states, requests, usage, wake
from sparkwright.gateway.answers import quote
from sparkwright.gateway.listeners import ADMIN_SOCKET, CERTIFICATE_FILE, MASTER_SOCKET, SOCKETS_FOLDER
from sparkwright.gateway.model import INTERIM_SUFFIX, WAITING_SERVER, Gateway, Model

CONFIG_FILE, ROUTES_FILE, CLIENT_KEYS_FILE, SERVER_KEYS_FILE = "haproxy.cfg", "models.map", "keys", "server_keys.map"
#: names of all files that a gateway may have
FILE_NAMES = (
    *(CONFIG_FILE, ROUTES_FILE, CLIENT_KEYS_FILE, SERVER_KEYS_FILE, CERTIFICATE_FILE),
    *(operations.HOST_KEYS_FILE, operations.OPERATIONS_FILE, operations.SCRIPT_FILE),
    *(requests.SERVER_BACKENDS_FILE, requests.SCRIPT_FILE, *clients.FILE_NAMES),
    *(progress.LIST_FILE, progress.SCRIPT_FILE, answers.SCRIPT_FILE, usage.SCRIPT_FILE, reload_states.SCRIPT_FILE),
)
#: command-line arguments of HAProxy
HAPROXY_ARGUMENTS = ("-W", "-db", "-S", f"unix@{SOCKETS_FOLDER}/{MASTER_SOCKET},mode,600", "-f", CONFIG_FILE)
#: placeholder for the digest of all files, which identifies the configuration of a running HAProxy
DIGEST_PLACEHOLDER = "@DIGEST@"
#: environment variables. By default, glibc returns a large buffer to the kernel after each request and allocates it again, which
#: takes 414 page faults and 1.4 ms of system time per request, instead of 9 and 0.5 ms (2.6.12, x86-64, 1 MiB buffers)
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    "MALLOC_TOP_PAD_": str(4 * 2**20),
}

MODELS_PATH, METRICS_PATH, HEALTH_PATH = "/v1/models", "/metrics", "/health"

#: the header in which clients of Anthropic's API send their key
API_KEY_HEADER = "x-api-key"
MAX_HEADERS_BYTES = 16384
#: bytes of a buffer in addition to headers and body: MAX_REWRITE_BYTES, and HAProxy's index of the parts
EXTRA_BUFFER_BYTES = 65536
#: value of `tune.maxrewrite`
MAX_REWRITE_BYTES = 1024
BODY_TIMEOUT_S, CONNECT_TIMEOUT_S, CHECK_TIMEOUT_S = 60, 5, 60
#: first version that can run Lua on several threads. With two threads, after several thousand streams, 2.6.12 mixed up the
#: calls to the filter in `usage`, interrupted streams and crashed; 3.0.11 did not
MIN_THREADED_VERSION = "3.0"
#: address on which nothing listens, so that HAProxy retries the request every second until a server is up
PLACEHOLDER_ADDRESS = "127.0.0.1:1"
#: interval between checks of a server that is down or has failed its last check
FAST_CHECK_INTERVAL_S = 2
#: time limit for the previous process to finish its requests after a reload
OLD_PROCESS_TIMEOUT_S = 1800
#: time for which a client may leave a pending answer unread
CLIENT_TIMEOUT_S = 60
#: time limit for an idle connection between two requests (aiohttp keeps idle connections for 15 s)
IDLE_TIMEOUT_S = 20
#: maximum number of buffers of a connection: the request, the next request, the copy for a retry, and two for the answer, one at
#: each end (measured with 2.6.12: clients that sent four requests at once and read no answer used 5.1)
BUFFERS_PER_CONNECTION = 5
#: limit on the configured memory
MAX_MEMORY_BYTES = 8 * 2**30
#: memory of a process without buffers
PROCESS_BYTES = 128 * 2**20


def buffer_bytes(gateway: Gateway) -> int:
    """Return the size of HAProxy's buffer.

    A complete request must fit into it, because otherwise its model can't be read and it can't be retried.
    """
    return gateway.body_bytes + MAX_HEADERS_BYTES + EXTRA_BUFFER_BYTES


def max_memory_bytes(gateway: Gateway) -> int:
    """Return the maximum memory of the gateway's buffers in bytes."""
    return BUFFERS_PER_CONNECTION * gateway.clients * buffer_bytes(gateway)


def container_limit_bytes(gateway: Gateway) -> int:
    """Return the memory limit of the gateway's container in bytes.

    It is sufficient for two processes, because the previous process finishes its requests after a reload.
    """
    return 2 * (max_memory_bytes(gateway) + PROCESS_BYTES)


def render_files(gateway: Gateway) -> dict[str, str]:
    """Return the contents of those files in the gateway's folder that contain no secrets, by file name."""
    return {
        CONFIG_FILE: "\n".join(_config_lines(gateway)) + "\n",
        ROUTES_FILE: "".join(f"{name} {model.backend}\n" for model in gateway.models for name in model.names),
        **operations.render_files(gateway),
        **requests.render_files(gateway),
        **answers.render_files(),
        **clients.render_files(gateway),
        **usage.render_files(gateway),
        **progress.render_files(gateway, SERVER_KEYS_FILE),
        **reload_states.render_files(gateway),
    }


def _config_lines(gateway: Gateway) -> Iterator[str]:
    yield "# Written by sparkwright; `gateway.deploy` replaces it. The keys are in other files of this folder."
    for section, lines in _sections(gateway):
        yield ""
        yield section
        yield from (f"    {line}" for line in lines)


def _sections(gateway: Gateway) -> Iterator[tuple[str, Iterator[str]]]:
    yield "global", _global_lines(gateway)
    yield "defaults", _defaults_lines(gateway)
    yield "frontend gateway", _frontend_lines(gateway)
    yield "frontend hosts", operations.frontend_lines(gateway)
    yield from requests.sections(gateway)
    yield from clients.sections(gateway)
    for model in gateway.models:
        yield f"backend {model.backend}", _backend_lines(gateway, model)


def _global_lines(gateway: Gateway) -> Iterator[str]:
    yield f"description {quote(f'{gateway.name} {DIGEST_PLACEHOLDER}')}"
    yield f"maxconn {listeners.max_connections(gateway)}"
    yield from (f".if version_before({MIN_THREADED_VERSION})", "nbthread 1", ".endif")
    yield f"tune.bufsize {buffer_bytes(gateway)}"
    yield f"tune.maxrewrite {MAX_REWRITE_BYTES}"
    yield f"stats socket unix@{SOCKETS_FOLDER}/{ADMIN_SOCKET} mode 600 level admin expose-fd listeners"
    yield "stats timeout 30s"
    yield f"hard-stop-after {max(OLD_PROCESS_TIMEOUT_S, gateway.answer_s)}s"
    yield "log stdout format raw local0"
    yield from operations.global_lines()
    yield from progress.global_lines(gateway)
    yield from requests.global_lines(gateway)
    yield from answers.require_version([f"lua-load-per-thread {answers.SCRIPT_FILE}"])
    yield from usage.global_lines(gateway)
    yield from reload_states.global_lines(gateway)
    yield from wake.global_lines(gateway)
    if gateway.tls:
        yield "ssl-default-bind-options ssl-min-ver TLSv1.2"


def _defaults_lines(gateway: Gateway) -> Iterator[str]:
    yield "mode http"
    yield "log global"
    yield from (
        f"option {name}"
        for name in ("httplog", "dontlognull", "http-no-delay", "abortonclose", "redispatch", "contstats")
    )
    yield "retries 3"
    yield "retry-on conn-failure"
    yield f"timeout connect {CONNECT_TIMEOUT_S}s"
    yield f"timeout client {CLIENT_TIMEOUT_S}s"
    yield f"timeout server {gateway.answer_s}s"
    yield f"timeout queue {gateway.queue_s}s"
    yield f"timeout http-request {listeners.HEAD_TIMEOUT_S}s"
    yield f"timeout http-keep-alive {IDLE_TIMEOUT_S}s"
    yield f"timeout check {CHECK_TIMEOUT_S}s"
    yield from operations.defaults_lines()
    yield from (
        f"http-error {answers.error_arguments(status, *error)}" for status, error in answers.HAPROXY_ERRORS.items()
    )


def _frontend_lines(gateway: Gateway) -> Iterator[str]:
    yield from listeners.frontend_lines(gateway)
    yield from usage.filter_lines(gateway)
    yield from answers.require_version(["filter lua.cut"])
    yield f"http-request return status 200 content-type text/plain string ok if {{ path {HEALTH_PATH} }}"
    if gateway.keyed:
        key_samples = ("http_auth_bearer", f"req.fhdr({API_KEY_HEADER})")
        unless_known_key = " ".join(
            f"!{{ {key},sha2(256),hex,lower -m str -f {CLIENT_KEYS_FILE} }}" for key in key_samples
        )
        yield from clients.identification_rules(gateway, key_samples)
        unless_client = " !{ var(txn.client) -m found }" if gateway.named_clients else ""
        yield (
            f"http-request return {answers.error_arguments(401, answers.NO_KEY_MESSAGE, 'invalid_api_key')} if "
            f"{unless_known_key}{unless_client}"
        )
        yield from clients.expiry_rules(gateway)
        yield listeners.mark_known_rule()
    yield f"http-request use-service prometheus-exporter if {{ path {METRICS_PATH} }}"
    yield from usage.metrics_rules(gateway)
    yield from _model_list_rules(gateway)
    yield from _refusal_rules(gateway)
    yield from requests.routing_rules(gateway, ROUTES_FILE)
    yield from clients.limit_rules(gateway)
    if not gateway.keyed:
        yield listeners.mark_known_rule()
    if gateway.affinity == "prefix":
        yield from _prefix_rules()
    yield from (f"http-request del-header {name}" for name in ("Authorization", API_KEY_HEADER))
    yield "use_backend %[var(txn.backend)]"


def _refusal_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that reject requests by path, method and size."""
    yield from requests.refusal_rules(gateway)
    body_refusal = answers.error_arguments(413, answers.too_large_message(gateway.body_bytes), "request_too_large")
    yield f"http-request return {body_refusal} if {{ req.body_size gt {gateway.body_bytes} }}"
    headers_refusal = answers.error_arguments(
        431, f"The headers are larger than {MAX_HEADERS_BYTES} bytes.", "headers_too_large"
    )
    yield f"http-request return {headers_refusal} if {{ req.hdrs,length gt {MAX_HEADERS_BYTES} }}"
    yield f"http-request wait-for-body time {BODY_TIMEOUT_S}s"
    yield f"http-request return {body_refusal} if {{ req.body_len gt {gateway.body_bytes} }}"


def _model_list_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that list the available models on /v1/models."""
    use_get_refusal = answers.error_arguments(405, "Use GET.", "method_not_allowed", allow="GET,HEAD")
    yield f"http-request return {use_get_refusal} if {{ path {MODELS_PATH} }} !{{ method GET HEAD }}"
    for model in gateway.models:
        entries = (json.dumps(_model_entry(model, name), separators=(",", ":")) for name in model.names)
        text = ",".join(entries).replace("%", "%%")
        condition = " or ".join(
            f"{{ path {MODELS_PATH} }} {{ {up_condition} }}" for up_condition in _up_conditions(gateway, model)
        )
        yield f"http-request set-var-fmt(txn.models) {quote(f'%[var(txn.models)],{text}')} if {condition}"
    body = quote('{"object":"list","data":[%[var(txn.models),regsub(^.,)]]}')
    yield f"http-request return status 200 {answers.JSON_CONTENT_TYPE} lf-string {body} if {{ path {MODELS_PATH} }}"


def _up_conditions(gateway: Gateway, model: Model) -> Iterator[str]:
    """Yield conditions, at least one of which is true if a server of the model is up.

    `nbsrv` can't be used with a placeholder server, which it would count.
    """
    if not gateway.waits:
        yield f"nbsrv({model.backend}) gt 0"
        yield "stopping"
        return
    yield from (f"srv_is_up({model.backend}/{name})" for upstream in model.upstreams for name in upstream.names)


def _model_entry(model: Model, name: str) -> dict[str, object]:
    entry = {"id": name, "object": "model", "created": 0, "owned_by": "sparkwright"}
    return {**entry, "max_model_len": model.context} if model.context else entry


def _prefix_rules() -> Iterator[str]:
    """Yield the rules that set `txn.prefix` from the first two messages or the beginning of the prompt."""
    for n in (0, 1):
        yield f"http-request set-var(txn.first{n}) req.body,json_query('$.messages[{n}].content'),xxh64"
        unset_condition = f"!{{ var(txn.first{n}) -m found }}"
        parts_sample = f"req.body,json_query('$.messages[{n}].content[0].text')"
        yield f"http-request set-var(txn.first{n}) {parts_sample},xxh64 if {unset_condition}"
    yield "http-request set-var(txn.first0) req.body,json_query('$.prompt'),bytes(0,1024),xxh64 if !{ var(txn.first0) -m found }"
    yield "http-request set-var-fmt(txn.prefix) %[var(txn.first0)]-%[var(txn.first1)]"


def _backend_lines(gateway: Gateway, model: Model) -> Iterator[str]:
    yield from wake.request_rules(gateway, model)
    if gateway.waits:
        # each retry takes a second; a request during which a server exited is not retried
        yield f"retries {gateway.queue_s}"
        yield "option redispatch 1"
    else:
        not_up_refusal = answers.error_arguments(503, answers.NOT_UP_MESSAGE, "model_not_up")
        # in a process that is stopping after a reload, nbsrv is 0
        yield f"http-request return {not_up_refusal} if {{ nbsrv lt 1 }} !{{ stopping }}"
        if len(model.upstreams) > 1:
            # a retry needs another server, and a copy of the whole buffer, which takes 0.2 ms per request with 1 MiB;
            # a single one, because the request may be what ended the server
            yield "retries 1"
            yield "retry-on conn-failure empty-response"
    authorization_value = f"Bearer %[str({model.backend}),map_str({SERVER_KEYS_FILE})]"
    if model.key:
        yield f'http-request set-header Authorization "{authorization_value}"'
    yield from _balance_lines(gateway, len(model.upstreams))
    yield from requests.server_rules(gateway, model)
    yield "option httpchk"
    authorization = f' hdr Authorization "{authorization_value}"' if model.key else ""
    yield (
        f"http-check send meth POST uri {tasks.proof_path(model.task)} ver HTTP/1.1 hdr Host gateway hdr Content-Type "
        "application/json"
        f"{authorization} body {quote(model.check_body)}"
    )
    yield f"http-check expect rstring {tasks.proof_word(model.task)}"
    fast_interval_s = min(FAST_CHECK_INTERVAL_S, gateway.check_s)
    intervals = f"inter {gateway.check_s}s fastinter {fast_interval_s}s downinter {fast_interval_s}s rise 1 fall 3"
    # a server without a process has no requests, so new ones would be sent to it, and a retry too if the others are busy
    mark_down = " observe layer4 error-limit 1 on-error mark-down" if len(model.upstreams) > 1 else ""
    yield f"default-server check {intervals} init-addr last,libc,none{mark_down}"
    for upstream in model.upstreams:
        maxconn_argument = f" maxconn {upstream.slots}" if upstream.slots else ""
        first_id, *interim_ids = (f" id {requests.server_number(model, name)}" for name in upstream.names)
        yield f"server {upstream.name} {upstream.address}:{upstream.port}{maxconn_argument}{first_id}"
        for interim_id in interim_ids:
            interim_address = f"{upstream.address}:{upstream.interim_port}"
            yield f"server {upstream.name}{INTERIM_SUFFIX} {interim_address}{maxconn_argument}{interim_id} disabled"
    if gateway.waits:
        yield f"server {WAITING_SERVER} {PLACEHOLDER_ADDRESS} backup no-check"


def _balance_lines(gateway: Gateway, server_count: int) -> Iterator[str]:
    """Yield the directives that select a server. With prefix affinity, a server gets at most 3/4 of the running requests."""
    if gateway.affinity == "none" or server_count == 1:
        yield "balance leastconn"
        return
    yield "balance hash var(txn.prefix)"
    yield "hash-type consistent"
    yield f"hash-balance-factor {75 * server_count}"
