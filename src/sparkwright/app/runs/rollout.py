"""Rolling runs: the policy, the record for --resume, the hosts that must keep serving, and the outcome."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sparkwright import here, program
from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters
from sparkwright.app.plans.pins import load_lock, lock_entries
from sparkwright.app.plans.preparation import Preparation
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.console.formatters import join_names
from sparkwright.defaults import FORKS
from sparkwright.errors import Exit, Inconclusive, Refused, SparkwrightError
from sparkwright.fleet.guard import Guard, compute_floors
from sparkwright.fleet.member import SUCCESS_CODES, Member, build_module_request, close_links
from sparkwright.fleet.rollout import Fingerprints, PlayRollout, RecordFile, RolloutRecord, refuse_changed_run
from sparkwright.project import recipe, shipped_files
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook import Play, Playbook
from sparkwright.project.rollout_policy import RolloutPolicy, parse_sizes
from sparkwright.protocol.events import event
from sparkwright.visible import parse_list

#: modules that stop a server; `min_serving` is enforced in plays that use them
STOPPING_MODULES = ("stop_and_keep", "stopped")
ALL_GROUP = "all"


def build_policy(play: Play, options: DeployOptions) -> RolloutPolicy:
    """Return the rollout policy of a play, in which the command's options override the playbook's values.

    Raises Refused for an invalid number of canaries, batch size or percentage.
    """
    if options.canary < 0:
        raise Refused(f"--canary must be at least 0, got {options.canary}.")
    play_serial = tuple(play.serial)
    if options.canary and len(play_serial) > 1:
        play_serial = play_serial[1:]  # the first batch of a `serial` such as [1, "25%"] is its canary
    percentage_text = options.max_fail_percentage
    return RolloutPolicy(
        canary=options.canary,
        serial=parse_sizes(options.serial) or play_serial,
        max_fail_percentage=_parse_percentage(percentage_text) if percentage_text else play.max_fail_percentage,
    )


def _parse_percentage(text: str) -> float:
    try:
        percentage = float(text.removesuffix("%"))
    except ValueError:
        percentage = -1
    if not 0 <= percentage <= 100:
        raise Refused(f"--max-fail-percentage must be between 0 and 100, got {text!r}.")
    return percentage


class RolloutRun:
    """The rollout of a playbook to the selected hosts. Read-only runs and runs in a single batch are not recorded.

    Args:
        command: the command to suggest, with --resume, for resuming the run.
    """

    def __init__(self, selection: Selection, playbook: Playbook, command: str, options: DeployOptions) -> None:
        self._selection = selection
        self._playbook = playbook
        self._command = command
        self._options = options
        self._record_file = RecordFile(selection.project.root, playbook.path.stem)
        self._serving_checks = _ServingChecks(selection)
        hosts_by_play = [selection.inventory.match(play.hosts) for play in playbook.plays]
        #: index of each host's last play
        self._last_play_index = {
            name: n for n, hosts in enumerate(hosts_by_play) for host in hosts for name in (host.name, host.machine)
        }
        self._policies = [build_policy(play, options) for play in playbook.plays]
        self.record: RolloutRecord | None = None
        #: True if the record was saved, so that the run can be resumed
        self._is_recorded = False
        #: True for a cluster, whose members always run together instead of in batches
        self._is_cluster = clusters.find_cluster(selection) is not None
        if not options.check and not all(play.file.read_only for play in playbook.plays):
            self._begin()

    def _begin(self) -> None:
        names = [host.name for host in self._selection.hosts]
        if self._options.resume:
            record = self._record_file.load()
            removed_names = record.remove_unfinished(names)
            refuse_changed_run(
                record, self._fixed_options(), lambda name: self._fingerprints(name, self._current_entries)
            )
            self.record, self._is_recorded = record, True
            if removed_names:
                note = f"--host {record.pattern} no longer selects {join_names(removed_names)}: left out of this run."
                self._selection.fleet.add_note(self._selection.fleet.members[0], note)
            for member in self._selection.fleet.members:
                if member.host.name in record.under_way:
                    note = "it was in progress when the run was interrupted, so it is checked again."
                    self._selection.fleet.add_note(member, note)
        elif any(policy.is_rolling(len(names)) for policy in self._policies):
            self.record = RolloutRecord(self._record_file.playbook, names, self._options.host, self._fixed_options())

    def can_start(self) -> bool:
        """Return False if a host of a rolling run or a member of a cluster is unreachable, and set `fleet.stop_reason`.

        With --skip-unreachable, a rolling run starts without such hosts.
        """
        fleet = self._selection.fleet
        if not self.record and not self._is_cluster:
            return True
        unreachable_names = [member.host.name for member in fleet.wait_for_connections()]
        if not unreachable_names or (self._options.skip_unreachable and not self._is_cluster):
            return True
        hint = "" if self._is_cluster else " (--skip-unreachable skips unreachable hosts)"
        verb = "is" if len(unreachable_names) == 1 else "are"
        fleet.stop_reason = f"{join_names(unreachable_names)} {verb} unreachable, so nothing was started{hint}"
        return False

    def build_play_rollout(self, n: int, preparation: Preparation) -> PlayRollout:
        """Return the rollout settings of the n-th play."""
        play = self._playbook.plays[n]
        if self._options.check or play.file.read_only or self._is_cluster:
            return PlayRollout(RolloutPolicy(max_fail_percentage=100), all_or_none=self._is_cluster)
        return PlayRollout(
            self._policies[n],
            host_count=len(self.record.hosts) if self.record else 0,
            checks_first=_stops_servers(play) and not play.acts_in_check,
            guard=self._build_guard(play),
            record=self.record,
            save=self._save,
            fingerprints=self._planned_fingerprints(preparation) if self.record else {},
            final_hosts=frozenset(name for name, last in self._last_play_index.items() if last == n),
        )

    def report_outcome(self) -> list[int]:
        """Emit the outcome of a rolling or stopped run. Return an exit code for a run that was stopped without a failed host."""
        fleet = self._selection.fleet
        if self.record is None and not fleet.stop_reason:
            return []
        exit_codes = {member.host.name: member.exit_code for member in fleet.members if member.exit_code is not None}
        not_begun = [member.host.name for member in fleet.members if member.recap is None]
        if self.record is None and not not_begun:
            return []
        can_resume = self.record is not None and self.record.unfinished_hosts and self._is_recorded
        other_codes = (*SUCCESS_CODES, Exit.INCONCLUSIVE, Exit.UNREACHABLE)
        hosts_by_outcome = {
            "done": [name for name, code in exit_codes.items() if code in SUCCESS_CODES],
            "earlier": [name for name in self.record.done if name not in exit_codes] if self.record else [],
            "failed": [name for name, code in exit_codes.items() if code not in other_codes],
            "inconclusive": [name for name, code in exit_codes.items() if code is Exit.INCONCLUSIVE],
            "unreachable": [name for name, code in exit_codes.items() if code is Exit.UNREACHABLE],
            "not_begun": not_begun,
        }
        resume_command = f"{program.name()} {self._command} --resume" if can_resume else ""
        outcome = {
            "playbook": self._record_file.playbook,
            **hosts_by_outcome,
            "why": fleet.stop_reason,
            "resume": resume_command,
        }
        fleet.emit_last_event(event("rolled", host="", **outcome))
        if not fleet.stop_reason or any(hosts_by_outcome[name] for name in ("failed", "inconclusive", "unreachable")):
            return []
        return [Exit.FAILED if hosts_by_outcome["done"] else Exit.REFUSED]

    def add_resume_hint(self, error: Inconclusive) -> None:
        """Add the command that resumes the run to the error of a command that ends while hosts are still working."""
        if self._is_recorded:
            error.fix += f" Then `invoke {self._command} --resume` continues with the rest."

    def close(self) -> None:
        """Close the connections that were opened only to check whether hosts serve."""
        self._serving_checks.close()

    def _save(self, record: RolloutRecord) -> None:
        self._record_file.save(record)
        self._is_recorded = True

    def _build_guard(self, play: Play) -> Guard | None:
        if not _stops_servers(play):
            return None
        inventory = self._selection.inventory
        hosts = self.record.hosts if self.record else [host.name for host in self._selection.hosts]
        group_floors = compute_floors(inventory.groups, inventory.min_serving, hosts, ALL_GROUP)
        return Guard(group_floors, self._serving_checks.find_serving) if group_floors else None

    def _fixed_options(self) -> dict[str, Any]:
        """Return the options that can't be changed when the run is resumed."""
        options = self._options
        tags = {"tags": parse_list(options.tags), "skip_tags": parse_list(options.skip_tags)}
        return {**tags, "start_at_task": options.start_at_task, "extra": options.variables()}

    def _planned_fingerprints(self, preparation: Preparation) -> dict[str, Fingerprints]:
        """Return the fingerprints of the hosts' inputs before the play, because the user may edit files while it runs."""

        def planned_entries(host: Host) -> dict[str, Any]:
            return lock_entries(preparation.find_lock(host), preparation.load_recipe(host))

        fingerprints: dict[str, Fingerprints] = {}
        for host in self._selection.hosts:
            with contextlib.suppress(SparkwrightError):  # planning reports the error
                fingerprints[host.name] = self._fingerprints(host.name, planned_entries)
        return fingerprints

    def _current_entries(self, host: Host) -> dict[str, Any]:
        project = self._selection.project
        return lock_entries(load_lock(project, host), recipe.load(project.root, host.recipe or ""))

    def _fingerprints(self, name: str, find_entries: Callable[[Host], dict[str, Any]]) -> Fingerprints:
        """Return the digests of a host's inputs (values, playbook, recipe, templates and pins), by name.

        Args:
            find_entries: returns the lock's entries for the recipe of a host.
        """
        project, inventory = self._selection.project, self._selection.inventory
        host = inventory.hosts.get(name) or inventory.machines.get(name)
        if host is None:
            return {f"hosts/{name}.yml": "gone"}
        paths = list(shipped_files.list_paths(project.root, "templates/*.j2"))
        plays = json.dumps(self._playbook.plays[0].document.data, default=str)  # with the included files
        host_values = repr(sorted(asdict(replace(host, where="", set_at={})).items()))
        fingerprints = {
            _display_path(self._playbook.path, project.root): _digest(plays),
            f"hosts/{host.machine}.yml": _digest(host_values),
        }
        if host.recipe:
            paths.append(project.root / "recipes" / f"{host.recipe}.yml")
            pins = find_entries(host)
            models = [pins["model"], *(pins.get("models") or {}).values()]
            commits = " ".join(str((entry or {}).get("commit")) for entry in models)
            fingerprints["spark.lock"] = f"{(pins['image'] or {}).get('digest')} {commits}"
        return fingerprints | {_display_path(path, project.root): _digest(path.read_text()) for path in paths}


class _ServingChecks:
    """Checks whether hosts are serving, for `min_serving`. They are neither shown nor recorded in the hosts' journals."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._members = {member.host.name: member for member in selection.fleet.members}
        #: hosts outside the run, whose connections belong to these checks
        self._other_members: list[Member] = []

    def find_serving(self, names: Sequence[str]) -> set[str]:
        """Return the hosts that generate a token now. An error counts as not serving."""
        if not names:
            return set()
        with ThreadPoolExecutor(max_workers=min(FORKS, len(names))) as pool:
            answers = pool.map(here.bind_folder(self._is_serving), [self._get_member(name) for name in names])
            return {name for name, serving in zip(names, answers, strict=True) if serving}

    def close(self) -> None:
        close_links(self._other_members)

    def _get_member(self, name: str) -> Member:
        if name not in self._members:
            self._members[name] = Member(self._selection.inventory.hosts[name])
            self._other_members.append(self._members[name])
        return self._members[name]

    def _is_serving(self, member: Member) -> bool:
        host = member.host
        name = recipe.load(self._selection.project.root, host.recipe).file.container.name if host.recipe else ""
        try:
            secrets = secret_source.read_secrets(host)
            events = list(member.request(build_module_request("serving", {"name": name}), secrets))
        except SparkwrightError:
            return False
        return any(row["event"] == "task_finished" and row["data"].get("serving") is True for row in events)


def _stops_servers(play: Play) -> bool:
    return any(play.has_task(module) for module in STOPPING_MODULES)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _display_path(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else shipped_files.shipped_name(path) or str(path)
