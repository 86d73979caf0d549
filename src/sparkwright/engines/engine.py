"""The interface of an engine, through which all other packages use it.

Each engine has a folder here, with these files. `Engine` below lists the values that it reads from them.

    http.py         the HTTP interface of the server, and its API key
    flags.py        the command that starts it, and the import of commands written elsewhere
    log.py          the format of its log, and the causes of slowness that the log shows
    advice.py       findings about a recipe (the rules are in rules.py), and the memory that the engine needs
    options.json    its options (option_table.py); those of other releases are in option_history.json or releases.json
    image.py        the version and options of the engine in an image
    caches.py       its prefix cache and its compile caches
    files.py        the files that it needs from a repository
    parallel.py     one model on several hosts; member_log.py reads the log of a cluster member

Every folder has the REQUIRED_FILES. Files are imported on first use: a health check imports only http.py.

If the folder has a description.py, the recipe describes the engine: its values are built from that description, which is also
stored in a label of the container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, overload

from sparkwright.engines.http import GENERATE, Task
from sparkwright.engines.prefix_cache import UnreportedPrefixCache
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkwright.engines.advice import Advice
    from sparkwright.engines.compile_caches import CompileCaches
    from sparkwright.engines.flags import Command, Flags, ImportTable
    from sparkwright.engines.http import Http, ServerKey
    from sparkwright.engines.log.log_format import LogFormat
    from sparkwright.engines.log.text import LogText
    from sparkwright.engines.parallel import MemberLog, Parallel
    from sparkwright.engines.prefix_cache import PrefixCache

#: names in recipes
EngineName = Literal["vllm", "llama_cpp", "sglang", "openai"]
#: display names
TITLES: dict[str, str] = {
    "vllm": "vLLM",
    "llama_cpp": "llama.cpp",
    "sglang": "SGLang",
    "openai": "OpenAI-compatible server",
}
DEFAULT_ENGINE = "vllm"
#: engines by the `owned_by` of the models that their servers list
ENGINES_BY_OWNER = {"vllm": "vllm", "llamacpp": "llama_cpp", "sglang": "sglang"}
#: label with the engine of a container; a container without this label runs vLLM, the first supported engine
ENGINE_LABEL = "sparkwright.engine"
#: label with the recipe's description of the server, as JSON
DESCRIPTION_LABEL = "sparkwright.engine.description"
#: label with the task of a container that does not generate text
TASK_LABEL = "sparkwright.task"
TASKS: tuple[Task, ...] = get_args(Task)
#: files without which sparkwright cannot serve with an engine
REQUIRED_FILES = ("http", "flags", "log", "advice")
P = TypeVar("P")


class EnginePart(Generic[P]):
    """An attribute that is read from a file in the engine's folder: a value in the file, or its module.

    If the file has a function described_VALUE, the value is what it returns for the engine's description.
    """

    def __init__(self, file: str, value: str = "", default: Any = None) -> None:
        """Name the file and the value in it. default: used if the engine lacks the file or the value."""
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
            return build(engine.description_json)
        return getattr(module, self._value, self._default) if self._value else module


@dataclass(frozen=True)
class Engine:
    """An inference engine."""

    #: name of its folder, also used in recipes
    name: str
    #: display name
    title: str
    #: the recipe's description of the server, as in the container's label; empty for the defaults
    description_json: str = ""
    #: task of the server
    task: Task = GENERATE

    #: the HTTP interface of a server that generates text; see `http`
    _http: ClassVar[EnginePart[Http]] = EnginePart("http", "HTTP")
    #: the API key file; None if the engine cannot read its key from a file
    key: ClassVar[EnginePart[ServerKey | None]] = EnginePart("http", "SERVER_KEY")
    #: the flags of its command line
    flags: ClassVar[EnginePart[Flags]] = EnginePart("flags")
    #: parses the words of a server's command into the model and the flags
    parse_command: ClassVar[EnginePart[Callable[[Sequence[str]], Command]]] = EnginePart("flags", "parse_command")
    #: data for converting recipes from other projects; None if recipes for this engine cannot be imported
    imports: ClassVar[EnginePart[ImportTable | None]] = EnginePart("flags", "IMPORTS")
    #: the flags that select the server's task
    task_flags: ClassVar[EnginePart[TaskFlags]] = EnginePart("flags", "TASK_FLAGS", TaskFlags())
    #: the flags that affect the results of probes
    probe_flags: ClassVar[EnginePart[ProbeFlags]] = EnginePart("flags", "PROBE_FLAGS", ProbeFlags())
    #: the format of its log
    log: ClassVar[EnginePart[LogFormat]] = EnginePart("log", "LOG")
    #: the detectors (slowness.Detector) for causes of slowness that are specific to this engine
    slowness_detectors: ClassVar[EnginePart[tuple[Callable[[Any], Iterator[Any]], ...]]] = EnginePart(
        "log", "DETECTORS", ()
    )
    #: the rules about its recipes, and the settings that the engine derives from them
    advice: ClassVar[EnginePart[Advice]] = EnginePart("advice")
    #: the reader of its images; None if images show neither version nor options
    image: ClassVar[EnginePart[Image | None]] = EnginePart("image")
    #: the reader of the engine's reports about its prefix cache
    prefix_cache: ClassVar[EnginePart[PrefixCache]] = EnginePart("caches", default=UnreportedPrefixCache())
    #: the compile caches; None if the engine is not known to have any
    caches: ClassVar[EnginePart[CompileCaches | None]] = EnginePart("caches", "CACHES")
    #: the selection of files from a repository; None if the engine serves the whole folder
    files: ClassVar[EnginePart[Files | None]] = EnginePart("files")
    #: serving one model from several hosts; None if the engine or this release of sparkwright does not support it
    parallel: ClassVar[EnginePart[Parallel | None]] = EnginePart("parallel")
    #: the reader of a cluster member's log; None if the engine has none. Separate from `parallel` to import less
    parse_member_log: ClassVar[EnginePart[Callable[[LogText], MemberLog] | None]] = EnginePart(
        "member_log", "parse_member_log"
    )
    #: the reader of descriptions; None if the recipe does not describe the engine
    _descriptions: ClassVar[EnginePart[Any]] = EnginePart("description")

    @cached_property
    def http(self) -> Http:
        """The HTTP interface of its server."""
        http = self._http
        return http if self.task == GENERATE else replace(http, task=self.task, roles={**http.roles, **http.task_roles})

    @property
    def is_supported(self) -> bool:
        """True if this release of sparkwright can serve with the engine."""
        return all(_import_file(self.name, file) for file in REQUIRED_FILES)

    @property
    def labels(self) -> dict[str, str]:
        """The container labels with the engine and the task; empty for vLLM generating text."""
        task = {TASK_LABEL: str(self.task)} if self.task != GENERATE else {}
        if self.name == DEFAULT_ENGINE:
            return task
        description = {DESCRIPTION_LABEL: self.description_json} if self.description_json else {}
        return {ENGINE_LABEL: self.name, **description, **task}

    @property
    def needs_description(self) -> bool:
        """True if a recipe must describe the server's API."""
        return self._descriptions is not None

    def with_section(self, section: Mapping[str, Any]) -> Engine:
        """Return this engine with the description in a recipe's section; unchanged if the engine needs no description."""
        if not self.needs_description:
            return self
        return replace(self, description_json=self._descriptions.render_label(section))

    @property
    def description(self) -> Mapping[str, Any]:
        """The recipe's description of the server, by recipe key; empty if there is none."""
        if not self.description_json:
            return {}
        description: Mapping[str, Any] = self._descriptions.parse_label(self.description_json)
        return description

    def find_mistakes(self, section: Mapping[str, Any]) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Return the mistakes in a recipe's description, each with its path in the section and the reason ("must be ...")."""
        mistakes: Iterable[tuple[tuple[str | int, ...], str]] = (
            self._descriptions.find_mistakes(section) if self.needs_description else ()
        )
        return mistakes

    def version_in_image(self, config: Mapping[str, Any]) -> str | None:
        """Return the engine's version in an image's Config; None if the Config does not contain it."""
        return self.image.version_of(config) if self.image else None


@lru_cache
def _import_file(engine: str, file: str) -> Any:
    """Return the module of a file in an engine's folder; None if there is no such file."""
    folder = f"{__package__}.{engine}"
    exists = find_spec(folder) is not None and find_spec(f"{folder}.{file}") is not None
    return import_module(f"{folder}.{file}") if exists else None


@lru_cache
def get_engine(name: str) -> Engine:
    """Return the engine of this name. Raises KeyError for a name that is not in TITLES."""
    return Engine(name, TITLES[name])


def list_supported() -> tuple[Engine, ...]:
    """Return the engines that this release of sparkwright can serve with."""
    return tuple(engine for engine in map(get_engine, TITLES) if engine.is_supported)


def get_or_default(name: object) -> Engine:
    """Return the engine with a name from a file or a label; the default engine if the name is unknown."""
    return get_engine(name if isinstance(name, str) and name in TITLES else DEFAULT_ENGINE)


def detect_from_models(answer: Any) -> Engine:
    """Return the engine of a server without labels, by the owner of its models. answer: the response that lists them."""
    models = answer.get("data") if isinstance(answer, dict) else None
    owners = [model.get("owned_by") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    known_owners = (owner for owner in owners if isinstance(owner, str) and owner in ENGINES_BY_OWNER)
    owner = next(known_owners, None)
    return get_engine(ENGINES_BY_OWNER[owner] if owner else DEFAULT_ENGINE)


def from_labels(labels: Mapping[str, Any] | None) -> Engine:
    """Return the engine and task in the labels of a container or a spec; the default engine if its name is unknown."""
    labels = labels or {}
    engine = get_or_default(labels.get(ENGINE_LABEL))
    description, task = labels.get(DESCRIPTION_LABEL), labels.get(TASK_LABEL)
    if isinstance(description, str) and engine.needs_description:
        engine = replace(engine, description_json=description)
    return replace(engine, task=task) if task in TASKS else engine


class Image(Protocol):
    """Commands that print the version and the options of an image's engine, and readers of their output.

    Options are mapped to their shapes, and stored as the difference from a known release.
    """

    @property
    def VERSION_COMMAND(self) -> tuple[str, ...]:
        """The program and arguments that print the version."""

    @property
    def HELP_COMMAND(self) -> tuple[str, ...]:
        """The program and arguments that list the options."""

    def version_of(self, config: Mapping[str, Any]) -> str | None:
        """Return the version in an image's Config; None if the Config does not contain it."""

    def parse_version(self, text: str) -> str | None:
        """Return the version in the output of VERSION_COMMAND."""

    def parse_options(self, text: str) -> dict[str, str]:
        """Return the options in the output of HELP_COMMAND; empty if it is not a list of options."""

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return the options as the difference from a known release."""

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return True if `restore_options` can use the stored difference, or the image listed no options.

        Otherwise the options must be read from the image again.
        """

    def restore_options(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the options from a stored difference; empty if none was stored."""


@dataclass(frozen=True)
class ChosenFiles:
    """The files selected from a repository."""

    #: the needed rows of the input
    rows: tuple[Mapping[str, Any], ...]
    #: flags that name a file, including the model, each with the path below the model's folder
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EmbeddedChat:
    """The chat template and the sampling defaults in a model's file."""

    template: str  #: empty if the file has none
    sampling: Mapping[str, float] = field(default_factory=dict)  #: by request key


class Files(Protocol):
    """Selection of files from a repository, and readers of a model's file."""

    @property
    def NEEDED(self) -> str:
        """The kind of file that a recipe must name as its model, such as "one GGUF file"; for messages."""

    @property
    def SUFFIX(self) -> str:
        """The suffix of model files."""

    @property
    def BEGINNING_BYTES(self) -> int:
        """Number of bytes at the beginning of a model's file that `config_of` needs."""

    def config_of(self, beginning: bytes) -> dict[str, Any] | None:
        """Return the model's architecture for the lock, read from the beginning of its file; None if it is missing there."""

    def adapter_of(self, beginning: bytes) -> dict[str, Any] | None:
        """Return the lock's entry for a LoRA adapter, read from the beginning of its file; None if it is not one."""

    @property
    def HEADER_BYTES(self) -> int:
        """Maximum number of bytes at the beginning of a model's file that `chat_of` needs."""

    def chat_of(self, beginning: bytes) -> EmbeddedChat | None:
        """Return the chat template and sampling defaults in the beginning of a model's file; None if that is too short."""

    def select_files(
        self, files: Sequence[Mapping[str, Any]], pattern: str, mmproj: str = "", draft: str = "", repository: str = ""
    ) -> ChosenFiles:
        """Return the files that match the patterns.

        Args:
            files: rows with path and size_bytes.
            pattern: pattern of the model's file.
            mmproj: pattern of the projector.
            draft: pattern of the draft model.
            repository: its name, for messages.

        Raises:
            Refused: no file matches, or more than one model does; the message lists the models with their sizes.
        """
