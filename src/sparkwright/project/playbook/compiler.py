"""Compiles a play into a Plan for one host: validates it, and renders it as far as the laptop can."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from sparkwright import host_side
from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically
from sparkwright.modules import registry
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place, format_path
from sparkwright.project.documents.validation import suggest_name, validate
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook import selection
from sparkwright.project.playbook.names import ErrorLocator, PlayVariables
from sparkwright.project.playbook.playbook import BlockFile, Condition, Options, Play, TaskFile, walk_steps
from sparkwright.protocol import expressions, signature
from sparkwright.protocol.expressions import ExpressionError
from sparkwright.protocol.plan import Block, Plan, Step, Task
from sparkwright.protocol.signature import Signature
from sparkwright.trust.names import check_file_name
from sparkwright.visible import one_line

#: modules whose `src` names a file of templates/, which is sent as `content`
TEMPLATE_MODULES = frozenset({"template", "run_script"})

#: stage of the tasks in `rescue`
RESCUE_STAGE = "rescue"


def find_template(project: Path, name: str, where: str) -> Path:
    """Return the path of a template. Raises Refused if there is none with this name, or if the name is invalid."""
    if reason := check_file_name(name):
        message = f"the template '{one_line(name, max_chars=80)}' {reason}."
        raise Refused(message, where=where, fix="Name a file in templates/.")
    path = shipped_files.resolve_path(project, f"templates/{name}")
    if not document.exists(path):
        templates = [path.name for path in shipped_files.list_paths(project, "templates/*")]
        raise Refused(f"no template {name!r}.", where=where, fix=suggest_name(path.name, templates))
    return path


def compile(
    play: Play,
    host: Host,
    variables: Mapping[str, Any],
    options: Options,
    *,
    run_id: str,
    project: Path,
    registered: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a play for a host. Raises Refused for a mistake in the play.

    Args:
        variables: see `recipe.scope`.
        registered: results of earlier plays, by name.
    """
    file, locator = play.file, ErrorLocator(play, host)
    registered_names = {step["register"] for step in walk_steps([*file.tasks, *file.handlers]) if step.get("register")}
    registered_names |= set(registered or {})
    play_variables = PlayVariables(locator, file.vars, variables, options.extra, registered_names)
    compiler = _Compiler(play, locator, play_variables, project)
    steps = compiler.compile_steps(
        file.tasks,
        (*play.place, "tasks"),
        _OuterKeywords(become=file.become, tags=selection.split_names(file.tags)),
    )
    handlers = compiler.compile_handlers()
    compiler.check_notify()
    selected_steps = selection.select_steps(steps, play, options)
    return Plan(
        run_id=run_id,
        host=host.name,
        play=play.name,
        playbook=format_path(play.document.path),
        steps=selected_steps,
        handlers=handlers,
        vars=compiler.variables.values_for_host(),
        open_vars=compiler.variables.host_vars,
        registered=dict(registered or {}),
        check=options.check,
        diff=options.diff,
        exclusive=not play.file.read_only,
        measures=play.file.measures,
        who=options.who,
        force_handlers=play.file.force_handlers,
        wait_s=options.wait_s,
        server=host.server,
        by_turns=bool(host.turns),
        anyway=compiler.variables.laptop_values.get("anyway") is True,
        guard_gib=float(compiler.variables.laptop_values.get("guard_gib") or 0),
    )


@dataclass(frozen=True)
class _OuterKeywords:
    """Keywords that tasks inherit from the enclosing blocks and the play."""

    become: bool = False
    tags: tuple[str, ...] = ()
    server: str = ""
    vars: Mapping[str, Any] = field(default_factory=dict)


class _Compiler:
    """Compiles the tasks of a play in reading order.

    A stage begins at a task, block or include with `stage:` and lasts until the next one. In a play without `stage:`, each
    outermost block or include is a stage with its name. The tasks of a `rescue` are a separate stage.
    """

    def __init__(self, play: Play, locator: ErrorLocator, variables: PlayVariables, project: Path) -> None:
        self.play, self.locator, self.variables, self.project = play, locator, variables, project
        self.stage = ""
        self.has_named_stages = any(step.get("stage") for step in walk_steps(play.file.tasks))
        #: "file:line" of a `notify`, by the handler's name
        self.notify_locations: dict[str, str] = {}
        self.handler_names: set[str] = set()
        self._count = 0

    def where(self, place: Place) -> str:
        return self.play.document.where(*place)

    def compile_steps(self, items: list[dict[str, Any]], place: Place, outer: _OuterKeywords) -> tuple[Step, ...]:
        steps: list[Step] = []
        for n, item in enumerate(items):
            compile_step = self._compile_block if "block" in item else self._compile_task
            step = compile_step(item, (*place, n), outer)
            if not self._is_excluded(step, item.get("when"), (*place, n)):
                steps.append(step)
        return tuple(steps)

    def _is_excluded(self, step: Step, condition: Any, place: Place) -> bool:
        """Return True for an include whose condition uses variables and is false for this host."""
        if step.when != ("False",) or not self.play.document.is_included_at(*place, "block"):
            return False
        conditions = condition if isinstance(condition, list) else [condition]
        return any(expressions.names_in_condition(str(expression)) for expression in conditions)

    def _compile_block(self, item: dict[str, Any], place: Place, outer: _OuterKeywords) -> Block:
        file = validate(BlockFile, self.play.document, item, section_place=place)
        self._count += 1
        previous_stage = self.stage
        self.stage = file.stage or previous_stage or ("" if self.has_named_stages else _block_stage(file.name))
        keywords = _OuterKeywords(
            become=outer.become if file.become is None else file.become,
            tags=outer.tags + selection.split_names(file.tags),
            server=self._render_server(file.server, place, {**outer.vars, **file.vars}) or outer.server,
            vars={**outer.vars, **file.vars},
        )
        block = Block(
            id=f"b{self._count}",
            name=file.name or "block",
            when=self._evaluate_conditions(file.when, (*place, "when"), keywords.vars),
            where=self.where(place),
            tasks=self.compile_steps(file.block, (*place, "block"), keywords),
            rescue=self._compile_rescue(file.rescue, (*place, "rescue"), keywords),
            always=self.compile_steps(file.always, (*place, "always"), keywords),
        )
        if not self.has_named_stages:
            self.stage = previous_stage
        return block

    def _compile_rescue(self, items: list[dict[str, Any]], place: Place, outer: _OuterKeywords) -> tuple[Step, ...]:
        previous_stage, self.stage = self.stage, RESCUE_STAGE
        steps = self.compile_steps(items, place, outer)
        self.stage = previous_stage
        return steps

    def _compile_task(self, item: dict[str, Any], place: Place, outer: _OuterKeywords) -> Task:
        file = validate(TaskFile, self.play.document, item, section_place=place)
        module, values = split_module(self.play.document, item, place)
        local_vars = {**outer.vars, **file.vars}
        args, unresolved = self._render_arguments(module, values, place, local_vars)
        notify = selection.split_names(file.notify)
        self.notify_locations |= {name: self.where((*place, "notify")) for name in notify}
        self._count += 1
        self.stage = file.stage or self.stage
        title = self.variables.render(
            file.name, self.variables.with_local(local_vars), self.locator.in_playbook(*place, "name")
        )
        return Task(
            id=f"t{self._count}",
            name=str(title or module),
            module=module,
            args=args,
            open=unresolved,
            where=self.where(place),
            when=self._evaluate_conditions(file.when, (*place, "when"), local_vars),
            register=file.register_as or "",
            until=self._evaluate_conditions(file.until, (*place, "until"), local_vars),
            retries=file.retries,
            delay_s=file.delay,
            notify=notify,
            changed_when=self._evaluate_optional_conditions(file.changed_when, (*place, "changed_when"), local_vars),
            failed_when=self._evaluate_optional_conditions(file.failed_when, (*place, "failed_when"), local_vars),
            ignore_errors=file.ignore_errors,
            become=outer.become if file.become is None else file.become,
            no_log=file.no_log,
            check_mode=file.check_mode,
            server=self._render_server(file.server, place, local_vars) or outer.server,
            tags=outer.tags + selection.split_names(file.tags),
            stage=self.stage,
        )

    def _render_server(self, server: str | None, place: Place, local_vars: Mapping[str, Any]) -> str:
        """Return a task's `server`: rendered, or as an expression for the host to evaluate."""
        locate = self.locator.in_playbook(*place, "server")
        if not server or not self.variables.can_render(server, locate, local_vars):
            return server or ""
        return str(self.variables.render(server, self.variables.with_local(local_vars), locate))

    def _render_arguments(
        self, module: str, values: dict[str, Any], place: Place, local_vars: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        template = None
        if module in TEMPLATE_MODULES and "src" in values:
            template = self._find_template(values["src"], place, local_vars, module)
            content = document.read_text(template)
            values = {**{key: value for key, value in values.items() if key != "src"}, "content": content}
        variables = self.variables.with_local(local_vars)
        args, unresolved = dict(values), []
        for key, value in values.items():
            locate = self.locator.in_playbook(*place, module, key)
            if template and key == "content":
                locate = ErrorLocator.in_template(template)
            if self.variables.can_render(value, locate, local_vars):
                args[key] = self.variables.render(value, variables, locate)
            else:
                unresolved.append(key)
        try:
            signature.validate_arguments(load_signature(module), args, module=module, unresolved=frozenset(unresolved))
        except Refused as refused:
            raise self.locator.locate_argument_error(refused, (*place, module), values, local_vars) from None
        return args, tuple(unresolved)

    def _find_template(self, src: Any, place: Place, local_vars: Mapping[str, Any], module: str) -> Path:
        locate = self.locator.in_playbook(*place, module, "src")
        name = str(self.variables.render(src, self.variables.with_local(local_vars), locate))
        return find_template(self.project, name, locate())

    def _evaluate_conditions(
        self, condition: Condition | None, place: Place, local_vars: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Return the conditions that only the host can evaluate; ("False",) if one of the others is false."""
        if condition is None:
            return ()
        host_conditions: list[str] = []
        variables = self.variables.with_local(local_vars)
        for text in map(str, condition if isinstance(condition, list) else [condition]):
            if not self.variables.can_render("{{ " + text + " }}", self.locator.in_playbook(*place), local_vars):
                host_conditions.append(text)
                continue
            try:
                is_true = expressions.all_true((text,), variables)
            except ExpressionError as error:
                raise Refused(f"{error}.", where=self.where(place)) from None
            if not is_true:
                return ("False",)
        return tuple(host_conditions)

    def _evaluate_optional_conditions(
        self, condition: Condition | None, place: Place, local_vars: Mapping[str, Any]
    ) -> tuple[str, ...] | None:
        if condition is None:
            return None
        return self._evaluate_conditions(condition, place, local_vars) or ("True",)

    def compile_handlers(self) -> tuple[Task, ...]:
        place = (*self.play.place, "handlers")
        outer = _OuterKeywords(become=self.play.file.become)
        tasks = [self._compile_task(item, (*place, n), outer) for n, item in enumerate(self.play.file.handlers)]
        self.handler_names = {handler.name for handler in tasks}
        return tuple(tasks)

    def check_notify(self) -> None:
        for name, where in self.notify_locations.items():
            if name not in self.handler_names:
                raise Refused(f"no handler named {name!r}.", where=where, fix=suggest_name(name, self.handler_names))


def split_module(source: Document, item: dict[str, Any], place: Place) -> tuple[str, dict[str, Any]]:
    """Return a task's module and its arguments. Raises Refused unless there is exactly one module."""
    keys = [field.alias or name for name, field in TaskFile.model_fields.items()]
    other_keys = [key for key in item if key not in keys]
    modules = [key for key in other_keys if key in registry.NAMES]
    for key in other_keys:
        if key not in registry.NAMES:
            kind, names = ("key", keys) if modules else ("module", registry.NAMES)
            fix = suggest_name(key, names, label=f"Known {kind}s")
            raise Refused(f"unknown {kind} `{key}`.", where=source.where(*place, key), fix=fix)
    if len(modules) != 1:
        problem = f"more than one module: {', '.join(modules)}" if modules else "no module"
        fix = "Each task needs exactly one module with its arguments."
        raise Refused(f"this task has {problem}.", where=source.where(*place), fix=fix)
    arguments = item[modules[0]]
    if arguments is not None and not isinstance(arguments, dict):
        message = f"the arguments of `{modules[0]}` must be a mapping."
        raise Refused(message, where=source.where(*place, modules[0]))
    return modules[0], dict(arguments or {})


def _block_stage(name: str) -> str:
    """Return the stage of an outermost block: its name, without path and suffix if it is an include's file name."""
    return PurePath(name).stem if name.endswith((".yml", ".yaml")) else name


def load_signature(module: str) -> Signature:
    """Return the signature of a module. module: one of `registry.NAMES`."""
    return signature.from_json(_load_signatures()[module])


@functools.lru_cache(maxsize=1)
def _load_signatures() -> dict[str, Any]:
    """Return the signatures of all modules, from the laptop's cache if the code has not changed since."""
    path = host_side.cache_folder() / "signatures.json"
    try:
        cached = json.loads(path.read_bytes())
        if cached["of"] == host_side.content_hash():
            signatures: dict[str, Any] = cached["modules"]
            return signatures
    except (OSError, ValueError, KeyError, TypeError):
        pass
    signatures = {
        name: signature.to_json(signature.from_args_type(registry.load(name).Args)) for name in registry.NAMES
    }
    with contextlib.suppress(OSError):  # only a cache: the disk may be full, or the home directory not writable
        write_atomically(path, json.dumps({"of": host_side.content_hash(), "modules": signatures}).encode())
    return signatures
