"""The `recipe.list` and `recommend` commands: recipes with published figures, their sources, and the user's own measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.app.connect import connect_hosts, select_hosts, select_machines
from sparkwright.app.plans.pins import load_lock, lock_entries
from sparkwright.app.plans.recipes import login_user
from sparkwright.app.queries.host_requests import request_events
from sparkwright.app.setup import proposal
from sparkwright.app.setup.proposal import Fit, HostMemory, Verdict
from sparkwright.console.command_output import print_error, print_json_line, print_prose, print_text
from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines import budget as memory_budget
from sparkwright.engines import recipe_rules
from sparkwright.engines.budget import SYSTEM_ROW
from sparkwright.engines.model.roofline import BANDWIDTH_BYTES_PER_S, GB10
from sparkwright.errors import Failed, Refused
from sparkwright.fleet.member import Member, close_links
from sparkwright.host.records import start_memory
from sparkwright.host.records.start_memory import StartMemory
from sparkwright.project import catalogue, lockfile, recipe
from sparkwright.project.catalogue import CatalogueEntry
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import compute_memory
from sparkwright.protocol.container import fingerprint
from sparkwright.protocol.events import Event
from sparkwright.units import GIB, MINUTE_FORMAT, format_time, today
from sparkwright.visible import format_count, one_line

#: kinds of evidence, best first; simulated figures rank low because they do not describe real hardware
EVIDENCE_ORDER = ("proved", "reported", "served", "ceiling", "simulated", "unknown")
#: `fits` in JSON, by verdict
FITS_JSON: Mapping[Verdict, bool | None] = {"fits": True, "unknown": None, "too large": False}
#: text after a recipe's name in the ranking, by verdict
FIT_SUFFIXES: Mapping[Verdict, str] = {
    "fits": "",
    "unknown": " (unknown whether it fits)",
    "too large": " (does not fit)",
}


@dataclass(frozen=True)
class Proof:
    """A record that a server with a recipe's image and model was verified on a host."""

    host: str
    #: time of the verification, as text
    verified_at: str
    #: None if the throughput was not measured, or was measured with arguments other than the recipe's
    tok_per_s: float | None
    #: True if it was verified in a sandbox
    simulated: bool = False


@dataclass(frozen=True)
class CatalogueRow:
    """A recipe with its catalogue entry and its proofs from hosts."""

    recipe: Recipe
    entry: CatalogueEntry
    #: the model's entry in spark.lock; {} if it is not pinned
    model_entry: Mapping[str, Any]
    proofs: tuple[Proof, ...] = ()

    @property
    def weights_gb(self) -> float:
        """Size of the weights in GB, from the locked files if pinned, else from the catalogue; 0 if unknown."""
        files = self.model_entry.get("files") or ()
        total_bytes = sum(int(file.get("size_bytes") or 0) for file in files)
        return total_bytes / 1e9 if total_bytes else self.entry.weights_gb

    @property
    def host_count(self) -> int:
        """The number of hosts that the recipe needs."""
        return self.recipe.split.hosts if self.recipe.split else 1

    @property
    def evidence(self) -> tuple[str, float, str]:
        """The best evidence in EVIDENCE_ORDER, as (kind, tokens per second, description)."""
        if best_proof := self._newest_measured(simulated=False):
            conditions = (
                f"measured on {best_proof.host}, {best_proof.verified_at}, with this image, model and arguments"
            )
            return "proved", best_proof.tok_per_s or 0.0, f"{best_proof.tok_per_s:g} tok/s {conditions}"
        if self.entry.reported_rate is not None:
            return "reported", self.entry.reported_rate.tok_per_s, str(self.entry.reported_rate)
        if self.entry.vendor_run is not None:
            return "served", 0.0, str(self.entry.vendor_run)
        if self.entry.bytes_per_token:
            rate = BANDWIDTH_BYTES_PER_S[GB10] / self.entry.bytes_per_token
            return (
                "ceiling",
                rate,
                f"no figure; at most {rate:.0f} tok/s without speculation (273 GB/s divided by the bytes read per token)",
            )
        if best_proof := self._newest_measured(simulated=True):
            return "simulated", 0.0, f"no figure; the sandbox simulates {best_proof.tok_per_s:g} tok/s"
        return "unknown", 0.0, "no figure: the first verified run records one"

    def _newest_measured(self, *, simulated: bool) -> Proof | None:
        measured_proofs = [proof for proof in self.proofs if proof.tok_per_s and proof.simulated == simulated]
        return max(measured_proofs, key=lambda proof: proof.verified_at, default=None)

    @property
    def age_remark(self) -> str:
        """A remark about the age of an old recipe, as returned by `recipe_rules.describe_age`."""
        return recipe_rules.describe_age(self.recipe.file.date, today())

    def list_proof_hosts(self, *, simulated: bool = False) -> list[str]:
        """Return the hosts (if `simulated`, the sandboxes) where a server with this image and model was verified."""
        return sorted({proof.host for proof in self.proofs if proof.simulated == simulated})

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON, for `--json`."""
        kind, rate, description = self.evidence
        memory = self.recipe.memory(self.model_entry)
        return {
            "recipe": self.recipe.name,
            "model": self.recipe.file.model.id,
            "engine": self.recipe.engine.name,
            "uses": list(self.entry.uses),
            "weights_gb": round(self.weights_gb, 1) or None,
            "memory_share": memory.share or None,
            "memory_bytes": memory.bytes or None,
            "context": self.recipe.engine.flags.context(self.recipe.file.flags),
            "hosts": self.host_count,
            "evidence": kind,
            "tok_per_s": round(rate, 1) or None,
            "source": description,
            "date": self.recipe.file.date or None,
            "old": recipe_rules.age_months(self.recipe.file.date, today()) is not None,
            "proved_on": self.list_proof_hosts(),
            "simulated_on": self.list_proof_hosts(simulated=True),
        }


def list_recipes(
    histories: Mapping[str, Sequence[Event]], hosts: Mapping[str, Host], *, as_json: bool
) -> tuple[list[CatalogueRow], list[int]]:
    """Return the project's recipes, and an exit code for each unreadable one. Prints the errors.

    Args:
        histories: history of each queried host, by title.
        hosts: the same hosts, by title.
    """
    project = Project.here()
    lock = lockfile.load(project.root)
    recipes, errors = recipe.load_valid(project.root)
    for error in errors:
        print_error(error, json=as_json)
    rows = []
    for candidate in recipes:
        proofs = []
        for title, events in histories.items():
            arguments_fingerprint = _arguments_fingerprint(project, hosts[title], candidate)
            proofs += [_find_proof(candidate, hosts[title], arguments_fingerprint, event) for event in events]
        entry = catalogue.find_entry(candidate.name, candidate.file.model.id)
        pinned_model = lock_entries(lock, candidate)["model"] or {}
        rows.append(CatalogueRow(candidate, entry, pinned_model, tuple(filter(None, proofs))))
    return rows, [int(error.exit) for error in errors]


def print_list(pattern: str, *, as_json: bool) -> list[int]:
    """Print the catalogue.

    Args:
        pattern: hosts whose measurements are included; "" to query none.

    Returns:
        The exit codes of hosts that did not answer and of recipes that could not be read.
    """
    histories, hosts, host_codes = _query_hosts(pattern, "history", as_json=as_json)
    rows, recipe_codes = list_recipes(histories, hosts, as_json=as_json)
    if as_json:
        print_json_line({"recipes": [row.to_json() for row in rows]})
    else:
        for row in rows:
            print_prose("\n".join(_format_entry(row, hosts_answered=bool(histories))))
        print_text(f"{format_count(len(rows), 'recipe')}.")
    return [*host_codes, *recipe_codes]


def recommend(pattern: str, use: str, *, as_json: bool) -> list[int]:
    """Print the recipes that suit a use on one host, best evidence first.

    Raises Refused for an unknown use, or if the pattern matches more than one host.
    """
    if use not in catalogue.USES:
        raise Refused(f"unknown use '{one_line(use, max_chars=60)}'.", fix=suggest_name(use, catalogue.USES))
    machines = select_machines(select_hosts(pattern)).hosts
    if len(machines) != 1:
        raise Refused(f"--host must name one host, got {len(machines)}.")
    states, inventory_hosts, codes = _query_hosts(pattern, "status", as_json=as_json, once_per_machine=True)
    if not states:
        return codes
    ((host, events),) = states.items()
    if not events:
        raise Failed("the host did not report its memory.", where=host)
    histories, hosts, history_codes = _query_hosts(pattern, "history", as_json=as_json)
    total_bytes = int(events[0].get("memory_total_bytes") or 0)
    rows, recipe_codes = list_recipes(histories, hosts, as_json=as_json)
    suitable_rows = [row for row in rows if use in row.entry.uses]
    ranked_rows = _rank(suitable_rows, inventory_hosts[host], total_bytes, histories.get(host, ()))
    if as_json:
        print_json_line({"host": host, "for": use, "recipes": [_ranked_json(row, fit) for row, fit in ranked_rows]})
    else:
        _print_ranking(f"{host}: {total_bytes / GIB:.1f} GiB of memory. For {use}, best evidence first:", ranked_rows)
    return [*codes, *history_codes, *recipe_codes]


def _rank(
    suitable_rows: Sequence[CatalogueRow], host: Host, total_bytes: int, events: Sequence[Mapping[str, Any]]
) -> list[tuple[CatalogueRow, Fit]]:
    """Return recipes with their fit to a host, best evidence first; recipes that are too large come last."""
    starts = [start for event in events for start in start_memory.parse_starts([event.get("memory")])]
    reserve_gib = float(host.vars.get("reserve_gib", RESERVE_GIB))
    memory = HostMemory(total_bytes, reserve_gib, _system_memory_row(starts, total_bytes))
    project = Project.here()
    ranked_rows = [
        (row, _evaluate_fit(row, memory, _find_start_facts(project, host, row, starts))) for row in suitable_rows
    ]

    def sort_key(ranked_row: tuple[CatalogueRow, Fit]) -> tuple[bool, int, float]:
        kind, rate, _ = ranked_row[0].evidence
        return ranked_row[1].verdict == "too large", EVIDENCE_ORDER.index(kind), -rate

    return sorted(ranked_rows, key=sort_key)


def _ranked_json(row: CatalogueRow, fit: Fit) -> dict[str, Any]:
    budget = fit.budget.to_json() if fit.budget else None
    return {**row.to_json(), "fits": FITS_JSON[fit.verdict], "why": fit.reason, "budget": budget}


def _print_ranking(title: str, ranked_rows: Sequence[tuple[CatalogueRow, Fit]]) -> None:
    print_prose(title)
    for number, (row, fit) in enumerate(ranked_rows, 1):
        data = row.to_json()
        age_note = f"; a recipe {row.age_remark}" if data["old"] else ""
        print_prose(
            f"  {number}. {row.recipe.name}{FIT_SUFFIXES[fit.verdict]}: {data['source']}; {fit.reason}{age_note}."
        )
    for row, fit in ranked_rows[:1]:
        if fit.budget is not None:
            print_prose(f"The memory of {row.recipe.name}:")
            print_prose("\n".join(f"  {line}" for line in fit.budget.lines()))
    print_prose(
        "Reported figures come from one machine; `invoke verify` measures yours. Your own recipes are not ranked."
    )


def _system_memory_row(starts: Sequence[StartMemory], total_bytes: int) -> memory_budget.Row:
    """Return the host's own memory use: the lowest before any verified start, or the usual figure if there was none.

    The lowest, because other servers may have been running before some of the starts.
    """
    if not starts:
        return SYSTEM_ROW
    start = max(starts, key=lambda start: start.before_bytes)
    source = f"in use before a verified start, {format_time(start.at, MINUTE_FORMAT)}"
    return memory_budget.Row("the host itself", max(0, total_bytes - start.before_bytes), source, "host")


def _find_start_facts(
    project: Project, host: Host, row: CatalogueRow, starts: Sequence[StartMemory]
) -> memory_budget.StartFacts:
    """Return the start-up memory of a recipe, from the verified starts in the host's history."""
    scope = _find_scope(project, host, row.recipe)
    if scope is None:
        return memory_budget.StartFacts()
    start_key = scope["engine_memory"]["start"]
    return memory_budget.StartFacts(
        last_start=start_memory.measured_figures(start_memory.find_last(starts, start_key)),
        last_cold_start=start_memory.measured_figures(start_memory.find_last(starts, start_key, is_cold=True)),
    )


def _evaluate_fit(row: CatalogueRow, host_memory: HostMemory, start_facts: memory_budget.StartFacts) -> Fit:
    """Return the verdict on whether a recipe fits a host that serves nothing else."""
    if row.host_count > 1:
        return Fit("too large", f"it needs {row.host_count} hosts")
    total_bytes = host_memory.total_bytes
    if not total_bytes:
        return Fit("unknown", "the host did not report the size of its memory")
    file_bytes = int(row.weights_gb * 1e9) or None
    weights_bytes = compute_memory(row.recipe, {"model": row.model_entry}).weights_bytes or file_bytes or 0
    if weights_bytes + host_memory.reserve_gib * GIB > total_bytes:
        free = f"{host_memory.reserve_gib:g} GiB of {total_bytes / GIB:.1f} must stay free"
        return Fit("too large", f"{weights_bytes / 1e9:g} GB of weights alone, {free}")
    return proposal.evaluate_fit(row.recipe, host_memory, file_bytes, row.model_entry, start_facts)


def _format_entry(row: CatalogueRow, *, hosts_answered: bool) -> list[str]:
    data = row.to_json()
    size = f"{data['weights_gb']:g} GB of weights" if data["weights_gb"] else "size unknown until it is pinned"
    memory = f"{data['memory_share']:.0%} of memory" if data["memory_share"] else ""
    context = f"context {data['context']}" if data["context"] else ""
    hosts = format_count(row.host_count, "host")
    proof_hosts = [*data["proved_on"], *(f"{name} (simulated)" for name in data["simulated_on"])]
    no_proof = "not proved on the hosts that answered" if hosts_answered else ""
    proof = f"image and model proved on {', '.join(proof_hosts)}" if proof_hosts else no_proof
    details = (row.recipe.engine.title, size, memory, context, hosts, "/".join(row.entry.uses), row.age_remark)
    summary = ", ".join(filter(None, details))
    return [
        f"{row.recipe.name}: {data['model']}",
        f"  {summary}",
        f"  {data['source']}",
        *([f"  {proof}"] if proof else []),
    ]


def _arguments_fingerprint(project: Project, host: Host, candidate: Recipe) -> str:
    """Return the fingerprint of the arguments with which a host would start a recipe; empty if it can't."""
    scope = _find_scope(project, host, candidate)
    return "" if scope is None else fingerprint(scope["container"])


def _find_scope(project: Project, host: Host, candidate: Recipe) -> Mapping[str, Any] | None:
    """Return a recipe's variables on a host, or None if the host can't serve it, such as a cluster's recipe outside it."""
    serving_host = host if candidate.split else replace(host, cluster=None)
    lock = lock_entries(load_lock(project, host), candidate)
    try:
        return recipe.scope(serving_host, login_user(host), candidate, lock)
    except Refused:
        return None


def _find_proof(candidate: Recipe, host: Host, arguments_fingerprint: str, event: Event) -> Proof | None:
    """Return the proof if an event in a host's history verifies a server with the recipe's tag and model, else None.

    Args:
        arguments_fingerprint: the throughput of a server whose arguments have another fingerprint is left out.
    """
    image = str(event.get("image") or "").partition("@")[0]
    measured = event.get("measured")
    if (
        image != candidate.image
        or event.get("model") != candidate.file.model.id
        or not isinstance(measured, dict)
        or not measured
    ):
        return None
    rate = measured.get("tok_per_s")
    tok_per_s = float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 else None
    return Proof(
        host.title,
        format_time(event["at"]),
        tok_per_s if event.get("arguments") == arguments_fingerprint else None,
        simulated=host.connection == "sandbox",
    )


def _query_hosts(
    pattern: str, verb: str, *, as_json: bool, once_per_machine: bool = False
) -> tuple[dict[str, list[Event]], dict[str, Host], list[int]]:
    """Query hosts. Return the events of those that answered, all hosts, and the exit codes of the others. Prints errors.

    Args:
        verb: verb of the request, and kind of the events.
        once_per_machine: query a machine with several servers only once.
    """
    if not pattern:
        return {}, {}, []
    selection = connect_hosts(pattern, "plan")
    selection = select_machines(selection) if once_per_machine else selection

    def matching_events(member: Member) -> list[Event]:
        return [event for event in request_events(selection.fleet, member, {"verb": verb}) if event["event"] == verb]

    try:
        answers = selection.fleet.query_all(matching_events)
    finally:
        close_links(selection.fleet.members)
    for name, error in selection.fleet.errors().items():
        print_error(error, json=as_json, host=name)
    titles = {host.name: host.title for host in selection.hosts}
    answers_by_title = {titles[name]: events for name, events in answers.items()}
    hosts_by_title = {host.title: host for host in selection.hosts}
    return answers_by_title, hosts_by_title, [code for code in selection.fleet.exit_codes() if code]
