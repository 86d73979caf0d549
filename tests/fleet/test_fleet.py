"""Batches as in Ansible, the effect of a failed host on the others, subscribers, and Ctrl-C."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparkwright.defaults import FORKS
from sparkwright.errors import Inconclusive, Refused, Unreachable
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, build_module_request
from sparkwright.fleet.rollout import PlayRollout
from sparkwright.project.inventory.host import Host
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.events import Event, event
from sparkwright.protocol.plan import Plan
from sparkwright.secret import Secret
from tests import published
from tests.waiting import wait_until


@dataclass
class SimulatedLink:
    """A link to a simulated host. outcome: an exit code, "gone", or "bug"; queried: to which the host's name is appended."""

    host: Host
    outcome: int | str = 0
    queried: list[str] = field(default_factory=list)

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        self.queried.append(self.host.name)
        if self.outcome == "gone":
            raise Unreachable("unreachable: silent.", where=self.host.name)
        if self.outcome == "bug":
            raise KeyError("surprise")
        counts = {"ok": 1, "changed": 0, "failed": int(bool(self.outcome)), "skipped": 0, "unreachable": 0}
        yield event("recap", host=self.host.name, **counts, exit=self.outcome, seconds=0.1, msg="")

    def wait_until_connected(self) -> None:
        pass

    def close(self) -> None:
        pass


def build_plan(member: Member) -> Plan:
    return Plan(run_id="r", host=member.host.name, play="Test", steps=())


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    @property
    def recaps(self) -> dict[str, Event]:
        return {event["host"]: event for event in self.events if event["event"] == "recap"}


class InterruptingUser(Recorder):
    """A user who presses Ctrl-C at a note."""

    def on(self, event: Event) -> None:
        if event["event"] == "note":
            raise KeyboardInterrupt


def create_members(*outcomes: int | str, queried: list[str] | None = None) -> list[Member]:
    hosts = [Host(f"spark{n}", f"spark{n}") for n, _ in enumerate(outcomes, 1)]
    names = [] if queried is None else queried
    return [Member(host, link=SimulatedLink(host, end, names)) for host, end in zip(hosts, outcomes, strict=True)]


def run_play(
    members: list[Member],
    policy: RolloutPolicy,
    name: str = "Test",
    plays: int = 1,
    subscribers: Sequence[Recorder] = (),
) -> Recorder:
    recorder = Recorder()
    fleet = Fleet(members, [*subscribers, recorder])
    for _ in range(plays):
        fleet.roll(fleet.begin(name, [member.host for member in members]), build_plan, PlayRollout(policy))
    fleet.close()
    return recorder


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [((), [8]), ((3,), [3, 3, 2]), (("25%",), [2, 2, 2, 2]), ((1, "50%"), [1, 4, 3]), (("1%",), [1] * 8), ((20,), [8])],
)
def test_batch_sizes_are_those_of_ansible(serial: tuple[int | str, ...], sizes: list[int]) -> None:
    policy, computed = RolloutPolicy(serial=serial), list[int]()
    while sum(computed) < 8:
        computed.append(min(8 - sum(computed), policy.size(len(computed), 8)))
    assert computed == sizes


def test_failed_host_does_not_stop_the_others_without_serial() -> None:
    recaps = run_play(create_members(0, 1, 0), RolloutPolicy()).recaps
    assert {host: recap["exit"] for host, recap in recaps.items()} == {"spark1": 0, "spark2": 1, "spark3": 0}


@pytest.mark.parametrize(
    ("outcomes", "policy", "hosts"),
    [
        pytest.param((0, 1, 0), RolloutPolicy(serial=(1,)), 2, id="failed batch"),
        pytest.param((0, 1, 0, 0), RolloutPolicy(serial=(2,), max_fail_percentage=50.0), 4, id="allowed failures"),
        pytest.param((0, 1, 0, 0), RolloutPolicy(serial=(2,), max_fail_percentage=49.0), 2, id="too many failures"),
        pytest.param((0, 1, 0, 0), RolloutPolicy(serial=(2,), max_fail_percentage=0.0), 2, id="no failures allowed"),
        pytest.param((2, 2), RolloutPolicy(serial=(1,)), 2, id="pending changes"),
    ],
)
def test_failures_stop_the_play_after_the_batch(outcomes: tuple[int, ...], policy: RolloutPolicy, hosts: int) -> None:
    queried: list[str] = []
    run_play(create_members(*outcomes, queried=queried), policy)
    assert sorted(queried) == [f"spark{n + 1}" for n in range(hosts)]


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ((4, 0, 0), "the result of spark1 is inconclusive"),
        ((1, 4, 0), "spark1 failed; the result of spark2 is inconclusive"),
    ],
)
def test_an_inconclusive_host_that_stops_the_run_is_not_called_failed(outcomes: tuple[int, ...], reason: str) -> None:
    fleet = Fleet(create_members(*outcomes))
    hosts = [member.host for member in fleet.members]
    fleet.roll(fleet.begin("Test", hosts), build_plan, PlayRollout(RolloutPolicy(serial=(2,))))
    assert fleet.stop_reason == reason


def test_unreachable_host_does_not_stop_the_others() -> None:
    recaps = run_play(create_members("gone", 0), RolloutPolicy()).recaps
    assert (recaps["spark1"]["unreachable"], recaps["spark1"]["failed"], recaps["spark1"]["exit"]) == (1, 0, 3)
    assert recaps["spark2"]["exit"] == 0


def test_two_plays_of_a_host_have_a_single_recap() -> None:
    recorder = run_play(create_members(0), RolloutPolicy(), plays=2)
    assert [event["ok"] for event in recorder.events if event["event"] == "recap"] == [2]


def test_exception_in_a_thread_is_a_failure() -> None:
    recap = run_play(create_members("bug", 0), RolloutPolicy()).recaps["spark1"]
    assert (recap["failed"], recap["exit"]) == (1, 1)
    assert "KeyError: 'surprise'" in recap["msg"]


class Broken(Recorder):
    """A display with a bug that raises an error at every event."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def on(self, event: Event) -> None:
        raise self._error

    def close(self) -> None:
        raise self._error


def test_error_of_a_subscriber_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    broken = Broken(KeyError("surprise\x1b[2J"))
    recaps = run_play(create_members(0, 0), RolloutPolicy(), subscribers=[broken]).recaps
    assert [recap["exit"] for recap in recaps.values()] == [0, 0]
    result = capsys.readouterr().err
    assert result.count("Broken: internal error: KeyError") == 1
    assert "\x1b" not in result


def test_output_that_could_not_be_written_fails_the_command() -> None:
    members = create_members(0)
    fleet = Fleet(members, [Broken(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))])
    fleet.roll(fleet.begin("Test", [member.host for member in members]), build_plan, PlayRollout(RolloutPolicy()))
    fleet.close()
    assert fleet.exit_codes() == [0, 1]


def test_closed_output_ends_the_command_quietly() -> None:
    with pytest.raises(BrokenPipeError):
        run_play(create_members(0, 0), RolloutPolicy(), subscribers=[Broken(BrokenPipeError())])


def test_ctrl_c_stops_only_the_run_of_this_command() -> None:
    stopped: list[str] = []
    is_stopped = threading.Event()

    class Link(SimulatedLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            if header["verb"] == "stop":
                stopped.append(header["run"])
                is_stopped.set()
                return
            yield event("note", task="", text="at work")
            assert is_stopped.wait(20)
            yield from super().request(header, secrets)

    host = Host("s1", "s1")
    member = Member(host, link=Link(host, 1))
    fleet = Fleet([member], [InterruptingUser()], ask_stop=lambda hosts, is_running: True)
    plan = Plan("run-of-this-command", "s1", "Test", ()).to_json()
    fleet.run_parallel([member], lambda value: fleet.request(value, {"verb": "run", "plan": plan}))
    assert stopped == ["run-of-this-command"]


def test_ctrl_c_stops_a_run_that_starts_during_the_prompt() -> None:
    """Two servers of a machine run one after the other: the second run begins when the first ends."""
    stopped: list[str] = []
    is_prompted, second_started, is_stopped = threading.Event(), threading.Event(), threading.Event()

    class Link(SimulatedLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            if header["verb"] == "stop":
                stopped.append(header["run"])
                if header["run"] == "run-of-two":
                    is_stopped.set()
                return
            if header["plan"]["run_id"] == "run-of-one":
                yield event("note", task="", text="at work")
                assert is_prompted.wait(20)
            else:
                second_started.set()
                assert is_stopped.wait(5), "the second run was not stopped"
            yield from super().request(header, secrets)

    def answer(hosts: str, is_running: Callable[[], bool]) -> bool:
        is_prompted.set()
        assert second_started.wait(20)
        return True

    hosts = [Host(f"spark1/{name}", "spark1", shared_machine="spark1", server=name) for name in ("one", "two")]
    servers = [Member(host, link=Link(host, 1)) for host in hosts]
    fleet = Fleet(servers, [InterruptingUser()], ask_stop=answer)

    def run(member: Member) -> None:
        plan = Plan(f"run-of-{member.host.server}", member.host.name, "Test", ()).to_json()
        fleet.request(member, {"verb": "run", "plan": plan})

    fleet.run_parallel(servers, run)
    assert "run-of-two" in stopped


@pytest.mark.parametrize("server_count", [2, FORKS + 2])
def test_no_run_starts_after_ctrl_c_and_leave(server_count: int) -> None:
    """The other servers of a machine wait until the first one's run ends, and those beyond FORKS for a free worker."""
    started: list[str] = []
    closed = threading.Event()

    class Link(SimulatedLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            started.append(self.host.name)
            yield event("note", task="", text="at work")
            assert closed.wait(20)
            yield from super().request(header, secrets)

    names = [f"s{n}" for n in range(server_count)]
    hosts = [Host(f"spark1/{name}", "spark1", shared_machine="spark1", server=name) for name in names]
    servers = [Member(host, link=Link(host, 1)) for host in hosts]
    fleet = Fleet(servers, [InterruptingUser()], ask_stop=lambda hosts, is_running: False)

    def run(member: Member) -> None:
        fleet.request(member, {"verb": "run", "plan": Plan("a-run", member.host.name, "Test", ()).to_json()})

    threads_before = threading.active_count()
    try:
        with pytest.raises(Inconclusive, match=r"^still running on spark1/s\d+; no other run starts\. "):
            fleet.run_parallel(servers, run)
    finally:
        closed.set()
    wait_until(lambda: threading.active_count() == threads_before, "the end of the workers")
    assert len(started) == 1


def test_no_run_starts_after_ctrl_c_and_stop_until_the_others_have_ended() -> None:
    """A run that cleans up afterwards may start."""
    started: list[str] = []
    is_stopped = threading.Event()

    class Link(SimulatedLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            if header["verb"] == "stop":
                is_stopped.set()
                return
            started.append(self.host.name)
            if len(started) == 1:
                yield event("note", task="", text="at work")
                assert is_stopped.wait(20)
            yield from super().request(header, secrets)

    hosts = [Host(f"spark1/{name}", "spark1", shared_machine="spark1", server=name) for name in ("one", "two")]
    servers = [Member(host, link=Link(host, 0)) for host in hosts]
    fleet = Fleet(servers, [InterruptingUser()], ask_stop=lambda hosts, is_running: True)

    def run(member: Member) -> None:
        fleet.request(member, {"verb": "run", "plan": Plan("a-run", member.host.name, "Test", ()).to_json()})

    fleet.run_parallel(servers, run)
    (waiting,) = (member for member in servers if member.host.name != started[0])
    assert len(started) == 1 and waiting.recap is not None
    assert (waiting.recap["exit"], waiting.recap["msg"]) == (4, "stopped by Ctrl-C before it started.")
    fleet.run_parallel([waiting], run)
    assert started[1:] == [waiting.host.name]


@pytest.mark.parametrize("detail", [False, True])
def test_note_of_the_laptop_has_the_published_format(detail: bool) -> None:
    recorder = Recorder()
    (member,) = create_members(0)
    fleet = Fleet([member], [recorder])
    fleet.add_note(member, "copying through this laptop instead.", detail=detail)
    fleet.run_parallel([member], lambda value: fleet.request(value, build_module_request("fabric", {})))
    notes = [item for item in recorder.events if item["event"] == "note"]
    assert [item["detail"] for item in notes] == [detail]
    assert published.check_output("images.copy", json.dumps(notes[0])) == []


def test_ctrl_c_ends_a_query_without_naming_a_run() -> None:
    closed = threading.Event()

    class Link(SimulatedLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            yield event("note", task="", text="measuring")
            assert closed.wait(20)

        def close(self) -> None:
            closed.set()

    member = Member(Host("s1", "s1"), link=Link(Host("s1", "s1"), 1))
    user = InterruptingUser()
    fleet = Fleet(
        [member], [user], ask_stop=lambda hosts, is_running: pytest.fail("nothing runs that could be stopped")
    )
    with pytest.raises(Inconclusive, match="^stopped by Ctrl-C.$"):
        fleet.run_parallel([member], lambda value: fleet.request(value, build_module_request("fabric", {})))
    assert closed.is_set()


def test_events_of_the_laptop_are_escaped() -> None:
    """The name of a play comes from a playbook, which may be untrusted."""
    recorder = run_play(create_members(0), RolloutPolicy(), "x\x1b]52;c;aGk=\x07")
    assert recorder.events[0]["play"] == "x\\x1b]52;c;aGk=\\x07"


@pytest.mark.parametrize(
    ("without", "stopped"), [(("spark2",), "there is no plan for spark2"), (("spark1", "spark2"), "")]
)
def test_no_cluster_member_starts_unless_all_have_a_plan(without: tuple[str, ...], stopped: str) -> None:
    queried: list[str] = []
    fleet = Fleet(create_members(0, 0, queried=queried))

    def plan_of(member: Member) -> Plan:
        if member.host.name in without:
            raise Refused("ray is not offered.")
        return build_plan(member)

    hosts = [member.host for member in fleet.members]
    fleet.roll(
        fleet.begin("Test", hosts), plan_of, PlayRollout(RolloutPolicy(max_fail_percentage=100), all_or_none=True)
    )
    fleet.close()
    assert queried == []
    assert [name for name, error in fleet.errors().items() if error.message == "ray is not offered."] == list(without)
    assert fleet.stop_reason.startswith(stopped)
