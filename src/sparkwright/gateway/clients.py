"""HAProxy rules for clients with their own keys and limits. The keys and limits are in maps, the counts in a table.

Keys are known only by their SHA-256, by which they are looked up, so that response times reveal nothing about them. Requests that
are refused because of a limit do not count towards it. A reload resets the counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkwright.gateway import answers, usage
from sparkwright.gateway.model import Gateway

#: files with the clients' names by the SHA-256 of their keys (written on the host, with the other secrets), and their permissions
KEYS, MODELS, RATES = "clients.map", "client_models.map", "client_rates.map"
CONCURRENT, TOKENS, UNTIL = "client_concurrent.map", "client_tokens.map", "client_until.map"
FILES = (KEYS, MODELS, RATES, CONCURRENT, TOKENS, UNTIL)
#: backend with the table that counts their requests, which is a name that no model can have
TABLE = "-clients"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
NAME_RULE = "small letters, digits and . _ -, at most 40, the first a letter or a digit"
MOST_CLIENTS, MINUTE_S = 1000, 60
#: a row of the table, which has about 150 characters
_ROW = re.compile(r"key=(\S{1,40}) (.{0,400})")
_FIELD = re.compile(r"([a-z0-9_]{1,40})(?:\([0-9]{1,12}\))?=([0-9]{1,18})")
_LIMIT = re.compile(r"(?m)^(\S{1,40}) ([0-9]{1,13})$")

EXPIRED = "This key is not valid any more."
OTHER_MODEL = "This key is not for this model."
TOO_MANY = "This key has made as many requests in a minute as it may. Try again."
TOO_MANY_NOW = "This key has as many requests running as it may. Try again."
TOO_MANY_TOKENS = "This key has used as many tokens today as it may. A new day begins at 0:00 UTC."


def files(gateway: Gateway) -> dict[str, str]:
    """Return the files with the clients' permissions; none if there are no clients."""
    if not gateway.named:
        return {}
    backends = {name: model.backend for model in gateway.models for name in model.names}
    rows: dict[str, list[str]] = {name: [] for name in FILES[1:]}
    adapters = _adapters(gateway)
    for client in gateway.named:
        allowed = dict.fromkeys(name if name in adapters else backends[name] for name in client.models or backends)
        rows[MODELS] += [f"{client.name}:{name} 1" for name in allowed]
        limits = {
            RATES: client.requests_per_minute,
            CONCURRENT: client.concurrent,
            TOKENS: client.tokens_per_day,
            UNTIL: client.until_s,
        }
        for name, limit in limits.items():
            rows[name] += [f"{client.name} {limit}"] if limit else []
    return {name: "".join(f"{row}\n" for row in lines) for name, lines in rows.items()}


def keys(hashes: Mapping[str, str]) -> str:
    """Return a file of keys.

    Args:
        hashes: SHA-256 of each key as hexadecimal digits, by client, or by host.
    """
    return "".join(f"{digits} {name}\n" for name, digits in sorted(hashes.items()))


def names_in(text: str) -> list[str]:
    """Return the names of the clients in a key file."""
    return sorted(name for _, _, name in (line.partition(" ") for line in text.splitlines()) if NAME.fullmatch(name))


def sections(gateway: Gateway) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the section with the table that counts the clients' requests."""
    if gateway.named:
        counted = f"gpc0,gpc0_rate({MINUTE_S}s),conn_cur"
        yield (
            f"backend {TABLE}",
            iter([f"stick-table type string len 40 size {MOST_CLIENTS} expire 24h store {counted}"]),
        )


def known(gateway: Gateway, given: Sequence[str]) -> Iterator[str]:
    """Yield the rules that set `txn.client`.

    Args:
        gateway: the gateway.
        given: HAProxy samples for the keys that a request may have.
    """
    if not gateway.named:
        return
    for n, key in enumerate(given):
        unset = "" if n == 0 else " if !{ var(txn.client) -m found }"
        yield f"http-request set-var(txn.client) {key},sha2(256),hex,lower,map_str({KEYS}){unset}"
    # for the log
    yield "http-request capture var(txn.client) len 40 if { var(txn.client) -m found }"


def expired(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that refuse an expired key."""
    if gateway.named:
        yield f"http-request set-var(txn.until) var(txn.client),map_str_int({UNTIL})"
        over = answers.words(401, EXPIRED, "key_expired")
        yield f"http-request return {over} if {{ var(txn.until) -m found }} {{ date,sub(txn.until) ge 0 }}"


def limits(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that enforce clients' limits, for requests whose model is known.

    They refuse requests that a client may not make, and count all others.
    """
    if not gateway.named:
        return
    named = "{ var(txn.client) -m found }"
    adapters = _adapters(gateway)
    of_model = f" if !{{ var(txn.model) -m str {' '.join(adapters)} }}" if adapters else ""
    yield f"http-request set-var(txn.allowed) var(txn.client),concat(:,txn.backend,),map_str({MODELS}){of_model}"
    if adapters:  # adapters may be allowed without the model, and the model without adapters
        own = f" if {{ var(txn.model) -m str {' '.join(adapters)} }}"
        yield f"http-request set-var(txn.allowed) var(txn.client),concat(:,txn.model,),map_str({MODELS}){own}"
    other = answers.words(403, OTHER_MODEL, "model_not_allowed")
    yield f"http-request return {other} if {named} !{{ var(txn.allowed) -m found }}"
    yield f"http-request track-sc2 var(txn.client) table {TABLE} if {named}"
    yield f"http-request set-var(txn.rate) var(txn.client),map_str_int({RATES})"
    yield f"http-request set-var(txn.most) var(txn.client),map_str_int({CONCURRENT})"
    over = "{ var(txn.rate) -m found } { sc2_gpc0_rate,sub(txn.rate) ge 0 }"
    yield f"http-request set-var(txn.over) str(rate) if {over}"
    yield "http-request set-var(txn.over) str(now) if { var(txn.most) -m found } { sc2_conn_cur,sub(txn.most) gt 0 }"
    yield f"http-request set-var(txn.tokens) var(txn.client),map_str_int({TOKENS})"
    spent = "{ var(txn.tokens) -m found } { lua.tokens_today,sub(txn.tokens) ge 0 }"
    yield f"http-request set-var(txn.over) str(tokens) if {spent}"
    yield "http-request lua.count_refused if { var(txn.over) -m found }"
    for word, sentence in (("rate", TOO_MANY), ("now", TOO_MANY_NOW)):
        refused = answers.words(429, sentence, "rate_limit_exceeded")
        yield f"http-request return {refused} if {{ var(txn.over) -m str {word} }}"
    # agents repeat a request after 429, and would wait for the rest of the day with Retry-After (Codex 0.171, OpenCode 1.18)
    spent_all = answers.words(403, TOO_MANY_TOKENS, "insufficient_quota")
    yield f"http-request return {spent_all} if {{ var(txn.over) -m str tokens }}"
    yield f"http-request sc-inc-gpc0(2) if {named}"


def _adapters(gateway: Gateway) -> list[str]:
    """Return the names of all adapters."""
    return sorted({name for model in gateway.models for name in model.adapters})


def used(table: str, day: str, most: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the clients' usage: today's counts (`usage.FIELDS`), running requests, and the token limit, 0 for none.

    Args:
        table: HAProxy's answer to `show table`.
        day: content of today's file of counts.
        most: content of the file of token limits.
        names: names of all clients; other rows are ignored.
    """
    rows = {row[1]: dict(_FIELD.findall(row[2])) for row in _ROW.finditer(table)}
    limits = dict(_LIMIT.findall(most))
    today = usage.totals(day)
    return [
        {
            "client": name,
            **today.get(name, dict.fromkeys(usage.FIELDS, 0)),
            "running": int(rows.get(name, {}).get("conn_cur", 0)),
            "tokens_per_day": int(limits.get(name, 0)),
        }
        for name in names
    ]
