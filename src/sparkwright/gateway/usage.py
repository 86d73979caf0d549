"""Count the tokens of clients with their own keys, from the usage in the servers' answers.

The usage is at the end of an answer's body, which HAProxy's rules can't read, so a Lua filter keeps the first and last bytes of
each answer to these clients. If an answer has no usage, the tokens are estimated from the request's size and the number of events
in the stream. Every WRITE_INTERVAL_S seconds the counts are appended to the day's file, so that a reload or restart does not lose
them, and streams that a process finishes after a reload are counted too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparkwright.engines import dialects
from sparkwright.gateway.listeners import SOCKETS_FOLDER
from sparkwright.gateway.model import Gateway

SCRIPT_FILE = "usage.lua"
#: prefix of the names of the script's files; the date follows
FILE_PREFIX = "usage."
#: path of the metrics for Prometheus, which require the gateway's `key`
METRICS_PATH = "/metrics/clients"
#: a client's counters, in the order of a file's columns
FIELDS = ("requests", "prompt_tokens", "generated_tokens", "estimated", "errors", "refused", "queue_ms")
WRITE_INTERVAL_S = 5
#: number of days for which files are kept
RETENTION_DAYS = 31
#: size beyond which a file's lines are summed up
MAX_FILE_BYTES = 2**18
#: number of bytes kept from an answer's beginning, and from its end
BUFFERED_BYTES = 4096
#: number of bytes read from the beginning of a usage object
USAGE_BYTES = 600
#: bytes of a request per token, for estimates
BYTES_PER_TOKEN = 4
#: paths that return text, whose tokens are estimated if an answer has no usage
TEXT_PATHS = (*dialects.DIALECTS_BY_PATH, "/v1/completions")
_ROW_PATTERN = re.compile(r"([a-z0-9][a-z0-9_.-]{0,39})((?: [0-9]{1,15}){7})")

_SCRIPT = """-- Written by sparkwright. It counts the usage of clients with their own keys, from the servers' answers.
local FOLDER, WRITE_S, KEPT_DAYS, MOST_BYTES = "%(folder)s", %(write_s)d, %(kept_days)d, %(most_bytes)d
local KEPT_BYTES, USAGE_BYTES, BYTES_PER_TOKEN = %(kept_bytes)d, %(usage_bytes)d, %(bytes_per_token)d
local MOST_COUNT = 10 ^ 12
local FIELDS = { %(fields)s }
local TEXTS = { %(texts)s }
-- the object with the counts, the keys whose sum is the number of prompt tokens, the key of the generated tokens
local USAGES = { %(usages)s }

-- today: the counts in the file. pending: not written yet. total: since this process started
local day, offset, today, pending, total = "", 0, {}, {}, {}

local function add(counts, client, more)
    local row = counts[client] or {}
    for _, field in ipairs(FIELDS) do
        row[field] = (row[field] or 0) + (more[field] or 0)
    end
    counts[client] = row
end

-- numbers from files and servers are untrusted
local function integer(text)
    local number = math.tointeger(tonumber(text))
    return number and number < MOST_COUNT and number or nil
end

local function count(client, more)
    add(pending, client, more)
    add(total, client, more)
end

local function file_of(date)
    return FOLDER .. "/%(file)s" .. date
end

local function lines_of(counts)
    local lines = {}
    for client, row in pairs(counts) do
        local words = { client }
        for _, field in ipairs(FIELDS) do
            table.insert(words, string.format("%%d", row[field]))
        end
        table.insert(lines, table.concat(words, " ") .. "\\n")
    end
    return table.concat(lines)
end

local function read_on()
    local file = io.open(file_of(day), "r")
    if not file then
        return
    end
    if file:seek("end") < offset then
        today, offset = {}, 0
    end
    file:seek("set", offset)
    local text = file:read(16 * MOST_BYTES) or ""
    file:close()
    local whole = string.match(text, "^.*\\n") or ""
    offset = offset + #whole
    for client, numbers in string.gmatch(whole, "([^ \\n]+)([ %%d]*)\\n") do
        local row, n = {}, 0
        for number in string.gmatch(numbers, "%%d+") do
            n = n + 1
            row[FIELDS[n] or ""] = integer(number) or 0
        end
        add(today, client, row)
    end
end

local function sum_up()
    local file = io.open(file_of("new"), "w")
    if file then
        file:write(lines_of(today))
        file:close()
        if os.rename(file_of("new"), file_of(day)) then
            offset = #lines_of(today)
        end
    end
end

local function write()
    local lines = lines_of(pending)
    local file = lines ~= "" and io.open(file_of(day), "a")
    if file then
        local written = file:write(lines)
        if file:close() and written then
            pending = {}
        end
    end
    read_on()
    if offset > MOST_BYTES then
        sum_up()
    end
    local date = os.date("!%%Y-%%m-%%d")
    if date ~= day then
        if next(today) then
            sum_up()
        end
        os.remove(file_of(os.date("!%%Y-%%m-%%d", os.time() - 86400 * KEPT_DAYS)))
        day, offset, today = date, 0, {}
        read_on()
    end
end

local function milliseconds()
    local now = core.now()
    return now.sec * 1000 + now.usec // 1000
end

local Usage = { id = "usage", flags = filter.FLT_CFG_FL_HTX }
Usage.__index = Usage

function Usage:new()
    return setmetatable({}, Usage)
end

function Usage:start_analyze(txn, channel)
    if self.client and channel:is_resp() then
        self.queued_ms = milliseconds() - self.sent_ms
    end
end

function Usage:http_headers(txn, message)
    if not message:is_resp() then
        self.client = txn:get_var("txn.client")
        if self.client then
            self.sent_ms = milliseconds()
            self.text, self.bytes = TEXTS[txn.f:path()], txn.f:req_body_size() or 0
        end
    elseif self.client then
        self.status = txn.f:status()  -- the start line is not available after a rule that waits for the body
        self.head, self.parts, self.size, self.events = "", {}, 0, 0
        if self.status == 200 then
            filter.register_data_filter(self, message.channel)
        end
    end
    return filter.CONTINUE
end

function Usage:http_payload(txn, message)
    local data = message:body()
    if not data or data == "" then
        return
    end
    if #self.head < KEPT_BYTES then
        self.head = self.head .. string.sub(data, 1, KEPT_BYTES - #self.head)
    end
    local at = string.find(data, "data: ", 1, true)
    while at and self.text do
        self.events = self.events + 1
        at = string.find(data, "data: ", at + 6, true)
    end
    local part = #data > KEPT_BYTES and string.sub(data, -KEPT_BYTES) or data
    table.insert(self.parts, part)
    self.size = self.size + #part
    if self.size > 4 * KEPT_BYTES then
        self.parts = { string.sub(table.concat(self.parts), -KEPT_BYTES) }
        self.size = KEPT_BYTES
    end
end

local function tokens_in(text, usage, found)
    local start = '"' .. usage.object .. '":'
    local at = string.find(text, start, 1, true)
    while at do
        local part = string.sub(text, at + #start, at + #start + USAGE_BYTES)
        local prompt
        for n, key in ipairs(usage.prompt) do
            local number = integer(string.match(part, '"' .. key .. '": ?(%%d+)'))
            if number or n > 1 then
                prompt = number and (prompt or 0) + number or prompt
            else
                break
            end
        end
        found.prompt = prompt or found.prompt
        found.generated = integer(string.match(part, '"' .. usage.generated .. '": ?(%%d+)')) or found.generated
        at = string.find(text, start, at + #start, true)
    end
end

function Usage:end_analyze(txn, channel)
    local client = self.client
    if not client or not channel:is_resp() then
        return
    end
    self.client = nil
    local row, found = { requests = 1, queue_ms = self.queued_ms }, {}
    if not self.status or self.status >= 500 then
        row.errors = 1
    elseif self.status == 200 then
        local text = self.head .. "\\n" .. table.concat(self.parts)
        for _, usage in ipairs(USAGES) do
            if not found.prompt or not found.generated then
                tokens_in(text, usage, found)
            end
        end
        if self.text and not (found.prompt and found.generated) then
            row.estimated = 1
            found.prompt = found.prompt or self.bytes // BYTES_PER_TOKEN
            found.generated = math.max(found.generated or 0, self.events)
        end
        row.prompt_tokens, row.generated_tokens = found.prompt, found.generated
    end
    count(client, row)
end

core.register_filter("usage", Usage, function(class, arguments) return class end)

core.register_fetches("tokens_today", function(txn)
    local sum, client = 0, txn:get_var("txn.client") or ""
    for _, counts in ipairs({ today, pending }) do
        local row = counts[client] or {}
        sum = sum + (row.prompt_tokens or 0) + (row.generated_tokens or 0)
    end
    return sum
end)

core.register_action("count_refused", { "http-req" }, function(txn)
    count(txn:get_var("txn.client"), { refused = 1 })
end)

core.register_service("client_metrics", "http", function(applet)
    local lines = {}
    for _, field in ipairs(FIELDS) do
        local seconds = field == "queue_ms"
        local name = "sparkwright_client_" .. (seconds and "queue_seconds" or field) .. "_total"
        table.insert(lines, "# TYPE " .. name .. " counter\\n")
        for client, row in pairs(total) do
            local value = seconds and string.format("%%.3f", row[field] / 1000) or row[field]
            table.insert(lines, string.format('%%s{client="%%s"} %%s\\n', name, client, value))
        end
    end
    local body = table.concat(lines)
    applet:set_status(200)
    applet:add_header("content-type", "text/plain; version=0.0.4")
    applet:add_header("content-length", #body)
    applet:start_response()
    applet:send(body)
end)

core.register_init(write)
core.register_task(function()
    while true do
        core.sleep(WRITE_S)
        local done, why = pcall(write)
        if not done then
            core.Alert("usage: " .. tostring(why))
        end
    end
end)
"""


def render_files(gateway: Gateway) -> dict[str, str]:
    """Return the script; empty if no client has its own key."""
    if not gateway.named_clients:
        return {}
    usages = (
        f'{{ object = "{usage.object}", prompt = {{ {_lua_strings(usage.prompt)} }}, generated = "{usage.generated}" }}'
        for usage in gateway.usages
    )
    settings = {
        "folder": SOCKETS_FOLDER,
        "file": FILE_PREFIX,
        "write_s": WRITE_INTERVAL_S,
        "kept_days": RETENTION_DAYS,
        "most_bytes": MAX_FILE_BYTES,
        "kept_bytes": BUFFERED_BYTES,
        "usage_bytes": USAGE_BYTES,
        "bytes_per_token": BYTES_PER_TOKEN,
        "fields": _lua_strings(FIELDS),
        "texts": ", ".join(f'["{path}"] = true' for path in TEXT_PATHS),
        "usages": ", ".join(usages),
    }
    return {SCRIPT_FILE: _SCRIPT % settings}


def _lua_strings(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def global_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the line that loads the script."""
    if gateway.named_clients:
        yield f"lua-load {SCRIPT_FILE}"


def filter_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the frontend's line for the filter that counts usage."""
    if gateway.named_clients:
        yield "filter lua.usage"


def metrics_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rule for the metrics. Clients with their own keys can't read them: they contain the counts of other clients."""
    if gateway.named_clients:
        yield f"http-request use-service lua.client_metrics if {{ path {METRICS_PATH} }} !{{ var(txn.client) -m found }}"


def parse_totals(text: str) -> dict[str, dict[str, int]]:
    """Return the counts by client from the contents of a day's file. Invalid lines are ignored."""
    totals_by_client: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        if row := _ROW_PATTERN.fullmatch(line):
            counts = totals_by_client.setdefault(row[1], dict.fromkeys(FIELDS, 0))
            for field, number in zip(FIELDS, row[2].split(), strict=True):
                counts[field] += int(number)
    return totals_by_client
