"""Run a play on this host: tasks in order, blocks with rescue and always, and handlers at the end."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Exit, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.memory.start_guard import Guards
from sparkwright.host.module import Module
from sparkwright.host.runs.context import RunContext, is_engine_disconnect
from sparkwright.host.state import StateFolder
from sparkwright.modules import registry
from sparkwright.protocol import events, expressions, signature
from sparkwright.protocol.events import KNOWN_AFTER_PREFIX, Event, event
from sparkwright.protocol.plan import Block, Plan, Step, Task
from sparkwright.protocol.result import Result, check_result
from sparkwright.runner.become import Become
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.host.cluster.channel import Channel

DEFAULT_RETRIES = 3


@dataclass
class PlayRun:
    """Runs a plan. `run()` returns the recap event; all other events are passed to `emit`."""

    plan: Plan
    machine: Machine
    state: StateFolder
    secrets: Mapping[str, Secret]
    emit: Callable[[Event], None]
    #: called between tasks; a stop counts as a failure, so that rescue and always run
    should_stop: Callable[[], bool] = lambda: False
    #: channel to the runs on the other members of a cluster
    cluster: Channel | None = None

    def __post_init__(self) -> None:
        plan, emit = self.plan, self.emit
        self.registered: dict[str, Any] = {"failed_result": Result().registered(), **plan.registered}
        self.notified_handlers: set[str] = set()
        self.counts = dict.fromkeys((*events.COUNTS, *events.RARE_COUNTS), 0)
        #: name of the first task that changed something
        self.first_changed_task = ""
        #: whether a task has created the server's replacement, which is not yet a change
        self.has_created_replacement = False
        #: task name and message of the last failed task
        self.last_failure = ("", "")
        #: failure due to a requested stop
        self.stop_result: Result | None = None
        #: first result that is not a failure but has an exit code other than 0
        self.unproved_result: Result | None = None
        #: failure that was last reported to the other members
        self.reported_failure: Result | None = None
        #: result of `end_host`
        self.end_host_result: Result | None = None
        self.context = RunContext(self.machine, self.state, plan.run_id, emit, facts=self.facts, secrets=self.secrets)
        self.context.cluster = self.cluster
        self.context.guards = Guards(plan.guard_gib, self.context.note, plan.anyway)
        self.become = Become(self.machine, self.state, plan.run_id, self.secrets, emit, plan.host)

    @property
    def facts(self) -> dict[str, Any]:
        """The result of the `facts` module in this play or an earlier one; empty until it has run."""
        facts: dict[str, Any] = self.registered.setdefault("facts", {})
        return facts

    def run(self) -> Event:
        """Run all steps and then the notified handlers. Never raises."""
        started_s = time.monotonic()
        try:
            with self.become:
                failure = self._run_steps(self.plan.steps)
                if failure is None or self.plan.force_handlers:
                    failure = self._run_handlers() or failure
        finally:
            self.context.guards.end()
            self._discard_created()
        failure = failure or self.stop_result
        self._notify_members(failure)
        outcome = failure or self.unproved_result or self.end_host_result
        return event(
            "recap",
            run=self.plan.run_id,
            host=self.plan.host,
            **self.counts,
            exit=int(self._exit_code(failure)),
            seconds=round(time.monotonic() - started_s, 3),
            msg=f"{outcome.msg} {outcome.fix}".strip() if outcome else "",
        )

    def _discard_created(self) -> None:
        """Remove the container that this run created to replace the server, if it was not started."""
        if self.context.created_container is not None:
            from sparkwright.host.containers import replacement

            replacement.discard_created(self.context)

    def _exit_code(self, failure: Result | None) -> Exit:
        """Return the exit code of this run. It is "refused" only if nothing has been changed."""
        if failure is None:
            code = (self.unproved_result and self.unproved_result.exit) or Exit.OK
            return Exit.CHANGES if self.plan.check and self.counts["changed"] else code
        if failure.exit is None or (failure.exit is Exit.REFUSED and self.first_changed_task):
            return Exit.FAILED
        return failure.exit

    # -- steps ---------------------------------------------------------------------------------------------------

    def _run_steps(self, steps: tuple[Step, ...], *, stoppable: bool = True) -> Result | None:
        """Run steps until one fails, and return the failure or None."""
        for step in steps:
            if self.end_host_result is not None:
                return None
            if stoppable and self.should_stop():
                self.stop_result = Result(failed=True, msg=f"stopped on request, before: {step.name}.")
                return self.stop_result
            failure = self._run_block(step, stoppable) if isinstance(step, Block) else self._run_task(step)
            if failure is not None:
                return failure
        return None

    def _run_block(self, block: Block, stoppable: bool) -> Result | None:
        """Run a block with its rescue and always.

        If its condition can't be evaluated, the block fails as if its first task had failed.
        """
        failed_count_before, outer_failure = self.counts["failed"], self.registered["failed_result"]
        try:
            applies, failure = self._are_true(block.when), None
        except Exception as error:
            placeholder = Task(id=block.id, name=block.name, module="block", where=block.where)
            result = self._result_of_error(error, "block")
            applies, failure = result.failed, self._report_unstarted(placeholder, result) if result.failed else None
        if not applies:
            self._skip_all(block.tasks)
            return None
        failure = failure or self._run_steps(block.tasks, stoppable=stoppable)
        self._notify_members(failure)
        if failure is not None:
            self.registered["failed_result"] = failure.registered()
        if failure is not None and block.rescue:
            self.counts["rescued"] += self.counts["failed"] - failed_count_before
            self.counts["failed"] = failed_count_before
            failure = self._run_steps(block.rescue, stoppable=False)
        failure = self._run_steps(block.always, stoppable=False) or failure
        self.registered["failed_result"] = outer_failure
        return failure

    def _notify_members(self, failure: Result | None) -> None:
        """Report a failure to the other members once, before a rescue if there is one, so that their runs fail too.

        A stop after a reported failure, such as one that skipped an arm, is not reported: it would fail their rescue.
        """
        is_known = failure is self.reported_failure or (
            failure is self.stop_result and self.reported_failure is not None
        )
        if failure is not None and not is_known and self.cluster is not None:
            self.reported_failure = failure
            task_name, msg = ("", failure.msg) if failure is self.stop_result else self.last_failure
            self.cluster.fail(task_name, msg, refused=self._exit_code(failure) is Exit.REFUSED)

    def _skip_all(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Block):
                self._skip_all(step.tasks)
            else:
                self._finish_task(step, Result(skipped=True, msg="the block's condition is false"), 0.0)

    def _report_unstarted(self, task: Task, result: Result) -> Result | None:
        """Report the result of a step that could not start, as a task that starts and ends immediately."""
        self.emit(event("task_started", **_task_fields(task)))
        return self._finish_task(task, result, 0.0)

    def _run_handlers(self) -> Result | None:
        failures = (self._run_task(handler) for handler in self.plan.handlers if handler.name in self.notified_handlers)
        return next((failure for failure in failures if failure is not None), None)

    # -- one task ------------------------------------------------------------------------------------------------

    def _run_task(self, task: Task) -> Result | None:
        started_s = time.monotonic()
        self.emit(event("task_started", **_task_fields(task)))
        self.context.task = task.id
        self.context.check = self.plan.check if task.check_mode is None else task.check_mode
        try:
            result = (
                self._run_attempts(task)
                if self._are_true(task.when)
                else Result(skipped=True, msg="condition is false")
            )
        except Exception as error:
            result = self._result_of_error(error, task.module)
        result = self._apply_guard_outcome(result)
        if task.register:
            self.registered[task.register] = result.registered()
        if task.module == "facts" and not result.failed:
            self.facts.update(result.data)
        if task.module == "end_host" and not result.failed and not result.skipped:
            self.end_host_result = result
        return self._finish_task(task, result, time.monotonic() - started_s)

    def _apply_guard_outcome(self, result: Result) -> Result:
        """Return the result, or a failure if the memory guard has killed the server."""
        guards = self.context.guards
        guards.set_figures(result.data)
        return guards.outcome(result)

    def _run_attempts(self, task: Task) -> Result:
        """Run a task once, or with up to `retries` more attempts (as in Ansible) until its condition is true."""
        max_attempts = 1 + (task.retries or (DEFAULT_RETRIES if task.until else 0))
        for attempt in range(1, max_attempts + 1):
            result = self._run_attempt(task)
            result.data["attempts"] = attempt
            try:
                self._apply_conditions(task, result)
                is_done = self._are_true(task.until, task, result) if task.until else not result.failed
            except expressions.ExpressionError as error:
                is_done = not result.failed  # a failed attempt may not have set the names that the conditions use
                if is_done and not self._known_after_message(error):
                    result.failed, result.msg = True, str(error)  # its changes and data are kept
                elif is_done:
                    raise
            if is_done or self.context.check:
                return result
            if attempt < max_attempts:
                self.emit(
                    event("note", task=task.id, text=f"attempt {attempt} of {max_attempts}: {result.msg or 'not yet'}")
                )
                self.context.check_failures()
                time.sleep(task.delay_s)
        result.failed = True
        return result

    def _run_attempt(self, task: Task) -> Result:
        try:
            module_class = registry.load(task.module)
            if self.context.check and not module_class.valid_in_check_mode and self.first_changed_task:
                return Result(skipped=True, msg=KNOWN_AFTER_PREFIX + self.first_changed_task)
            if self.context.check and module_class.loads_server and not self.plan.measures:
                msg = f"{KNOWN_AFTER_PREFIX}a run without check mode, because it loads the server"
                return Result(skipped=True, msg=msg)
            variables = self._resolve_variables(expressions.names_in_value([task.args[name] for name in task.open]))
            values = {k: expressions.render(v, variables) if k in task.open else v for k, v in task.args.items()}
            return self._call_module(task, module_class, values)
        except expressions.ExpressionError:
            raise
        except BaseException as error:  # even a library's sys.exit must not end a replacement halfway
            return self._result_of_error(error, task.module)

    def _result_of_error(self, error: BaseException, module: str) -> Result:
        """Return the result of a task that raised an error: failed, or in check mode skipped as "known after" a change."""
        if isinstance(error, expressions.ExpressionError):
            message = self._known_after_message(error)
            return Result(skipped=True, msg=message) if message else Result(failed=True, msg=str(error))
        if isinstance(error, SparkwrightError):
            code = None if error.exit is Exit.FAILED else error.exit
            data = dict(getattr(error, "data", {}))
            return Result(failed=True, msg=error.message, fix=error.fix, exit=code, data=data)
        print("".join(traceback.format_exception(error)), flush=True)
        if isinstance(error, Exception) and is_engine_disconnect(error):
            fix = "On the host: `systemctl status docker` shows why."
            return Result(failed=True, msg="lost the connection to the Docker Engine.", fix=fix)
        first_line = next(iter(str(error).strip().splitlines()), "no message")
        return Result(failed=True, msg=f"{module}: {type(error).__name__}: {first_line}")

    def _call_module(self, task: Task, module_class: type[Module[Any]], values: dict[str, Any]) -> Result:
        args = signature.build_args(module_class.Args, values, module=task.module)
        if task.become and not module_class.never_as_root:
            return check_result(self.become.run(task.module, values, self.context), task.module)
        return check_result(module_class().run(args, self._context_of(task)), task.module)

    def _context_of(self, task: Task) -> RunContext:
        """Return the context for a task, with another state folder if the task is about another server on this host."""
        if not task.server:
            return self.context
        variables = self._resolve_variables(expressions.names_in_value(task.server))
        server = expressions.render(task.server, variables) if expressions.has_expression(task.server) else task.server
        self.context.docker()  # connect first, so that both contexts use the same client
        return dataclasses.replace(self.context, state=self.state.for_server(str(server)))

    def _apply_conditions(self, task: Task, result: Result) -> None:
        """Apply `changed_when` and `failed_when`, which override the module's own result."""
        if task.changed_when is not None and not result.failed:
            result.changed = self._are_true(task.changed_when, task, result)
        if task.failed_when is not None:
            result.failed = self._are_true(task.failed_when, task, result)

    def _finish_task(self, task: Task, result: Result, seconds: float) -> Result | None:
        """Count and report a result. Returns it if it is a failure that is not ignored."""
        is_ignored = result.failed and task.ignore_errors
        if result.failed:
            self.counts["ignored" if is_ignored else "failed"] += 1
        else:
            self.counts["skipped" if result.skipped else "ok"] += 1
        if result.exit in (Exit.INCONCLUSIVE, Exit.CHANGES) and not result.failed:
            self.unproved_result = self.unproved_result or result
        if self.context.created_container is not None and not self.has_created_replacement:
            self.has_created_replacement = True  # not a change, because an unstarted replacement is removed at the end
        elif result.changed:
            self.first_changed_task = self.first_changed_task or task.name
        if result.changed and not result.failed:
            self.counts["changed"] += 1
            self.notified_handlers.update(task.notify)
        reported_result = Result(msg="hidden by no_log") if task.no_log else result
        fields = {
            "status": "ignored" if is_ignored else result.status,
            "msg": reported_result.msg,
            "proof": task.module in registry.PROVING_MODULES and not (result.skipped or result.failed),
            "fix": reported_result.fix,
            "data": reported_result.data,
            "diff": [dataclasses.asdict(change) for change in reported_result.diff],
            "register": task.register,
            "registered": reported_result.registered() if task.register else {},
            "exit": int(result.exit or Exit.FAILED) if result.failed else 0,
        }
        self.emit(event("task_finished", **_task_fields(task), **fields, seconds=round(seconds, 3)))
        if not result.failed or is_ignored:
            return None
        self.last_failure = (task.name, reported_result.msg)
        return result

    # -- names ---------------------------------------------------------------------------------------------------

    def _are_true(self, conditions: tuple[str, ...], task: Task | None = None, result: Result | None = None) -> bool:
        used_names = frozenset().union(*(expressions.names_in_condition(condition) for condition in conditions))
        variables = self._resolve_variables(used_names)
        if task is not None and result is not None and task.register:
            variables[task.register] = result.registered()
        return expressions.all_true(conditions, variables)

    def _resolve_variables(self, used_names: frozenset[str]) -> dict[str, Any]:
        """Return the values of variables, facts and results for expressions. Used open variables are rendered."""
        return self._build_scope(used_names, {}, ())

    def _build_scope(
        self, used_names: frozenset[str], rendered: dict[str, Any], rendering: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the values for expressions.

        Args:
            rendered: open variables that have been rendered.
            rendering: open variables that are being rendered, outermost first.
        """
        for name in sorted(used_names & self.plan.open_vars.keys() - rendered.keys()):
            if name in rendering:
                raise expressions.ExpressionError(f"variables refer to each other: {' -> '.join((*rendering, name))}")
            value = self.plan.open_vars[name]
            scope = self._build_scope(expressions.names_in_value(value) - {name}, rendered, (*rendering, name))
            rendered[name] = expressions.render(value, scope)
        rendered_vars = {name: rendered[name] for name in used_names & rendered.keys()}
        return {**self.plan.vars, **self.registered, **rendered_vars}

    def _known_after_message(self, error: expressions.ExpressionError) -> str:
        """Return the message of a value that is unknown in check mode before an earlier change; empty for any other error."""
        depends_on_change = isinstance(error, expressions.UnknownName) and self.plan.check and self.first_changed_task
        return KNOWN_AFTER_PREFIX + self.first_changed_task if depends_on_change else ""


def _task_fields(task: Task) -> dict[str, str]:
    """Return the fields that all events of a task share."""
    return {"task": task.id, "name": task.name, "module": task.module, "where": task.where, "stage": task.stage}
