"""The `client` command: print the settings for clients of a running server, as text, as JSON or in a client's format."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters, gateways, recipes
from sparkwright.app.plans.pins import load_lock, lock_entries
from sparkwright.app.plans.recipes import render_template
from sparkwright.app.queries import client_check, client_files, client_formats
from sparkwright.app.queries.client_formats import ClientFormat, Endpoint
from sparkwright.app.queries.host_requests import query_module, report_host_error
from sparkwright.console.command_output import print_error, print_json_line, print_prose, print_text
from sparkwright.console.events.summary import ServerSummary
from sparkwright.engines import openai_api
from sparkwright.engines.http import GENERATE
from sparkwright.engines.model import chat_template
from sparkwright.engines.model.chat_template import ChatTemplate
from sparkwright.errors import Failed, Refused
from sparkwright.fleet.member import Member
from sparkwright.host.records.turns import ASLEEP_CLAUSE
from sparkwright.program import name
from sparkwright.project import recipe
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.folder import Project
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.models import SecretSource
from sparkwright.project.recipe.recipe import DEFAULT_KEY_VARIABLE
from sparkwright.transport import connection
from sparkwright.visible import one_line

#: environment variable for a gateway's key if the key's source is not a variable
GATEWAY_KEY_VARIABLE = "GATEWAY_KEY"
#: how clients reach a server that is asleep until a request wakes it
ASLEEP_HINT = "asleep: a request through the gateway may wake it"
#: time limit for a connection, in seconds; addresses on the local network answer within milliseconds
CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of the `client` command."""

    #: the client program, a name in `client_formats.FORMATS`; if empty, the general format
    program_name: str = ""
    #: merge the settings into the program's file instead of printing them
    write: bool = False
    #: the program's file; if empty, its default path
    file: str = ""
    #: send a request in the program's format
    check: bool = False
    #: the client whose key is used, a name in the gateway's `clients`; if empty, the gateway's own key is used
    gateway_client: str = ""

    def find_format(self) -> ClientFormat | None:
        """Return the program's format; None for the general format. Raises Refused for an invalid combination of options."""
        if not self.program_name and (self.write or self.check or self.file):
            option = "--write" if self.write else "--check" if self.check else "--file"
            raise Refused("requires --for.", where=option)
        if self.file and not self.write:
            raise Refused("requires --write.", where="--file")
        return client_formats.get_format(self.program_name) if self.program_name else None


def print_settings(selection: Selection, *, json: bool, options: ClientOptions = ClientOptions()) -> list[int]:
    """Print or write the settings for each host (for a cluster, only its head), and return the exit codes."""
    client_format = options.find_format()
    if options.write and len(selection.fleet.members) != 1:
        raise Refused("can be used with one host only.", where="--write")
    if client_format is not None and json:
        raise Refused("prints the client's own format, so it can't be combined with --json.", where="--for")
    selection = clusters.exclude_workers(selection, "client")
    answers = selection.fleet.query_all(lambda member: query_server(selection, member))
    errors, codes = selection.fleet.errors(), selection.fleet.exit_codes()
    printed_endpoints: list[Endpoint] = []
    for host in (member.host.name for member in selection.fleet.members):
        if host in errors:
            print_error(errors[host], json=json, host=host)
            continue
        with report_host_error(host, codes, json=json):
            if json:
                gateway_rows = _gateway_settings(selection, answers[host], options.gateway_client)
                print_json_line({**settings_json(answers[host]), "gateways": gateway_rows})
                continue
            if client_format is not None:
                endpoint = _build_endpoint(selection, host, answers[host], options.gateway_client)
                if endpoint not in printed_endpoints:  # hosts behind one gateway have the same
                    printed_endpoints.append(endpoint)
                    _print_for_program(client_format, options, endpoint)
                continue
            gateway_lines = _gateway_lines(selection, answers[host], options.gateway_client)
            print_text(render_text(selection.project, answers[host]), end="")
            if answers[host].task == GENERATE:
                formats = ", ".join(client_formats.FORMATS)
                print_prose(f"programs   `{name()} client --host {host} --for NAME`: {formats}")
            for line in (*gateway_lines, *_silent_address_warning(answers[host].url)):
                print_text(line)
    return codes


def _print_for_program(client_format: ClientFormat, options: ClientOptions, endpoint: Endpoint) -> None:
    lines = client_formats.format_lines(client_format, endpoint)
    if options.write:
        lines = [*client_files.write_settings(options.program_name, endpoint, options.file), *lines[2:]]
    for line in lines:
        print_text(line)
    if options.check:
        print_text(f"{'# ' if not options.write else ''}{client_check.check(client_format, endpoint)}")


def _gateway_lines(selection: Selection, server: ServerSummary, client: str) -> list[str]:
    """Return the settings for requests through a gateway, for each gateway in front of the host.

    Raises Refused if no gateway has this client, or if the client may not use the model.
    """
    lines = []
    for settings in _gateway_settings(selection, server, client):
        gateway = selection.inventory.gateways[settings["name"]]
        model, source = settings["model"], _key_source(gateway, client)
        lines.append(f"\n# through the gateway {gateway.name}\nbase URL   {settings['base_url']}")
        lines += [f"model      {one_line(model)}"] if model != server.served_name else []
        if source is not None:
            lines.append(f"key        ${settings['api_key_variable']}: {_describe_key(gateway, client, source)}")
    return lines


def _gateway_settings(selection: Selection, server: ServerSummary, client: str) -> list[dict[str, str]]:
    """Return the settings for requests through each gateway in front of the host, as plain JSON. Raises as `_gateway_lines`."""
    rows = []
    for gateway in _gateways_in_front(selection, server.host, client):
        source = _key_source(gateway, client)
        rows.append(
            {
                "name": gateway.name,
                "base_url": gateways.base_url(selection.inventory, gateway)[0],
                "model": _select_model_name(gateway, client, server),
                "api_key_variable": (source.env or GATEWAY_KEY_VARIABLE) if source else "",
            }
        )
    return rows


def _describe_key(gateway: Gateway, client: str, source: SecretSource) -> str:
    owner = client or f"the gateway {gateway.name}"
    return f"the key of {owner}, from {secret_source.describe_source(source)}"


def _key_source(gateway: Gateway, client: str) -> SecretSource | None:
    """Return the source of a client's key, or of the gateway's key; None if the gateway accepts requests without a key."""
    return gateway.file.clients[client].key if client else gateway.file.key


def _silent_address_warning(url: str) -> list[str]:
    """Return a warning if the URL's host name also has addresses that do not answer and may delay each request."""
    parts = urlsplit(url)
    resolved_addresses = sorted(
        connection.resolve_host(parts.hostname or "", CONNECT_TIMEOUT_S),
        key=lambda address: (":" not in address, address),
    )
    addresses = [
        (socket.AF_INET6 if ":" in address else socket.AF_INET, (address, parts.port)) for address in resolved_addresses
    ]
    answering_addresses, silent_addresses = (
        probe_addresses(addresses, CONNECT_TIMEOUT_S) if len(addresses) > 1 else ([], [])
    )
    if not (answering_addresses and silent_addresses):
        return []
    alternative = f"[{answering_addresses[0]}]" if ":" in answering_addresses[0] else answering_addresses[0]
    return [
        f"\n# {parts.hostname} also resolves to {', '.join(silent_addresses)}, which does not answer and may delay clients\n"
        f"use this   {parts.scheme}://{alternative}:{parts.port}/v1"
    ]


def probe_addresses(addresses: Sequence[tuple[int, Any]], timeout_s: float) -> tuple[list[str], list[str]]:
    """Connect to all addresses in parallel. Return those that accept the connection, and those that do not answer.

    Addresses that refuse the connection are in neither list, because they do not delay a client.

    Args:
        addresses: pairs of address family and socket address.
    """
    answering_addresses: list[str] = []
    silent_addresses: list[str] = []

    def try_address(family: int, address: Any) -> None:
        with socket.socket(family, socket.SOCK_STREAM) as connection_socket, contextlib.suppress(OSError):
            connection_socket.settimeout(timeout_s)
            try:
                connection_socket.connect(address)
            except TimeoutError:
                silent_addresses.append(str(address[0]))
            else:
                answering_addresses.append(str(address[0]))

    with ThreadPoolExecutor(len(addresses)) as pool:
        for family, address in addresses:
            pool.submit(try_address, family, address)
    return answering_addresses, silent_addresses


def _gateways_in_front(selection: Selection, host_name: str, client: str) -> list[Gateway]:
    """Return the gateways in front of a host; if `client` is set, only those that have it. Raises Refused if none has it."""
    machine = next(member.host.machine for member in selection.fleet.members if member.host.name == host_name)
    gateways_in_front = [gateway for gateway in selection.inventory.gateways.values() if machine in gateway.members]
    if not client:
        return gateways_in_front
    gateways_with_client = [gateway for gateway in gateways_in_front if client in gateway.file.clients]
    if not gateways_with_client:
        names = [client_name for gateway in gateways_in_front for client_name in gateway.file.clients]
        fix = suggest_name(client, names) or "Add it to the gateway's `clients` in hosts/groups.yml."
        raise Refused(f"no gateway in front of {host_name} has a client called {client!r}.", where="--client", fix=fix)
    return gateways_with_client


def _select_model_name(gateway: Gateway, client: str, server: ServerSummary) -> str:
    """Return the first of a server's model names that a client may request. Raises Refused if it may request none of them."""
    allowed_models = gateway.file.clients[client].models if client else []
    server_models = (server.served_name, *server.adapters)
    names = (*server_models, *(alias for alias, name in gateway.file.models.items() if name in server_models))
    model = next((name for name in names if not allowed_models or name in allowed_models), "")
    if not model:
        message = f"{client} may use {', '.join(allowed_models)}, but {server.host} serves {', '.join(server_models)}."
        raise Refused(message, where=gateway.where("clients"))
    return model


def _build_endpoint(selection: Selection, host_name: str, server: ServerSummary, client: str) -> Endpoint:
    """Return the endpoint for a host's model: the gateway in front of the host if there is one, or else the server.

    Raises Failed if the server does not generate text, and Refused as `_gateways_in_front` and `_select_model_name` do.
    """
    if server.task != GENERATE:
        raise Failed(f"--for is for servers that generate text; this one's task is `{server.task}`.", where=host_name)
    url, key_variable, key_source, model = server.url, server.key_variable, "", server.served_name
    for gateway in _gateways_in_front(selection, host_name, client)[:1]:
        url = gateways.base_url(selection.inventory, gateway)[0].removesuffix("/v1")
        source, model = _key_source(gateway, client), _select_model_name(gateway, client, server)
        key_variable = source.env or GATEWAY_KEY_VARIABLE if source else ""
        key_source = _describe_key(gateway, client, source) if source and not source.env else ""
    host = next(member.host for member in selection.fleet.members if member.host.name == host_name)
    host_recipe = recipes.load_host_recipe(selection.project, host)
    image_entry = load_lock(selection.project, host).image(host_recipe.image) or {}
    return Endpoint(
        url=url,
        model=one_line(model),
        context_length=server.max_model_len,
        max_answer_tokens=openai_api.max_answer_tokens(server.max_model_len),
        key_variable=key_variable,
        pictures=server.pictures,
        adapters=server.adapters,
        key_source=key_source,
        engine=host_recipe.engine,
        engine_version=host_recipe.engine.advice.version(image_entry.get("engine_version")),
    )


def query_server(selection: Selection, member: Member) -> ServerSummary:
    """Inspect a host's running container and its server; of one that is asleep until a request wakes it, read the recipe.

    Raises Failed if the server lists no models.
    """
    host = member.host
    host_recipe = recipes.load_host_recipe(selection.project, host)
    pins = lock_entries(load_lock(selection.project, host), host_recipe)
    variables = recipe.scope(host, recipes.login_user(host), host_recipe, pins)
    args = {
        "spec": variables["container"],
        "base_url": variables["base_url"],
        "recipe": host_recipe.name,
        "host": host.name,
    }
    try:
        state = query_module(selection.fleet, member, "inspect_server", args)
    except Failed as error:
        if not host.wake.on_request or ASLEEP_CLAUSE not in error.message:
            raise
        return dataclasses.replace(recipes.summarize_planned_server(host, variables), reach=ASLEEP_HINT)
    models: dict[str, int | None] = state["models"]
    if not models:
        raise Failed("the server lists no models.", where=host.name)
    model = host_recipe.served_name if host_recipe.served_name in models else next(iter(models))
    url, access_hint = recipes.server_url(host, state["port"], loopback=state["loopback"])
    key = (variables["recipe"]["server_key"] or DEFAULT_KEY_VARIABLE) if state["server_key"] else ""
    return ServerSummary(
        host=host.name,
        recipe=host_recipe.name,
        image=state["image"],
        model="",
        commit="",
        served_name=model,
        adapters=tuple(one_line(name) for name in host_recipe.adapter_names if name in models),
        url=url,
        reach=access_hint,
        max_model_len=models[model],
        key_variable=key,
        task=host_recipe.file.task,
        pictures=recipes.PICTURE_PROBE in host_recipe.file.expect.probes,
        chat=chat_template.select_server_chat(pins),
    )


def settings_json(server: ServerSummary) -> dict[str, Any]:
    """Return the settings as plain JSON. Lengths are in tokens, or None if the server does not report them."""
    return {
        "host": server.host,
        "base_url": f"{server.url}/v1",
        "model": server.served_name,
        "adapters": list(server.adapters),
        "context_length": server.max_model_len,
        "max_tokens": openai_api.max_answer_tokens(server.max_model_len),
        "api_key_variable": server.key_variable,
        "reach": server.reach,
        "image": server.image,
        "task": server.task,
        "pictures": server.pictures,
        "thinking": describe_thinking(server),
    }


def describe_thinking(server: ServerSummary) -> dict[str, Any]:
    """Describe how the model's chat template handles thinking.

    Returns:
        `default` (on, off, always or none; None if unknown), `switch` (request field that changes it; empty if there is none),
        and `sentence` (for the user; empty if the template does not handle thinking).
    """
    template = ChatTemplate.from_json(server.chat.get("template") or {})
    if template is None:
        unknown = "unknown: spark.lock has no record of the model's chat template (`invoke lock --update` reads it)"
        return {"default": None, "switch": "", "sentence": unknown}
    return {"default": template.thinking, "switch": template.switch, "sentence": template.thinking_sentence}


def render_text(project: Project, server: ServerSummary) -> str:
    """Render the general format from the template client.j2, which a project can override."""
    variables = {
        "host": server.host.replace("/", "-"),  # client names can't contain a slash
        "url": server.url,
        "model": server.served_name,
        "adapters": server.adapters,
        "max_model_len": server.max_model_len,
        "max_tokens": openai_api.max_answer_tokens(server.max_model_len),
        "reach": server.reach,
        "key": server.key_variable,
        "task": server.task,
        "pictures": server.pictures,
        "thinking": describe_thinking(server),
    }
    return render_template(project.root, "client.j2", variables)
