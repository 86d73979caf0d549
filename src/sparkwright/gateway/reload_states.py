"""Server states of a new process, which the previous one copies after a reload if requests wait in it (`not_up: wait`).

HAProxy stops the health checks of the previous process, and the hosts' operations reach only the new one. Without the states,
waiting requests would not learn that their server is up.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.gateway.listeners import ADMIN_SOCKET, SOCKETS_FOLDER
from sparkwright.gateway.model import Gateway

SCRIPT_FILE = "reload.lua"
POLL_INTERVAL_S = 1
#: the script reads a server's name, operational state (2 is up) and administrative state (0 is ready)
_SCRIPT = """-- Written by sparkwright. After a reload, the previous process copies the servers' states from the new process.
local function read_states()
    local socket = core.tcp()
    socket:settimeout(5)
    if not socket:connect("unix@%(socket)s") then
        return ""
    end
    socket:send("show servers state\\n")
    local text = socket:receive("*a")
    socket:close()
    return text or ""
end

core.register_task(function()
    while true do
        core.sleep(%(poll_s)d)
        if tonumber(core.get_info()["Stopping"]) == 1 then
            for backend, name, running, admin in string.gmatch(read_states(), "\\n%%d+ (%%S+) %%d+ (%%S+) %%S+ (%%d+) (%%d+) ") do
                local server = core.backends[backend] and core.backends[backend].servers[name]
                local up = server and string.match(server:get_stats()["status"], "^UP")
                if server and running == "2" and admin == "0" and not up then
                    server:set_ready()
                    server:check_force_up()
                elseif up and (running ~= "2" or admin ~= "0") then
                    server:check_force_down()
                end
            end
        end
    end
end)
"""


def render_files(gateway: Gateway) -> dict[str, str]:
    """Return the script; empty if requests do not wait."""
    settings = {"socket": f"{SOCKETS_FOLDER}/{ADMIN_SOCKET}", "poll_s": POLL_INTERVAL_S}
    return {SCRIPT_FILE: _SCRIPT % settings} if gateway.waits else {}


def global_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the line that loads the script."""
    if gateway.waits:
        yield f"lua-load {SCRIPT_FILE}"
