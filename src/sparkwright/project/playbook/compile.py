"""From a play to a Plan for one host: everything checked, everything that files decide rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project.documents import document
from sparkwright.project.documents.checked import check, nearest
from sparkwright.project.documents.document import Place, shown
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook import cycles, selection, signatures
from sparkwright.project.playbook.blame import Blame, Where
from sparkwright.project.playbook.models import BlockFile, Condition, TaskFile
from sparkwright.project.playbook.playbook import Options, Play
from sparkwright.protocol import arguments, expressions
from sparkwright.protocol.expressions import ExpressionError
from sparkwright.protocol.plan import Block, Plan, Step, Task
from sparkwright.trust.names import why_not_a_file
from sparkwright.visible import one_line

#: names that only the host knows
HOST_SIDE = frozenset({"facts", "failed_result"})
#: names whose values are data of the recipe: braces in them mean nothing
LITERAL = frozenset({"recipe", "container", "engine", "lock", "pinned_model", "serve", "arms", "arms_known", "loads"})
#: modules whose `content` may be the `src` of a file of templates/
TEMPLATED = frozenset({"template", "run_script"})
BLOCK_KEYS = ("block", "rescue", "always")


def compile(
    play: Play,
    host: Host,
    names: Mapping[str, Any],
    options: Options,
    *,
    run_id: str,
    project: Path,
    registered: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of this play for this host. names: what the laptop knows (see recipe.scope).

    registered: results of earlier plays. Raises Refused with file and line for anything that can't be right.
    """
    compiler = _Compiler(play, names, options.extra, project, earlier=dict(registered or {}), host=host)
    steps = compiler.steps(
        play.file.tasks, (*play.place, "tasks"), _Inherited(become=play.file.become, tags=_list(play.file.tags))
    )
    handlers = compiler.handlers()
    compiler.check_notify()
    chosen = selection.select(steps, options)
    return Plan(
        run_id=run_id,
        host=host.name,
        play=play.name,
        playbook=shown(play.document.path),
        steps=chosen,
        handlers=handlers,
        vars=compiler.shipped(),
        open_vars=compiler.open_vars,
        registered=dict(registered or {}),
        check=options.check,
        diff=options.diff,
        exclusive=not play.file.read_only,
        measures=play.file.measures,
        who=options.who,
        force_handlers=play.file.force_handlers,
        wait_s=options.wait_s,
    )


@dataclass(frozen=True)
class _Inherited:
    """What a block gives to its tasks."""

    become: bool = False
    tags: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    vars: Mapping[str, Any] = field(default_factory=dict)


class _Compiler:
    def __init__(
        self,
        play: Play,
        names: Mapping[str, Any],
        extra: Mapping[str, Any],
        project: Path,
        earlier: dict[str, Any],
        host: Host,
    ) -> None:
        self.play = play
        self.blame = Blame(play, host)
        self.project = project
        self.registers = _registers(play.file.tasks) | _registers(play.file.handlers) | set(earlier)
        self.notified: dict[str, str] = {}
        self.handler_names: set[str] = set()
        self._shipped: set[str] = set()
        self._count = 0
        self.names, self.open_vars = self._variables({**names, **extra}, set(extra))

    # -- variables -----------------------------------------------------------------------------------------------

    def _variables(self, names: dict[str, Any], given: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The play's variables beside the host's, each rendered as far as the laptop can; the rest stay open.

        given: those that win over the play's own.
        """
        waiting = {**{k: v for k, v in names.items() if expressions.is_open(v) and k not in LITERAL}}
        known = {k: v for k, v in names.items() if k not in waiting}
        waiting |= {name: value for name, value in self.play.file.vars.items() if name not in given}
        open_vars: dict[str, Any] = {}
        while waiting:
            ready = [k for k, v in waiting.items() if self._needs(v, k) <= known.keys()]
            for name in ready:
                known[name] = self._render(waiting.pop(name), known, self.blame.variable(name))
            if not ready:
                self._refuse_cycle(waiting)
                known_later = known.keys() | waiting.keys() | HOST_SIDE | self.registers
                for name, value in waiting.items():
                    self._refuse_unknown(self._needs(value, name) - known_later, self.blame.variable(name), known_later)
                open_vars = waiting
                break
        return known, open_vars

    def _refuse_cycle(self, waiting: Mapping[str, Any]) -> None:
        """Refuse variables that wait for each other. One that is named like a result may ask for that result."""
        own = HOST_SIDE | self.registers
        needs = {name: self._needs(value, name) - ({name} if name in own else set()) for name, value in waiting.items()}
        cycle = cycles.find(needs)
        if cycle:
            message = f"variables refer to each other: {' -> '.join(cycle)}."
            raise Refused(message, where=self.blame.variable(cycle[0])())

    def _needs(self, value: Any, name: str) -> frozenset[str]:
        try:
            return expressions.names_in_value(value)
        except ExpressionError as error:
            raise Refused(f"vars.{name}: {error}.", where=self.blame.variable(name)()) from None

    def _render(self, value: Any, names: Mapping[str, Any], at: Where) -> Any:
        try:
            return expressions.render(value, names)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=at(error.line)) from None

    def shipped(self) -> dict[str, Any]:
        """The laptop's values that open expressions ask for, and no others."""
        for value in self.open_vars.values():
            self._shipped |= expressions.names_in_value(value)
        return {name: self.names[name] for name in sorted(self._shipped) if name in self.names}

    # -- steps ---------------------------------------------------------------------------------------------------

    def where(self, place: Place) -> str:
        return self.play.document.where(*place)

    def steps(self, items: list[dict[str, Any]], place: Place, above: _Inherited) -> tuple[Step, ...]:
        return tuple(self._step(item, (*place, n), above) for n, item in enumerate(items))

    def _step(self, item: dict[str, Any], place: Place, above: _Inherited) -> Step:
        return self._block(item, place, above) if "block" in item else self._task(item, place, above)

    def _block(self, item: dict[str, Any], place: Place, above: _Inherited) -> Block:
        file = check(BlockFile, self.play.document, item, at=place)
        self._count += 1
        inside = _Inherited(
            become=above.become if file.become is None else file.become,
            tags=above.tags + _list(file.tags),
            vars={**above.vars, **file.vars},
        )
        parts = {
            "tasks": self.steps(file.block, (*place, "block"), inside),
            "rescue": self.steps(file.rescue, (*place, "rescue"), inside),
            "always": self.steps(file.always, (*place, "always"), inside),
        }
        return Block(
            id=f"b{self._count}",
            name=file.name or "block",
            when=self._conditions(file.when, (*place, "when"), inside.vars),
            where=self.where(place),
            **parts,
        )

    def _task(self, item: dict[str, Any], place: Place, above: _Inherited) -> Task:
        file = check(TaskFile, self.play.document, item, at=place)
        module, values = self._module(item, place)
        local = {**above.vars, **file.vars}
        args, open_names = self._arguments(module, values, place, local)
        notify = _list(file.notify)
        self.notified |= {name: self.where((*place, "notify")) for name in notify}
        self._count += 1
        return Task(
            id=f"t{self._count}",
            name=str(self._render(file.name, self._with(local), self.blame.place(*place, "name")))
            if file.name
            else module,
            module=module,
            args=args,
            open=open_names,
            where=self.where(place),
            when=self._conditions(file.when, (*place, "when"), local),
            register=file.register_as or "",
            until=self._conditions(file.until, (*place, "until"), local),
            retries=file.retries,
            delay_s=file.delay,
            notify=notify,
            changed_when=self._optional(file.changed_when, (*place, "changed_when"), local),
            failed_when=self._optional(file.failed_when, (*place, "failed_when"), local),
            ignore_errors=file.ignore_errors,
            become=above.become if file.become is None else file.become,
            no_log=file.no_log,
            check_mode=file.check_mode,
            tags=above.tags + _list(file.tags),
        )

    def _module(self, item: dict[str, Any], place: Place) -> tuple[str, dict[str, Any]]:
        keys = [field.alias or name for name, field in TaskFile.model_fields.items()]
        others = [key for key in item if key not in keys]
        modules = [key for key in others if key in registry.NAMES]
        for key in others:
            if key not in registry.NAMES:
                known = [*registry.NAMES, *([] if not modules else keys)]
                what = "key" if modules else "module"
                fix = nearest(key, known if what == "module" else keys, many="Modules")
                raise Refused(f"unknown {what} `{key}`.", where=self.where((*place, key)), fix=fix)
        if len(modules) != 1:
            message = "names no module" if not modules else f"names two modules: {', '.join(modules)}"
            raise Refused(
                f"this task {message}.", where=self.where(place), fix="A task is one module with its arguments."
            )
        values = item[modules[0]]
        if values is not None and not isinstance(values, dict):
            raise Refused(f"`{modules[0]}` takes a mapping of arguments.", where=self.where((*place, modules[0])))
        return modules[0], dict(values or {})

    # -- arguments and conditions --------------------------------------------------------------------------------

    def _arguments(
        self, module: str, values: dict[str, Any], place: Place, local: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        template = None
        if module in TEMPLATED and "src" in values:
            template = self._template(values["src"], place, local, module)
            content = document.text_of(template)
            values = {**{key: value for key, value in values.items() if key != "src"}, "content": content}
        names = self._with(local)
        args, open_names = {}, []
        for key, value in values.items():
            at = self.blame.place(*place, module, key)
            if template is not None and key == "content":
                at = Blame.text(template)
            needed = self._known(value, at, names)
            if needed <= names.keys():
                args[key] = self._render(value, names, at)
            else:
                args[key] = value
                open_names.append(key)
                self._shipped |= needed
        try:
            arguments.check(signatures.takes(module), args, module=module, open_names=frozenset(open_names))
        except Refused as refused:
            raise self.blame.argument(refused, (*place, module), values, own=local) from None
        return args, tuple(open_names)

    def _template(self, src: Any, place: Place, local: Mapping[str, Any], module: str) -> Path:
        name = str(self._render(src, self._with(local), self.blame.place(*place, module, "src")))
        reason = why_not_a_file(name)
        if reason:
            message = f"the template '{one_line(name, at_most=80)}' {reason}."
            raise Refused(message, where=self.where((*place, module, "src")), fix="Name a file of templates/.")
        path = self.project / "templates" / name
        if not document.is_file(path):
            known = [one.name for one in (self.project / "templates").glob("*")]
            at = self.where((*place, module, "src"))
            raise Refused(f"no template {src!r}.", where=at, fix=nearest(path.name, known))
        return path

    def _conditions(self, given: Condition | None, place: Place, local: Mapping[str, Any]) -> tuple[str, ...]:
        """What is left to ask: a condition that files decide is decided here."""
        left: list[str] = []
        names = self._with(local)
        for one in [] if given is None else given if isinstance(given, list) else [given]:
            text = str(one)
            needed = self._known("{{ " + text + " }}", self.blame.place(*place), names)
            if not needed <= names.keys():
                self._shipped |= needed
                left.append(text)
            elif not self._holds(text, names, place):
                return ("False",)
        return tuple(left)

    def _optional(self, given: Condition | None, place: Place, local: Mapping[str, Any]) -> tuple[str, ...] | None:
        if given is None:
            return None
        return self._conditions(given, place, local) or ("True",)

    def _holds(self, text: str, names: Mapping[str, Any], place: Place) -> bool:
        try:
            return expressions.holds((text,), names)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=self.where(place)) from None

    def _with(self, local: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self.names,
            **{name: self._render(value, self.names, self.blame.place()) for name, value in local.items()},
        }

    def _known(self, value: Any, at: Where, names: Mapping[str, Any]) -> frozenset[str]:
        """The names a value asks for. Raises Refused when nobody will ever know one of them."""
        try:
            needed = expressions.names_in_value(value)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=at(error.line)) from None
        known = names.keys() | self.open_vars.keys() | HOST_SIDE | self.registers
        self._refuse_unknown(needed - known, at, known, value)
        return needed

    def _refuse_unknown(self, unknown: frozenset[str], at: Where, known: Any, value: Any = None) -> None:
        if unknown:
            name = sorted(unknown)[0]
            line = expressions.line_of_name(value, name) if isinstance(value, str) else 0
            fix = nearest(name, known, many="Known keys")
            raise Refused(f"unknown variable `{name}`.", where=at(line), fix=fix)

    # -- handlers ------------------------------------------------------------------------------------------------

    def handlers(self) -> tuple[Task, ...]:
        place = (*self.play.place, "handlers")
        found = [
            self._task(item, (*place, n), _Inherited(become=self.play.file.become))
            for n, item in enumerate(self.play.file.handlers)
        ]
        self.handler_names = {handler.name for handler in found}
        return tuple(found)

    def check_notify(self) -> None:
        for name, where in self.notified.items():
            if name not in self.handler_names:
                raise Refused(f"no handler named {name!r}.", where=where, fix=nearest(name, self.handler_names))


def _registers(items: list[dict[str, Any]]) -> set[str]:
    """Every name that some task of these registers."""
    found: set[str] = set()
    for item in items:
        if isinstance(item, dict):
            if isinstance(item.get("register"), str):
                found.add(item["register"])
            for key in BLOCK_KEYS:
                found |= _registers(item.get(key) or [])
    return found


def _list(given: list[str] | str) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else given
    return tuple(word.strip() for word in words if word.strip())
