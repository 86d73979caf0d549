"""Plays on a host: blocks, handlers, retries, check mode and the recap, as in Ansible."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from sparkwright.errors import Exit, Refused
from sparkwright.host.containers import replacement
from sparkwright.host.containers.replacement import CreatedContainer
from sparkwright.host.machine import Machine
from sparkwright.host.module import Context, Module
from sparkwright.host.runs.context import is_engine_disconnect
from sparkwright.host.state import StateFolder
from sparkwright.modules import registry
from sparkwright.modules.system.command import Fail
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Block, Plan, Step, Task
from sparkwright.protocol.result import Result, arg
from sparkwright.runner.play import PlayRun
from sparkwright.secret import Secret


class SayModule(Module["SayModule.Args"]):
    """A module for tests that appends a word to a file and has a chosen result."""

    @dataclass(frozen=True)
    class Args:
        word: Any = arg("appended to the file", default="")
        file: str = arg("path of the file", default="")
        changed: bool = arg("the result is changed", default=False)
        refuse: str = arg("message of a refusal", default="")
        fails_until: int = arg("number of first attempts that fail", default=0)
        unclear: bool = arg("the result is inconclusive", default=False)

    def run(self, args: Args, context: Context) -> Result:
        path = Path(args.file)
        if args.refuse:
            raise Refused(args.refuse)
        if context.check:
            return Result(changed=args.changed)
        with path.open("a") as out:
            out.write(f"{args.word}\n")
        tries = path.read_text().splitlines().count(str(args.word))
        failed, exit = tries <= args.fails_until, Exit.INCONCLUSIVE if args.unclear else None
        return Result(changed=args.changed, failed=failed, msg=f"try {tries}", data={"word": args.word}, exit=exit)


class CreateModule(SayModule):
    """Creates the server's replacement, or starts it."""

    def run(self, args: SayModule.Args, context: Context) -> Result:
        context.created_container = (
            None if args.word == "start" else CreatedContainer("1" * 64, ContainerSpec("qwen", "image"))
        )
        return Result(changed=True)


class ProofModule(SayModule):
    """Does not run in check mode after a change."""

    valid_in_check_mode = False


class LoadModule(SayModule):
    """Loads the server, in check mode too."""

    loads_server = True

    def run(self, args: SayModule.Args, context: Context) -> Result:
        Path(args.file).write_text("loaded\n")
        return Result()


@dataclass
class Stage:
    """Builds and runs plays, and has their events."""

    folder: Path
    events: list[Event] = field(default_factory=list)
    stop_after: str = ""

    def task(self, name: str, **fields: Any) -> Task:
        args = {"word": name, "file": str(self.folder / "words"), **fields.pop("args", {})}
        module = fields.pop("module", "say")
        return Task(id=name, name=name, module=module, args={"msg": name} if module == "fail" else args, **fields)

    def failing_task(self, name: str = "broken", **fields: Any) -> Task:
        return self.task(name, module="fail", **fields)

    def block(self, *tasks: Step, name: str = "swap", **fields: Any) -> Block:
        return Block(id=name, name=name, tasks=tasks, **fields)

    def run(self, *steps: Step, **fields: Any) -> Event:
        plan = Plan(run_id="r1", host="spark1", play="Test", steps=steps, **fields)
        state, machine = StateFolder(self.folder / "state"), Machine(home=self.folder)
        return PlayRun(plan, machine, state, {"TOKEN": Secret("s3cret")}, self.events.append, self._is_stopped).run()

    def _is_stopped(self) -> bool:
        return bool(self.stop_after) and self.stop_after in self.written()

    def written(self) -> list[str]:
        """Return the words that tasks appended to the file."""
        path = self.folder / "words"
        return path.read_text().splitlines() if path.exists() else []

    def finished(self, name: str) -> Event:
        return next(event for event in self.events if event["event"] == "task_finished" and event["name"] == name)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    modules: dict[str, type[Module[Any]]] = {
        "say": SayModule,
        "create": CreateModule,
        "proof": ProofModule,
        "load": LoadModule,
        "fail": Fail,
    }
    monkeypatch.setattr(registry, "load", modules.__getitem__)
    return Stage(tmp_path)


def counts(recap: Event) -> dict[str, int]:
    return {key: recap[key] for key in ("ok", "changed", "failed", "skipped") if recap[key]}


def test_tasks_run_in_order_and_are_counted(stage: Stage) -> None:
    recap = stage.run(stage.task("a"), stage.task("b", args={"changed": True}), stage.task("c", when=("False",)))
    assert stage.written() == ["a", "b"]
    assert counts(recap) == {"ok": 2, "changed": 1, "skipped": 1}
    assert recap["exit"] == 0


def test_failure_stops_the_play_and_is_its_message(stage: Stage) -> None:
    recap = stage.run(stage.task("a"), stage.failing_task(), stage.task("never"))
    assert stage.written() == ["a"]
    assert (recap["failed"], recap["exit"], recap["msg"]) == (1, 1, "broken")


def test_registered_result_is_available_to_later_tasks(stage: Stage) -> None:
    second = stage.task("b", args={"word": "after {{ first.word }}"}, open=("word",), when=("first is succeeded",))
    stage.run(stage.task("a", register="first"), second)
    assert stage.written() == ["a", "after a"]


def test_rendered_argument_is_not_rendered_again(stage: Stage) -> None:
    stage.run(stage.task("a", args={"word": "{{ not an expression }}"}))
    assert stage.written() == ["{{ not an expression }}"]


def test_rescue_that_ends_in_fail_is_a_failure(stage: Stage) -> None:
    rescue = (stage.task("put back"), stage.failing_task("the old server serves"))
    block = stage.block(stage.failing_task(), rescue=rescue)
    recap = stage.run(block, stage.task("next"))
    assert stage.written() == ["put back"]
    assert (recap["exit"], recap["msg"]) == (1, "the old server serves")


def test_failed_result_survives_a_nested_rescue(stage: Stage) -> None:
    inner = stage.block(stage.failing_task("no luck"), name="serve again", rescue=(stage.task("once more"),))
    result = Task(id="say", name="say", module="fail", args={"msg": "{{ failed_result.msg }}"}, open=("msg",))
    recap = stage.run(stage.block(stage.failing_task(), rescue=(inner, result)))
    assert stage.written() == ["once more"]
    assert (recap["exit"], recap["msg"]) == (1, "broken")


def test_block_with_a_false_condition_is_skipped(stage: Stage) -> None:
    block = stage.block(stage.task("x"), stage.task("y"), when=("first.changed",))
    recap = stage.run(stage.task("a", register="first"), block)
    assert stage.written() == ["a"]
    assert recap["skipped"] == 2


def test_handlers_run_once_at_the_end_after_a_change(stage: Stage) -> None:
    reload, quiet = stage.task("reload"), stage.task("quiet")
    stage.run(
        stage.task("a", args={"changed": True}, notify=("reload",)),
        stage.task("b", args={"changed": True}, notify=("reload",)),
        stage.task("c", notify=("quiet",)),
        handlers=(reload, quiet),
    )
    assert stage.written() == ["a", "b", "c", "reload"]


def test_until_retries(stage: Stage) -> None:
    waits = stage.task("w", args={"fails_until": 2}, register="w", until=("w is succeeded",), retries=5, delay_s=0)
    recap = stage.run(waits)
    assert stage.written() == ["w", "w", "w"]
    assert recap["exit"] == 0
    assert stage.finished("w")["registered"]["attempts"] == 3


def test_until_that_stays_false_is_a_failure(stage: Stage) -> None:
    recap = stage.run(stage.task("w", register="w", until=("w.word == 'x'",), retries=1, delay_s=0))
    assert stage.written() == ["w", "w"]
    assert recap["failed"] == 1


def test_changed_when_and_failed_when_override_the_result(stage: Stage) -> None:
    quiet = stage.task("a", args={"changed": True}, changed_when=("False",))
    bad = stage.task("b", register="b", failed_when=("b.word == 'b'",))
    recap = stage.run(quiet, bad)
    assert counts(recap) == {"ok": 1, "failed": 1}


@pytest.mark.parametrize(
    ("before", "exit_code"),
    [(("create",), Exit.REFUSED), (("create", "start"), Exit.FAILED), (("create", "pull"), Exit.FAILED)],
)
def test_refusal_after_creating_the_replacement(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...], exit_code: Exit
) -> None:
    """The run removes a container that it created and did not start, so that nothing has changed."""
    monkeypatch.setattr(replacement, "discard_created", lambda context: None)
    modules = {"pull": "say"}
    tasks = [stage.task(name, module=modules.get(name, "create"), args={"changed": True}) for name in before]
    recap = stage.run(*tasks, stage.task("check", args={"refuse": "the port is in use"}))
    assert recap["exit"] == exit_code


def test_ignored_failure_is_counted_as_ignored(stage: Stage) -> None:
    recap = stage.run(stage.failing_task(ignore_errors=True), stage.task("next"))
    assert stage.written() == ["next"]
    assert (recap["failed"], recap["ignored"], recap["exit"]) == (0, 1, 0)


def test_check_mode_changes_nothing_and_ends_with_2(stage: Stage) -> None:
    recap = stage.run(stage.task("a", args={"changed": True}), check=True)
    assert stage.written() == []
    assert (recap["changed"], recap["exit"]) == (1, 2)


def test_check_mode_reports_values_that_depend_on_a_change(stage: Stage) -> None:
    use = stage.task("use", args={"word": "{{ made.word }}"}, open=("word",))
    recap = stage.run(
        stage.task("make", args={"changed": True}, register="made"),
        use,
        stage.task("prove", module="proof"),
        check=True,
    )
    assert stage.finished("use")["msg"] == stage.finished("prove")["msg"] == "known after: make"
    assert recap["failed"] == 0


@pytest.mark.parametrize("measures", [False, True])
def test_check_mode_loads_the_server_only_in_a_play_that_measures(stage: Stage, measures: bool) -> None:
    stage.run(stage.task("load", module="load"), check=True, measures=measures)
    assert stage.written() == (["loaded"] if measures else [])
    assert (stage.finished("load")["status"] == "skipped") is not measures


def test_refusal_is_exit_5_only_before_any_change(stage: Stage) -> None:
    no_room = stage.task("preflight", args={"refuse": "no room"})
    assert stage.run(no_room)["exit"] == 5
    assert stage.run(stage.task("a", args={"changed": True}), no_room)["exit"] == 1


def test_stop_between_tasks_runs_the_rescue(stage: Stage) -> None:
    stage.stop_after = "stop"
    recap = stage.run(stage.block(stage.task("stop"), stage.task("start"), rescue=(stage.task("put back"),)))
    assert stage.written() == ["stop", "put back"]
    assert recap["exit"] == 1
    assert recap["msg"].startswith("stopped on request, before: start.")


def test_no_log_hides_message_diff_and_data(stage: Stage) -> None:
    stage.run(stage.task("a", args={"word": "s3cret"}, register="a", no_log=True))
    assert "s3cret" not in str([event for event in stage.events if event["event"] == "task_finished"])
    assert stage.finished("a")["msg"] == "hidden by no_log"


def test_inconclusive_task_does_not_stop_the_play(stage: Stage) -> None:
    recap = stage.run(stage.task("unclear", args={"unclear": True}), stage.task("next"))
    assert (recap["exit"], recap["failed"], recap["msg"]) == (Exit.INCONCLUSIVE, 0, "try 1")
    assert stage.written() == ["unclear", "next"]
    failed = stage.run(stage.task("again", args={"unclear": True}), stage.failing_task("bad"))
    assert (failed["exit"], failed["msg"]) == (Exit.FAILED, "bad")


def test_docker_disconnect_is_recognized(tmp_path: Path) -> None:
    client = docker.DockerClient(base_url=f"unix://{tmp_path}/docker.sock", version="1.41")
    with pytest.raises(requests.ConnectionError) as caught:
        client.api.inspect_container("qwen35")
    assert is_engine_disconnect(caught.value)
    assert not is_engine_disconnect(requests.ConnectionError("another server"))
