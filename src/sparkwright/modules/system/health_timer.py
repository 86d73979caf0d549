from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.health import schedule, store, textfile
from sparkwright.health.schedule import Scheduler
from sparkwright.health.settings import Settings
from sparkwright.host.memory import service_guard
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import turns
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.modules.system import services
from sparkwright.protocol.result import Change, arg
from sparkwright.trust.names import expand_home
from sparkwright.units import parse_duration

CRONTAB = "crontab"
FIRST_RUN_TIMEOUT_S = 400.0
LINGER_TIMEOUT_S = 10.0
#: systemd's own exit statuses for what it could not set up: users, capabilities, namespaces, system calls
SETUP_FAILED_STATUSES = ("217", "218", "226", "228")


@dataclass(frozen=True, slots=True)
class HealthTimerState:
    """The health timer's files and state on this host, compared with what they should be."""

    scheduler: Scheduler
    #: contents by path, and of the crontab
    current_files: dict[str, str]
    #: acceptable contents by path, and of the crontab
    intended_files: dict[str, tuple[str, ...]]
    #: whether the timer runs
    active: bool = False
    #: whether the user's systemd keeps running after logout
    lingers: bool = True
    #: whether the runtime is marked as in use by the timer
    runtime_marked: bool = True
    #: scopes of other timers that are installed
    other_scopes: tuple[str, ...] = ()
    #: files that checks wrote
    check_files: tuple[Path, ...] = ()
    #: settings of the installed timer
    previous_settings: Settings = field(default_factory=Settings)


class HealthTimer(StateModule["HealthTimer.Args", HealthTimerState]):
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
        every_s: float = arg("how often, seconds", default=parse_duration(defaults.HEALTH_INTERVAL))
        system: bool = arg("system units instead of user units", default=False)
        heal: defaults.HealMode = arg("what to do when a restart would help", default="none")
        heal_every_s: float = arg(
            "minimum time between restarts, seconds", default=parse_duration(defaults.MIN_HEAL_INTERVAL)
        )
        smoke_every_s: float = arg(
            "how often the decode rate is measured, seconds; 0: never", default=parse_duration(defaults.SMOKE_INTERVAL)
        )
        smoke_tokens: int = arg("tokens per run of that measurement", default=defaults.SMOKE_TOKENS)
        command: list[str] = arg("command to run on a change of state: program and arguments", default_factory=list)
        webhook: str = arg("URL for a POST request on a change of state; must not contain a secret", default="")
        webhook_file: str = arg("a file of mode 0600 on the host whose first line is the URL", default="")
        webhook_format: defaults.WebhookFormat = arg(
            "the shape of what is POSTed; auto: as the URL's receiver takes it", default="auto"
        )
        textfile: str = arg("the folder of node_exporter's textfile collector", default="")
        keep: bool = arg("keep the settings of the timer that is installed, but for `textfile`", default=False)
        verify_every_s: float = arg("how often all model files are hashed again, seconds; 0: never", default=0.0)
        quiet_hours: str = arg(
            "when that may happen, such as 02:00-05:00 on the host's clock; empty: at any time", default=""
        )
        wake: bool = arg("whether requests at a gateway may wake servers of this host", default=False)
        limits: dict[str, Any] = arg("other limits: token_s, available_bytes, temperature_c ...", default_factory=dict)

    def read(self, args: Args, context: Context) -> HealthTimerState:
        if context.machine.sandbox:
            here = args.host or "sandbox"
            fix = f"`invoke health --host {here}` checks it now; schedule that with cron on the laptop."
            raise Refused("the sandbox has no scheduler.", fix=fix)
        place = schedule.find_scheduler(context, system=args.system)
        before = Settings.load(context.state)
        if args.keep and not before.every_s:
            raise Refused("no health timer is installed.", fix="`invoke health.install --textfile DIR` installs one.")
        settings = replace(before, textfile=args.textfile, lingers=False) if args.keep else _build_settings(args)
        intended = _intended_files(settings, place, context) if args.state == "present" else {}
        paths = [place.settings_file, *place.files]
        texts = {str(path): path.read_text() for path in paths if path.exists()}
        texts[CRONTAB] = _read_crontab(context)
        others = [Scheduler.from_scope(scope, context) for scope in ("user", "system") if scope != place.scope]
        runtime = schedule.find_runtime()
        return HealthTimerState(
            scheduler=place,
            current_files=texts,
            intended_files=intended,
            active=place.scope == "cron"
            or all(place.systemctl(context, "is-active", unit).ok for unit in _running_units(settings)),
            lingers=place.scope != "user" or Path("/var/lib/systemd/linger", place.user).exists(),
            runtime_marked=runtime is None or (runtime / schedule.IN_USE_MARK).exists(),
            other_scopes=tuple(other.scope for other in others if other.is_installed),
            check_files=tuple(path for path in schedule.list_leftover_files(context, before) if path.exists()),
            previous_settings=before,
        )

    def differences(self, args: Args, observed: HealthTimerState) -> list[Change]:
        if args.state == "absent":
            line = schedule.CRON_MARK in observed.current_files[CRONTAB]
            names = [name for name in observed.current_files if name != CRONTAB] + [
                str(path) for path in observed.check_files
            ]
            return [Change(Path(name).name, "there", None) for name in [*names, *([CRONTAB] if line else [])]]
        changes = [
            Change(Path(name).name, "another" if observed.current_files.get(name) else None, "as requested")
            for name, texts in observed.intended_files.items()
            if not _is_up_to_date(name, observed, texts)
        ]
        changes += [Change(schedule.WAKE_UNIT, "there", None)] if _find_leftover_unit(observed) else []
        changes += [] if observed.active else [Change("timer", "inactive", "active")]
        changes += [] if observed.lingers else [Change("linger", "no", "yes", "checks run without a login session")]
        return changes + (
            [] if observed.runtime_marked else [Change("runtime", None, schedule.IN_USE_MARK, "used by the timer")]
        )

    def describe(self, args: Args, observed: HealthTimerState) -> dict[str, Any]:
        confined = any(schedule.NAMESPACE_HARDENING[0] in text for text in observed.current_files.values())
        return {"scope": observed.scheduler.scope, "confined": confined, "elsewhere": list(observed.other_scopes)}

    def act(self, args: Args, observed: HealthTimerState, changes: list[Change], context: Context) -> dict[str, Any]:
        if args.state == "absent":
            return _uninstall(observed, context)
        if observed.other_scopes:
            raise Refused(
                f"a {observed.other_scopes[0]} timer is already installed.", fix="`invoke health.uninstall` first."
            )
        if observed.scheduler.scope == "cron" and args.system:
            raise Refused("systemd is not running here.", fix="Without --system a crontab entry is used.")
        if args.textfile and not expand_home(args.textfile).is_dir():
            fix = "Create it, owned by the user that runs the checks."
            raise Refused(f"no such directory: {args.textfile}.", fix=fix)
        return _install(args, observed, context)


# -- what is wanted ----------------------------------------------------------------------------------------------------


_HASH_SETTINGS = ("verify_every_s", "quiet_hours")


def _build_settings(args: HealthTimer.Args) -> Settings:
    names = ("host", "every_s", "smoke_every_s", "smoke_tokens", "heal", "heal_every_s", "command")
    fields = {
        name: getattr(args, name)
        for name in (*names, "webhook", "webhook_file", "webhook_format", "textfile", "limits", "wake", *_HASH_SETTINGS)
    }
    return Settings.from_json(fields)


def _intended_files(settings: Settings, place: Scheduler, context: Context) -> dict[str, tuple[str, ...]]:
    """Return every file with its acceptable contents: a service may have namespaces of its own or not."""
    settings_file = {
        str(place.settings_file): tuple(_render_settings(settings, lingers=item) for item in (False, True))
    }
    schedules = [place.build_schedule(settings, context, confined=confined) for confined in (True, False)]
    if place.scope == "cron":
        return {**settings_file, CRONTAB: (schedule.render_cron_lines(schedules[0]),)}
    service, timer, guard, wake = map(str, place.files)
    texts = {
        service: tuple(map(schedule.render_service_unit, schedules)),
        guard: tuple(map(schedule.render_guard_unit, schedules)),
    }
    texts |= {wake: tuple(map(schedule.render_wake_unit, schedules))} if settings.wake else {}
    return {**settings_file, **texts, timer: (schedule.render_timer_unit(schedules[0]),)}


def _running_units(settings: Settings) -> tuple[str, ...]:
    """Return the units that run all the time."""
    return (
        (schedule.TIMER_UNIT, schedule.GUARD_UNIT, schedule.WAKE_UNIT)
        if settings.wake
        else (schedule.TIMER_UNIT, schedule.GUARD_UNIT)
    )


def _find_leftover_unit(observed: HealthTimerState) -> str:
    """Return the file of the wake service if it is there and no request may wake a server any more; else empty."""
    return next(
        (
            name
            for name in observed.current_files
            if name.endswith(schedule.WAKE_UNIT) and name not in observed.intended_files
        ),
        "",
    )


def _render_settings(settings: Settings, *, lingers: bool) -> str:
    return json.dumps({**settings.to_json(), "lingers": lingers}, indent=1, sort_keys=True) + "\n"


def _is_up_to_date(name: str, observed: HealthTimerState, texts: tuple[str, ...]) -> bool:
    text = observed.current_files.get(name, "")
    return set(texts[0].splitlines()) <= set(text.splitlines()) if name == CRONTAB else text in texts


# -- making it so ------------------------------------------------------------------------------------------------------


def _install(args: HealthTimer.Args, observed: HealthTimerState, context: Context) -> dict[str, Any]:
    place, runtime = observed.scheduler, schedule.find_runtime()
    if runtime is not None:
        schedule.mark_in_use(runtime)
    enabled_by_us = observed.previous_settings.lingers or not observed.lingers
    if not observed.lingers:
        _enable_linger(place, context)
    service_guard.write_configuration(context, schedule.check_command())
    for name, texts in observed.intended_files.items():
        if name == str(place.settings_file):
            home = context.machine.home.stat()
            content = texts[enabled_by_us and place.scope == "user"].encode()
            write_atomically(place.settings_file, content, owner=(home.st_uid, home.st_gid))
        elif name == CRONTAB:
            _write_crontab(schedule.replace_cron_lines(observed.current_files[CRONTAB], texts[0]), context)
        else:
            write_atomically(Path(name), texts[0].encode(), mode=0o644)  # as every unit
    if observed.previous_settings.textfile not in ("", args.textfile):
        for server in dict.fromkeys(["", *(state_folder.server for state_folder in context.state.servers())]):
            (expand_home(observed.previous_settings.textfile) / textfile.shared_file(server)).unlink(missing_ok=True)
    confined = False
    if place.scope == "cron":
        _run_first_check(context)
    else:
        confined = _start_timer(observed, context)
    _start_services(observed, context, confined=confined)
    if leftover := _find_leftover_unit(observed):
        place.systemctl(context, "disable", "--now", schedule.WAKE_UNIT)
        Path(leftover).unlink(missing_ok=True)
        _run_systemctl(place, context, "daemon-reload")
    if runtime is not None:
        schedule.release_runtimes(runtime, keep=runtime.name)
    records = {
        state_folder.server: store.load_latest(state_folder.records_folder)
        for state_folder in StateFolder(context.state.path).servers()
    }
    latest = next((record for record in records.values() if record is not None), None)
    states = [
        f"{name} {record.state}" if name else record.state for name, record in records.items() if record is not None
    ]
    message = f", first check: {', '.join(states)}" if states else ""
    unconfined = " (without private namespaces: this kernel does not allow them to users)"
    restriction = "" if confined or place.scope == "cron" else unconfined
    data = {"scope": place.scope, "confined": confined, "health": latest.to_json() if latest else None}
    every_s = Settings.load(context.state).every_s
    return {**data, "msg": f"every {every_s:g} s by {_SCHEDULER_NAMES[place.scope]}{restriction}{message}"}


_SCHEDULER_NAMES = {"user": "the systemd user instance", "system": "systemd", "cron": "cron"}


def _run_first_check(context: Context) -> None:
    """Run the first check, which cron would only start later."""
    answer = context.machine.run(schedule.check_command(), timeout_s=FIRST_RUN_TIMEOUT_S)
    if not answer.ok:
        raise Failed(f"the check failed to run: {(answer.err or answer.out).strip()[-300:]}")


def _start_timer(observed: HealthTimerState, context: Context) -> bool:
    """Start the timer, after the first check has run. Returns True if the service has namespaces of its own."""
    place, service = observed.scheduler, str(observed.scheduler.files[0])
    confined = True
    for text in observed.intended_files[service]:
        write_atomically(Path(service), text.encode(), mode=0o644)
        _run_systemctl(place, context, "daemon-reload")
        answer = place.systemctl(context, "start", schedule.SERVICE_UNIT, timeout_s=FIRST_RUN_TIMEOUT_S)
        if answer.ok:
            _run_systemctl(place, context, "enable", schedule.TIMER_UNIT)
            _run_systemctl(place, context, "restart", schedule.TIMER_UNIT)
            return confined
        exit_status = place.systemctl(context, "show", "-P", "ExecMainStatus", schedule.SERVICE_UNIT).out.strip()
        if exit_status not in SETUP_FAILED_STATUSES:
            break
        confined = False
    last = services.read_last_log_lines(context, schedule.SERVICE_UNIT, place.scope)
    raise Failed(f"the check failed to run: {last}", fix=services.journal_command(schedule.SERVICE_UNIT, place.scope))


def _start_services(observed: HealthTimerState, context: Context, *, confined: bool) -> None:
    """Start the memory guard and the wake service with the current files. Under cron they are restarted within a minute."""
    place = observed.scheduler
    if place.scope == "cron":
        service_guard.stop(context.state)
        turns.stop_service(context.state)
        return
    for path in filter(observed.intended_files.get, map(str, place.files[2:])):
        write_atomically(Path(path), observed.intended_files[path][0 if confined else 1].encode(), mode=0o644)
        _run_systemctl(place, context, "daemon-reload")
        _run_systemctl(place, context, "enable", Path(path).name)
        _run_systemctl(place, context, "restart", Path(path).name)


def _run_systemctl(place: Scheduler, context: Context, *words: str) -> None:
    answer = place.systemctl(context, *words)
    if not answer.ok:
        fix = services.journal_command(schedule.SERVICE_UNIT, place.scope)
        raise Failed(f"systemctl {' '.join(words)}: {answer.err.strip()[-300:]}", fix=fix)


def _enable_linger(place: Scheduler, context: Context) -> None:
    """Enable linger, so that the systemd user instance runs while the user is logged out, and wait for it."""
    if not _run_loginctl("enable-linger", place, context):
        fix = f"On the host: `sudo loginctl enable-linger {place.user}`; or `--system`."
        raise Failed(f"{place.user} is not allowed to enable linger.", fix=fix)
    deadline_s = time.monotonic() + LINGER_TIMEOUT_S
    while not place.systemctl(context, "show-environment").ok:
        if time.monotonic() > deadline_s:
            raise Failed("the systemd user instance does not start.", fix="Use `--system`.")
        time.sleep(0.1)


def _run_loginctl(verb: str, place: Scheduler, context: Context) -> bool:
    """Run loginctl as the user, else through sudo where that needs no password."""
    words = ["loginctl", verb, place.user]
    return any(context.machine.run([*before, *words]).ok for before in ([], ["sudo", "-n"]))


def _read_crontab(context: Context) -> str:
    table = context.machine.run(["crontab", "-l"]).out
    if "\ufffd" in table:
        raise Refused("the crontab is not a UTF-8 text file.", fix="On the host: `crontab -e`.")
    return table


def _write_crontab(table: str, context: Context) -> None:
    answer = context.machine.run(["crontab", "-"], stdin=table) if table else context.machine.run(["crontab", "-r"])
    if not answer.ok:
        raise Failed(f"cannot write the crontab: {answer.err.strip() or 'cron is not installed'}", fix="Install cron.")


def _uninstall(observed: HealthTimerState, context: Context) -> dict[str, Any]:
    """Remove everything that an install and its checks created."""
    place = observed.scheduler
    if place.is_installed:
        place.systemctl(context, "disable", "--now", schedule.TIMER_UNIT)
        place.systemctl(context, "stop", schedule.SERVICE_UNIT)
        place.systemctl(context, "disable", "--now", schedule.GUARD_UNIT, schedule.WAKE_UNIT)
        for path in place.files:
            path.unlink(missing_ok=True)
        _run_systemctl(place, context, "daemon-reload")
        place.systemctl(context, "reset-failed", schedule.SERVICE_UNIT)
    if schedule.CRON_MARK in observed.current_files[CRONTAB]:
        _write_crontab(schedule.replace_cron_lines(observed.current_files[CRONTAB], ""), context)
        service_guard.stop(context.state)
        turns.stop_service(context.state)
    if observed.previous_settings.lingers:
        _run_loginctl("disable-linger", place, context)
    if observed.other_scopes:
        return {"msg": f"removed; a {observed.other_scopes[0]} timer is still installed"}
    for path in (place.settings_file, *observed.check_files):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SparkwrightError(f"cannot remove {path}: {error.strerror}.") from None
    runtime = schedule.find_runtime()
    if runtime is not None:
        schedule.release_runtimes(runtime)
    return {"msg": "removed"}
