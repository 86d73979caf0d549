"""Waking models on request: the gateway records the last request for a sleeping model, which the model's host reads.

The gateway starts nothing itself. A host reports its own sleeping server over the control port, with the number of seconds that
waking it takes, and is told how long ago that model was requested. Reports expire: without a current one, requests for a model
that is down are refused like for any other.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.gateway import answers, requests
from sparkwright.gateway.model import Gateway, Model, Upstream

#: operation on the control port, and the header with the number of seconds that waking takes
ASLEEP, SECONDS = "asleep", "x-wake-seconds"
#: field of the answer with the seconds since the last request for the model, much more than a day if there was none
ASKED = "asked_s"
#: HAProxy's process-wide variables per model: time of the last request, time of the last report, reported seconds
VARIABLES = ("asked", "heard", "needs")
#: maximum number of seconds that a host may report
MOST_S = 99_999
#: how long a report is valid, in seconds
HEARD_S = 30
#: value of Retry-After in seconds, if it has not been measured how long waking takes
UNKNOWN_S = 60
CODE = "model_asleep"
_ASKED_FOR = "This model is asleep and was asked for: its host wakes it as soon as it may."
NEEDS = f"{_ASKED_FOR} Try again in %[var(txn.wake)] s, by the time that its last start took."
UNMEASURED = f"{_ASKED_FOR} No start of it was measured yet. Try again in %[var(txn.wake)] s."
LATE = "All servers of this model are busy, asleep or gone. Try again in %[var(txn.wake,5)] s."


def sleeper(model: Model) -> Upstream | None:
    """Return the model's server that requests may wake, or None."""
    return next((upstream for upstream in model.upstreams if upstream.wakes), None)


def _sleepers(gateway: Gateway) -> Iterator[tuple[Model, Upstream]]:
    for model in gateway.models:
        upstream = sleeper(model)
        if upstream is not None:
            yield model, upstream


def _variable(model: Model, upstream: Upstream, name: str) -> str:
    """Return the name of a process-wide variable in HAProxy, see `VARIABLES`."""
    return f"proc.{name}_{requests.number(model, upstream.name)}"


def in_global(gateway: Gateway) -> Iterator[str]:
    """Yield the lines that initialize the variables."""
    for model, upstream in _sleepers(gateway):
        yield from (f"set-var {_variable(model, upstream, name)} int(0)" for name in VARIABLES)


def reports(gateway: Gateway) -> Iterator[str]:
    """Yield the rules of the hosts' frontend that accept and answer a report."""
    for model, upstream in _sleepers(gateway):
        request, report, needs = (_variable(model, upstream, name) for name in VARIABLES)
        this = f"{{ var(txn.operation) -m str {answers.quoted(f'{ASLEEP} {model.backend}/{upstream.name}')} }}"
        number = f"{{ req.fhdr({SECONDS}) -m reg ^[0-9]{{1,{len(str(MOST_S))}}}$ }}"
        yield f"http-request set-var({needs}) req.fhdr({SECONDS}),add(0) if {this} {number}"
        yield f"http-request set-var({report}) date if {this} {number}"
        row = f'{{"backend":"{model.backend}","server":"{upstream.name}","{ASKED}":%[date,sub({request})]}}'
        listed = answers.quoted(f'{{"servers":[{row}]}}')
        yield f"http-request return status 200 {answers.JSON} lf-string {listed} if {this}"


def requested(gateway: Gateway, model: Model) -> Iterator[str]:
    """Yield a backend's rules that record requests for its sleeping model, and refuse those that can't wait long enough."""
    upstream = sleeper(model)
    if upstream is None:
        return
    request, report, needs = (_variable(model, upstream, name) for name in VARIABLES)
    up = [f"srv_is_up({model.backend}/{name})" for server in model.upstreams for name in server.names]
    reported = f"{{ date,sub({report}) lt {HEARD_S} }}"
    yield f"acl served {up[0]}"
    yield from (f"acl served {server}" for server in up[1:])
    yield f"http-request set-var(txn.asleep) bool(true) if !served !{{ stopping }} {reported}"
    asleep = "{ var(txn.asleep) -m bool }"
    unknown = f"{{ var({needs}) -m int 0 }}"
    yield f"http-request set-var({request}) date if {asleep}"
    yield f"http-request set-var(txn.wake) var({needs}) if {asleep}"
    yield f"http-request set-var(txn.wake) int({UNKNOWN_S}) if {asleep} {unknown}"
    if gateway.waits:
        yield f"http-request return {_words(NEEDS, CODE)} if {asleep} {{ var({needs}) -m int gt {gateway.queue_s} }}"
        yield f"http-error {_words(LATE, 'overloaded', 'var(txn.wake,5)')}"
        return
    yield f"http-request return {_words(UNMEASURED, CODE)} if {asleep} {unknown}"
    yield f"http-request return {_words(NEEDS, CODE)} if {asleep}"


def _words(message: str, code: str, seconds: str = "var(txn.wake)") -> str:
    """Return a 503 with Retry-After from a variable, as arguments of `http-request return` and `http-error`."""
    body = answers.quoted(answers.body(503, message, code))
    return f"status 503 {answers.JSON} lf-string {body} hdr Retry-After '%[{seconds}]'"
