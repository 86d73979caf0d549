"""The commands that show the state of hosts: status, report, logs, and client settings."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit, Refused

HOSTS_HELP = "a host, a group, several or all (default: all but sandboxes, or the sandboxes if there is nothing else)"
DEFAULT_TAIL_LINES = 1000


@command(
    help={
        "host": HOSTS_HELP,
        "watch": "refresh every few seconds until Ctrl-C or, on a terminal, q; other keys show logs, diagnose and history",
        "every": "with --watch: seconds between refreshes (default 5)",
        "json": "one JSON object per host; with --watch one per host and refresh",
    }
)
def status(host: str = "", recipe: str = "", watch: bool = False, every: float = 5.0, json: bool = False) -> list[int]:
    """Show each host: state, recipe, tok/s, memory, drift.

    Requests /health but no token, and shows the last health check as long as it is valid. Exit code: 0 every server and gateway
    is up, asleep or starting, 2 one is degraded, 1 down or worse, 3 its host is unreachable, 4 unknown or a run is in progress.
    With --watch it is 0.
    """
    from sparkwright.app.connect import connect_hosts, default_pattern, restrict_to_recipe

    selection = connect_hosts(restrict_to_recipe(host or default_pattern(), recipe), "light")
    from sparkwright.app.queries import fleet_status

    if watch and not json:
        from sparkwright.app.queries import watch as console

        if console.is_supported():
            return [console.watch(selection, interval_s=every)]
    if watch:
        return [fleet_status.show_repeatedly(selection, interval_s=every, json=json)]
    return fleet_status.show_once(selection, json=json)


@command(
    help={
        "host": HOSTS_HELP,
        "since": "how far back: 90m, 12h, 7d, 2w (default 7d)",
        "to": "the file to write (default report.html)",
        "json": "print the plotted data as one JSON object per host, instead of the page",
    }
)
def report(
    host: str = "", recipe: str = "", since: str = "7d", to: str = "report.html", json: bool = False
) -> list[int]:
    """Write an HTML page of states, throughput and temperatures.

    One self-contained file, made from the health checks. Exit code 3 if a host is unreachable, which the page shows.
    """
    from sparkwright.app.connect import connect_hosts, default_pattern, restrict_to_recipe

    selection = connect_hosts(restrict_to_recipe(host or default_pattern(), recipe), "light")
    from sparkwright.app.queries import host_records

    return host_records.write_report(selection, since, to, json=json)


@command(
    help={
        "file": "a saved log, instead of a host's",
        "engine": "with --file: the engine that wrote it: vllm, llama_cpp, sglang or openai (default: detected)",
        "state": "the settings that the engine logged: each value or unknown, with the line that it comes from",
        "tail": f"without --state: number of lines from the end (default {DEFAULT_TAIL_LINES})",
        "json": "one JSON object per host: text; with --state version, chunked_prefill ... failure, evidence; null is unknown",
    }
)
def logs(
    host: str = "",
    recipe: str = "",
    file: str = "",
    engine: str = "",
    state: bool = False,
    tail: int = DEFAULT_TAIL_LINES,
    json: bool = False,
) -> list[Exit]:
    """Print an engine's log, or the settings in it.

    The settings are those of the last start. Exit code: 0 printed; 3 a host is unreachable; 4 there is no container; 5 no such
    file, host or recipe; with --state also 1 the engine failed, and 4 the log has no start of an engine.
    """
    if bool(host) == bool(file):
        raise Refused("pass either --host NAME or --file PATH.")
    if engine and not file:
        raise Refused("applies only to --file; for a host, the container determines the engine.", where="--engine")
    from sparkwright.app.connect import restrict_to_recipe
    from sparkwright.app.queries import log_source
    from sparkwright.app.queries.host_requests import report_host_error

    pattern = restrict_to_recipe(host, recipe)
    engine_logs = log_source.read_file(file, tail, engine) if file else log_source.query_hosts(pattern, tail)
    codes = [engine_log.exit if state or engine_log.error else Exit.OK for engine_log in engine_logs]
    for engine_log in engine_logs:
        with report_host_error(engine_log.title or file, codes, json=json):
            log_source.print_log(engine_log, show_state=state, json=json, with_title=len(engine_logs) > 1)
    return codes


@command(
    help={
        "for": "print the settings in this client's format, through the gateway if there is one: claude-code, codex, opencode, "
        "cline, continue, aider, openclaw, open-webui, litellm, curl or python",
        "client": "use the key of this client in the gateway's `clients`, instead of the gateway's key",
        "write": "merge the settings into the client's file, and keep a backup",
        "file": "with --write: this file instead of the client's usual one",
        "check": "send one streamed request as the client does, and print the result; the key is read from its variable",
        "json": "one JSON object per host: base_url, model, context_length, max_tokens ...",
    }
)
def client(
    host: str = "",
    recipe: str = "",
    for_: str = "",
    client: str = "",
    write: bool = False,
    file: str = "",
    check: bool = False,
    json: bool = False,
) -> list[int]:
    """Print a client's settings: URL, model, context, key."""
    from sparkwright.app.connect import connect_hosts, restrict_to_recipe

    selection = connect_hosts(restrict_to_recipe(host, recipe))
    from sparkwright.app.queries import client_settings

    return client_settings.print_settings(
        selection, json=json, options=client_settings.ClientOptions(for_, write, file, check, client)
    )


TASKS = {"": [status, report, logs, client]}
