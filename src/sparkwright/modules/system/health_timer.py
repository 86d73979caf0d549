from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.health import schedule, store, textfile
from sparkwright.health.notify_shapes import Shape
from sparkwright.health.schedule import Place
from sparkwright.health.settings import Settings
from sparkwright.host.memory import service_guard
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import turns
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.modules.system import services
from sparkwright.protocol.result import Change, arg
from sparkwright.trust.names import below_home
from sparkwright.units import seconds

CRONTAB = "crontab"
FIRST_RUN_S = 400.0
LINGER_S = 10.0
#: systemd's own exit statuses for what it could not set up: users, capabilities, namespaces, system calls
NOT_SET_UP = ("217", "218", "226", "228")


@dataclass(frozen=True, slots=True)
class Found:
    """The health timer's files and state on this host, compared with what they should be."""

    place: Place
    #: contents by path, and of the crontab
    standing: dict[str, str]
    #: acceptable contents by path, and of the crontab
    wanted: dict[str, tuple[str, ...]]
    #: whether the timer runs
    active: bool = False
    #: whether the user's systemd keeps running after logout
    lingers: bool = True
    #: whether the runtime is marked as in use by the timer
    marked: bool = True
    #: scopes of other timers that are installed
    elsewhere: tuple[str, ...] = ()
    #: files that checks wrote
    left: tuple[Path, ...] = ()
    #: settings of the installed timer
    before: Settings = field(default_factory=Settings)


class HealthTimer(StateModule["HealthTimer.Args", Found]):
    """Check the server on a schedule, from the host itself: a hardened systemd service and timer, or a line in the crontab.

    The units belong to the user (with linger), or to root with `system` (and `become: true`); they run the copied runtime,
    which is kept as long as they exist. The first check is run at once: if it cannot run, the task fails. If the systemd
    user instance may not create namespaces, the service runs without them, and the message says so. `absent` removes
    everything: units, settings, records, and linger if this module enabled it.

    Returns: scope (user, system or cron), confined (with its own namespaces), elsewhere (scopes of other schedules that
    exist), health (the first check's record). Refused in the sandbox, which has no scheduler.
    """

    @dataclass(frozen=True)
    class Args:
        state: Literal["present", "absent"] = arg("present or absent", default="present")
        host: str = arg("the host's name, for messages", default="")
        every_s: float = arg("how often, seconds", default=seconds(defaults.HEALTH_EVERY))
        system: bool = arg("system units instead of user units", default=False)
        heal: Literal["none", "restart"] = arg("what to do when a restart would help", default="none")
        heal_every_s: float = arg("minimum time between restarts, seconds", default=seconds(defaults.HEAL_EVERY))
        smoke_every_s: float = arg(
            "how often the decode rate is measured, seconds; 0: never", default=seconds(defaults.SMOKE_EVERY)
        )
        smoke_tokens: int = arg("tokens per run of that measurement", default=defaults.SMOKE_TOKENS)
        command: list[str] = arg("command to run on a change of state: program and arguments", default_factory=list)
        webhook: str = arg("URL for a POST request on a change of state; must not contain a secret", default="")
        webhook_file: str = arg("a file of mode 0600 on the host whose first line is the URL", default="")
        webhook_format: Shape = arg("the shape of what is POSTed; auto: as the URL's receiver takes it", default="auto")
        textfile: str = arg("the folder of node_exporter's textfile collector", default="")
        keep: bool = arg("keep the settings of the timer that is installed, but for `textfile`", default=False)
        verify_every_s: float = arg("how often all model files are hashed again, seconds; 0: never", default=0.0)
        quiet_hours: str = arg(
            "when that may happen, such as 02:00-05:00 on the host's clock; empty: at any time", default=""
        )
        wake: bool = arg("whether requests at a gateway may wake servers of this host", default=False)
        limits: dict[str, Any] = arg("other limits: token_s, available_bytes, temperature_c ...", default_factory=dict)

    def read(self, args: Args, context: Context) -> Found:
        if context.machine.sandbox:
            here = args.host or "sandbox"
            fix = f"`invoke health --host {here}` checks it now; schedule that with cron on the laptop."
            raise Refused("the sandbox has no scheduler.", fix=fix)
        place = schedule.find_place(context, system=args.system)
        before = Settings.of(context.state)
        if args.keep and not before.every_s:
            raise Refused("no health timer is installed.", fix="`invoke health.install --textfile DIR` installs one.")
        given = replace(before, textfile=args.textfile, lingers=False) if args.keep else _settings(args)
        wanted = _wanted(given, place, context) if args.state == "present" else {}
        paths = [place.settings_file, *place.files]
        texts = {str(path): path.read_text() for path in paths if path.exists()}
        texts[CRONTAB] = _crontab(context)
        others = [Place.of(scope, context) for scope in ("user", "system") if scope != place.scope]
        runtime = schedule.runtime()
        return Found(
            place=place,
            standing=texts,
            wanted=wanted,
            active=place.scope == "cron"
            or all(place.systemctl(context, "is-active", unit).ok for unit in _running(given)),
            lingers=place.scope != "user" or _linger_file(place).exists(),
            marked=runtime is None or (runtime / schedule.MARK).exists(),
            elsewhere=tuple(other.scope for other in others if other.there),
            left=tuple(path for path in schedule.leavings(context, before) if path.exists()),
            before=before,
        )

    def differences(self, args: Args, found: Found) -> list[Change]:
        if args.state == "absent":
            line = schedule.CRON_MARK in found.standing[CRONTAB]
            names = [name for name in found.standing if name != CRONTAB] + [str(path) for path in found.left]
            return [Change(Path(name).name, "there", None) for name in [*names, *([CRONTAB] if line else [])]]
        changes = [
            Change(Path(name).name, "another" if found.standing.get(name) else None, "as requested")
            for name, texts in found.wanted.items()
            if not _right(name, found, texts)
        ]
        changes += [Change(schedule.WAKE, "there", None)] if _left_over(found) else []
        changes += [] if found.active else [Change("timer", "inactive", "active")]
        changes += [] if found.lingers else [Change("linger", "no", "yes", "checks run without a login session")]
        return changes + ([] if found.marked else [Change("runtime", None, schedule.MARK, "used by the timer")])

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        confined = any(schedule.CONFINED[0] in text for text in found.standing.values())
        return {"scope": found.place.scope, "confined": confined, "elsewhere": list(found.elsewhere)}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        if args.state == "absent":
            return _remove(found, context)
        if found.elsewhere:
            raise Refused(f"a {found.elsewhere[0]} timer is already installed.", fix="`invoke health.uninstall` first.")
        if found.place.scope == "cron" and args.system:
            raise Refused("systemd is not running here.", fix="Without --system a crontab entry is used.")
        if args.textfile and not below_home(args.textfile).is_dir():
            fix = "Create it, owned by the user that runs the checks."
            raise Refused(f"no such directory: {args.textfile}.", fix=fix)
        return _install(args, found, context)


# -- what is wanted ----------------------------------------------------------------------------------------------------


_HASHES = ("verify_every_s", "quiet_hours")


def _settings(args: HealthTimer.Args) -> Settings:
    names = ("host", "every_s", "smoke_every_s", "smoke_tokens", "heal", "heal_every_s", "command")
    fields = {
        name: getattr(args, name)
        for name in (*names, "webhook", "webhook_file", "webhook_format", "textfile", "limits", "wake", *_HASHES)
    }
    return Settings.from_json(fields)


def _wanted(given: Settings, place: Place, context: Context) -> dict[str, tuple[str, ...]]:
    """Return every file with its acceptable contents: a service may have namespaces of its own or not."""
    wanted = {str(place.settings_file): tuple(_text(given, lingers=item) for item in (False, True))}
    clocks = [place.clock(given, context, confined=confined) for confined in (True, False)]
    if place.scope == "cron":
        return {**wanted, CRONTAB: (schedule.cron_line(clocks[0]),)}
    service, timer, guard, wake = map(str, place.files)
    texts = {service: tuple(map(schedule.service_unit, clocks)), guard: tuple(map(schedule.guard_unit, clocks))}
    texts |= {wake: tuple(map(schedule.wake_unit, clocks))} if given.wake else {}
    return {**wanted, **texts, timer: (schedule.timer_unit(clocks[0]),)}


def _running(given: Settings) -> tuple[str, ...]:
    """Return the units that run all the time."""
    return (schedule.TIMER, schedule.GUARD, schedule.WAKE) if given.wake else (schedule.TIMER, schedule.GUARD)


def _left_over(found: Found) -> str:
    """Return the file of the wake service if it is there and no request may wake a server any more; else empty."""
    return next((name for name in found.standing if name.endswith(schedule.WAKE) and name not in found.wanted), "")


def _text(given: Settings, *, lingers: bool) -> str:
    return json.dumps({**given.to_json(), "lingers": lingers}, indent=1, sort_keys=True) + "\n"


def _right(name: str, found: Found, texts: tuple[str, ...]) -> bool:
    text = found.standing.get(name, "")
    return set(texts[0].splitlines()) <= set(text.splitlines()) if name == CRONTAB else text in texts


# -- making it so ------------------------------------------------------------------------------------------------------


def _install(args: HealthTimer.Args, found: Found, context: Context) -> dict[str, Any]:
    place, runtime = found.place, schedule.runtime()
    if runtime is not None:
        schedule.mark(runtime)
    ours = found.before.lingers or not found.lingers
    if not found.lingers:
        _linger(place, context)
    service_guard.write(context, schedule.program())
    for name, texts in found.wanted.items():
        if name == str(place.settings_file):
            home = context.machine.home.stat()
            content = texts[ours and place.scope == "user"].encode()
            write_atomically(place.settings_file, content, owner=(home.st_uid, home.st_gid))
        elif name == CRONTAB:
            _write_crontab(schedule.with_cron(found.standing[CRONTAB], texts[0]), context)
        else:
            write_atomically(Path(name), texts[0].encode(), mode=0o644)  # as every unit
    if found.before.textfile not in ("", args.textfile):
        for server in dict.fromkeys(["", *(state_folder.server for state_folder in context.state.servers())]):
            (below_home(found.before.textfile) / textfile.shared_file(server)).unlink(missing_ok=True)
    confined = _once(context) if place.scope == "cron" else _start(found, context)
    _start_services(found, context, confined=confined)
    if left_over := _left_over(found):
        place.systemctl(context, "disable", "--now", schedule.WAKE)
        Path(left_over).unlink(missing_ok=True)
        _ask(place, context, "daemon-reload")
    if runtime is not None:
        schedule.unmark(runtime, but=runtime.name)
    checked = {
        state_folder.server: store.latest(state_folder.memory)
        for state_folder in StateFolder(context.state.path).servers()
    }
    latest = next((record for record in checked.values() if record is not None), None)
    states = [
        f"{name} {record.state}" if name else record.state for name, record in checked.items() if record is not None
    ]
    message = f", first check: {', '.join(states)}" if states else ""
    unconfined = " (without private namespaces: this kernel does not allow them to users)"
    aside = "" if confined or place.scope == "cron" else unconfined
    data = {"scope": place.scope, "confined": confined, "health": latest.to_json() if latest else None}
    every_s = Settings.of(context.state).every_s
    return {**data, "msg": f"every {every_s:g} s by {_WHOSE[place.scope]}{aside}{message}"}


_WHOSE = {"user": "the systemd user instance", "system": "systemd", "cron": "cron"}


def _once(context: Context) -> bool:
    """Run the first check, where no systemd starts it. Returns False: it is not confined."""
    answer = context.machine.run(schedule.program(), timeout_s=FIRST_RUN_S)
    if not answer.ok:
        raise Failed(f"the check failed to run: {(answer.err or answer.out).strip()[-300:]}")
    return False


def _start(found: Found, context: Context) -> bool:
    """Start the timer, after the first check has run. Returns True if the service has namespaces of its own."""
    place, service = found.place, str(found.place.files[0])
    confined = True
    for text in found.wanted[service]:
        write_atomically(Path(service), text.encode(), mode=0o644)
        _ask(place, context, "daemon-reload")
        answer = place.systemctl(context, "start", schedule.SERVICE, timeout_s=FIRST_RUN_S)
        if answer.ok:
            _ask(place, context, "enable", schedule.TIMER)
            _ask(place, context, "restart", schedule.TIMER)
            return confined
        shown = place.systemctl(context, "show", "-P", "ExecMainStatus", schedule.SERVICE).out.strip()
        if shown not in NOT_SET_UP:
            break
        confined = False
    last = services.last_words(context, schedule.SERVICE, place.scope)
    raise Failed(f"the check failed to run: {last}", fix=services.journal(schedule.SERVICE, place.scope))


def _start_services(found: Found, context: Context, *, confined: bool) -> None:
    """Start the memory guard and the wake service with the current files. Under cron they are restarted within a minute."""
    place = found.place
    if place.scope == "cron":
        service_guard.end(context.state)
        turns.end(context.state)
        return
    for path in filter(found.wanted.get, map(str, place.files[2:])):
        write_atomically(Path(path), found.wanted[path][0 if confined else 1].encode(), mode=0o644)
        _ask(place, context, "daemon-reload")
        _ask(place, context, "enable", Path(path).name)
        _ask(place, context, "restart", Path(path).name)


def _ask(place: Place, context: Context, *words: str) -> None:
    answer = place.systemctl(context, *words)
    if not answer.ok:
        fix = services.journal(schedule.SERVICE, place.scope)
        raise Failed(f"systemctl {' '.join(words)}: {answer.err.strip()[-300:]}", fix=fix)


def _linger(place: Place, context: Context) -> None:
    """Enable linger, so that the systemd user instance runs while the user is logged out, and wait for it."""
    if not _loginctl("enable-linger", place, context):
        fix = f"On the host: `sudo loginctl enable-linger {place.user}`; or `--system`."
        raise Failed(f"{place.user} is not allowed to enable linger.", fix=fix)
    deadline_s = time.monotonic() + LINGER_S
    while not place.systemctl(context, "show-environment").ok:
        if time.monotonic() > deadline_s:
            raise Failed("the systemd user instance does not start.", fix="Use `--system`.")
        time.sleep(0.1)


def _loginctl(verb: str, place: Place, context: Context) -> bool:
    """Run loginctl as the user, else through sudo where that needs no password."""
    words = ["loginctl", verb, place.user]
    return any(context.machine.run([*before, *words]).ok for before in ([], ["sudo", "-n"]))


def _linger_file(place: Place) -> Path:
    return Path("/var/lib/systemd/linger") / place.user


def _crontab(context: Context) -> str:
    table = context.machine.run(["crontab", "-l"]).out
    if "\ufffd" in table:
        raise Refused("the crontab is not a UTF-8 text file.", fix="On the host: `crontab -e`.")
    return table


def _write_crontab(table: str, context: Context) -> None:
    answer = context.machine.run(["crontab", "-"], stdin=table) if table else context.machine.run(["crontab", "-r"])
    if not answer.ok:
        raise Failed(f"cannot write the crontab: {answer.err.strip() or 'cron is not installed'}", fix="Install cron.")


def _remove(found: Found, context: Context) -> dict[str, Any]:
    """Remove everything that an install and its checks created."""
    place = found.place
    if place.there:
        place.systemctl(context, "disable", "--now", schedule.TIMER)
        place.systemctl(context, "stop", schedule.SERVICE)
        place.systemctl(context, "disable", "--now", schedule.GUARD, schedule.WAKE)
        for path in place.files:
            path.unlink(missing_ok=True)
        _ask(place, context, "daemon-reload")
        place.systemctl(context, "reset-failed", schedule.SERVICE)
    if schedule.CRON_MARK in found.standing[CRONTAB]:
        _write_crontab(schedule.with_cron(found.standing[CRONTAB], ""), context)
        service_guard.end(context.state)
        turns.end(context.state)
    if found.before.lingers:
        _loginctl("disable-linger", place, context)
    if found.elsewhere:
        return {"msg": f"removed; a {found.elsewhere[0]} timer is still installed"}
    for path in (place.settings_file, *found.left):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SparkwrightError(f"cannot remove {path}: {error.strerror}.") from None
    runtime = schedule.runtime()
    if runtime is not None:
        schedule.unmark(runtime)
    return {"msg": "removed"}
