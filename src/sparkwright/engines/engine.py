"""The interface of an engine. The rest of sparkwright uses engines through it alone.

An engine is a folder here with four files:
  http.py: the server's paths and answers
  flags.py: the command line
  log.py: the reader of the log
  advice.py: findings about a recipe, and the memory that the engine needs

and, where the engine has the feature, with:
  image.py: reads the engine's version and options from an image
  key_file.py: the file with the API key
  files.py: the choice of single files from a repository
  parallel.py: one model on several hosts
  causes.py: causes of slowness of this engine alone
  prefix_cache.py: what the engine reports about its prefix cache
  caches.py: compile caches
  command_line.py: reads its command lines; flags of tasks, of recipes written elsewhere, and those that cause what `expect.probes` finds

Each file holds one value of the type named below, or is itself one: a module whose functions are the type's. A part is imported
on first use: a health check needs http.py alone.

An engine with description.py is known from its recipe alone: its parts are made from that description, which travels with the
container as a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from sparkwright.engines.http import GENERATE, Task
from sparkwright.engines.prefix import Untold
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags

if TYPE_CHECKING:
    from sparkwright.engines.advice import Advice
    from sparkwright.engines.compile_caches import CompileCaches
    from sparkwright.engines.files import Files
    from sparkwright.engines.flags import Command, Flags, Imports
    from sparkwright.engines.http import Http
    from sparkwright.engines.log.book import LogBook
    from sparkwright.engines.log.text import Text
    from sparkwright.engines.parallel import MemberLog, Parallel
    from sparkwright.engines.prefix import PrefixCache
    from sparkwright.engines.server_key import ServerKey
    from sparkwright.engines.slowness import Detector

#: names in recipes
Name = Literal["vllm", "llama_cpp", "sglang", "openai"]
#: names for people
TITLES: dict[str, str] = {
    "vllm": "vLLM",
    "llama_cpp": "llama.cpp",
    "sglang": "SGLang",
    "openai": "OpenAI-compatible server",
}
USUAL = "vllm"
#: engines by the `owned_by` of the models that their servers list
OWNERS = {"vllm": "vllm", "llamacpp": "llama_cpp", "sglang": "sglang"}
#: label with the engine of a container; a container without it runs vLLM, which was the first engine
LABEL = "sparkwright.engine"
#: label with the description of a described server, as JSON
DESCRIPTION = "sparkwright.engine.description"
#: label with the task of a container that does not generate text
TASK = "sparkwright.task"
TASKS: tuple[Task, ...] = get_args(Task)
#: parts of an engine that a recipe needs
NEEDED = ("http", "flags", "advice")


@dataclass(frozen=True)
class Engine:
    """An inference engine."""

    #: name of its folder, as recipes write it
    name: str
    #: name for people
    title: str
    #: description from the recipe, as the container's label holds it; empty for the defaults
    described: str = ""
    #: task that the server has
    task: Task = GENERATE

    @property
    def needs_description(self) -> bool:
        """True if a recipe must describe the server's API."""
        return self._has("description")

    @property
    def labels(self) -> dict[str, str]:
        """The labels that name a container's engine and task; vLLM that generates text needs none."""
        task = {TASK: str(self.task)} if self.task != GENERATE else {}
        if self.name == USUAL:
            return task
        return {LABEL: self.name, **({DESCRIPTION: self.described} if self.described else {}), **task}

    def of_section(self, section: Mapping[str, Any]) -> Engine:
        """Return this engine with the description in its section of a recipe; unchanged if the engine needs no description."""
        if not self.needs_description:
            return self
        return replace(self, described=self._part("description", "written")(section))

    @property
    def description(self) -> Mapping[str, Any]:
        """The recipe's description of the server, by the section's keys; empty if there is none or the engine needs none."""
        found: Mapping[str, Any] = self._part("description", "read")(self.described) if self.described else {}
        return found

    def mistakes(self, section: Mapping[str, Any]) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Return the mistakes in a section that describes an engine, each as its place in the section and the reason ("must be
        ...")."""
        found: Iterable[tuple[tuple[str | int, ...], str]] = (
            self._part("description", "mistakes")(section) if self.needs_description else ()
        )
        return found

    @property
    def served(self) -> bool:
        """True if this release of sparkwright can serve with the engine."""
        return all(map(self._has, NEEDED))

    @cached_property
    def http(self) -> Http:
        """The HTTP interface of its server."""
        found: Http = self._part("http", "HTTP")
        if self.task == GENERATE:
            return found
        return replace(found, task=self.task, roles={**found.roles, **found.unlike})

    @cached_property
    def log(self) -> LogBook:
        """The reader of its log."""
        found: LogBook = self._part("log", "LOG")
        return found

    @cached_property
    def flags(self) -> Flags:
        """The flags of its command line."""
        found: Flags = self._part("flags", "FLAGS")
        return found

    def command(self, words: Sequence[str]) -> Command:
        """Return the model and the flags of a command that starts the server."""
        found: Command = self._part("command_line", "parsed")(words)
        return found

    @cached_property
    def advice(self) -> Advice:
        """The rules about its recipes, and the settings that it will derive from them."""
        found: Advice = self._part("advice", "ADVICE")
        return found

    @cached_property
    def image(self) -> Image | None:
        """The reader of its images; None if images report nothing."""
        found: Image | None = self._part("image", "IMAGE") if self._has("image") else None
        return found

    def version_in_image(self, config: Mapping[str, Any]) -> str | None:
        """Return the engine's version in an image's Config; None if it holds none."""
        return self.image.version_of(config) if self.image else None

    @cached_property
    def key(self) -> ServerKey | None:
        """The API key in a file; None if the engine reads none from a file."""
        found: ServerKey | None = self._part("key_file", "SERVER_KEY") if self._has("key_file") else None
        return found

    @cached_property
    def files(self) -> Files | None:
        """The choice of files from a repository; None if the engine serves the whole folder."""
        found: Files | None = self._part("files", "FILES") if self._has("files") else None
        return found

    @cached_property
    def parallel(self) -> Parallel | None:
        """Serving one model from several hosts; None if the engine, or this release of sparkwright, can't."""
        found: Parallel | None = self._part("parallel", "PARALLEL") if self._has("parallel") else None
        return found

    @cached_property
    def prefix_cache(self) -> PrefixCache:
        """The reader of what the engine reports about its prefix cache; an empty one if it reports nothing."""
        found: PrefixCache = self._part("prefix_cache", "PREFIX_CACHE") if self._has("prefix_cache") else Untold()
        return found

    @cached_property
    def task_flags(self) -> TaskFlags:
        """The flags that decide about tasks; empty if the engine has no such part."""
        found: TaskFlags = (
            self._part("command_line", "TASK_FLAGS") if self._has("command_line", "TASK_FLAGS") else TaskFlags()
        )
        return found

    @cached_property
    def probe_flags(self) -> ProbeFlags:
        """The flags that cause what probes find; empty if the engine has no such part."""
        found: ProbeFlags = (
            self._part("command_line", "PROBE_FLAGS") if self._has("command_line", "PROBE_FLAGS") else ProbeFlags()
        )
        return found

    @cached_property
    def causes(self) -> tuple[Detector, ...]:
        """The detectors of causes of slowness that only this engine has."""
        found: tuple[Detector, ...] = self._part("causes", "DETECTORS") if self._has("causes") else ()
        return found

    @cached_property
    def caches(self) -> CompileCaches | None:
        """The compile caches; None if none are known."""
        found: CompileCaches | None = self._part("caches", "CACHES") if self._has("caches") else None
        return found

    @cached_property
    def imports(self) -> Imports | None:
        """The differences between recipes written elsewhere and ours; None if recipes for this engine can't be imported."""
        found: Imports | None = self._part("command_line", "IMPORTS") if self._has("command_line", "IMPORTS") else None
        return found

    @cached_property
    def member(self) -> Callable[[Text], MemberLog] | None:
        """The reader of a cluster member's log, without the rest of `parallel`; None if the engine has no such part."""
        found: Callable[[Text], MemberLog] | None = self._part("parallel", "MEMBER") if self._has("parallel") else None
        return found

    def _has(self, part: str, value: str = "") -> bool:
        """Return if the engine's folder has this file, and the file this value."""
        folder = f"{__package__}.{self.name}"
        if find_spec(folder) is None or find_spec(f"{folder}.{part}") is None:
            return False
        return not value or hasattr(import_module(f"{folder}.{part}"), value)

    def _part(self, name: str, value: str) -> Any:
        part = import_module(f"{__package__}.{self.name}.{name}")
        made = getattr(part, "described", None)
        return made(self.described) if made else getattr(part, value, part)


@lru_cache
def of(name: str) -> Engine:
    """Return the engine of this name. Raises KeyError for a name that is not in TITLES."""
    return Engine(name, TITLES[name])


def served() -> tuple[Engine, ...]:
    """Return the engines that this release of sparkwright serves with."""
    return tuple(engine for engine in map(of, TITLES) if engine.served)


def of_name(name: object) -> Engine:
    """Return the engine that a file or a label names; the default engine for an unknown name."""
    return of(name if isinstance(name, str) and name in TITLES else USUAL)


def of_models(answer: Any) -> Engine:
    """Return the engine of a server without labels, by the owner of the models that it lists."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    owners = [row.get("owned_by") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return of(next((OWNERS[owner] for owner in owners if isinstance(owner, str) and owner in OWNERS), USUAL))


def of_labels(labels: Mapping[str, Any] | None) -> Engine:
    """Return the engine of a container or of a spec, by its labels; the default engine for an unknown name."""
    found = of_name((labels or {}).get(LABEL))
    described, task = (labels or {}).get(DESCRIPTION), (labels or {}).get(TASK)
    if isinstance(described, str) and found.needs_description:
        found = replace(found, described=described)
    return next((replace(found, task=item) for item in TASKS if item == task), found)


class Image(Protocol):
    """Commands that print the version and the options of an image's engine, and readers of their output.

    Options are shapes by name, as one release of the engine lists them; they are stored as the difference from a known release.
    """

    @property
    def ASK_VERSION(self) -> tuple[str, ...]:
        """The program and arguments that print the version."""

    @property
    def ASK_OPTIONS(self) -> tuple[str, ...]:
        """The program and arguments that list the options."""

    def version_of(self, config: Mapping[str, Any]) -> str | None:
        """Return the version in an image's Config; None if it holds none."""

    def version_in(self, text: str) -> str | None:
        """Return the version in the output of ASK_VERSION."""

    def listed(self, text: str) -> dict[str, str]:
        """Return the options in the output of ASK_OPTIONS; empty if it is not a list of options."""

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return the options as they are stored: as the difference from a known release."""

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return True if `applied` can use the stored difference, or the image listed no options; else run the image again."""

    def applied(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the options from a stored difference; empty if none was stored."""
