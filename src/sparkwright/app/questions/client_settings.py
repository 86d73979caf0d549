"""Client settings for a running server, as text from a template or as JSON."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters, gateways, recipes
from sparkwright.app.plans.pins import entries, lock_of
from sparkwright.app.plans.recipes import rendered
from sparkwright.app.questions import client_check, client_files, client_formats
from sparkwright.app.questions.client_formats import Endpoint, Format
from sparkwright.app.questions.host_requests import ask_module, host_row
from sparkwright.console.events.summary import Served
from sparkwright.console.out import say, say_error, say_json
from sparkwright.engines import api_paths, openai_api
from sparkwright.engines.http import GENERATE
from sparkwright.engines.model import chat_template
from sparkwright.engines.model.chat_template import ChatTemplate
from sparkwright.errors import Failed, Refused
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.models import SecretSource
from sparkwright.project.recipe.recipe import KEY_VARIABLE
from sparkwright.transport import connection
from sparkwright.visible import one_line

#: environment variable that clients read a gateway's key from, if its own source is not a variable
GATEWAY_KEY_VARIABLE = "GATEWAY_KEY"
#: time limit for a connection, in seconds; an address in the local network accepts one within milliseconds
ADDRESS_S = 2.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """The client to configure, and whether to print, write or check its settings."""

    #: a name in `client_formats.FORMATS`; empty for the general format
    client: str = ""
    #: merge the settings into the client's file, or into `file`, instead of printing them
    write: bool = False
    file: str = ""
    #: send one request in the client's format
    check: bool = False
    #: a name in the gateway's `clients`, whose key is used
    user: str = ""

    def form(self) -> Format | None:
        """Return the client's format. Raises Refused for options that exclude each other."""
        if not self.client and (self.write or self.check or self.file):
            raise Refused("requires --for.", where="--write" if self.write or self.file else "--check")
        if self.file and not self.write:
            raise Refused("requires --write.", where="--file")
        return client_formats.named(self.client) if self.client else None


def show(selection: Selection, *, json: bool, wanted: Wanted = Wanted()) -> list[int]:
    """Print each host's settings; for a cluster, those of its head. Return the exit codes."""
    form = wanted.form()
    if wanted.write and len(selection.fleet.members) != 1:
        raise Refused("takes one host: a client's file has the settings of one server.", where="--write")
    if wanted.user and json:
        raise Refused(
            "names a key of a gateway, and --json describes the server; leave out one of them.", where="--client"
        )
    if form is not None and json:
        raise Refused("prints text in the client's own form; leave out one of --for and --json.", where="--for")
    selection = clusters.answering(selection, "client")
    answers = selection.fleet.ask(lambda member: asked(selection, member))
    errors, codes = selection.fleet.errors(), selection.fleet.codes()
    for host in (member.host.name for member in selection.fleet.members):
        if host in errors:
            say_error(errors[host], json=json, host=host)
            continue
        with host_row(host, codes, json=json):
            if json:
                say_json(settings(answers[host]))
                continue
            if form is not None:
                _of_client(form, wanted, _endpoint(selection, host, answers[host], wanted.user))
                continue
            more = (*_behind(selection, answers[host], wanted.user), *_silent_addresses(answers[host].url))
            say(text(selection.project, answers[host]), end="")
            for line in more:
                say(line)
    return codes


def _of_client(form: Format, wanted: Wanted, endpoint: Endpoint) -> None:
    """Print the settings in a client's format, or write them, and then optionally check them with a request."""
    lines = client_formats.lines(form, endpoint)
    if wanted.write:
        lines = [*client_files.write(wanted.client, endpoint, wanted.file), *lines[2:]]
    for line in lines:
        say(line)
    if wanted.check:
        say(f"{'# ' if not wanted.write else ''}{client_check.check(form, endpoint)}")


def _behind(selection: Selection, served: Served, user: str) -> list[str]:
    """Return the lines for each gateway in front of a host, where its model keeps answering while the server is replaced.

    Raises Refused if none of them has this client, or if it may not use the model.
    """
    lines = []
    for gateway in _gateways(selection, served.host, user):
        model = _model_for(gateway, user, served)
        url, source = gateways.base_url(selection.inventory, gateway)[0], _key_source(gateway, user)
        lines.append(f"\n# the same through the gateway {gateway.name}\nbase URL   {url}")
        lines += [f"model      {one_line(model)}"] if model != served.served_name else []
        if source is not None:
            lines.append(f"key        {_variable(source)}: {_owner(gateway, user)}, from {secret_source.named(source)}")
    return lines


def _variable(source: SecretSource) -> str:
    return f"${source.env or GATEWAY_KEY_VARIABLE}"


def _owner(gateway: Gateway, user: str) -> str:
    return f"the key of {user}" if user else f"the key of the gateway {gateway.name}"


def _key_source(gateway: Gateway, user: str) -> SecretSource | None:
    """Return the source of a gateway's key, or of one client's key; None if the gateway accepts requests without a key."""
    return gateway.file.clients[user].key if user else gateway.file.key


def _silent_addresses(url: str) -> list[str]:
    """Return a warning if a name has an address that does not answer, because a client may wait for it on each request."""
    parts = urlsplit(url)
    found = sorted(
        connection.lookup(parts.hostname or "", ADDRESS_S), key=lambda address: (":" not in address, address)
    )
    addresses = [(socket.AF_INET6 if ":" in address else socket.AF_INET, (address, parts.port)) for address in found]
    answering, silent = reached(addresses, ADDRESS_S) if len(addresses) > 1 else ([], [])
    if not (answering and silent):
        return []
    instead = f"[{answering[0]}]" if ":" in answering[0] else answering[0]
    return [
        f"\n# {parts.hostname} is {', '.join(silent)} too, where nothing answers: clients that try that first wait for it\n"
        f"instead    {parts.scheme}://{instead}:{parts.port}/v1"
    ]


def reached(addresses: Sequence[tuple[int, Any]], timeout_s: float) -> tuple[list[str], list[str]]:
    """Return the addresses that accept a connection, and those that do not answer.

    An address that refuses the connection is in neither list, because it does not delay a client.

    Args:
        addresses: pairs of address family and address with port.
        timeout_s: time limit for all of them together, each being tried in its own thread.
    """
    found: tuple[list[str], list[str]] = ([], [])

    def attempt(family: int, address: Any) -> None:
        with socket.socket(family, socket.SOCK_STREAM) as opened:
            opened.settimeout(timeout_s)
            try:
                opened.connect(address)
            except TimeoutError:
                found[1].append(str(address[0]))
            except OSError:
                return
            else:
                found[0].append(str(address[0]))

    attempts = [Thread(target=attempt, args=row) for row in addresses]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join()
    return found


def _gateways(selection: Selection, name: str, user: str) -> list[Gateway]:
    """Return the gateways in front of a host that have this client. Raises Refused if none has it."""
    machine = next(member.host.machine for member in selection.fleet.members if member.host.name == name)
    found = [gateway for gateway in selection.inventory.gateways.values() if machine in gateway.members]
    if not user:
        return found
    named = [gateway for gateway in found if user in gateway.file.clients]
    if not named:
        known = [client for gateway in found for client in gateway.file.clients]
        fix = nearest(user, known) or "`clients` of the gateway in hosts/groups.yml gives clients keys of their own."
        raise Refused(f"no gateway in front of {name} has a client called {user!r}.", where="--client", fix=fix)
    return named


def _model_for(gateway: Gateway, user: str, served: Served) -> str:
    """Return the name by which a client requests a host's model. Raises Refused if it may use none of the names."""
    allowed = gateway.file.clients[user].models if user else []
    own = (served.served_name, *served.adapters)
    names = (*own, *(alias for alias, name in gateway.file.models.items() if name in own))
    found = next((name for name in names if not allowed or name in allowed), "")
    if not found:
        message = f"{user} may use {', '.join(allowed)}, and {served.host} serves {', '.join(own)}."
        raise Refused(message, where=gateway.where("clients"))
    return found


def _endpoint(selection: Selection, name: str, served: Served, user: str) -> Endpoint:
    """Return the endpoint of a host's model: its gateway if there is one, otherwise the server.

    Raises Refused if the gateway has no such client, or does not let it use the model.
    """
    if served.task != GENERATE:
        raise Failed(f"--for is for servers that generate text; this one's task is `{served.task}`.", where=name)
    url, key, source, model = served.url, served.key_variable, "", served.served_name
    for gateway in _gateways(selection, name, user)[:1]:
        url = gateways.base_url(selection.inventory, gateway)[0].removesuffix("/v1")
        found, model = _key_source(gateway, user), _model_for(gateway, user, served)
        key = found.env or GATEWAY_KEY_VARIABLE if found else ""
        source = f"{_owner(gateway, user)}, from {secret_source.named(found)}" if found and not found.env else ""
    host = next(member.host for member in selection.fleet.members if member.host.name == name)
    return Endpoint(
        url=url,
        model=one_line(model),
        context=served.max_model_len,
        answer_tokens=openai_api.answer_tokens(served.max_model_len),
        key_variable=key,
        pictures=served.pictures,
        adapters=served.adapters,
        key_source=source,
        paths=api_paths.names(recipes.recipe_of(selection.project, host).engine.http.paths),
    )


def asked(selection: Selection, member: Member) -> Served:
    """Return what a host serves now, read from its running container and its server.

    Raises Failed if the server lists no models.
    """
    host = member.host
    wanted = recipes.recipe_of(selection.project, host)
    known = entries(lock_of(selection.project, host), wanted)
    names = recipe.scope(host, recipes.user_of(host), wanted, known)
    args = {"spec": names["container"], "base_url": names["base_url"], "recipe": wanted.name, "host": host.name}
    now = ask_module(selection.fleet, member, "inspect_server", args)
    models: dict[str, int | None] = now["models"]
    if not models:
        raise Failed("the server does not report which models it serves.", where=host.name)
    model = wanted.served_name if wanted.served_name in models else next(iter(models))
    url, reach = recipes.address(host, now["port"], loopback=now["loopback"])
    key = (names["recipe"]["server_key"] or KEY_VARIABLE) if now["server_key"] else ""
    return Served(
        host=host.name,
        recipe=wanted.name,
        image=now["image"],
        model="",
        commit="",
        served_name=model,
        adapters=tuple(one_line(name) for name in wanted.adapter_names if name in models),
        url=url,
        reach=reach,
        max_model_len=models[model],
        key_variable=key,
        task=wanted.file.task,
        pictures=recipes.PICTURE in wanted.file.expect.probes,
        chat=chat_template.of_server(known),
    )


def settings(served: Served) -> dict[str, Any]:
    """Return the settings as plain JSON. Lengths are in tokens, and null if the server does not report them."""
    return {
        "host": served.host,
        "base_url": f"{served.url}/v1",
        "model": served.served_name,
        "adapters": list(served.adapters),
        "context_length": served.max_model_len,
        "max_tokens": openai_api.answer_tokens(served.max_model_len),
        "api_key_variable": served.key_variable,
        "reach": served.reach,
        "image": served.image,
        "task": served.task,
        "pictures": served.pictures,
        "thinking": thinking(served),
    }


def thinking(served: Served) -> dict[str, Any]:
    """Describe how the model's chat template handles thinking.

    The keys are `default` (on, off, always, none; null if unknown), the request field that switches it ("" for none), and a
    sentence ("" if the template does not handle thinking).
    """
    template = ChatTemplate.from_json(served.chat.get("template") or {})
    if template is None:
        unknown = "unknown: spark.lock has no record of the model's chat template (`invoke lock --update` reads it)"
        return {"default": None, "switch": "", "sentence": unknown}
    return {"default": template.thinking, "switch": template.switch, "sentence": template.thinking_sentence}


def text(project: Project, served: Served) -> str:
    """Render the settings with the project's templates/client.j2."""
    names = {
        "host": served.host.replace("/", "-"),  # client names can't contain a slash
        "url": served.url,
        "model": served.served_name,
        "adapters": served.adapters,
        "max_model_len": served.max_model_len,
        "max_tokens": openai_api.answer_tokens(served.max_model_len),
        "reach": served.reach,
        "key": served.key_variable,
        "task": served.task,
        "pictures": served.pictures,
        "thinking": thinking(served),
    }
    return rendered(project.root, "client.j2", names)
