"""HAProxy rules for clients with their own keys and limits. The keys and limits are in map files, and the counts are in a table.

Keys are looked up by their SHA-256, so that response times reveal nothing about them. Requests that exceed a limit are rejected
and not counted. A reload resets the counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkwright.gateway import answers, usage
from sparkwright.gateway.model import Gateway

#: map from the SHA-256 of a key to its client's name; written on the host, like all secrets
KEYS_FILE = "clients.map"
#: map from `CLIENT:BACKEND` and `CLIENT:ADAPTER` to 1 if the client may use it; maps from a client's name to its limits
MODELS_FILE, RATES_FILE, CONCURRENT_FILE = "client_models.map", "client_rates.map", "client_concurrent.map"
TOKENS_FILE, EXPIRY_FILE = "client_tokens.map", "client_until.map"
FILE_NAMES = (KEYS_FILE, MODELS_FILE, RATES_FILE, CONCURRENT_FILE, TOKENS_FILE, EXPIRY_FILE)
#: backend with the table of counts; no model can have this name
TABLE_BACKEND = "-clients"
CLIENT_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
CLIENT_NAME_RULE = "up to 40 lowercase letters, digits and . _ -, beginning with a letter or a digit"
MAX_CLIENTS, MINUTE_S = 1000, 60
#: a row of the table, usually about 150 characters
_ROW_PATTERN = re.compile(r"key=(\S{1,40}) (.{0,400})")
_FIELD_PATTERN = re.compile(r"([a-z0-9_]{1,40})(?:\([0-9]{1,12}\))?=([0-9]{1,18})")
_LIMIT_PATTERN = re.compile(r"(?m)^(\S{1,40}) ([0-9]{1,13})$")

EXPIRED_MESSAGE = "This key has expired."
MODEL_NOT_ALLOWED_MESSAGE = "This key does not allow this model."
RATE_LIMIT_MESSAGE = "This key has reached its per-minute request limit. Try again later."
CONCURRENCY_LIMIT_MESSAGE = "This key has reached its limit on concurrent requests. Try again later."
TOKEN_LIMIT_MESSAGE = "This key has reached its token limit for today. The limit is reset at 0:00 UTC."


def render_files(gateway: Gateway) -> dict[str, str]:
    """Return the files with the clients' permissions; empty if no client has its own key."""
    if not gateway.named_clients:
        return {}
    backends = {name: model.backend for model in gateway.models for name in model.names}
    rows: dict[str, list[str]] = {name: [] for name in FILE_NAMES[1:]}
    adapters = _adapter_names(gateway)
    for client in gateway.named_clients:
        allowed = dict.fromkeys(name if name in adapters else backends[name] for name in client.models or backends)
        rows[MODELS_FILE] += [f"{client.name}:{name} 1" for name in allowed]
        limits = {
            RATES_FILE: client.requests_per_minute,
            CONCURRENT_FILE: client.concurrent,
            TOKENS_FILE: client.tokens_per_day,
            EXPIRY_FILE: client.expires_at_s,
        }
        for name, limit in limits.items():
            rows[name] += [f"{client.name} {limit}"] if limit else []
    return {name: "".join(f"{row}\n" for row in lines) for name, lines in rows.items()}


def format_keys(hashes: Mapping[str, str]) -> str:
    """Return the contents of a key file.

    Args:
        hashes: SHA-256 of each key, in hexadecimal, by client or host.
    """
    return "".join(f"{key_hash} {name}\n" for name, key_hash in sorted(hashes.items()))


def parse_client_names(text: str) -> list[str]:
    """Return the names of the clients in a key file."""
    return sorted(
        name
        for _, _, name in (line.partition(" ") for line in text.splitlines())
        if CLIENT_NAME_PATTERN.fullmatch(name)
    )


def sections(gateway: Gateway) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the section with the table that counts the clients' requests."""
    if gateway.named_clients:
        counters = f"gpc0,gpc0_rate({MINUTE_S}s),conn_cur"
        yield (
            f"backend {TABLE_BACKEND}",
            iter([f"stick-table type string len 40 size {MAX_CLIENTS} expire 24h store {counters}"]),
        )


def identification_rules(gateway: Gateway, key_samples: Sequence[str]) -> Iterator[str]:
    """Yield the rules that set `txn.client`.

    Args:
        key_samples: HAProxy sample expressions for the places where a request may carry its key, in order of precedence.
    """
    if not gateway.named_clients:
        return
    for n, key_sample in enumerate(key_samples):
        unset_condition = "" if n == 0 else " if !{ var(txn.client) -m found }"
        yield f"http-request set-var(txn.client) {key_sample},sha2(256),hex,lower,map_str({KEYS_FILE}){unset_condition}"
    # for the log
    yield "http-request capture var(txn.client) len 40 if { var(txn.client) -m found }"


def expiry_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that reject an expired key."""
    if gateway.named_clients:
        yield f"http-request set-var(txn.until) var(txn.client),map_str_int({EXPIRY_FILE})"
        refusal = answers.error_arguments(401, EXPIRED_MESSAGE, "key_expired")
        yield f"http-request return {refusal} if {{ var(txn.until) -m found }} {{ date,sub(txn.until) ge 0 }}"


def limit_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that reject requests beyond a client's permissions and limits, and count all other requests.

    They need `txn.backend` and `txn.model`.
    """
    if not gateway.named_clients:
        return
    client_condition = "{ var(txn.client) -m found }"
    adapters = _adapter_names(gateway)
    unless_adapter = f" if !{{ var(txn.model) -m str {' '.join(adapters)} }}" if adapters else ""
    yield f"http-request set-var(txn.allowed) var(txn.client),concat(:,txn.backend,),map_str({MODELS_FILE}){unless_adapter}"
    if adapters:  # adapters may be allowed without the model, and the model without adapters
        if_adapter = f" if {{ var(txn.model) -m str {' '.join(adapters)} }}"
        yield f"http-request set-var(txn.allowed) var(txn.client),concat(:,txn.model,),map_str({MODELS_FILE}){if_adapter}"
    refusal = answers.error_arguments(403, MODEL_NOT_ALLOWED_MESSAGE, "model_not_allowed")
    yield f"http-request return {refusal} if {client_condition} !{{ var(txn.allowed) -m found }}"
    yield f"http-request track-sc2 var(txn.client) table {TABLE_BACKEND} if {client_condition}"
    yield f"http-request set-var(txn.rate) var(txn.client),map_str_int({RATES_FILE})"
    yield f"http-request set-var(txn.most) var(txn.client),map_str_int({CONCURRENT_FILE})"
    over_rate_condition = "{ var(txn.rate) -m found } { sc2_gpc0_rate,sub(txn.rate) ge 0 }"
    yield f"http-request set-var(txn.over) str(rate) if {over_rate_condition}"
    yield "http-request set-var(txn.over) str(now) if { var(txn.most) -m found } { sc2_conn_cur,sub(txn.most) gt 0 }"
    yield f"http-request set-var(txn.tokens) var(txn.client),map_str_int({TOKENS_FILE})"
    over_tokens_condition = "{ var(txn.tokens) -m found } { lua.tokens_today,sub(txn.tokens) ge 0 }"
    yield f"http-request set-var(txn.over) str(tokens) if {over_tokens_condition}"
    yield "http-request lua.count_refused if { var(txn.over) -m found }"
    for limit, message in (("rate", RATE_LIMIT_MESSAGE), ("now", CONCURRENCY_LIMIT_MESSAGE)):
        rate_refusal = answers.error_arguments(429, message, "rate_limit_exceeded")
        yield f"http-request return {rate_refusal} if {{ var(txn.over) -m str {limit} }}"
    # not 429: agents would retry at once or, given Retry-After, wait for the rest of the day (Codex 0.171, OpenCode 1.18)
    quota_refusal = answers.error_arguments(403, TOKEN_LIMIT_MESSAGE, "insufficient_quota")
    yield f"http-request return {quota_refusal} if {{ var(txn.over) -m str tokens }}"
    yield f"http-request sc-inc-gpc0(2) if {client_condition}"


def _adapter_names(gateway: Gateway) -> list[str]:
    return sorted({name for model in gateway.models for name in model.adapters})


def client_usage(table_text: str, day_text: str, limits_text: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the usage of each client: today's counts (`usage.FIELDS`), running requests, and the token limit (0 for none).

    Args:
        table_text: output of HAProxy's `show table`.
        day_text: contents of today's file of counts.
        limits_text: contents of TOKENS_FILE.
        names: names of the clients.
    """
    rows = {row[1]: dict(_FIELD_PATTERN.findall(row[2])) for row in _ROW_PATTERN.finditer(table_text)}
    limits = dict(_LIMIT_PATTERN.findall(limits_text))
    totals_today = usage.parse_totals(day_text)
    return [
        {
            "client": name,
            **totals_today.get(name, dict.fromkeys(usage.FIELDS, 0)),
            "running": int(rows.get(name, {}).get("conn_cur", 0)),
            "tokens_per_day": int(limits.get(name, 0)),
        }
        for name in names
    ]
