"""The `recipe.list` and `recommend` commands: recipes with known facts, their sources, and the user's own measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.app.connect import machines, reach
from sparkwright.app.plans.pins import entries, lock_of
from sparkwright.app.plans.recipes import user_of
from sparkwright.app.questions.host_requests import answered
from sparkwright.app.setup import proposal
from sparkwright.app.setup.proposal import Fit, HostMemory, Verdict
from sparkwright.console.out import say, say_error, say_json, say_prose
from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines import budget as memory_budget
from sparkwright.engines import recipe_rules
from sparkwright.engines.budget import SYSTEM
from sparkwright.engines.model.roofline import BANDWIDTH
from sparkwright.errors import Failed, Refused
from sparkwright.fleet.member import Member, hang_up
from sparkwright.host.records import start_memory
from sparkwright.host.records.start_memory import StartMemory
from sparkwright.project import catalogue, lockfile, recipe
from sparkwright.project.catalogue import Known
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import served_memory
from sparkwright.protocol.container import fingerprint
from sparkwright.protocol.events import Event
from sparkwright.units import GIB, MINUTE, moment, today
from sparkwright.visible import count, one_line

GPU = "NVIDIA GB10"
#: kinds of evidence, best first; a recipe without any figure comes last, after those that others are known to serve on a
#: Spark, and a simulated figure ranks low because it says nothing about real hardware
ORDER = ("proved", "reported", "served", "ceiling", "simulated", "unknown")
#: verdicts about memory in JSON, and as text
FITS: Mapping[Verdict, bool | None] = {"fits": True, "unknown": None, "too large": False}
FITS_SHOWN: Mapping[Verdict, str] = {
    "fits": "",
    "unknown": " (not known whether it fits)",
    "too large": " (does not fit)",
}


@dataclass(frozen=True)
class Proof:
    """A record that a server of a recipe's image and model was verified on a host."""

    host: str
    #: time of the verification
    at: str
    #: None if the throughput was not measured, or was measured with other arguments than the recipe's
    tok_per_s: float | None
    #: verified by a sandbox
    simulated: bool = False


@dataclass(frozen=True)
class Row:
    """A recipe with everything known about it."""

    recipe: Recipe
    known: Known
    #: the model's entry in spark.lock; {} if it is not pinned
    locked: Mapping[str, Any]
    proofs: tuple[Proof, ...] = ()

    @property
    def weights_gb(self) -> float:
        """Size of the weights in GB, from the locked files or else from the catalogue; 0 if unknown."""
        files = self.locked.get("files") or ()
        total = sum(int(file.get("size_bytes") or 0) for file in files)
        return total / 1e9 if total else self.known.weights_gb

    @property
    def hosts(self) -> int:
        return self.recipe.split.hosts if self.recipe.split else 1

    @property
    def evidence(self) -> tuple[str, float, str]:
        """The best evidence, as (kind, tokens per second, sentence).

        Best first: measured, reported, served without a figure, and the physical ceiling.
        """
        if best := self._newest(simulated=False):
            how = f"measured on {best.host}, {best.at}, with this image, model and arguments"
            return "proved", best.tok_per_s or 0.0, f"{best.tok_per_s:g} tok/s {how}"
        if self.known.reported is not None:
            return "reported", self.known.reported.tok_per_s, str(self.known.reported)
        if self.known.served is not None:
            return "served", 0.0, str(self.known.served)
        if self.known.bytes_per_token:
            rate = BANDWIDTH[GPU] / self.known.bytes_per_token
            return (
                "ceiling",
                rate,
                f"no figure; at most {rate:.0f} tok/s without speculation (273 GB/s over the bytes read per token)",
            )
        if best := self._newest(simulated=True):
            return "simulated", 0.0, f"no figure; the sandbox simulates {best.tok_per_s:g} tok/s"
        return "unknown", 0.0, "no figure: the first verified run records one"

    def _newest(self, *, simulated: bool) -> Proof | None:
        """Return the newest proof with a measured throughput, from hosts or from sandboxes."""
        measured = [proof for proof in self.proofs if proof.tok_per_s and proof.simulated == simulated]
        return max(measured, key=lambda proof: proof.at, default=None)

    @property
    def aged(self) -> str:
        """A remark on an old recipe, as returned by `recipe_rules.remark`."""
        return recipe_rules.remark(self.recipe.file.date, today())

    def proved_on(self, *, simulated: bool = False) -> list[str]:
        """Return the hosts, or sandboxes, on which a server of this image and model was verified."""
        return sorted({proof.host for proof in self.proofs if proof.simulated == simulated})

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain JSON."""
        kind, rate, sentence = self.evidence
        memory = self.recipe.memory(self.locked)
        return {
            "recipe": self.recipe.name,
            "model": self.recipe.file.model.id,
            "engine": self.recipe.engine.name,
            "uses": list(self.known.uses),
            "weights_gb": round(self.weights_gb, 1) or None,
            "memory_share": memory.share or None,
            "memory_bytes": memory.bytes or None,
            "context": self.recipe.engine.flags.context(self.recipe.file.flags),
            "hosts": self.hosts,
            "evidence": kind,
            "tok_per_s": round(rate, 1) or None,
            "source": sentence,
            "date": self.recipe.file.date or None,
            "old": recipe_rules.months(self.recipe.file.date, today()) is not None,
            "proved_on": self.proved_on(),
            "simulated_on": self.proved_on(simulated=True),
        }


def rows(
    answers: Mapping[str, Sequence[Event]], hosts: Mapping[str, Host], *, as_json: bool
) -> tuple[list[Row], list[int]]:
    """Return the project's recipes, and an exit code for each recipe that can't be read.

    The error of an unreadable recipe is printed.

    Args:
        answers: history of each queried host, by name.
        hosts: the same hosts, by name.
    """
    project = Project.here()
    root, lock = project.root, lockfile.load(project.root)
    recipes, refused = recipe.readable(root)
    for error in refused:
        say_error(error, json=as_json)
    found = []
    for item in recipes:
        proofs = (
            proof
            for host, events in answers.items()
            for arguments in [_arguments(project, hosts[host], item)]
            if events
            for event in events
            for proof in _proof(item, hosts[host], arguments, event)
        )
        found.append(
            Row(item, catalogue.of(item.name, item.file.model.id), entries(lock, item)["model"] or {}, tuple(proofs))
        )
    return found, [int(error.exit) for error in refused]


def print_list(pattern: str, *, as_json: bool) -> list[int]:
    """Print the catalogue.

    Args:
        pattern: hosts whose measurements are included; "" for none.

    Returns:
        The exit codes of hosts that do not answer and of recipes that can't be read.
    """
    answers, hosts, codes = _asked(pattern, {"verb": "history"}, "history", as_json=as_json)
    found, broken = rows(answers, hosts, as_json=as_json)
    codes += broken
    if as_json:
        say_json({"recipes": [row.to_json() for row in found]})
        return codes
    for row in found:
        say_prose("\n".join(_lines(row, hosts_answered=bool(answers))))
    say(f"{count(len(found), 'recipe')}.")
    return codes


def recommend(pattern: str, use: str, *, as_json: bool) -> list[int]:
    """Print the recipes that suit a use on one host, best evidence first.

    Raises Refused for an unknown use, or if the pattern matches more than one host.
    """
    if use not in catalogue.USES:
        raise Refused(f"'{one_line(use, at_most=60)}' is not a use.", fix=nearest(use, catalogue.USES))
    states, known, codes = _asked(pattern, {"verb": "status"}, "status", as_json=as_json, once=True)
    if len(states) + len(codes) != 1:
        raise Refused(f"--host must name one host, got {len(states) + len(codes)}.")
    if not states:
        return codes
    ((host, events),) = states.items()
    if not events:
        raise Failed("the host does not report its memory.", where=host)
    answers, hosts, more = _asked(pattern, {"verb": "history"}, "history", as_json=as_json)
    total = int(events[0].get("memory_total_bytes") or 0)
    found, broken = rows(answers, hosts, as_json=as_json)
    suitable = [row for row in found if use in row.known.uses]
    ranked = _ranked(suitable, known[host], total, answers.get(host, ()))
    if as_json:
        say_json({"host": host, "for": use, "recipes": [_fitting_json(row, fit) for row, fit in ranked]})
    else:
        _say_ranked(f"{host}: {total / GIB:.1f} GiB of memory. For {use}, best evidence first:", ranked)
    return [*codes, *more, *broken]


def _ranked(
    suitable: Sequence[Row], host: Host, total_bytes: int, events: Sequence[Mapping[str, Any]]
) -> list[tuple[Row, Fit]]:
    """Return recipes with their fit to a host: those that are too large last, otherwise the best evidence first."""
    kept = [start for event in events for start in start_memory.listed_starts([event.get("memory")])]
    reserve = float(host.vars.get("reserve_gib", RESERVE_GIB))
    memory = HostMemory(total_bytes, reserve, _own(kept, total_bytes))
    project = Project.here()
    fitting = [(row, _fit(row, memory, _start(project, host, row, kept))) for row in suitable]
    fitting.sort(key=lambda row: (row[1].verdict == "too large", ORDER.index(row[0].evidence[0]), -row[0].evidence[1]))
    return fitting


def _fitting_json(row: Row, fit: Fit) -> dict[str, Any]:
    budget = fit.budget.to_json() if fit.budget else None
    return {**row.to_json(), "fits": FITS[fit.verdict], "why": fit.why, "budget": budget}


def _say_ranked(title: str, fitting: Sequence[tuple[Row, Fit]]) -> None:
    say_prose(title)
    for number, (row, fit) in enumerate(fitting, 1):
        data = row.to_json()
        aged = f"; a recipe {row.aged}" if data["old"] else ""
        say_prose(f"  {number}. {row.recipe.name}{FITS_SHOWN[fit.verdict]}: {data['source']}; {fit.why}{aged}.")
    for row, fit in fitting[:1]:
        if fit.budget is not None:
            say_prose(f"The memory of {row.recipe.name}:")
            say_prose("\n".join(f"  {line}" for line in fit.budget.lines()))
    say_prose("A report is of one machine; `invoke verify` measures yours. Recipes of your own are not ranked.")


def _own(kept: Sequence[StartMemory], total_bytes: int) -> memory_budget.Row:
    """Return the host's own memory use: the most that was held before a verified start, or else the usual figure."""
    if not kept:
        return SYSTEM
    start = max(kept, key=lambda start: start.before_bytes)
    source = f"held before a verified start, {moment(start.at, MINUTE)}"
    return memory_budget.Row("the host itself", max(0, total_bytes - start.before_bytes), source, "host")


def _start(project: Project, host: Host, row: Row, kept: Sequence[StartMemory]) -> memory_budget.Start:
    """Return the start-up memory of this recipe, as far as the verified starts in the host's history show it."""
    if row.recipe.split is not None and host.cluster is None:
        return memory_budget.Start()
    lock = entries(lock_of(project, host), row.recipe)
    scope = recipe.scope(host, user_of(host), row.recipe, lock)
    about = scope["engine_memory"]["start"]
    return memory_budget.Start(
        learned=start_memory.learned(start_memory.last(kept, about)),
        learned_cold=start_memory.learned(start_memory.last(kept, about, cold=True)),
    )


def _fit(row: Row, host: HostMemory, start: memory_budget.Start) -> Fit:
    """Return the verdict on whether a recipe fits a host that serves nothing else."""
    if row.hosts > 1:
        return Fit("too large", f"it needs {row.hosts} hosts")
    total = host.total_bytes
    if not total:
        return Fit("unknown", "the host does not report how much memory it has")
    weights = int(row.weights_gb * 1e9) or None
    held = served_memory(row.recipe, {"model": row.locked}).weights_bytes or weights or 0
    if held + host.reserve_gib * GIB > total:
        free = f"{host.reserve_gib:g} GiB of {total / GIB:.1f} must stay free"
        return Fit("too large", f"{held / 1e9:g} GB of weights alone, {free}")
    return proposal.fit(row.recipe, host, weights, row.locked, start)


def _lines(candidate: Row, *, hosts_answered: bool) -> list[str]:
    data = candidate.to_json()
    size = f"{data['weights_gb']:g} GB of weights" if data["weights_gb"] else "size not known before it is pinned"
    memory = f"{data['memory_share']:.0%} of memory" if data["memory_share"] else ""
    context = f"context {data['context']}" if data["context"] else ""
    hosts = count(candidate.hosts, "host")
    places = [*data["proved_on"], *(f"{name} (simulated)" for name in data["simulated_on"])]
    nowhere = "not proved on the hosts that answered" if hosts_answered else ""
    proved = f"image and model proved on {', '.join(places)}" if places else nowhere
    shown = (
        candidate.recipe.engine.title,
        size,
        memory,
        context,
        hosts,
        "/".join(candidate.known.uses),
        candidate.aged,
    )
    about = ", ".join(filter(None, shown))
    tail = [f"  {proved}"] if proved else []
    return [f"{candidate.recipe.name}: {data['model']}", f"  {about}", f"  {data['source']}", *tail]


def _arguments(project: Project, host: Host, candidate: Recipe) -> str:
    """Return the fingerprint of the arguments that a host would start a recipe with."""
    if candidate.split is not None and host.cluster is None:
        return ""
    return fingerprint(
        recipe.scope(host, user_of(host), candidate, entries(lock_of(project, host), candidate))["container"]
    )


def _proof(recipe: Recipe, host: Host, arguments: str, event: Event) -> list[Proof]:
    """Return the proofs of a recipe in one entry of a host's history: a verified server with the same tag and model.

    The measured throughput counts only if the server had the recipe's arguments.
    """
    image = str(event.get("image") or "").partition("@")[0]
    measured = event.get("measured")
    if (
        image != recipe.image
        or event.get("model") != recipe.file.model.id
        or not isinstance(measured, dict)
        or not measured
    ):
        return []
    rate = measured.get("tok_per_s")
    known = float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 else None
    same = event.get("arguments") == arguments
    return [Proof(host.title, moment(event["at"]), known if same else None, simulated=host.connection == "sandbox")]


def _asked(
    pattern: str, header: dict[str, Any], kind: str, *, as_json: bool, once: bool = False
) -> tuple[dict[str, list[Event]], dict[str, Host], list[int]]:
    """Return the events of a kind from each host that answers, all hosts, and the exit codes of the other hosts.

    Args:
        once: ask a machine with several servers only once.
    """
    if not pattern:
        return {}, {}, []
    selection = reach(pattern, "plan")
    selection = machines(selection) if once else selection

    def answer(member: Member) -> list[Event]:
        return [event for event in answered(selection.fleet, member, header) if event["event"] == kind]

    try:
        answers = selection.fleet.ask(answer)
    finally:
        hang_up(selection.fleet.members)
    for name, error in selection.fleet.errors().items():
        say_error(error, json=as_json, host=name)
    titles = {host.name: host.title for host in selection.hosts}
    answers = {titles[name]: events for name, events in answers.items()}
    return answers, {host.title: host for host in selection.hosts}, [code for code in selection.fleet.codes() if code]
