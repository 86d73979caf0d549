"""The MCP server, with read-only tools, resources and, if allowed, the two tools that change hosts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

from anyio import from_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resources import FunctionResource
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field

from sparkwright import here
from sparkwright.api import Event, Exit, Fleet, Refused, Run, RunResult, SparkwrightError
from sparkwright.app import json_output, manual
from sparkwright.app.connect import select_hosts
from sparkwright.app.queries import fleet_status
from sparkwright.defaults import HISTORY_ENTRIES
from sparkwright.mcp import output
from sparkwright.mcp.changes import PLAN_LIFETIME_S, OnEvent, Operation, PendingChanges, follow_run
from sparkwright.program import rewrite_commands
from sparkwright.remote.ssh import ssh_link
from sparkwright.version import __version__

Params = ParamSpec("Params")
Answer = TypeVar("Answer")

HostPattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=300,
        pattern=r"^[A-Za-z0-9_.,:!&*?@/\[\]-]+$",
        description="hosts of the inventory, e.g. `spark1` or `spark1,spark2` or `GROUP` or `all` or `lab:!spark3`; "
        "`spark1/RECIPE` is one of several servers of a host",
    ),
]
RunId = Annotated[
    str, Field(max_length=80, pattern=r"^[A-Za-z0-9-]*$", description="a run's id; if empty, the newest run")
]
LineCount = Annotated[int, Field(ge=1, le=1000, description="number of lines from the end of the log")]
DEFAULT_LINE_COUNT = 100
EntryCount = Annotated[int, Field(ge=1, le=100, description="number of entries, newest first")]
Period = Annotated[str, Field(max_length=8, pattern=r"^\d+[smhdw]$", description="how far back: 90m, 12h, 7d")]
Topic = Annotated[
    str,
    Field(
        max_length=120,
        pattern=r"^[\w.-]*(#[\w-]+)?$",
        description="a page, module or rule, e.g. doctor, or a section, e.g. alerts#sparkwrightslow; if empty, a list",
    ),
]
SearchWords = Annotated[
    str, Field(max_length=200, description="instead of a topic: find sections that contain all these words")
]
PlanId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", description="the id returned by plan_change")]

#: imported in advance, so that the first request to a host does not wait for the import
PRELOADED_LINK = ssh_link.SshLink

READ_HINTS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
CHANGE_HINTS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)

INSTRUCTIONS = f"""Manages model servers (vLLM, SGLang, llama.cpp) on the DGX Spark hosts of one project folder.
{output.UNTRUSTED_NOTE} null and "unknown" mean that a value was not measured: never report them as good."""
READ_ONLY_NOTE = " This server is read only: it was started without --allow-changes."
CONFIRMATION_NOTE = f""" To change hosts: call plan_change, show its plan to the user, and call apply_change with its id only
after the user has confirmed that plan. An id is valid for {PLAN_LIFETIME_S / 60:g} minutes and one change, and only as long as
the hosts and the project's files do not change."""


def serve(fleet: Fleet, *, allow_changes: bool) -> None:
    """Serve over standard input and output until the client disconnects."""
    with contextlib.suppress(SparkwrightError), here.use_folder(fleet.root):
        # imports the modules that read files, so that the first request does not wait half a second for them
        fleet_status.intended_servers(select_hosts("all"))
    build_server(fleet, allow_changes=allow_changes).run("stdio")


def build_server(fleet: Fleet, *, allow_changes: bool) -> MCPServer[Any]:
    """Return the server with its tools and resources. allow_changes: include the tools that change hosts."""
    instructions = INSTRUCTIONS + (CONFIRMATION_NOTE if allow_changes else READ_ONLY_NOTE)
    tools = [_build_tool(function, READ_HINTS) for function in _read_tools(fleet)]
    if allow_changes:
        tools += [_build_tool(function, hints) for function, hints in _change_tools(PendingChanges(fleet))]
    server: MCPServer[Any] = MCPServer(
        "sparkwright", instructions=instructions, version=__version__, log_level="WARNING", tools=tools
    )
    _add_resources(server, fleet)
    return server


def _build_tool(function: Callable[..., dict[str, Any]], hints: ToolAnnotations) -> Tool:
    """Return a tool that refuses arguments that it does not have. By default the SDK ignores them."""
    tool = Tool.from_function(_translate_errors(function, ToolError), annotations=hints)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool


def _read_tools(fleet: Fleet) -> Sequence[Callable[..., dict[str, Any]]]:
    def hosts(hosts: HostPattern = "all") -> dict[str, Any]:
        """List the hosts of the inventory: address, groups, recipe. Contacts no host."""
        return output.build_answer("hosts", fleet.hosts(hosts))

    def status(hosts: HostPattern = "all") -> dict[str, Any]:
        """Show what each host serves: state, reason, model, tok/s, memory, drift. Uses the last check or a probe made now."""
        return output.build_answer("hosts", fleet.status(hosts))

    def health(hosts: HostPattern, context: Context) -> dict[str, Any]:
        """Check the servers' health now, by generating a token."""
        return _follow_run(fleet.health(hosts), _progress_reporter(context))

    def plan(hosts: HostPattern, context: Context) -> dict[str, Any]:
        """Show what a deploy would change, field by field. Changes nothing."""
        return _follow_run(fleet.plan(hosts), _progress_reporter(context))

    def diagnose(hosts: HostPattern) -> dict[str, Any]:
        """Find out why a server is slow or down: causes, evidence and fixes. Measuring an idle server takes up to a minute."""
        return output.build_answer("hosts", fleet.diagnose(hosts))

    def logs(hosts: HostPattern, lines: LineCount = DEFAULT_LINE_COUNT) -> dict[str, Any]:
        """Read the end of each server's log, and the settings that the engine reported when it last started."""
        return _read_logs(fleet, hosts, lines)

    def history(hosts: HostPattern, last: EntryCount = HISTORY_ENTRIES) -> dict[str, Any]:
        """List the changes to each server: user, time, differences, measurements."""
        return output.build_answer("hosts", fleet.history(hosts, last=last))

    def incident(hosts: HostPattern, run: RunId = "") -> dict[str, Any]:
        """Read the diagnostics of a server's failure: log, inspect data, memory, kernel messages, events."""
        return output.build_answer("hosts", fleet.incident(hosts, run=run), max_text_chars=output.MAX_LOG_CHARS)

    def report(hosts: HostPattern = "all", since: Period = "7d") -> dict[str, Any]:
        """Summarize the scheduled checks: states, throughput and temperatures over time."""
        return output.build_answer("hosts", fleet.report(hosts, since=since))

    def docs(topic: Topic = "", search: SearchWords = "") -> dict[str, Any]:
        """Read the page of a topic, playbook module or lint rule, or search all pages. For doctor.md, pass `doctor`."""
        if topic and search.strip():
            raise Refused("give either a topic or words to search for.")
        if search.strip():
            return {"search": search, "found": manual.search(search)}
        return {"topic": topic, "text": manual.topic(topic) if topic else manual.index()}

    return hosts, status, health, plan, diagnose, logs, history, incident, report, docs


def _change_tools(changes: PendingChanges) -> Sequence[tuple[Callable[..., dict[str, Any]], ToolAnnotations]]:
    def plan_change(operation: Operation, hosts: HostPattern, context: Context) -> dict[str, Any]:
        """Plan a deploy, restart or rollback without changing anything. Show the plan to the user before apply_change."""
        planned_change = changes.plan(operation, hosts, _progress_reporter(context))
        if planned_change is None:
            return {"id": "", "plan": [], "summary": f"Nothing to {operation}: no host would change."}
        plan = {
            "id": planned_change.id,
            "operation": operation,
            "hosts": list(planned_change.hosts),
            "lasts_s": PLAN_LIFETIME_S,
        }
        return plan | planned_change.answer

    def apply_change(id: PlanId, context: Context) -> dict[str, Any]:
        """Make a change that plan_change returned and the user confirmed. Refused if hosts or files have changed since then."""
        return _result_json(changes.apply(id, _progress_reporter(context), from_thread.check_cancelled))

    return (plan_change, READ_HINTS), (apply_change, CHANGE_HINTS)


def _add_resources(server: MCPServer[Any], fleet: Fleet) -> None:
    json_type = "application/json"

    @server.resource("sparkwright://hosts", mime_type=json_type, description="The inventory.")
    @_translate_errors_to(ResourceError)
    def hosts() -> dict[str, Any]:
        return output.build_answer("hosts", fleet.hosts())

    @server.resource(
        "sparkwright://status", mime_type=json_type, description="The state of every host except sandboxes."
    )
    @_translate_errors_to(ResourceError)
    def status() -> dict[str, Any]:
        return output.build_answer("hosts", fleet.status())

    for read_host in _host_resources(fleet):
        uri = f"sparkwright://{read_host.__name__}/{{host}}"
        add_resource = server.resource(uri, mime_type=json_type, description=read_host.__doc__)
        add_resource(_translate_errors(read_host, ResourceError))

    docs_description = "The list of pages, modules and rules."
    server.resource("sparkwright://docs", mime_type="text/plain", description=docs_description)(manual.index)
    for name, text in manual.pages().items():
        read_page = functools.partial(manual.topic, name)
        uri, title = f"sparkwright://docs/{name}", manual.title(text)
        server.add_resource(FunctionResource(uri=uri, name=name, title=title, mime_type="text/markdown", fn=read_page))

    @server.resource(
        "sparkwright://docs/{topic}",
        mime_type="text/markdown",
        description="A documentation page, or the page of a playbook module or a rule.",
    )
    @_translate_errors_to(ResourceError)
    def page(topic: str) -> str:
        return manual.topic(topic)

    @server.resource("sparkwright://schemas/events", mime_type=json_type, description="The JSON Schema of an event.")
    @_translate_errors_to(ResourceError)
    def events() -> dict[str, Any]:
        return json_output.schema(json_output.EVENTS_KIND)


def _host_resources(fleet: Fleet) -> Sequence[Callable[..., dict[str, Any]]]:
    """Return the functions that read the resources of a host or group. Clients see their docstrings."""

    def health(host: str) -> dict[str, Any]:
        """The result of a new health check, for which the server generates a token."""
        return _follow_run(fleet.health(host), _ignore_event)

    def plan(host: str) -> dict[str, Any]:
        """The changes that a deploy would make."""
        return _follow_run(fleet.plan(host), _ignore_event)

    def diagnose(host: str) -> dict[str, Any]:
        """The reasons why the host's server is slow or down."""
        return output.build_answer("hosts", fleet.diagnose(host))

    def logs(host: str) -> dict[str, Any]:
        """The end of the server's log, and the settings that the engine reported when it last started."""
        return _read_logs(fleet, host, DEFAULT_LINE_COUNT)

    def history(host: str) -> dict[str, Any]:
        """The changes to the host's server, newest first."""
        return output.build_answer("hosts", fleet.history(host))

    def incident(host: str) -> dict[str, Any]:
        """The diagnostics of the server's last failure."""
        return output.build_answer("hosts", fleet.incident(host), max_text_chars=output.MAX_LOG_CHARS)

    def report(host: str) -> dict[str, Any]:
        """A summary of a week of scheduled checks."""
        return output.build_answer("hosts", fleet.report(host))

    return health, plan, diagnose, logs, history, incident, report


def _read_logs(fleet: Fleet, hosts: str, lines: int) -> dict[str, Any]:
    log_rows = [
        {
            "host": log.host,
            "text": log.text[-output.MAX_LOG_CHARS :],
            "state": log.state,
            "known": log.known,
            "error": log.error,
        }
        for log in fleet.logs(hosts, tail=lines)
    ]
    return output.build_answer("hosts", log_rows, max_text_chars=output.MAX_LOG_CHARS)


def _ignore_event(event: Event) -> None:
    """Ignore an event: resources cannot report progress."""


def _follow_run(run: Run, on_event: OnEvent) -> dict[str, Any]:
    return _result_json(follow_run(run, on_event))


def _result_json(result: RunResult) -> dict[str, Any]:
    """Return a run's result on each host, and the tasks that are neither ok nor skipped; if there are none, all tasks."""
    notable_tasks = [task for task in result.tasks if task.status not in ("ok", "skipped")] or list(result.tasks)
    rows = [
        {
            "host": task.host,
            "task": task.name,
            "status": task.status,
            "msg": task.msg,
            "fix": task.fix,
            "diff": task.diff,
        }
        for task in notable_tasks
    ]
    hosts = list(result.hosts.values())
    summary = {
        "exit": int(result.exit),
        "ended": result.exit.name.lower(),
        "fine": result.exit in (Exit.OK, Exit.CHANGES),
    }
    return summary | output.build_answer("run", {"hosts": hosts, "tasks": rows, "stopped": result.stopped})


def _progress_reporter(context: Context) -> OnEvent:
    """Return a callback that reports started tasks and finished hosts to the client. It must run in a thread of the server.

    It raises the exception for a cancelled task once the client has cancelled the call.
    """
    event_count = 0

    def report_event(event: Event) -> None:
        nonlocal event_count
        from_thread.check_cancelled()
        if event.kind not in ("task_started", "host_finished"):
            return
        event_count += 1
        task_name = event.fields.get("name") or "done"
        from_thread.run(context.report_progress, event_count, None, f"{event.host}: {task_name}"[:300])

    return report_event


def _translate_errors_to(
    error_type: type[Exception],
) -> Callable[[Callable[Params, Answer]], Callable[Params, Answer]]:
    return functools.partial(_translate_errors, error_type=error_type)


def _translate_errors(function: Callable[Params, Answer], error_type: type[Exception]) -> Callable[Params, Answer]:
    """Wrap a function so that clients get our error messages: the SDK hides the messages of other exception types."""

    @functools.wraps(function)
    def call(*args: Params.args, **options: Params.kwargs) -> Answer:
        try:
            return function(*args, **options)
        except SparkwrightError as error:
            raise error_type(rewrite_commands(str(error))) from None

    return call
