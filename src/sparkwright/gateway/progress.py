"""Check the progress of the servers behind a gateway, so that a server whose engine is stuck gets no more requests.

A health check that requests a token must wait on a busy server, so it detects a stuck engine only after minutes. The engine's
counters show a stuck engine within seconds, because they change at every step, even during a long prompt. A Lua script reads
them, without delaying requests, and only while clients wait for an answer. vLLM counts a request only when its engine has
accepted it, so an engine that got stuck while idle reports no requests; the script requests a token from such an engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.engines import tasks
from sparkwright.gateway.model import Gateway, Progress

#: file that lists the metrics to read from each server
LIST_FILE = "progress.list"
#: script that reads the metrics
SCRIPT_FILE = "progress.lua"
POLL_INTERVAL_S, READ_TIMEOUT_S = 2, 3
#: limit on the size of a server's /metrics, which has at most 300 kB
MAX_METRICS_BYTES = 2**20
#: multiplier of the time limit for a server that does not respond; llama.cpp answers /metrics only between chunks of a prompt
SILENT_FACTOR = 3
#: valid names and labels of metrics, which a recipe can set
METRIC_NAME_PATTERN = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,199}")
METRIC_LABEL_PATTERN = re.compile(r"[^\x00-\x1f\x7f]{0,200}")

#: Lines of LIST_FILE: "BACKEND SERVER path PATH", "... still SECONDS", "... moves|requests METRIC LABEL", "... check PATH BODY".
#: A stuck server is down in HAProxy until a health check generates a token. If another server is up, the stuck server's requests
#: are terminated, and those without a first byte are retried on the other one (`retry-on empty-response`).
_SCRIPT = """-- Written by sparkwright. It reads the counters of servers that have requests, and marks stuck servers as down.
local STUCK_S, EVERY_S, READ_S, MOST_BYTES, SILENT = %(stuck_s)d, %(every_s)d, %(read_s)d, %(most_bytes)d, %(silent)d
local keys = %(keys)s
local watched = {}

for line in io.lines("%(list)s") do
    local backend, name, kind, word, label = string.match(line, "^(%%S+) (%%S+) (%%S+) (%%S+) ?(.*)$")
    local id = backend .. "/" .. name
    watched[id] = watched[id] or { backend = backend, name = name, still = STUCK_S, samples = {} }
    if kind == "path" then
        watched[id].request = "GET " .. word .. " HTTP/1.0\\r\\n"
    elseif kind == "check" then
        local about = "Content-Type: application/json\\r\\nContent-Length: " .. #label .. "\\r\\n"
        watched[id].check = "POST " .. word .. " HTTP/1.0\\r\\n" .. about
        watched[id].body = label
    elseif kind == "still" then
        watched[id].still = math.max(STUCK_S, tonumber(word))
    else
        local samples = watched[id].samples
        samples[word] = samples[word] or {}
        table.insert(samples[word], { kind = kind, label = label })
    end
end

local function answer(target, server, head, body, seconds)
    local host, port = string.match(server:get_addr(), "^%%[?(.-)%%]?:(%%d+)$")
    local socket = core.tcp()
    socket:settimeout(seconds)
    if not host or not socket:connect(host, tonumber(port)) then
        return ""
    end
    local key = keys and keys:lookup(target.backend)
    local authorized = key and "Authorization: Bearer " .. key .. "\\r\\n" or ""
    socket:send(head .. "Host: gateway\\r\\n" .. authorized .. "\\r\\n" .. body)
    local parts, size, ends = {}, 0, core.now().sec + seconds
    repeat
        local part, why, rest = socket:receive(65536)
        table.insert(parts, part or rest or "")
        size = size + #parts[#parts]
    until why or size > MOST_BYTES or core.now().sec > ends
    socket:close()
    return table.concat(parts)
end

local function counters(target, text)
    local moves, requests = {}, nil
    if not string.match(text, "^HTTP/1%%.%%d 200 ") then
        return nil, nil
    end
    for line in string.gmatch(text, "[^\\r\\n]+") do
        for _, sample in ipairs(target.samples[string.match(line, "^[%%w_:]+")] or {}) do
            if sample.label == "" or string.find(line, sample.label, 1, true) then
                local value = string.match(line, " (%%S+)$")
                if sample.kind == "requests" then
                    requests = (requests or 0) + (tonumber(value) or 0)
                else
                    table.insert(moves, value)
                end
            end
        end
    end
    return moves[1] and table.concat(moves, " "), requests
end

local function is_up(server)
    return string.match(server:get_stats()["status"], "^UP") ~= nil
end

local function other_is_up(target)
    for name, server in pairs(core.backends[target.backend].servers) do
        if name ~= target.name and is_up(server) then
            return true
        end
    end
    return false
end

-- An idle engine generates a token at once; one that got stuck before it accepted the waiting requests does not.
local function gives_no_token(target, server)
    return answer(target, server, target.check, target.body, target.still - target.still // 3) == ""
end

-- Returns the counters (of a silent server, the bytes it sent to clients), the number of requests, and the time limit.
local function reading(target, server, stats, up)
    local text = answer(target, server, target.request, "", READ_S)
    if text == "" then
        return "silent " .. stats["bout"], nil, up and SILENT * target.still or target.still
    end
    local moves, requests = counters(target, text)
    return moves, requests, requests == 0 and target.still // 3 or target.still
end

local function watch(target)
    local server = core.backends[target.backend].servers[target.name]
    local seen, since, stuck = nil, 0, false
    while true do
        core.sleep(EVERY_S)
        local stats = server:get_stats()
        local up, down = string.match(stats["status"], "^UP"), string.match(stats["status"], "^DOWN")
        if stats["scur"] == 0 or (up and stuck) then
            seen, stuck = nil, false
        elseif not stuck and (up or down) then
            local moves, requests, most = reading(target, server, stats, up)
            if not moves or moves ~= seen then
                seen, since = moves, core.now().sec
            elseif core.now().sec - since >= most then
                stuck = requests ~= 0 or gives_no_token(target, server)
                since = core.now().sec
            end
            if stuck and is_up(server) then
                core.Alert(target.backend .. "/" .. target.name .. " makes no progress with its requests: down")
                server:check_force_down()
            end
        end
        if stuck and other_is_up(target) then
            server:shut_sess()
        end
    end
end

for _, target in pairs(watched) do
    core.register_task(function() watch(target) end)
end
"""


def render_files(gateway: Gateway, server_keys: str) -> dict[str, str]:
    """Return the script and LIST_FILE; empty if progress is not checked or no engine reports its progress.

    Args:
        server_keys: name of the file with the servers' API keys.
    """
    list_text = "".join(_list_lines(gateway))
    if not list_text or not gateway.stuck_s:
        return {}
    keys = f'Map.new("{server_keys}", Map._str)' if any(model.key for model in gateway.models) else "nil"
    settings = {
        "stuck_s": gateway.stuck_s,
        "every_s": POLL_INTERVAL_S,
        "read_s": READ_TIMEOUT_S,
        "most_bytes": MAX_METRICS_BYTES,
        "silent": SILENT_FACTOR,
    }
    return {LIST_FILE: list_text, SCRIPT_FILE: _SCRIPT % {**settings, "keys": keys, "list": LIST_FILE}}


def global_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the line that loads the script."""
    if gateway.stuck_s and any(_list_lines(gateway)):
        yield f"lua-load {SCRIPT_FILE}"


def _list_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of LIST_FILE."""
    for model in gateway.models:
        for upstream in model.upstreams:
            if upstream.progress is None:
                continue
            for server in upstream.names:
                check = f"check {tasks.proof_path(model.task)} {model.check_body}"
                yield from (f"{model.backend} {server} {row}\n" for row in (*_progress_lines(upstream.progress), check))


def _progress_lines(progress: Progress) -> Iterator[str]:
    yield f"path {progress.path}"
    yield f"still {progress.still_s}"
    for kind, samples in (("moves", progress.moves), ("requests", progress.requests)):
        for sample in samples:
            if METRIC_NAME_PATTERN.fullmatch(sample.name) and METRIC_LABEL_PATTERN.fullmatch(sample.label):
                yield f"{kind} {sample.name} {sample.label}".rstrip()
