"""The commands about a host's health: check it now, have it checked by its own clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright import units
from sparkwright.app.outcome import reporting, worst
from sparkwright.errors import Refused
from sparkwright.health import intervals

if TYPE_CHECKING:
    from sparkwright.app.connect import Chosen

HELP = {"host": "which host or hosts", "json": "events as JSON lines", "debug": "show the traceback of an error"}


@task(
    default=True,
    help={
        **HELP,
        "smoke": "measure the decode rate too (10 to 30 s of an idle server)",
        "token-s": "how long a token may take, seconds; 0: as installed, or 30",
    },
)
@reporting
def check(
    context: object, host: str = "", smoke: bool = False, token_s: float = 0.0, json: bool = False, debug: bool = False
) -> int:
    """Check the server's health now: 0 ok or starting, 2 degraded, 1 down or worse, 3 unreachable, 4 unknown."""
    from sparkwright.app import session
    from sparkwright.app.connect import choose

    chosen = choose(host)
    return worst(session.ask(chosen, {"verb": "health", "smoke": smoke, "token_s": token_s}, json=json))


@task(
    help={
        **HELP,
        "every": "how often: 5m, 90s, 1h",
        "system": "units of root's systemd (needs sudo); without: the user's own, with linger",
        "heal": "none, or restart: one safe restart in --heal-every of a server that a restart helps",
        "heal-every": "at most one restart in this time",
        "smoke-every": "how often the decode rate is measured; 0: never",
        "command": "run on a change of state: a program of the host with its words; the change as JSON on its standard input",
        "webhook": "POSTed to on a change of state: a URL that is no secret",
        "webhook-file": "a file on the host (mode 0600) whose first line is such a URL",
        "textfile": "the folder of node_exporter's textfile collector on the host",
    }
)
@reporting
def install(
    context: object,
    host: str = "",
    every: str = intervals.EVERY,
    system: bool = False,
    heal: str = "none",
    heal_every: str = intervals.HEAL_EVERY,
    smoke_every: str = intervals.SMOKE_EVERY,
    command: str = "",
    webhook: str = "",
    webhook_file: str = "",
    textfile: str = "",
    json: bool = False,
    debug: bool = False,
) -> int:
    """Have each host check its server by its own clock; no laptop is needed for it."""
    args = {
        "every_s": units.seconds(every, "--every", least_s=30),
        "heal": _one_of("--heal", heal, ("none", "restart")),
        "heal_every_s": units.seconds(heal_every, "--heal-every", least_s=600),
        "smoke_every_s": units.seconds(smoke_every, "--smoke-every"),
        "command": _words("--command", command),
        "webhook": _public("--webhook", webhook),
        "webhook_file": webhook_file,
        "textfile": textfile,
        "system": system,
    }
    return _clock(host, json, lambda name: (_task({**args, "host": name}, become=system),))


@task(help=HELP)
@reporting
def uninstall(context: object, host: str = "", json: bool = False, debug: bool = False) -> int:
    """Take the clock away, and everything that its checks left: units, settings, records."""
    absent: dict[str, Any] = {"state": "absent"}
    return _clock(
        host,
        json,
        lambda name: (
            _task(absent, register="users"),
            _task({**absent, "system": True}, become=True, when=("'system' in users.elsewhere",)),
        ),
    )


def _words(option: str, text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused(f"{option}: {str(error).lower()} in {text!r}.", fix="Quote it as for a shell.") from None


def _one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    if text in known:
        return text
    raise Refused(f"{option} {text!r} is not known.", fix=f"There are: {', '.join(known)}.")


def _public(option: str, url: str) -> str:
    """A URL that may stand in a file and in a plan: no user, no password, nothing after a question mark."""
    from urllib.parse import urlsplit

    if not url:
        return ""
    try:
        at = urlsplit(url)
        well = at.scheme in ("http", "https") and at.hostname and at.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        well = False
    if not well:
        raise Refused(f"{option} is no http(s) URL.")
    known = any(f".{at.hostname}".endswith(f".{one}") for one in KNOWN_SECRET)
    if at.username or at.password or at.query or known:
        fix = f"Write it into a file on the host, mode 0600, and say `{option}-file PATH`."
        raise Refused(f"the URL of {option} holds a secret, which would stand in a file.", fix=fix)
    return url


#: services whose webhook URLs are themselves the secret
KNOWN_SECRET = ("hooks.slack.com", "discord.com", "discordapp.com", "office.com", "chat.googleapis.com")


def _task(args: dict[str, Any], **more: Any) -> Any:
    from sparkwright.protocol.plan import Task

    name = "Take the clock away" if args.get("state") == "absent" else "Have the host check itself"
    unique = "root" if more.get("become") else "user"
    return Task(id=f"health_timer_{unique}", name=name, module="health_timer", args=args, **more)


def _give(chosen: Chosen, name: str) -> None:
    """Let each host have the one secret that is needed, where there is one."""
    for member in chosen.fleet.members:
        given = chosen.inventory.secrets(member.host)
        member.secrets = {name: given[name]} if name in given else {}


def _clock(host: str, json: bool, steps: Callable[[str], tuple[Any, ...]]) -> int:
    from sparkwright.app import session
    from sparkwright.app.connect import choose

    chosen = choose(host)
    _give(chosen, "BECOME_PASSWORD")
    # without the host's lock: the first check would take the install itself for somebody who works there
    return worst(session.tasks(chosen, "Health", lambda one: steps(one.name), exclusive=False, json=json))


def health_collection() -> Collection:
    """`invoke health`, `invoke health.install`, `invoke health.uninstall`."""
    return Collection(check, install, uninstall)
