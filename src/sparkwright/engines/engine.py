"""The interface of an engine: what each must answer. The rest of sparkwright uses engines through it alone.

An engine is a folder here. A file has the same name in each folder, and `Engine` below lists the values that it holds:

    http.py         how the server is asked, and its API key
    flags.py        the command that starts it, and how commands written elsewhere are read
    log.py          the format of its log, and the causes of slowness that the log tells
    advice.py       findings about a recipe (the rules are in rules.py), and the memory that the engine needs
    options.json    its options, a row each (option_table.py); other releases' are in option_history.json, or releases.json
    image.py        the engine's version and options, as an image tells them
    caches.py       its prefix cache and its compile caches
    files.py        the files of a repository that it needs
    parallel.py     one model on several hosts; member_log.py reads the log of one of them

NEEDED_FILES are in every folder. Files are imported on first use: a health check needs http.py alone.

An engine with description.py is known from its recipe alone: its values are made from that description, which travels with the
container as a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, overload

from sparkwright.engines.caches import UnreportedPrefixCache
from sparkwright.engines.http import GENERATE, Task
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkwright.engines.advice import Advice
    from sparkwright.engines.caches import CompileCaches, PrefixCache
    from sparkwright.engines.flags import Command, Flags, ImportTable
    from sparkwright.engines.http import Http, ServerKey
    from sparkwright.engines.log.log_format import LogFormat
    from sparkwright.engines.log.text import LogText
    from sparkwright.engines.parallel import MemberLog, Parallel

#: names in recipes
Name = Literal["vllm", "llama_cpp", "sglang", "openai"]
#: names for people
TITLES: dict[str, str] = {
    "vllm": "vLLM",
    "llama_cpp": "llama.cpp",
    "sglang": "SGLang",
    "openai": "OpenAI-compatible server",
}
DEFAULT_ENGINE = "vllm"
#: engines by the `owned_by` of the models that their servers list
ENGINES_BY_OWNER = {"vllm": "vllm", "llamacpp": "llama_cpp", "sglang": "sglang"}
#: label with the engine of a container; a container without it runs vLLM, which was the first engine
ENGINE_LABEL = "sparkwright.engine"
#: label with the description of a described server, as JSON
DESCRIPTION_LABEL = "sparkwright.engine.description"
#: label with the task of a container that does not generate text
TASK_LABEL = "sparkwright.task"
TASKS: tuple[Task, ...] = get_args(Task)
#: files without which an engine can't be served with
NEEDED_FILES = ("http", "flags", "log", "advice")
P = TypeVar("P")


class EnginePart(Generic[P]):
    """A value in a file of the engine's folder, or the file itself: a module whose functions are the value's.

    For an engine with a description it is the result of the file's function described_VALUE, if there is one.
    """

    def __init__(self, file: str, value: str = "", default: Any = None) -> None:
        """Name the file and the value in it. default: of an engine that has no such file, or no such value in it."""
        self._file, self._value, self._default = file, value, default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, engine: None, owner: type) -> EnginePart[P]: ...

    @overload
    def __get__(self, engine: Engine, owner: type) -> P: ...

    def __get__(self, engine: Engine | None, owner: type) -> Any:
        if engine is None:
            return self
        value = engine.__dict__[self._name] = self._read(engine)
        return value

    def _read(self, engine: Engine) -> Any:
        module = _import_file(engine.name, self._file)
        if module is None:
            return self._default
        build = getattr(module, f"described_{self._value.lower()}", None)
        if build is not None:
            return build(engine.described)
        return getattr(module, self._value, self._default) if self._value else module


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

    #: the HTTP interface of a server that generates text; see `http`
    _http: ClassVar[EnginePart[Http]] = EnginePart("http", "HTTP")
    #: the API key in a file; None if the engine reads none from a file
    key: ClassVar[EnginePart[ServerKey | None]] = EnginePart("http", "SERVER_KEY")
    #: the flags of its command line
    flags: ClassVar[EnginePart[Flags]] = EnginePart("flags")
    #: the model and the flags of the words of a command that starts the server
    command: ClassVar[EnginePart[Callable[[Sequence[str]], Command]]] = EnginePart("flags", "parse_command")
    #: the differences between recipes written elsewhere and ours; None if recipes for this engine can't be imported
    imports: ClassVar[EnginePart[ImportTable | None]] = EnginePart("flags", "IMPORTS")
    #: the flags that decide about tasks
    task_flags: ClassVar[EnginePart[TaskFlags]] = EnginePart("flags", "TASK_FLAGS", TaskFlags())
    #: the flags that cause what probes find
    probe_flags: ClassVar[EnginePart[ProbeFlags]] = EnginePart("flags", "PROBE_FLAGS", ProbeFlags())
    #: the format of its log
    log: ClassVar[EnginePart[LogFormat]] = EnginePart("log", "LOG")
    #: the detectors (slowness.Detector) of causes of slowness that only this engine has
    causes: ClassVar[EnginePart[tuple[Callable[[Any], Iterator[Any]], ...]]] = EnginePart("log", "DETECTORS", ())
    #: the rules about its recipes, and the settings that it will derive from them
    advice: ClassVar[EnginePart[Advice]] = EnginePart("advice")
    #: the reader of its images; None if images report nothing
    image: ClassVar[EnginePart[Image | None]] = EnginePart("image")
    #: the reader of what the engine reports about its prefix cache
    prefix_cache: ClassVar[EnginePart[PrefixCache]] = EnginePart("caches", default=UnreportedPrefixCache())
    #: the compile caches; None if none are known
    caches: ClassVar[EnginePart[CompileCaches | None]] = EnginePart("caches", "CACHES")
    #: the choice of files from a repository; None if the engine serves the whole folder
    files: ClassVar[EnginePart[Files | None]] = EnginePart("files")
    #: serving one model from several hosts; None if the engine, or this release of sparkwright, can't
    parallel: ClassVar[EnginePart[Parallel | None]] = EnginePart("parallel")
    #: the reader of a cluster member's log, without the rest of `parallel`; None if the engine has none
    member: ClassVar[EnginePart[Callable[[LogText], MemberLog] | None]] = EnginePart("member_log", "member")
    #: the reader of descriptions; None for an engine that needs none
    _descriptions: ClassVar[EnginePart[Any]] = EnginePart("description")

    @cached_property
    def http(self) -> Http:
        """The HTTP interface of its server."""
        found = self._http
        return found if self.task == GENERATE else replace(found, task=self.task, roles={**found.roles, **found.unlike})

    @property
    def served(self) -> bool:
        """True if this release of sparkwright can serve with the engine."""
        return all(_import_file(self.name, file) for file in NEEDED_FILES)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that name a container's engine and task; vLLM that generates text needs none."""
        task = {TASK_LABEL: str(self.task)} if self.task != GENERATE else {}
        if self.name == DEFAULT_ENGINE:
            return task
        return {ENGINE_LABEL: self.name, **({DESCRIPTION_LABEL: self.described} if self.described else {}), **task}

    @property
    def needs_description(self) -> bool:
        """True if a recipe must describe the server's API."""
        return self._descriptions is not None

    def with_section(self, section: Mapping[str, Any]) -> Engine:
        """Return this engine with the description in its section of a recipe; unchanged if the engine needs no description."""
        return replace(self, described=self._descriptions.render_label(section)) if self.needs_description else self

    @property
    def description(self) -> Mapping[str, Any]:
        """The recipe's description of the server, by the section's keys; empty if there is none or the engine needs none."""
        found: Mapping[str, Any] = self._descriptions.parse_label(self.described) if self.described else {}
        return found

    def find_mistakes(self, section: Mapping[str, Any]) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Return the mistakes in a section that describes an engine, each as its place in the section and the reason ("must be
        ...")."""
        found: Iterable[tuple[tuple[str | int, ...], str]] = (
            self._descriptions.find_mistakes(section) if self.needs_description else ()
        )
        return found

    def version_in_image(self, config: Mapping[str, Any]) -> str | None:
        """Return the engine's version in an image's Config; None if it holds none."""
        return self.image.version_of(config) if self.image else None


@lru_cache
def _import_file(engine: str, file: str) -> Any:
    """Return a file of an engine's folder; None if it has none."""
    folder = f"{__package__}.{engine}"
    exists = find_spec(folder) is not None and find_spec(f"{folder}.{file}") is not None
    return import_module(f"{folder}.{file}") if exists else None


@lru_cache
def get_engine(name: str) -> Engine:
    """Return the engine of this name. Raises KeyError for a name that is not in TITLES."""
    return Engine(name, TITLES[name])


def list_served() -> tuple[Engine, ...]:
    """Return the engines that this release of sparkwright serves with."""
    return tuple(engine for engine in map(get_engine, TITLES) if engine.served)


def get_or_default(name: object) -> Engine:
    """Return the engine that a file or a label names; the default engine for an unknown name."""
    return get_engine(name if isinstance(name, str) and name in TITLES else DEFAULT_ENGINE)


def detect_from_models(answer: Any) -> Engine:
    """Return the engine of a server without labels, by the owner of the models that it lists."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    owners = [row.get("owned_by") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return get_engine(
        next(
            (ENGINES_BY_OWNER[owner] for owner in owners if isinstance(owner, str) and owner in ENGINES_BY_OWNER),
            DEFAULT_ENGINE,
        )
    )


def from_labels(labels: Mapping[str, Any] | None) -> Engine:
    """Return the engine of a container or of a spec, by its labels; the default engine for an unknown name."""
    engine = get_or_default((labels or {}).get(ENGINE_LABEL))
    described, task = (labels or {}).get(DESCRIPTION_LABEL), (labels or {}).get(TASK_LABEL)
    if isinstance(described, str) and engine.needs_description:
        engine = replace(engine, described=described)
    return next((replace(engine, task=item) for item in TASKS if item == task), engine)


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

    def parse_version(self, text: str) -> str | None:
        """Return the version in the output of ASK_VERSION."""

    def parse_options(self, text: str) -> dict[str, str]:
        """Return the options in the output of ASK_OPTIONS; empty if it is not a list of options."""

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return the options as they are stored: as the difference from a known release."""

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return True if `restore_options` can use the stored difference, or the image listed no options; else run the image again."""

    def restore_options(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the options from a stored difference; empty if none was stored."""


@dataclass(frozen=True)
class ChosenFiles:
    """The files selected from a repository."""

    #: the files that are needed, as they were passed in
    rows: tuple[Mapping[str, Any], ...]
    #: flags that name the files, the model's among them, each with the path below the model's folder
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EmbeddedChat:
    """The chat template and the sampling defaults in a model's file."""

    template: str  #: "" for none
    sampling: Mapping[str, float] = field(default_factory=dict)  #: by the names of a request


class Files(Protocol):
    """Selection of files from a repository, and readers of a model's file."""

    @property
    def NEEDED(self) -> str:
        """The kind of file that serves as the model, as "one GGUF file"; shown for a recipe that names none."""

    @property
    def SUFFIX(self) -> str:
        """The suffix of model files."""

    @property
    def BEGINNING_BYTES(self) -> int:
        """The number of bytes at the beginning of a model's file that `config_of` needs."""

    def config_of(self, beginning: bytes) -> dict[str, Any] | None:
        """Return the model's shape from the beginning of its file, as the lock keeps it; None if the file does not hold it."""

    def adapter_of(self, beginning: bytes) -> dict[str, Any] | None:
        """Return the lock's entry about a LoRA adapter from the beginning of its file; None if the file is none."""

    @property
    def HEADER_BYTES(self) -> int:
        """The greatest number of bytes at the beginning of a model's file that `chat_of` needs."""

    def chat_of(self, beginning: bytes) -> EmbeddedChat | None:
        """Return the chat template and the sampling defaults from the beginning of a model's file; None if it ends before them."""

    def select_files(
        self, files: Sequence[Mapping[str, Any]], pattern: str, mmproj: str = "", draft: str = "", repository: str = ""
    ) -> ChosenFiles:
        """Return the files that match the patterns.

        Args:
            files: rows with path and size_bytes.
            pattern: of the model's file.
            mmproj: pattern of the projector.
            draft: pattern of the draft model.
            repository: its name, for messages.

        Raises:
            Refused: no file matches, or more than one model; the message lists the models with their sizes.
        """
