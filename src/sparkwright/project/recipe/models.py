"""Pydantic models of recipes/*.yml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from sparkwright import defaults
from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.engines.flags import ModelRole
from sparkwright.engines.http import GENERATE, Task
from sparkwright.engines.model import adapter
from sparkwright.project.documents.validation import Strict, build_validator, schema_field
from sparkwright.project.inventory.models import SecretSource
from sparkwright.project.recipe import value_types
from sparkwright.trust import model_files
from sparkwright.trust.bounds import check_pattern
from sparkwright.visible import one_line

#: files of a model repository that a tokenizer does not need
WEIGHT_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
)
#: adapter names, which occur in command lines (NAME=PATH) and in paths
ADAPTER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _adapter_name_error(name: str) -> str:
    if ADAPTER_NAME_PATTERN.fullmatch(name):
        return ""
    return "must be 1 to 64 letters, digits, dots, hyphens or underscores, and start with a letter or digit"


LogPattern = Annotated[str, build_validator(check_pattern)]


class _Source(Strict):
    """A model's source on the hub, and its folder on the host."""

    id: Annotated[str, build_validator(model_files.check_model_id)] = schema_field(
        "its name on the hub, e.g. Qwen/Qwen3.5-35B-A3B-FP8"
    )
    revision: Annotated[str, build_validator(model_files.check_revision)] = schema_field(
        "branch, tag or commit; spark.lock pins the commit", "main"
    )
    dir: value_types.ModelFolder = schema_field("its directory on the host; ~ is the user's home")
    mount: value_types.Target = schema_field("its mount point in the container")
    transfer: Literal["auto", "hf_transfer", "plain", "xet"] = schema_field(
        "download method: auto, hf_transfer, plain or xet (the module `hf_model` describes them)", "auto"
    )
    allow: list[str] = schema_field("download only files that match one of these patterns", default_factory=list)
    ignore: list[str] = schema_field("do not download files that match one of these patterns", default_factory=list)


class Model(_Source):
    """The main model of a recipe."""

    file: str = schema_field('for llama.cpp: the GGUF file, or a pattern that matches one, e.g. "*Q4_K_M*.gguf"', "")
    mmproj: str = schema_field("for llama.cpp: the GGUF file for images and audio, or a pattern", "")
    draft: str = schema_field("for llama.cpp: the GGUF file of a smaller model that drafts tokens, or a pattern", "")
    page_cache: Literal["drop", "fit"] | None = schema_field(
        "when to drop its files from the host's page cache before a start: `drop` always, `fit` only if the server does not "
        "fit next to them (default: the host's variable `page_cache`)",
        None,
    )

    @property
    def file_key(self) -> str:
        """Key that identifies the selected files in spark.lock; empty for the whole repository."""
        return "+".join(filter(None, (self.file, self.mmproj, self.draft)))


class SecondModel(_Source):
    """An additional model of the same server; pinned, downloaded, verified and mounted like the main model."""

    file: str = schema_field("for llama.cpp: its GGUF file, or a pattern that matches one", "")

    def patterns(self, role: str) -> dict[str, list[str]]:
        """Return the effective `allow` and `ignore`. By default, a tokenizer is downloaded without weights."""
        ignore = self.ignore or ([*WEIGHT_PATTERNS] if role == "tokenizer" and not self.allow else [])
        return {"allow": self.allow, "ignore": ignore}

    def lock_suffix(self, role: str) -> str:
        """Return the suffix of its key in spark.lock, where other recipes may use other files of the same repository."""
        return "+".join(filter(None, (role, self.file)))


class Adapter(SecondModel):
    """A LoRA adapter of the main model."""

    name: Annotated[str, build_validator(_adapter_name_error)] = schema_field("its name in requests")
    dir: value_types.ModelFolder = schema_field("its directory on the host (default: ~/models/adapters/NAME)", "")
    mount: value_types.Target = schema_field("its mount point in the container (default: /adapters/NAME)", "")

    @model_validator(mode="before")
    @classmethod
    def _with_default_paths(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(name := data.get("name"), str):
            return {"dir": f"~/models/adapters/{name}", "mount": f"/adapters/{name}", **data}
        return data

    @property
    def role(self) -> str:
        """Its role in the lock's entries and in messages."""
        return f"adapter {self.name}"

    def patterns(self, role: str) -> dict[str, list[str]]:
        """See `SecondModel`. By default, only the two files of an adapter, without checkpoints and pickles."""
        return {"allow": self.allow or ([] if self.file else [*adapter.FILES]), "ignore": self.ignore}

    def lock_suffix(self, role: str) -> str:
        """See `SecondModel`. Independent of the adapter's name."""
        return "+".join(filter(None, ("adapter", self.file)))


class _Container(Strict):
    """Options of `docker run`, under Docker's names."""

    name: value_types.ContainerName = schema_field("the container's name", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]+$")
    restart: Literal["no", "always", "unless-stopped", "on-failure"] = schema_field(
        "the restart policy, set once the server is verified: no, always, unless-stopped or on-failure",
        "unless-stopped",
    )
    gpus: value_types.Gpus = schema_field('"all", "device=0" or "" for none', "all")
    ports: list[value_types.Port] = schema_field(
        '"8000:8000", "127.0.0.1:8000:8000"', default_factory=lambda: ["8000:8000"]
    )
    volumes: list[value_types.Volume] = schema_field(
        'additional mounts "/host:/container[:ro]"; the model is mounted automatically', default_factory=list
    )
    env: value_types.Environment = schema_field("environment variables", default_factory=dict)
    ulimits: value_types.Ulimits = schema_field('such as memlock: "-1"', default_factory=dict)
    labels: value_types.Labels = schema_field(
        "labels; those that start with sparkwright. are reserved", default_factory=dict
    )
    entrypoint: list[str] | None = schema_field("replaces the image's entrypoint, as a list", None)
    compile_caches: bool = schema_field("keep the engine's compile caches on the host for the next start", True)
    stop_timeout_s: int = schema_field("seconds until a stopping container is killed", defaults.STOP_TIMEOUT_S, ge=1)


if TYPE_CHECKING:
    Container = _Container
else:
    Container = create_model(
        "Container", __base__=_Container, __doc__=_Container.__doc__, **value_types.container_fields()
    )


class FileSource(Strict):
    """The content of a file in the container: a rendered template, or an unchanged file of the project."""

    template: str = schema_field("a file of templates/; rendered", "")
    file: str = schema_field("a file of the project, by its path in the project's folder; not rendered", "")

    @model_validator(mode="after")
    def _check_exactly_one(self) -> FileSource:
        if bool(self.template) == bool(self.file):
            raise ValueError("set either `template` or `file`.")
        path = self.template or self.file
        if path.startswith(("/", "~")):
            raise ValueError(f"'{one_line(path, max_chars=80)}' is not a path in the project.")
        return self


class Load(Strict):
    """A load that the server must handle; tested after each verification."""

    context: value_types.Tokens = schema_field('prompt length, tokens: 131072 or "100k" (100,000)', ge=64)
    streams: int = schema_field("number of such prompts at a time", 1, ge=1, le=64)


class Expect(Strict):
    """Conditions that must hold once the server runs."""

    tok_per_s: float | None = schema_field(
        "decode rate of one stream; a measured rate below half of it is a failure", None, gt=0
    )
    ready_s: int = schema_field("maximum duration of a start, seconds", defaults.READY_TIMEOUT_S, ge=1)
    chunked_prefill: Literal["any", "enabled", "disabled"] = schema_field(
        "chunked prefill according to the engine log; `disabled` also sets the flags for it", "any"
    )
    when_impossible: Literal["refuse", "report"] = schema_field(
        "if chunked prefill cannot be disabled: `refuse`, or `report` it and continue", "refuse"
    )
    log: list[LogPattern] = schema_field(
        "regular expressions; each must match a line of the log since the last start", default_factory=list
    )
    forbid_log: list[LogPattern] = schema_field(
        "regular expressions; none may match a line of the log since the last start", default_factory=list
    )
    log_unknown: Literal["fail", "pass"] = schema_field(
        "result of an expectation that the log neither confirms nor contradicts: `fail` or `pass`", "fail"
    )
    answers: Literal["judged", "any"] = schema_field(
        "`judged`: the first answers must make sense before they become the reference; `any`: for models that cannot "
        "answer questions, e.g. with random weights",
        "judged",
    )
    probes: list[value_types.Probe] = schema_field(
        "abilities to test with a few small requests each: tool_call, reasoning, json_schema, image, "
        "messages, responses, {embedding_dimension: N}, {language: de}",
        default_factory=list,
    )
    depths: list[value_types.Tokens] = schema_field(
        "prompt lengths (tokens) after which the decode rate of one stream is measured after each start and by `verify`, "
        "e.g. [8k, 32k], and compared with the first measurement; lengths beyond the server's context are skipped",
        default_factory=list,
        max_length=4,
    )
    load: Load | None = schema_field(
        "the longest prompt, and the number of such prompts at a time, to test after each start, e.g. "
        "{context: 100k, streams: 4}; lowest free memory, decode rate and TTFT of each step are recorded",
        None,
    )


class ParallelFile(Strict):
    """The split of the model over the hosts of a cluster. tensor times pipeline must equal the number of hosts."""

    tensor: int = schema_field(
        "number of hosts over which each layer is split; makes a single stream faster", 1, ge=1, le=64
    )
    pipeline: int = schema_field(
        "number of hosts over which the layers are distributed; for many streams", 1, ge=1, le=64
    )


class Ascend(Strict):
    """Ascend-vLLM's own scheduler; rendered into --additional-config."""

    scheduler: bool = schema_field("ascend_scheduler_config.enabled: also turns chunked prefill off", True)
    chunked_prefill: bool = schema_field(
        "ascend_scheduler_config.chunked_prefill_enabled: keeps chunked prefill on", False
    )


class RecipeFile(Strict):
    """recipes/NAME.yml: one way to serve one model."""

    KEY_HINTS = dict.fromkeys(
        ("flags", "args", "arguments", "command", "parameters"),
        f"The engine's flags belong under its name, e.g. `{engine.DEFAULT_ENGINE}:`.",
    )

    description: str = schema_field("description, one line", "")
    date: value_types.Day = schema_field(
        "date of the newest source of its settings and figures, YYYY-MM-DD; `lint`, `recipe.list` and `recommend` "
        "report recipes older than six months",
        "",
    )
    image: value_types.ImageName = schema_field("REPOSITORY:TAG; spark.lock pins the digest")
    platform: Literal["gb10", "ascend"] = schema_field("the platform whose rules apply to the flags", "gb10")
    model: Model
    models: dict[ModelRole, SecondModel] = schema_field(
        "additional models of the same server, by role: `draft` (speculation), `tokenizer`; the engine's "
        "flag for the role is set to the model's path",
        default_factory=dict,
    )
    adapters: list[Adapter] = schema_field(
        "LoRA adapters of the model, each pinned, downloaded and mounted like the model, and served under its name",
        default_factory=list,
    )
    container: Container
    files: dict[str, FileSource] = schema_field(
        "files to mount read-only, by their path in the container: `{template: NAME}` from templates/, or "
        "`{file: PATH}` from the project",
        default_factory=dict,
    )
    publish: Literal["loopback", "lan"] = schema_field(
        "who can reach the server: `lan` publishes it on all addresses of the host, `loopback` only on 127.0.0.1. "
        "An address in `container.ports` replaces it for that port, but must not contradict it",
        "lan",
    )
    server_key: SecretSource | None = schema_field(
        "the API key that clients must send: a source, e.g. {env: SPARK_KEY}; never the key itself", None
    )
    engine: value_types.EngineName = schema_field(
        "the inference engine: vllm, llama_cpp, sglang or openai; its flags belong in the section of its name",
        engine.DEFAULT_ENGINE,
    )
    vllm: value_types.VllmFlags = schema_field(
        "flags of `vllm serve` without the dashes, in order", default_factory=dict
    )
    llama_cpp: value_types.LlamaFlags | None = schema_field(
        "for `engine: llama_cpp`: flags of `llama-server` without the dashes, in order", None
    )
    sglang: value_types.SglangFlags | None = schema_field(
        "for `engine: sglang`: flags of `sglang serve` without the dashes, in order", None
    )
    openai: value_types.OpenaiSection | None = schema_field(
        "for `engine: openai`: how to start and query a server with the OpenAI API", None
    )
    task: Task = schema_field(
        "what the server does, which determines how it is verified: generate (text), embed (vectors), rerank (scores)",
        GENERATE,
    )
    parallel: ParallelFile | None = schema_field(
        "for a cluster: how the model is split over its hosts, e.g. {tensor: 2}", None
    )
    ascend: Ascend | None = schema_field("for `platform: ascend`", None)
    expect: Expect = Field(default_factory=lambda: Expect.model_validate({}))

    @property
    def further_models(self) -> dict[str, SecondModel]:
        """Adapters and additional models, by role."""
        models: dict[str, SecondModel] = {adapter.role: adapter for adapter in self.adapters}
        models.update({str(role): model for role, model in self.models.items()})
        return models

    def place_of(self, role: str) -> tuple[str | int, ...]:
        """Return the place of an adapter or additional model in the recipe."""
        for n, lora in enumerate(self.adapters):
            if lora.role == role:
                return "adapters", n
        return "models", role

    @property
    def resolved_engine(self) -> Engine:
        """The engine, with the recipe's own description of it if it has one, and the recipe's task."""
        return replace(engine.get_engine(self.engine).with_section(self.flags), task=self.task)

    @property
    def flags(self) -> dict[str, Any]:
        """Flags in the section of its engine; empty for a section without content."""
        return getattr(self, self.engine) or {}

    def with_flags(self, flags: Mapping[str, Any], **changes: Any) -> RecipeFile:
        """Return a copy with other flags, and with `changes` to other keys."""
        return self.model_copy(update={self.engine: dict(flags), **changes})
