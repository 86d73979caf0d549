"""Module that installs and removes the scheduled health check."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.health import notify, schedule, store, textfile
from sparkwright.health.schedule import Scheduler
from sparkwright.health.settings import Settings
from sparkwright.host.machine import CompletedCommand
from sparkwright.host.memory import service_guard
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import turns
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.modules.system import services
from sparkwright.protocol.result import Change, arg
from sparkwright.trust.names import expand_home
from sparkwright.units import parse_duration
from sparkwright.visible import one_line

CRONTAB = "crontab"
#: message of `crontab -l` (Debian's, cronie's, fcron's, BusyBox's) if the user has no crontab
NO_CRONTAB_PATTERN = re.compile(r"no f?crontab|no such file", re.IGNORECASE)
FIRST_RUN_TIMEOUT_S = 400.0
LINGER_TIMEOUT_S = 10.0
#: exit statuses with which systemd reports that it could not set up users, capabilities, namespaces or system calls
SETUP_FAILED_STATUSES = ("217", "218", "226", "228")

SETTINGS_ARGS = (
    *("host", "every_s", "smoke_every_s", "smoke_tokens", "heal", "heal_every_s", "command", "webhook", "webhook_file"),
    *("webhook_format", "textfile", "limits", "wake", "verify_every_s", "quiet_hours"),
)

_SCHEDULER_NAMES = {"user": "the systemd user instance", "system": "systemd", "cron": "cron"}


@dataclass(frozen=True, slots=True)
class HealthTimerState:
    """The health timer's files and state on this host, and the intended files."""

    scheduler: Scheduler
    #: contents by path; the crontab's under CRONTAB
    current_files: dict[str, str]
    #: acceptable contents by path; the crontab's under CRONTAB
    intended_files: dict[str, tuple[str, ...]]
    #: whether the timer and its services are running
    active: bool = False
    #: whether the systemd user instance keeps running after logout
    lingers: bool = True
    #: whether the runtime is marked as in use by the timer
    runtime_marked: bool = True
    #: scopes of other installed timers
    other_scopes: tuple[str, ...] = ()
    #: files that checks wrote
    check_files: tuple[Path, ...] = ()
    #: settings of the installed timer
    previous_settings: Settings = field(default_factory=Settings)
    intended_settings: Settings = field(default_factory=Settings)

    @property
    def setting_changes(self) -> list[Change]:
        """Differences from the settings of the installed timer; empty if none is installed."""
        before, after = self.previous_settings.to_json(), self.intended_settings.to_json()
        names = SETTINGS_ARGS if self.previous_settings.every_s else ()
        return [Change(name, before[name], after[name]) for name in names if before[name] != after[name]]


class HealthTimer(StateModule["HealthTimer.Args", HealthTimerState]):
    """Check the server on a schedule, on the host itself, with a hardened systemd service and timer, or with cron.

    The units belong to the user (with linger), or to root with `system` (and `become: true`). They run the copied runtime,
    which is kept as long as they exist. The first check runs at once; if it cannot run, the task fails. If the systemd user
    instance may not create namespaces, the service runs without them, and a message reports it. `absent` removes everything:
    units, settings, records, and linger if this module enabled it.

    Returns: scope (user, system or cron), confined (the service has private namespaces), elsewhere (scopes of other
    installed timers), health (record of the first check). Refused in the sandbox, which has no scheduler.
    """

    @dataclass(frozen=True)
    class Args:
        state: Literal["present", "absent"] = arg("present or absent", default="present")
        host: str = arg("the host's name, for messages", default="")
        every_s: float = arg("interval of the checks, seconds", default=parse_duration(defaults.HEALTH_INTERVAL))
        system: bool = arg("system units instead of user units", default=False)
        heal: defaults.HealMode = arg("the action if a restart would help", default="none")
        heal_every_s: float = arg(
            "minimum time between restarts, seconds", default=parse_duration(defaults.MIN_HEAL_INTERVAL)
        )
        smoke_every_s: float = arg(
            "interval of throughput measurements, seconds; 0: never", default=parse_duration(defaults.SMOKE_INTERVAL)
        )
        smoke_tokens: int = arg("tokens per throughput measurement", default=defaults.SMOKE_TOKEN_COUNT)
        command: list[str] = arg("program and arguments to run on a change of state", default_factory=list)
        webhook: str = arg("URL for a POST request on a change of state; must not contain a secret", default="")
        webhook_file: str = arg("a file of mode 0600 on the host whose first line is the URL", default="")
        webhook_format: defaults.WebhookFormat = arg(
            "payload format of the webhook; auto: chosen by the URL", default="auto"
        )
        textfile: str = arg("the folder of node_exporter's textfile collector", default="")
        keep: bool = arg("keep the installed timer's settings except `textfile`", default=False)
        verify_every_s: float = arg("interval for hashing all model files again, seconds; 0: never", default=0.0)
        quiet_hours: str = arg(
            "time of day for the hashing, such as 02:00-05:00 on the host's clock; empty: any time", default=""
        )
        wake: bool = arg("whether requests at a gateway may wake servers of this host", default=False)
        limits: dict[str, Any] = arg("other limits: token_s, available_bytes, temperature_c ...", default_factory=dict)

    def read(self, args: Args, context: Context) -> HealthTimerState:
        if context.machine.sandbox:
            fix = (
                f"`invoke health --host {args.host or 'sandbox'}` checks it now; schedule that with cron on the laptop."
            )
            raise Refused("the sandbox has no scheduler.", fix=fix)
        scheduler = schedule.find_scheduler(context, system=args.system)
        previous_settings = Settings.load(context.state)
        if args.keep and not previous_settings.every_s:
            raise Refused("no health timer is installed.", fix="`invoke health.install --textfile DIR` installs one.")
        settings = (
            replace(previous_settings, textfile=args.textfile, lingers=False) if args.keep else _build_settings(args)
        )
        paths = [scheduler.settings_file, *scheduler.files]
        contents = {str(path): path.read_text() for path in paths if path.exists()}
        crontab = _read_crontab(context)
        if scheduler.scope == "cron" and (args.state == "present" or previous_settings.every_s):
            _refuse_unreadable(crontab, scheduler, may_be_missing=args.state == "absent")
        other_schedulers = [
            Scheduler.from_scope(scope, context) for scope in ("user", "system") if scope != scheduler.scope
        ]
        runtime = schedule.find_runtime()
        units = [schedule.TIMER_UNIT, schedule.GUARD_UNIT, *([schedule.WAKE_UNIT] if settings.wake else [])]
        return HealthTimerState(
            scheduler=scheduler,
            current_files={**contents, CRONTAB: crontab.out},
            intended_files=_intended_files(settings, scheduler, context) if args.state == "present" else {},
            active=scheduler.scope == "cron"
            or all(scheduler.systemctl(context, "is-active", unit).ok for unit in units),
            lingers=scheduler.scope != "user" or Path("/var/lib/systemd/linger", scheduler.user).exists(),
            runtime_marked=runtime is None or (runtime / schedule.IN_USE_MARK).exists(),
            other_scopes=tuple(other.scope for other in other_schedulers if other.is_installed),
            check_files=tuple(
                path for path in schedule.list_leftover_files(context, previous_settings) if path.exists()
            ),
            previous_settings=previous_settings,
            intended_settings=settings,
        )

    def differences(self, args: Args, observed: HealthTimerState) -> list[Change]:
        if args.state == "absent":
            names = [Path(name).name for name in observed.current_files if name != CRONTAB]
            names += [path.name for path in observed.check_files]
            names += [CRONTAB] if schedule.CRON_MARK in observed.current_files[CRONTAB] else []
            return [Change(name, "present", None) for name in names]
        changes = observed.setting_changes
        changes += [
            Change(Path(name).name, "different" if observed.current_files.get(name) else None, "as requested")
            for name, texts in observed.intended_files.items()
            if not _is_up_to_date(name, observed, texts)
            and not (changes and name == str(observed.scheduler.settings_file))
        ]
        if _find_leftover_wake_unit(observed):
            changes.append(Change(schedule.WAKE_UNIT, "present", None))
        if not observed.active:
            changes.append(Change("timer", "inactive", "active"))
        if not observed.lingers:
            changes.append(Change("linger", "no", "yes", "checks run without a login session"))
        if not observed.runtime_marked:
            changes.append(Change("runtime", None, schedule.IN_USE_MARK, "used by the timer"))
        return changes

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
        if problem := notify.find_problem(tuple(args.command), args.webhook_file):
            raise Refused(
                f"notifications could not be sent: {problem}.", fix="Correct it on the host, and install again."
            )
        return _install(args, observed, context)


# -- intended files ----------------------------------------------------------------------------------------------------


def _build_settings(args: HealthTimer.Args) -> Settings:
    return Settings.from_json({name: getattr(args, name) for name in SETTINGS_ARGS})


def _intended_files(settings: Settings, scheduler: Scheduler, context: Context) -> dict[str, tuple[str, ...]]:
    """Return every file with its acceptable contents: with and without private namespaces, or linger."""
    settings_file = {
        str(scheduler.settings_file): tuple(_render_settings(settings, lingers=lingers) for lingers in (False, True))
    }
    schedules = [scheduler.build_schedule(settings, context, confined=confined) for confined in (True, False)]
    if scheduler.scope == "cron":
        return {**settings_file, CRONTAB: (schedule.render_cron_lines(schedules[0]),)}
    service, timer, guard, wake = map(str, scheduler.files)
    texts = {
        service: tuple(map(schedule.render_service_unit, schedules)),
        guard: tuple(map(schedule.render_guard_unit, schedules)),
    }
    texts |= {wake: tuple(map(schedule.render_wake_unit, schedules))} if settings.wake else {}
    return {**settings_file, **texts, timer: (schedule.render_timer_unit(schedules[0]),)}


def _find_leftover_wake_unit(observed: HealthTimerState) -> str:
    """Return the path of a wake service that is installed but no longer intended; empty if there is none."""
    for name in observed.current_files:
        if name.endswith(schedule.WAKE_UNIT) and name not in observed.intended_files:
            return name
    return ""


def _render_settings(settings: Settings, *, lingers: bool) -> str:
    return json.dumps({**settings.to_json(), "lingers": lingers}, indent=1, sort_keys=True) + "\n"


def _is_up_to_date(name: str, observed: HealthTimerState, texts: tuple[str, ...]) -> bool:
    text = observed.current_files.get(name, "")
    return set(texts[0].splitlines()) <= set(text.splitlines()) if name == CRONTAB else text in texts


# -- installation ------------------------------------------------------------------------------------------------------


def _install(args: HealthTimer.Args, observed: HealthTimerState, context: Context) -> dict[str, Any]:
    scheduler, runtime = observed.scheduler, schedule.find_runtime()
    enabled_linger = observed.previous_settings.lingers or not observed.lingers
    if not observed.lingers:
        _enable_linger(scheduler, context)
    if runtime is not None:
        schedule.mark_in_use(runtime)
    service_guard.write_configuration(context, schedule.check_command())
    _write_files(args, observed, context, has_linger=enabled_linger and scheduler.scope == "user")
    confined = False
    if scheduler.scope == "cron":
        _run_first_check(context)
    else:
        confined = _start_timer(observed, context)
    _start_services(observed, context, confined=confined)
    if leftover := _find_leftover_wake_unit(observed):
        scheduler.systemctl(context, "disable", "--now", schedule.WAKE_UNIT)
        Path(leftover).unlink(missing_ok=True)
        _run_systemctl(scheduler, context, "daemon-reload")
    if runtime is not None:
        schedule.release_runtimes(runtime, keep=runtime.name)
    return _describe_installation(observed, context, confined=confined)


def _write_files(args: HealthTimer.Args, observed: HealthTimerState, context: Context, *, has_linger: bool) -> None:
    """Write the timer's files, and remove the metrics of a folder that is no longer used.

    Args:
        has_linger: this installation lets the user's services run without a login, so that a removal turns it off.
    """
    scheduler = observed.scheduler
    for name, texts in observed.intended_files.items():
        if name == str(scheduler.settings_file):
            home = context.machine.home.stat()
            content = texts[has_linger].encode()
            write_atomically(scheduler.settings_file, content, owner=(home.st_uid, home.st_gid))
        elif name == CRONTAB:
            _write_crontab(schedule.replace_cron_lines(observed.current_files[CRONTAB], texts[0]), context)
        else:
            write_atomically(Path(name), texts[0].encode(), mode=0o644)
    if observed.previous_settings.textfile not in ("", args.textfile):
        for server in dict.fromkeys(["", *(state_folder.server for state_folder in context.state.servers())]):
            (expand_home(observed.previous_settings.textfile) / textfile.shared_file(server)).unlink(missing_ok=True)


def _describe_installation(observed: HealthTimerState, context: Context, *, confined: bool) -> dict[str, Any]:
    """Return the result's data and message: the interval, the scheduler, and the states of the first check."""
    scheduler = observed.scheduler
    records = {
        state_folder.server: store.load_latest(state_folder.records_folder)
        for state_folder in StateFolder(context.state.path).servers()
    }
    latest_record = next((record for record in records.values() if record is not None), None)
    states = [
        f"{name} {record.state}" if name else record.state for name, record in records.items() if record is not None
    ]
    first_check = f", first check: {', '.join(states)}" if states else ""
    unconfined_note = " (without private namespaces: this kernel does not allow them for users)"
    restriction = "" if confined or scheduler.scope == "cron" else unconfined_note
    data = {
        "scope": scheduler.scope,
        "confined": confined,
        "health": latest_record.to_json() if latest_record else None,
    }
    every_s, scheduler_name = Settings.load(context.state).every_s, _SCHEDULER_NAMES[scheduler.scope]
    if scheduler.scope == "cron":
        every_s = schedule.cron_interval_s(every_s)
        scheduler_name += "" if schedule.is_cron_running() else ", which is not running: start it on the host"
    replaced = ", ".join(map(_describe_replaced_setting, observed.setting_changes))
    replaced_note = f"; replaced settings: {replaced}" if replaced else ""
    return {**data, "msg": f"every {every_s:g} s by {scheduler_name}{restriction}{first_check}{replaced_note}"}


def _describe_replaced_setting(change: Change) -> str:
    """Return a setting of the previous installation, such as "heal-every 3600 s"."""
    name, value = change.field.removesuffix("_s").replace("_", "-"), change.before
    if change.field.endswith("_s"):
        return f"{name} {value:g} s"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value or "none")
    return f"{name} {one_line(text, max_chars=80)}"


def _run_first_check(context: Context) -> None:
    """Run the first check, which cron would only start later."""
    completed = context.machine.run(schedule.check_command(), timeout_s=FIRST_RUN_TIMEOUT_S)
    if not completed.ok:
        raise Failed(f"the check failed to run: {(completed.err or completed.out).strip()[-300:]}")


def _start_timer(observed: HealthTimerState, context: Context) -> bool:
    """Run the first check and start the timer. Returns True if the service has private namespaces."""
    scheduler, service = observed.scheduler, str(observed.scheduler.files[0])
    confined = True
    for text in observed.intended_files[service]:
        write_atomically(Path(service), text.encode(), mode=0o644)
        _run_systemctl(scheduler, context, "daemon-reload")
        completed = scheduler.systemctl(context, "start", schedule.SERVICE_UNIT, timeout_s=FIRST_RUN_TIMEOUT_S)
        if completed.ok:
            _run_systemctl(scheduler, context, "enable", schedule.TIMER_UNIT)
            _run_systemctl(scheduler, context, "restart", schedule.TIMER_UNIT)
            return confined
        exit_status = scheduler.systemctl(context, "show", "-P", "ExecMainStatus", schedule.SERVICE_UNIT).out.strip()
        if exit_status not in SETUP_FAILED_STATUSES:
            break
        confined = False
    log = services.read_last_log_lines(context, schedule.SERVICE_UNIT, scheduler.scope)
    fix = services.journal_command(schedule.SERVICE_UNIT, scheduler.scope)
    raise Failed(f"the check failed to run: {log}", fix=fix)


def _start_services(observed: HealthTimerState, context: Context, *, confined: bool) -> None:
    """Start the memory guard and the wake service with the new files. Under cron, stop them; cron starts them within a minute."""
    scheduler = observed.scheduler
    if scheduler.scope == "cron":
        service_guard.stop(context.state)
        turns.stop_service(context.state)
        return
    for path in filter(observed.intended_files.get, map(str, scheduler.files[2:])):
        write_atomically(Path(path), observed.intended_files[path][0 if confined else 1].encode(), mode=0o644)
        _run_systemctl(scheduler, context, "daemon-reload")
        _run_systemctl(scheduler, context, "enable", Path(path).name)
        _run_systemctl(scheduler, context, "restart", Path(path).name)


def _run_systemctl(scheduler: Scheduler, context: Context, *words: str) -> None:
    completed = scheduler.systemctl(context, *words)
    if not completed.ok:
        fix = services.journal_command(schedule.SERVICE_UNIT, scheduler.scope)
        raise Failed(f"systemctl {' '.join(words)}: {completed.err.strip()[-300:]}", fix=fix)


def _enable_linger(scheduler: Scheduler, context: Context) -> None:
    """Enable linger and wait for the systemd user instance."""
    if not _run_loginctl("enable-linger", scheduler, context):
        fix = f"On the host: `sudo loginctl enable-linger {scheduler.user}`; or use `--system`."
        raise Failed(f"{scheduler.user} is not allowed to enable linger.", fix=fix)
    deadline_s = time.monotonic() + LINGER_TIMEOUT_S
    while not scheduler.systemctl(context, "show-environment").ok:
        if time.monotonic() > deadline_s:
            _run_loginctl("disable-linger", scheduler, context)
            raise Failed("the systemd user instance did not start.", fix="Use `--system`.")
        time.sleep(0.1)


def _run_loginctl(verb: str, scheduler: Scheduler, context: Context) -> bool:
    """Run loginctl as the user, then with `sudo -n`. Returns True if one of them succeeded."""
    words = ["loginctl", verb, scheduler.user]
    return any(context.machine.run([*prefix, *words]).ok for prefix in ([], ["sudo", "-n"]))


def _read_crontab(context: Context) -> CompletedCommand:
    completed = context.machine.run(["crontab", "-l"])
    if "\ufffd" in completed.out:
        raise Refused("the crontab is not a UTF-8 text file.", fix="On the host: `crontab -e`.")
    return completed


def _refuse_unreadable(crontab: CompletedCommand, scheduler: Scheduler, *, may_be_missing: bool) -> None:
    """Raise Refused if the user's crontab cannot be read. may_be_missing: accept a host without cron."""
    if crontab.ok or NO_CRONTAB_PATTERN.search(crontab.err) or (may_be_missing and crontab.code == 127):
        return
    reason = one_line(crontab.err.strip().partition("\n")[0], max_chars=200)
    fix = f"On the host: install cron, or let {scheduler.user} use it (/etc/cron.allow, /etc/cron.deny)."
    raise Refused(f"cannot read the crontab: {reason}.", fix=fix)


def _write_crontab(text: str, context: Context) -> None:
    completed = context.machine.run(["crontab", "-"], stdin=text) if text else context.machine.run(["crontab", "-r"])
    if not completed.ok:
        raise Failed(f"cannot write the crontab: {one_line(completed.err.strip(), max_chars=200)}")


def _uninstall(observed: HealthTimerState, context: Context) -> dict[str, Any]:
    """Remove everything that an install and its checks created."""
    scheduler = observed.scheduler
    has_cron_line = schedule.CRON_MARK in observed.current_files[CRONTAB]
    had_timer = has_cron_line or set(observed.current_files) != {CRONTAB}
    if scheduler.is_installed:
        scheduler.systemctl(context, "disable", "--now", schedule.TIMER_UNIT)
        scheduler.systemctl(context, "stop", schedule.SERVICE_UNIT)
        scheduler.systemctl(context, "disable", "--now", schedule.GUARD_UNIT, schedule.WAKE_UNIT)
        for path in scheduler.files:
            path.unlink(missing_ok=True)
        _run_systemctl(scheduler, context, "daemon-reload")
        scheduler.systemctl(context, "reset-failed", schedule.SERVICE_UNIT)
    if has_cron_line:
        _write_crontab(schedule.replace_cron_lines(observed.current_files[CRONTAB], ""), context)
        service_guard.stop(context.state)
        turns.stop_service(context.state)
    if observed.previous_settings.lingers:
        _run_loginctl("disable-linger", scheduler, context)
    if observed.other_scopes:
        return {"msg": f"removed; a {observed.other_scopes[0]} timer is still installed"}
    for path in (scheduler.settings_file, *observed.check_files):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SparkwrightError(f"cannot remove {path}: {error.strerror}.") from None
    runtime = schedule.find_runtime()
    if runtime is not None:
        schedule.release_runtimes(runtime)
    return {"msg": "removed" if had_timer else "no timer was installed; removed the records of checks"}
