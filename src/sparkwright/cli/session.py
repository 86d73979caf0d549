"""From a command to a fleet: the user's files become plans, the plans go to the hosts, the events to the console."""

from __future__ import annotations

import getpass
import platform
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwright import lockfile, playbook, recipe
from sparkwright.cli.hosts import Chosen, choose
from sparkwright.cli.pinning import Pins, lock_folder
from sparkwright.cli.project import Project
from sparkwright.cli.rolling import Asked, Trip
from sparkwright.console.lines import Lines
from sparkwright.console.summary import Served, Summary
from sparkwright.console.tables import Tables
from sparkwright.errors import Exit, Failed, Inconclusive, Refused
from sparkwright.fleet import Fleet, Member
from sparkwright.inventory import Host
from sparkwright.plan import expressions
from sparkwright.plan.model import Plan, Task
from sparkwright.rolling.roll import Roll

if TYPE_CHECKING:
    from sparkwright.recipe.serving import Serving

#: how long --wait waits: longer than any deploy takes
WAIT_S = 4 * 3600.0
#: one plan after the other: threads that plan side by side share one interpreter, and the first would be done with the last
PLANNING = threading.Lock()


def options(**given: Any) -> playbook.Options:
    """The options of a command as the compiler takes them."""
    return playbook.Options(
        check=given["check"],
        diff=given["diff"],
        tags=_words(given["tags"]),
        skip_tags=_words(given["skip_tags"]),
        start_at_task=given["start_at_task"],
        who=f"{getpass.getuser()}@{platform.node()}",
        wait_s=WAIT_S if given["wait"] else 0,
        extra={} if given.get("rollback", True) else {"rollback": False},
    )


def run(chosen: Chosen, book: str, given: playbook.Options, asked: Asked, *, json: bool) -> list[int]:
    """Run a playbook on the chosen hosts. Returns each host's exit code, and one more for a run that was stopped."""
    fleet, codes = chosen.fleet, list[int]()
    read = playbook.load(chosen.project.playbook(book))
    trip = Trip(chosen, read, given, asked)
    shown = Shown(chosen, json=json, diff=given.diff, rows=True)
    try:
        if trip.may_begin():
            for n, play in enumerate(read.plays):
                _play(chosen, play, given, shown, trip.roll(n))
        codes = trip.tell()
    except Inconclusive as error:
        trip.left_behind(error)
        raise
    finally:
        trip.close()
        fleet.close()
    codes += [member.recap["exit"] for member in fleet.members if member.recap is not None]
    if codes:
        return codes
    idle = ", ".join(member.host.name for member in fleet.members)
    raise Refused(f"no play of {book} is for {idle}.", fix="Look at `hosts:` in the playbook.")


def ask(chosen: Chosen, header: dict[str, Any], *, json: bool) -> list[int]:
    """One request to each chosen host, shown as it is answered."""
    fleet = chosen.fleet
    Shown(chosen, json=json, diff=False)
    try:
        fleet.each(fleet.members, lambda member: fleet.request(member, header))
    finally:
        fleet.close()
    return [member.recap["exit"] if member.recap else 0 for member in fleet.members]


def one_task(chosen: Chosen, module: str, args: dict[str, Any], *, read_only: bool, json: bool) -> list[int]:
    """Run one module on each chosen host, shown as a task of a play. read_only: it changes nothing, and needs no lock."""
    name = module.replace("_", " ")
    task = Task(id=module, name=name, module=module, args=args)
    return tasks(chosen, name, lambda host: (task,), exclusive=not read_only, json=json)


def tasks(
    chosen: Chosen, play: str, steps: Callable[[Host], tuple[Task, ...]], *, exclusive: bool, json: bool
) -> list[int]:
    """Run some tasks on each chosen host, shown as a play. exclusive: they hold the host's lock."""
    fleet = chosen.fleet
    Shown(chosen, json=json, diff=False)
    who = f"{getpass.getuser()}@{platform.node()}"

    def ask(member: Member) -> None:
        plan = Plan(new_run_id(), member.host.name, play, steps(member.host), exclusive=exclusive, who=who)
        fleet.request(member, {"verb": "run", "plan": plan.to_json()})

    try:
        fleet.each(fleet.members, ask)
    finally:
        fleet.close()
    return [member.recap["exit"] if member.recap else 0 for member in fleet.members]


def look(
    fleet: Fleet,
    member: Member,
    module: str,
    args: dict[str, Any],
    *,
    check: bool = False,
    exclusive: bool = False,
    become: bool = False,
) -> dict[str, Any]:
    """Run one module and return what it found. Raises Failed with the host's words and exit code.

    check: it only looks. exclusive: it holds the host's lock, as a deploy does. become: as root.
    """
    task = Task(id=module, name=module.replace("_", " "), module=module, args=args, become=become)
    plan = Plan(
        run_id=new_run_id(), host=member.host.name, play="Look", steps=(task,), check=check, exclusive=exclusive
    )
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, counted=False)
    done = next((one for one in events if one["event"] == "task_finished" and one["status"] in ("ok", "changed")), None)
    if done is None:
        recap = next((one for one in events if one["event"] == "recap"), None)
        error = Failed(recap["msg"] if recap else "the host gave no answer.")
        error.exit = Exit(recap["exit"]) if recap else Exit.FAILED
        raise error
    found: dict[str, Any] = done["data"]
    return found


def recipe_of(project: Project, host: Host) -> recipe.Recipe:
    """The recipe that a host serves. Raises Refused when it has none."""
    return recipe.load(project.root, _recipe_of(host))


def list_tasks(book: str, given: playbook.Options) -> int:
    """Print the tasks of a playbook, with their tags, after --tags and --skip-tags. Touches no host."""
    for line in playbook.list_tasks(playbook.load(Project.here().playbook(book)), given):
        print(line)
    return 0


def docker_run_script(pattern: str, recipe_name: str) -> str:
    """The docker run script of one host, as a deploy leaves it there."""
    chosen = choose(pattern)
    project, host = chosen.project, chosen.hosts[0]
    wanted = recipe.load(project.root, recipe_name or _recipe_of(host))
    lock = lockfile.load(lock_folder(project, host))
    names = recipe.scope(host, user_of(host), wanted, _entries(lock, wanted))
    return str(expressions.render((project.root / "templates/docker-run.sh.j2").read_text(), names))


class Shown:
    """Who hears the events of a command: JSON lines, or lines for a person (live on a terminal) and the panel at the end.

    rows: of many hosts it shows a row each and no panels.
    """

    def __init__(self, chosen: Chosen, *, json: bool, diff: bool, rows: bool = False) -> None:
        self._project = chosen.project
        self._summary: Summary | None = None
        chosen.fleet.ask_stop = _ask_stop
        if json:
            from sparkwright.console.json_lines import JsonLines

            chosen.fleet.subscribers = [JsonLines()]
            return
        many = rows and not diff and len(chosen.hosts) > 1
        lines = _lines(diff, many=many)
        lines.hosts([host.name for host in chosen.hosts])
        self._summary = Summary(self._snippet, lines.write)
        chosen.fleet.subscribers = [lines, Tables(lines.write), *([] if many else [self._summary])]

    def serves(self, one: Served) -> None:
        """Remember what a host is to serve, for the panel."""
        if self._summary is not None:
            self._summary.serves(one)

    def _snippet(self, one: Served) -> str:
        names = {
            "host": one.host,
            "url": one.url,
            "model": one.served_name,
            "max_model_len": one.max_model_len,
        }
        return str(expressions.render((self._project.root / "templates/client.j2").read_text(), names))


def _play(chosen: Chosen, play: playbook.Play, given: playbook.Options, shown: Shown, roll: Roll) -> None:
    project, inventory, fleet = chosen.project, chosen.inventory, chosen.fleet
    locks = {member.host.name: lock_folder(project, member.host) for member in fleet.members}
    pins = {folder: Pins(folder, save=not given.check) for folder in set(locks.values())}

    from sparkwright.cli.sharing import Neighbours  # it asks hosts through this file

    neighbours = Neighbours(inventory)

    def plan_for(member: Member, options: playbook.Options = given) -> Plan:
        run_id = new_run_id()
        member.secrets = inventory.secrets(member.host)
        names = _names(project, fleet, member, pins[locks[member.host.name]], play, run_id)
        if play.uses({"container"}):
            shown.serves(_served(member.host, names))
        with PLANNING:
            plan = playbook.compile(
                play, member.host, names, options, run_id=run_id, project=project.root, registered=member.registered
            )
        return neighbours.fill(fleet, member, plan)

    def look_for(member: Member) -> Plan:
        return plan_for(member, replace(given, check=True))

    here = {host.name for host in inventory.match(play.hosts)}
    hosts = [member.host for member in fleet.members if member.host.name in here]
    try:
        fleet.play(play, hosts, plan_for, roll, look_for)
    finally:
        neighbours.close()
    for member in fleet.members:
        if member.engine_version and member.host.recipe:
            image = recipe.load(project.root, member.host.recipe).image
            pins[locks[member.host.name]].learn_version(fleet, member, image, member.engine_version)


def _names(
    project: Project, fleet: Fleet, member: Member, pins: Pins, play: playbook.Play, run_id: str
) -> Mapping[str, Any]:
    """The names a host's plan may use. Only a play that asks for the recipe or the lock needs them."""
    if not play.uses({*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}):
        return recipe.scope(member.host, user_of(member.host), None, {})
    with PLANNING:
        wanted = recipe.load(project.root, _recipe_of(member.host))
        known = _entries(pins.lock, wanted)
        served = _linted(wanted, known) if play.has_task("lint") else None
    pinned = pins.complete(fleet, member, wanted, run_id) if play.uses(recipe.PINNED_NAMES) else {}
    with PLANNING:
        if served is not None and pinned != known:
            served = _linted(wanted, pinned)
        if served is not None and served.note:
            fleet.tell(member, f"chunked prefill: {served.note}.")
        return recipe.scope(member.host, user_of(member.host), wanted, pinned, served)


def _linted(wanted: recipe.Recipe, known: Mapping[str, Any]) -> Serving:
    """A recipe with what the lock knows, linted. Raises Refused for an error."""
    from sparkwright.cli import linting  # and with it all that is known of the engine: many a play needs nothing of it
    from sparkwright.recipe.serving import serving

    served = serving(wanted, known)
    linting.refuse_errors(wanted, served)
    return served


def _served(host: Host, names: Mapping[str, Any]) -> Served:
    wanted, container = names["recipe"], names["container"]
    flags = wanted["vllm"]
    address = "127.0.0.1" if host.connection != "ssh" else host.address
    return Served(
        host=host.name,
        recipe=wanted["name"],
        image=container["image"],
        model=wanted["model"]["id"],
        commit=(names["lock"].get("model") or {}).get("commit", ""),
        served_name=names["served_name"],
        url=f"http://{address}:{names['port']}",
        max_model_len=str(flags.get("max-model-len", "")),
    )


def _recipe_of(host: Host) -> str:
    if host.recipe:
        return host.recipe
    raise Refused(f"{host.name} has no recipe.", where=str(host.where), fix="Add `recipe: NAME` (see recipes/).")


def _entries(lock: lockfile.Lock, wanted: recipe.Recipe) -> dict[str, Any]:
    return {"image": lock.image(wanted.image), "model": lock.model(wanted.file.model.id, wanted.file.model.revision)}


def user_of(host: Host) -> str:
    """Who logs in there, as the inventory or ssh's own configuration says."""
    if host.user or host.connection != "ssh":
        return host.user or getpass.getuser()
    from sparkwright.remote import ssh_config

    return ssh_config.resolve(host).user


def new_run_id() -> str:
    """An id for a run, sortable by time."""
    return time.strftime("%Y%m%dT%H%M%S") + "-" + secrets.token_hex(4)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _lines(diff: bool, *, many: bool) -> Any:
    """Every task of a host; of many hosts one row each, unless their differences are asked for."""
    if many and sys.stdout.isatty():
        from sparkwright.console.host_table import HostTable

        return HostTable()
    if many:
        from sparkwright.console.host_lines import HostLines

        return HostLines()
    if sys.stdout.isatty():
        from sparkwright.console.live import Live

        return Live(diff=diff)
    return Lines(diff=diff)


def _ask_stop(hosts: str) -> bool:
    """Ctrl-C: stop the runs at a safe point, or leave them running? Without a person to ask they are left."""
    if not sys.stdin.isatty():
        return False
    try:
        answer = input(f"\n{hosts}: [l]eave it running there, or [s]top it at the next safe point? ")
    except (EOFError, KeyboardInterrupt):
        return False
    return answer.strip().lower().startswith("s")
