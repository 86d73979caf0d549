"""What an engine must answer, so that everything else is written once.

An engine is a folder here with four files: http.py (how its server is asked and what it answers), flags.py (its command line),
log.py (what its log tells) and advice.py (what is wrong with a recipe, and what it needs of the host); image.py, where an image of
it tells what is in it; key_file.py, where it reads its key from a file; files.py, where it serves single files; parallel.py, where it
serves one model from several hosts; causes.py, what makes it slow and no other; prefix_cache.py, where it tells of that; caches.py,
where it compiles at its start what it can find again; imports.py, where recipes of others can be taken in; probe_flags.py, where a flag
causes what `expect.probes` finds. Each holds one value of the type that is named below, or is itself one: a module whose functions are
the type's. A part is imported when it is asked for: a health check needs http.py alone.

An engine with description.py is known from its recipe alone: its parts are made from that description, which travels with the
container as a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from sparkwright.engines.http import GENERATE, Task
from sparkwright.engines.prefix.cache import Untold
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.task_flags import TaskFlags

if TYPE_CHECKING:
    from sparkwright.engines.advice import Advice
    from sparkwright.engines.command_words import Command
    from sparkwright.engines.compile_caches import CompileCaches
    from sparkwright.engines.files import Files
    from sparkwright.engines.flags import Flags
    from sparkwright.engines.http import Http
    from sparkwright.engines.image import Image
    from sparkwright.engines.imports import Imports
    from sparkwright.engines.log.book import LogBook
    from sparkwright.engines.log.text import Text
    from sparkwright.engines.parallel import MemberLog, Parallel
    from sparkwright.engines.prefix.cache import PrefixCache
    from sparkwright.engines.server_key import ServerKey
    from sparkwright.engines.slowness.cause import Detector

#: as recipes name them
Name = Literal["vllm", "llama_cpp", "sglang", "openai"]
#: the same, as people do
TITLES: dict[str, str] = {
    "vllm": "vLLM",
    "llama_cpp": "llama.cpp",
    "sglang": "SGLang",
    "openai": "OpenAI-compatible server",
}
USUAL = "vllm"
#: how their servers sign the models that they list
OWNERS = {"vllm": "vllm", "llamacpp": "llama_cpp", "sglang": "sglang"}
#: tells the engine of a container; one without it runs vLLM, as all did before there were others
LABEL = "sparkwright.engine"
#: of an engine that its recipe describes: the description, as JSON
DESCRIPTION = "sparkwright.engine.description"
#: of a container that does not generate text: its task
TASK = "sparkwright.task"
TASKS: tuple[Task, ...] = get_args(Task)
#: what a recipe of an engine needs of it
NEEDED = ("http", "flags", "advice")


@dataclass(frozen=True)
class Engine:
    """One engine. name: of its folder, as recipes write it. title: as people write it. described: how one that its recipe
    describes is asked, as its label holds it; empty for what is usual. task: what it serves with it."""

    name: str
    title: str
    described: str = ""
    task: Task = GENERATE

    @property
    def needs_description(self) -> bool:
        """Whether a recipe has to say how it is asked."""
        return self._has("description")

    @property
    def labels(self) -> dict[str, str]:
        """The labels with which a container says its engine and its task; vLLM that generates text needs none."""
        task = {TASK: str(self.task)} if self.task != GENERATE else {}
        if self.name == USUAL:
            return task
        return {LABEL: self.name, **({DESCRIPTION: self.described} if self.described else {}), **task}

    def of_section(self, section: Mapping[str, Any]) -> Engine:
        """This engine as its section of a recipe describes it; the same where engines need no description."""
        if not self.needs_description:
            return self
        return replace(self, described=self._part("description", "written")(section))

    @property
    def description(self) -> Mapping[str, Any]:
        """What its recipe described, by the section's keys; empty where engines need no description, or it is none."""
        found: Mapping[str, Any] = self._part("description", "read")(self.described) if self.described else {}
        return found

    def mistakes(self, section: Mapping[str, Any]) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """What is wrong with a section that describes an engine: where in it, and why, as "must be ..."."""
        found: Iterable[tuple[tuple[str | int, ...], str]] = (
            self._part("description", "mistakes")(section) if self.needs_description else ()
        )
        return found

    @property
    def served(self) -> bool:
        """Whether this release serves with it."""
        return all(map(self._has, NEEDED))

    @cached_property
    def http(self) -> Http:
        """How its server is asked, and what it answers."""
        found: Http = self._part("http", "HTTP")
        if self.task == GENERATE:
            return found
        return replace(found, task=self.task, roles={**found.roles, **found.unlike})

    @cached_property
    def log(self) -> LogBook:
        """What its log tells."""
        found: LogBook = self._part("log", "LOG")
        return found

    @cached_property
    def flags(self) -> Flags:
        """Its command line."""
        found: Flags = self._part("flags", "FLAGS")
        return found

    def command(self, words: Sequence[str]) -> Command:
        """The model and the flags of a command that serves with it."""
        found: Command = self._part("command_words", "parsed")(words)
        return found

    @cached_property
    def advice(self) -> Advice:
        """What is wrong with a recipe, and what the engine will make of it."""
        found: Advice = self._part("advice", "ADVICE")
        return found

    @cached_property
    def image(self) -> Image | None:
        """What an image tells of it; None where images tell nothing."""
        found: Image | None = self._part("image", "IMAGE") if self._has("image") else None
        return found

    def version_in_image(self, config: Mapping[str, Any]) -> str | None:
        """The version of the engine that an image's Config states; None when it states none."""
        return self.image.version_of(config) if self.image else None

    @cached_property
    def key(self) -> ServerKey | None:
        """How it reads its key from a file; None where it does not."""
        found: ServerKey | None = self._part("key_file", "SERVER_KEY") if self._has("key_file") else None
        return found

    @cached_property
    def files(self) -> Files | None:
        """How it chooses its files from a repository's; None where it serves the whole folder."""
        found: Files | None = self._part("files", "FILES") if self._has("files") else None
        return found

    @cached_property
    def parallel(self) -> Parallel | None:
        """How it serves one model from several hosts; None where it does not, or not with this release."""
        found: Parallel | None = self._part("parallel", "PARALLEL") if self._has("parallel") else None
        return found

    @cached_property
    def prefix_cache(self) -> PrefixCache:
        """What it tells of its prefix cache; nothing where it tells nothing."""
        found: PrefixCache = self._part("prefix_cache", "PREFIX_CACHE") if self._has("prefix_cache") else Untold()
        return found

    @cached_property
    def task_flags(self) -> TaskFlags:
        """What its flags have to do with tasks; nothing is known where it has no such part."""
        found: TaskFlags = self._part("task_flags", "TASK_FLAGS") if self._has("task_flags") else TaskFlags()
        return found

    @cached_property
    def probe_flags(self) -> ProbeFlags:
        """Which of its flags causes what a probe of its answers finds; nothing is known where it has no such part."""
        found: ProbeFlags = self._part("probe_flags", "PROBE_FLAGS") if self._has("probe_flags") else ProbeFlags()
        return found

    @cached_property
    def causes(self) -> tuple[Detector, ...]:
        """What makes it slow and no other engine."""
        found: tuple[Detector, ...] = self._part("causes", "DETECTORS") if self._has("causes") else ()
        return found

    @cached_property
    def caches(self) -> CompileCaches | None:
        """What it compiles at its start and can find again; None where nothing of that is known."""
        found: CompileCaches | None = self._part("caches", "CACHES") if self._has("caches") else None
        return found

    @cached_property
    def imports(self) -> Imports | None:
        """What others say otherwise when they start it; None where no recipe of others is taken in."""
        found: Imports | None = self._part("imports", "IMPORTS") if self._has("imports") else None
        return found

    @cached_property
    def member(self) -> Callable[[Text], MemberLog] | None:
        """What the log of a cluster's member tells, without the rest of `parallel`; None where that is None."""
        found: Callable[[Text], MemberLog] | None = self._part("parallel", "MEMBER") if self._has("parallel") else None
        return found

    def _has(self, part: str) -> bool:
        folder = f"{__package__}.{self.name}"
        return find_spec(folder) is not None and find_spec(f"{folder}.{part}") is not None

    def _part(self, name: str, value: str) -> Any:
        part = import_module(f"{__package__}.{self.name}.{name}")
        made = getattr(part, "described", None)
        return made(self.described) if made else getattr(part, value, part)


@lru_cache
def of(name: str) -> Engine:
    """The engine of this name. Raises KeyError for none of TITLES."""
    return Engine(name, TITLES[name])


def served() -> tuple[Engine, ...]:
    """The engines that this release serves with."""
    return tuple(engine for engine in map(of, TITLES) if engine.served)


def of_name(name: object) -> Engine:
    """The engine of a name that a file or a label gives; one that is none of ours is taken for the usual one."""
    return of(name if isinstance(name, str) and name in TITLES else USUAL)


def of_models(answer: Any) -> Engine:
    """The engine of a server that nobody described, by who owns the models that it lists."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    owners = [row.get("owned_by") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return of(next((OWNERS[owner] for owner in owners if isinstance(owner, str) and owner in OWNERS), USUAL))


def of_labels(labels: Mapping[str, Any] | None) -> Engine:
    """The engine of a container or of a spec, by its labels; a name that is none of ours is taken for the usual one."""
    found = of_name((labels or {}).get(LABEL))
    described, task = (labels or {}).get(DESCRIPTION), (labels or {}).get(TASK)
    if isinstance(described, str) and found.needs_description:
        found = replace(found, described=described)
    return next((replace(found, task=item) for item in TASKS if item == task), found)
