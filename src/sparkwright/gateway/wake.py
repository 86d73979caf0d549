"""Wake models on request: the gateway records when a sleeping model was last requested, and the model's host wakes it.

A host reports its sleeping server over the control port, with the number of seconds that a request would need to wake it,
including the rest of another server's turn. The answer contains the number of seconds since the last request for the model.
Reports expire: without a current report, requests are rejected as for any other model that is down.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.gateway import answers, requests
from sparkwright.gateway.model import Gateway, Model, Upstream

#: name of the report's operation on the control port
ASLEEP_OPERATION = "asleep"
#: header of a report: the number of seconds that a request would need to wake the server
SECONDS_HEADER = "x-wake-seconds"
#: field of the answer with the number of seconds since the last request for the model (since 1970 if there was none)
LAST_REQUEST_FIELD = "asked_s"
#: HAProxy's process-wide variables for each model: time of the last request, time of the last report, reported seconds
VARIABLE_NAMES = ("asked", "heard", "needs")
#: maximum number of seconds in a report
MAX_WAKE_S = 99_999
REPORT_VALIDITY_S = 30
#: Retry-After if no start of the server has been measured
DEFAULT_RETRY_S = 60
ERROR_CODE = "model_asleep"
MEASURED_MESSAGE = "This model is asleep. It can be awake in %[var(txn.wake)] s; try again then."
UNMEASURED_MESSAGE = (
    "This model is asleep. Its host wakes it as soon as possible. Try again in %[var(txn.wake)] s; no start of it has been "
    "measured yet."
)
UNAVAILABLE_MESSAGE = "All servers of this model are busy, asleep or down. Retry-After says when to try again."


def find_sleeper(model: Model) -> Upstream | None:
    """Return the model's server that requests may wake; None if there is none."""
    return next((upstream for upstream in model.upstreams if upstream.wakes), None)


def _iter_sleepers(gateway: Gateway) -> Iterator[tuple[Model, Upstream]]:
    for model in gateway.models:
        upstream = find_sleeper(model)
        if upstream is not None:
            yield model, upstream


def _variable(model: Model, upstream: Upstream, name: str) -> str:
    """Return the full name of one of VARIABLE_NAMES."""
    return f"proc.{name}_{requests.server_number(model, upstream.name)}"


def global_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines that initialize the variables."""
    for model, upstream in _iter_sleepers(gateway):
        yield from (f"set-var {_variable(model, upstream, name)} int(0)" for name in VARIABLE_NAMES)


def report_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules of the hosts' frontend that store and answer a report."""
    for model, upstream in _iter_sleepers(gateway):
        request_var, report_var, wake_var = (_variable(model, upstream, name) for name in VARIABLE_NAMES)
        report_condition = (
            f"{{ var(txn.operation) -m str {answers.quote(f'{ASLEEP_OPERATION} {model.backend}/{upstream.name}')} }}"
        )
        seconds_condition = f"{{ req.fhdr({SECONDS_HEADER}) -m reg ^[0-9]{{1,{len(str(MAX_WAKE_S))}}}$ }}"
        yield f"http-request set-var({wake_var}) req.fhdr({SECONDS_HEADER}),add(0) if {report_condition} {seconds_condition}"
        yield f"http-request set-var({report_var}) date if {report_condition} {seconds_condition}"
        row = f'{{"backend":"{model.backend}","server":"{upstream.name}","{LAST_REQUEST_FIELD}":%[date,sub({request_var})]}}'
        body = answers.quote(f'{{"servers":[{row}]}}')
        yield f"http-request return status 200 {answers.JSON_CONTENT_TYPE} lf-string {body} if {report_condition}"


def request_rules(gateway: Gateway, model: Model) -> Iterator[str]:
    """Yield a backend's rules that record requests for a sleeping model, and reject those that can't wait long enough."""
    upstream = find_sleeper(model)
    if upstream is None:
        return
    request_var, report_var, wake_var = (_variable(model, upstream, name) for name in VARIABLE_NAMES)
    up_conditions = [f"srv_is_up({model.backend}/{name})" for server in model.upstreams for name in server.names]
    yield from (f"acl served {condition}" for condition in up_conditions)
    yield f"acl reported date,sub({report_var}) lt {REPORT_VALIDITY_S}"
    yield f"acl unmeasured var({wake_var}) -m int 0"
    yield "http-request set-var(txn.asleep) bool(true) if !served !{ stopping } reported"
    asleep_condition = "{ var(txn.asleep) -m bool }"
    yield f"http-request set-var({request_var}) date if {asleep_condition}"
    yield f"http-request set-var(txn.wake) var({wake_var}) if {asleep_condition}"
    yield f"http-request set-var(txn.wake) int({DEFAULT_RETRY_S}) if {asleep_condition} unmeasured"
    if gateway.waits:
        yield (
            f"http-request return {_asleep_arguments(MEASURED_MESSAGE)} if {asleep_condition} "
            f"{{ var({wake_var}) -m int gt {gateway.queue_s} }}"
        )
        # what the host has reported since the request came, such as that the server could not be woken
        yield f"http-error {answers.error_arguments(503, UNAVAILABLE_MESSAGE, 'overloaded')}"
        condition = "if { status 503 } !served reported"
        yield f"http-after-response set-header Retry-After %[var({wake_var})] {condition} !unmeasured"
        yield f"http-after-response set-header Retry-After {DEFAULT_RETRY_S} {condition} unmeasured"
        return
    yield f"http-request return {_asleep_arguments(UNMEASURED_MESSAGE)} if {asleep_condition} unmeasured"
    yield f"http-request return {_asleep_arguments(MEASURED_MESSAGE)} if {asleep_condition}"


def _asleep_arguments(message: str) -> str:
    """Return a 503 with a computed Retry-After as arguments of `http-request return`."""
    body = answers.quote(answers.error_body(503, message, ERROR_CODE))
    return f"status 503 {answers.JSON_CONTENT_TYPE} lf-string {body} hdr Retry-After '%[var(txn.wake)]'"
