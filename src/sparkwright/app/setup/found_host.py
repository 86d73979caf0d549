"""Selection of one host for a project: find or name it, log in, and propose a recipe. Asks on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright.app.setup import proposal, questions, survey
from sparkwright.app.setup.files import NewHost
from sparkwright.app.setup.proposal import Choice
from sparkwright.console import grid, plain_table
from sparkwright.console.out import say
from sparkwright.console.terminal import terminal
from sparkwright.errors import Refused, Unreachable
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.remote import find
from sparkwright.remote.find import Candidate
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.sandbox import memory
from sparkwright.shell import join

SANDBOX = "sandbox"
#: survey of the sandbox before it is started
SIMULATED: dict[str, Any] = {"memory_bytes": memory.TOTAL, "models": [], "servers": []}
CANDIDATES = grid.columns(("", 0), ("HOST", 0), ("FOUND IN", 0))
CHOICES = grid.columns(("", 0), ("RECIPE", 0), ("ON DISK", 1), ("FITS", 0), ("MEMORY", 0))
#: verdicts in the table
FITS = {"fits": "yes", "unknown": "unknown", "too large": "no"}
#: most recipes that are listed; others can be typed
MOST = 9


@dataclass(frozen=True, slots=True)
class Found:
    """A host that was selected for the project."""

    host: NewHost
    #: None if the host was not asked
    survey: dict[str, Any] | None
    #: its recipe; None for no recipe
    choice: Choice | None

    @property
    def lines(self) -> list[str]:
        """The results of the survey, one sentence each."""
        return [] if self.survey is None else survey.lines(self.survey)


def ask_which(*, sandbox: bool) -> NewHost:
    """Find hosts, list them, and ask for one.

    Args:
        sandbox: include the simulated host.
    """
    with terminal().status("Looking for hosts: ssh configuration, known_hosts, mDNS (2 s)"):
        rows = find.find_candidates(Path.home() / ".ssh")[: find.MOST]
    rows += [Candidate(SANDBOX, "this machine: a simulated Spark, to try it without hardware")] if sandbox else []
    plain_table.show(
        CANDIDATES, [(str(n), candidate.address, candidate.source) for n, candidate in enumerate(rows, start=1)]
    )
    question = "Which host? A number, or USER@ADDRESS"
    while True:
        answer = (
            questions.choose(question, [candidate.address for candidate in rows]) if rows else questions.ask(question)
        )
        if answer:
            try:
                return NewHost.typed(answer)
            except Refused as error:
                say(error)


def see(host: NewHost, recipes: Sequence[Recipe], *, asking: bool) -> dict[str, Any] | None:
    """Log in and survey the host. Raises Unreachable if it can't be surveyed.

    Returns None if the user chose to continue without a survey.
    """
    as_host = Host(name=host.name, address=host.address, user=host.user, port=host.port)
    if not asking:
        return survey.of(as_host, recipes, lambda error: False)
    say(f"Logging in to {host.address}. The first time this copies sparkwright's runtime there (about 11 MB, no root).")
    try:
        return survey.of(as_host, recipes, _accepted)
    except Unreachable as error:
        say(error)
        if survey.refused(error):
            to = f"{host.user}@{host.address}" if host.user else host.address
            say(f"To copy your key there: {join(['ssh-copy-id', *(['-p', host.port] if host.port else []), to])}")
        if isinstance(error, UnknownKey) or not questions.agree(
            "Write its file without having seen it?", default=False
        ):
            raise Unreachable("nothing was written.", where=host.address) from None
    return None


def choose(
    recipes: Sequence[Recipe], seen: dict[str, Any] | None, reserve_gib: float, *, named: str, asking: bool
) -> Choice | None:
    """Return the recipe for a host. Raises Refused for a named recipe that does not fit its memory.

    Args:
        named: recipe that the user named; nothing is asked then.
    """
    rows = proposal.choices(recipes, seen, reserve_gib)
    if named:
        choice = next((choice for choice in rows if choice.name == named), None)
        if choice is not None and choice.verdict == "too large":
            ways = [f"set {choice.fit.largest.replace(' ', ' to ')} in the recipe"] if choice.fit.largest else []
            ways += ["name another recipe", "leave --recipe out"]
            fix = f"{', '.join(ways[:-1])}, or {ways[-1]}."
            raise Refused(f"{named} does not fit: {choice.why}.", fix=fix[0].upper() + fix[1:])
        return choice
    fitting = [choice for choice in rows if choice.verdict != "too large"]
    if not asking or not fitting:
        return next(iter(fitting), None)
    shown = fitting[:MOST]
    plain_table.show(
        CHOICES,
        [
            (str(n), choice.name, choice.on_disk, FITS[choice.verdict], choice.why)
            for n, choice in enumerate(shown, start=1)
        ],
    )
    if len(rows) > len(fitting):
        say(f"Too large for this host: {', '.join(choice.name for choice in rows if choice not in fitting)}.")
    name = questions.choose_one_of("Which recipe?", [choice.name for choice in shown])
    return next(choice for choice in shown if choice.name == name)


def chosen(
    host: NewHost,
    recipes: Sequence[Recipe],
    *,
    reserve_gib: float,
    named: str,
    asking: bool,
    offline: bool,
    quiet: bool = False,
) -> Found:
    """Survey a host, show the results, and select its recipe.

    Args:
        quiet: print errors only, for a program.
    """
    simulated = host.address == SANDBOX
    seen = None if offline or simulated else see(host, recipes, asking=asking)
    if seen is not None and not quiet:
        for line in survey.lines(seen):
            say(f"  {line}")
    choice = choose(recipes, SIMULATED if simulated else seen, reserve_gib, named=named, asking=asking)
    if choice is not None and choice.fit.budget is not None and not quiet:
        say(f"The memory of {choice.name}:")
        for line in choice.fit.budget.lines():
            say(f"  {line}")
    return Found(replace(host, recipe=choice.name if choice else ""), seen, choice)


def _accepted(error: UnknownKey) -> bool:
    """Ask whether to accept a host key, in the words of ssh."""
    key, target = error.key, error.target
    say(f"The authenticity of host '{target.known_as}' can't be established.")
    say(f"{key.get_name()} key fingerprint is {host_keys.fingerprint(key)}. Compare it with the host's own:")
    say("  for f in /etc/ssh/ssh_host_*.pub; do ssh-keygen -lf $f; done")
    return questions.typed_yes("Is it the same, and shall it be kept in known_hosts?")
