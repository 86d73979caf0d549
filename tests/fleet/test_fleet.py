"""Batches as in Ansible, and the effect of a failed host on the others."""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

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


@dataclass
class PretendLink:
    """A link to a simulated host with a given outcome: an exit code, "gone", or "bug"."""

    host: Host
    ends: int | str
    asked: list[str]

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        self.asked.append(self.host.name)
        if self.ends == "gone":
            raise Unreachable("unreachable: silent.", where=self.host.name)
        if self.ends == "bug":
            raise KeyError("surprise")
        counts = {"ok": 1, "changed": 0, "failed": int(bool(self.ends)), "skipped": 0, "unreachable": 0}
        yield event("recap", host=self.host.name, **counts, exit=self.ends, seconds=0.1, msg="")

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


def members(*outcomes: int | str, asked: list[str] | None = None) -> list[Member]:
    connected = []
    for n, outcome in enumerate(outcomes, 1):
        host = Host(f"spark{n}", f"spark{n}")
        connected.append(Member(host, link=PretendLink(host, outcome, asked if asked is not None else [])))
    return connected


def run_play(everyone: list[Member], policy: RolloutPolicy, name: str = "Test") -> Recorder:
    recorder = Recorder()
    value = Fleet(everyone, [recorder])
    value.roll(value.begin(name, [member.host for member in everyone]), build_plan, PlayRollout(policy))
    value.close()
    return recorder


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [((), [8]), ((3,), [3, 3, 2]), (("25%",), [2, 2, 2, 2]), ((1, "50%"), [1, 4, 3]), (("1%",), [1] * 8), ((20,), [8])],
)
def test_batch_sizes_are_those_of_ansible(serial: tuple[int | str, ...], sizes: list[int]) -> None:
    policy, remaining, sizes_found = RolloutPolicy(serial=serial), 8, list[int]()
    while remaining:
        sizes_found.append(min(remaining, policy.size(len(sizes_found), 8)))
        remaining -= sizes_found[-1]
    assert sizes_found == sizes


def test_failed_host_does_not_stop_the_others_without_serial() -> None:
    recorder = run_play(members(0, 1, 0), RolloutPolicy())
    assert sorted((event["host"], event["exit"]) for event in recorder.events if event["event"] == "recap") == [
        ("spark1", 0),
        ("spark2", 1),
        ("spark3", 0),
    ]


def test_failed_batch_stops_the_play() -> None:
    options: list[str] = []
    run_play(members(0, 1, 0, asked=options), RolloutPolicy(serial=(1,)))
    assert options == ["spark1", "spark2"]


@pytest.mark.parametrize(("percentage", "hosts"), [(50.0, 4), (49.0, 2), (0.0, 2)])
def test_too_many_failures_stop_after_the_batch(percentage: float, hosts: int) -> None:
    options: list[str] = []
    run_play(members(0, 1, 0, 0, asked=options), RolloutPolicy(serial=(2,), max_fail_percentage=percentage))
    assert len(options) == hosts


def test_unreachable_host_does_not_stop_the_others() -> None:
    recorder = run_play(members("gone", 0), RolloutPolicy())
    recaps = {event["host"]: event for event in recorder.events if event["event"] == "recap"}
    assert (recaps["spark1"]["unreachable"], recaps["spark1"]["failed"], recaps["spark1"]["exit"]) == (1, 0, 3)
    assert recaps["spark2"]["exit"] == 0


def test_pending_changes_are_no_failure() -> None:
    options: list[str] = []
    run_play(members(2, 2, asked=options), RolloutPolicy(serial=(1,)))
    assert options == ["spark1", "spark2"]


def test_two_plays_of_a_host_have_a_single_recap() -> None:
    everyone = members(0)
    recorder = Recorder()
    value = Fleet(everyone, [recorder])
    for _ in range(2):
        value.roll(value.begin("Test", [everyone[0].host]), build_plan, PlayRollout(RolloutPolicy()))
    value.close()
    recaps = [event for event in recorder.events if event["event"] == "recap"]
    assert [recap["ok"] for recap in recaps] == [2]


def test_exception_in_a_thread_is_a_failure() -> None:
    recorder = run_play(members("bug", 0), RolloutPolicy())
    recaps = {event["host"]: event for event in recorder.events if event["event"] == "recap"}
    assert (recaps["spark1"]["failed"], recaps["spark1"]["exit"]) == (1, 1)
    assert "KeyError: 'surprise'" in recaps["spark1"]["msg"]


class Broken(Recorder):
    """A display with a bug. raises: its error at every event."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def on(self, event: Event) -> None:
        raise self._error

    def close(self) -> None:
        raise self._error


def emit_to(*subscribers: Recorder) -> Fleet:
    value = Fleet(members(0, 0), subscribers)
    value.roll(value.begin("Test", [member.host for member in value.members]), build_plan, PlayRollout(RolloutPolicy()))
    value.close()
    return value


def test_error_of_a_subscriber_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    fleet = emit_to(Broken(KeyError("surprise\x1b[2J")), recorder)
    assert [member.recap["exit"] for member in fleet.members if member.recap] == [0, 0]
    assert [event["event"] for event in recorder.events].count("recap") == 2
    result = capsys.readouterr().err
    assert result.count("Broken: internal error: KeyError") == 1
    assert "\x1b" not in result


def test_closed_output_ends_the_command_quietly() -> None:
    with pytest.raises(BrokenPipeError):
        emit_to(Broken(BrokenPipeError()))


def test_ctrl_c_stops_only_the_run_of_this_command() -> None:
    stopped: list[dict[str, Any]] = []
    message = threading.Event()

    class Link(PretendLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            if header["verb"] == "stop":
                stopped.append(header)
                message.set()
                return
            yield event("note", task="", text="at work")
            assert message.wait(20)
            yield from super().request(header, secrets)

    class User(Recorder):
        def on(self, event: Event) -> None:
            if event["event"] == "note":
                raise KeyboardInterrupt

    host = Host("s1", "s1")
    member = Member(host, link=Link(host, 1, []))
    fleet = Fleet([member], [User()], ask_stop=lambda hosts: True)
    plan = Plan("run-of-this-command", "s1", "Test", ()).to_json()
    fleet.each([member], lambda value: fleet.request(value, {"verb": "run", "plan": plan}))
    assert [item["run"] for item in stopped] == ["run-of-this-command"]


def test_ctrl_c_stops_a_run_that_starts_during_the_prompt() -> None:
    """Two servers of a machine run one after the other: the second run begins when the first ends."""
    stopped: list[str] = []
    is_asked, has_begun, is_stopped = threading.Event(), threading.Event(), threading.Event()

    class Link(PretendLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            if header["verb"] == "stop":
                stopped.append(header["run"])
                if header["run"] == "run-of-two":
                    is_stopped.set()
                return
            if header["plan"]["run_id"] == "run-of-one":
                yield event("note", task="", text="at work")
                assert is_asked.wait(20)
            else:
                has_begun.set()
                assert is_stopped.wait(5), "the second run was not stopped"
            yield from super().request(header, secrets)

    class User(Recorder):
        def on(self, event: Event) -> None:
            if event["event"] == "note":
                raise KeyboardInterrupt

    def answer(hosts: str) -> bool:
        is_asked.set()
        assert has_begun.wait(20)
        return True

    hosts = [Host(f"spark1/{name}", "spark1", on="spark1", server=name) for name in ("one", "two")]
    servers = [Member(host, link=Link(host, 1, [])) for host in hosts]
    fleet = Fleet(servers, [User()], ask_stop=answer)

    def run(member: Member) -> None:
        plan = Plan(f"run-of-{member.host.server}", member.host.name, "Test", ()).to_json()
        fleet.request(member, {"verb": "run", "plan": plan})

    fleet.each(servers, run)
    assert "run-of-two" in stopped


@pytest.mark.parametrize("detail", [False, True])
def test_note_of_the_laptop_has_the_published_format(detail: bool) -> None:
    recorder = Recorder()
    member = Member(Host("s1", "s1"), link=PretendLink(Host("s1", "s1"), 0, []))
    fleet = Fleet([member], [recorder])
    fleet.add_note(member, "copying through this laptop instead.", detail=detail)
    fleet.each([member], lambda value: fleet.request(value, build_module_request("fabric", {})))
    notes = [item for item in recorder.events if item["event"] == "note"]
    assert [item["detail"] for item in notes] == [detail]
    assert published.check_output("images.copy", json.dumps(notes[0])) == []


def test_ctrl_c_ends_a_query_without_naming_a_run() -> None:
    closed = threading.Event()

    class Link(PretendLink):
        def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
            yield event("note", task="", text="measuring")
            assert closed.wait(20)

        def close(self) -> None:
            closed.set()

    class User(Recorder):
        def on(self, event: Event) -> None:
            if event["event"] == "note":
                raise KeyboardInterrupt

    member = Member(Host("s1", "s1"), link=Link(Host("s1", "s1"), 1, []))
    fleet = Fleet([member], [User()], ask_stop=lambda hosts: pytest.fail("nothing runs that could be stopped"))
    with pytest.raises(Inconclusive, match="^stopped by Ctrl-C.$"):
        fleet.each([member], lambda value: fleet.request(value, build_module_request("fabric", {})))
    assert closed.is_set()


def test_events_of_the_laptop_are_escaped() -> None:
    """The name of a play comes from a playbook, which may be untrusted."""
    recorder = run_play(members(0), RolloutPolicy(), "x\x1b]52;c;aGk=\x07")
    assert recorder.events[0]["play"] == "x\\x1b]52;c;aGk=\\x07"


@pytest.mark.parametrize(
    ("without", "stopped"), [(("spark2",), "there is no plan for spark2"), (("spark1", "spark2"), "")]
)
def test_no_cluster_member_starts_unless_all_have_a_plan(without: tuple[str, ...], stopped: str) -> None:
    options: list[str] = []
    fleet = Fleet(members(0, 0, asked=options))

    def plan_of(member: Member) -> Plan:
        if member.host.name in without:
            raise Refused("ray is not offered.")
        return build_plan(member)

    hosts = [member.host for member in fleet.members]
    fleet.roll(fleet.begin("Test", hosts), plan_of, PlayRollout(RolloutPolicy(max_fail_percentage=100), together=True))
    fleet.close()
    assert options == []
    assert [name for name, error in fleet.errors().items() if error.message == "ray is not offered."] == list(without)
    assert fleet.stopped.startswith(stopped)
