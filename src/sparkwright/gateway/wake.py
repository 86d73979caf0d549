"""Waking a model on request: the gateway notes when a sleeping model was last asked for, and its host reads that.

The gateway starts nothing. A host reports its own sleeping server over the control port, with the number of seconds that waking
it takes, and the answer says how long ago a request for that model came. A report is valid for a while only: without one, a
model that is down is refused as any other.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.gateway import answers, requests
from sparkwright.gateway.model import Gateway, Model, Upstream

#: the operation on the control port, and the header with the seconds
ASLEEP, SECONDS = "asleep", "x-wake-seconds"
#: field of the answer: seconds since the last request for the model; far more than a day if there was none
ASKED = "asked_s"
#: variables of a model in HAProxy's process: times of the last request and of the last report, and the reported seconds
VARIABLES = ("asked", "heard", "needs")
#: largest number of seconds that a host may report
MOST_S = 99_999
#: seconds for which a report is valid
HEARD_S = 30
#: Retry-After while nobody has measured how long waking takes, seconds
UNKNOWN_S = 60
CODE = "model_asleep"
_ASKED_FOR = "This model is asleep and was asked for: its host wakes it as soon as it may."
NEEDS = f"{_ASKED_FOR} Try again in %[var(txn.wake)] s, by the time that its last start took."
UNMEASURED = f"{_ASKED_FOR} No start of it was measured yet. Try again in %[var(txn.wake)] s."
LATE = "All servers of this model are busy, asleep or gone. Try again in %[var(txn.wake,5)] s."


def sleeper(model: Model) -> Upstream | None:
    """Return the server of a model that requests may wake; None if there is none."""
    return next((upstream for upstream in model.upstreams if upstream.wakes), None)


def _sleepers(gateway: Gateway) -> Iterator[tuple[Model, Upstream]]:
    for model in gateway.models:
        upstream = sleeper(model)
        if upstream is not None:
            yield model, upstream


def _variable(model: Model, upstream: Upstream, name: str) -> str:
    """Return the name of a variable of HAProxy's process: last request, last report, or reported seconds."""
    return f"proc.{name}_{requests.number(model, upstream.name)}"


def in_global(gateway: Gateway) -> Iterator[str]:
    """Yield the lines that set the variables at the start."""
    for model, upstream in _sleepers(gateway):
        yield from (f"set-var {_variable(model, upstream, name)} int(0)" for name in VARIABLES)


def reports(gateway: Gateway) -> Iterator[str]:
    """Yield the rules of the hosts' frontend that take a report and answer it."""
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
    """Yield the rules of a backend that note a request for its sleeping model, and refuse one that could not wait so long."""
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
