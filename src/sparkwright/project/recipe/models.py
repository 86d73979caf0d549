"""What recipes/*.yml may hold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sparkwright.project.documents.checked import Strict, rule
from sparkwright.project.inventory.models import SecretSource
from sparkwright.project.recipe import words
from sparkwright.trust import model_files
from sparkwright.trust.patterns import why_not
from sparkwright.visible import one_line


def _is_pattern(text: str) -> str:
    if reason := why_not(text):
        raise ValueError(f"'{one_line(text, at_most=80)}' {reason}.")
    return text


Pattern = Annotated[str, AfterValidator(_is_pattern)]


class Model(Strict):
    """The model: where it comes from and where it stands."""

    id: Annotated[str, rule(model_files.why_not_an_id)] = Field(
        description="its name on the hub, as Qwen/Qwen3.5-35B-A3B-FP8"
    )
    revision: Annotated[str, rule(model_files.why_not_a_revision)] = Field(
        "main", description="branch, tag or commit; spark.lock pins the commit"
    )
    dir: words.Source = Field(description="its folder on the host; ~ is the user's home")
    mount: words.Target = Field(description="the same folder as the container sees it")
    transfer: Literal["auto", "hf_transfer", "plain", "xet"] = Field("auto", description="how it is downloaded")
    allow: list[str] = Field(default_factory=list, description="only files that match one of these patterns")
    ignore: list[str] = Field(default_factory=list, description="no files that match one of these patterns")


class Container(Strict):
    """What docker run is told beside image and command, in its words."""

    name: str = Field(description="the container's name", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]+$")
    restart: Literal["no", "always", "unless-stopped", "on-failure"] = Field(
        "unless-stopped", description="the restart policy it earns once it is verified"
    )
    gpus: words.Gpus = Field("all", description='"all", "device=0" or "" for none')
    ipc: words.Ipc = Field(
        "host", description="docker's --ipc: host, private, shareable or none; empty: as the engine does it"
    )
    shm_size: words.Size = Field("", description='docker\'s --shm-size, as "64gb"')
    ports: list[words.Port] = Field(
        default_factory=lambda: ["8000:8000"], description='"8000:8000", "127.0.0.1:8000:8000"'
    )
    volumes: list[words.Volume] = Field(
        default_factory=list, description='more of "/host:/container[:ro]"; the model is there already'
    )
    env: words.Environment = Field(default_factory=dict, description="environment variables")
    ulimits: words.Ulimits = Field(default_factory=dict, description='as memlock: "-1"')
    labels: words.Labels = Field(
        default_factory=dict, description="labels; those that begin with sparkwright. are its own"
    )
    entrypoint: list[str] | None = Field(None, description="instead of the image's, as words")
    stop_timeout_s: int = Field(60, description="seconds a stop waits before the container is killed", ge=1)


class Expect(Strict):
    """What must be true once it runs."""

    tok_per_s: float | None = Field(None, description="decode rate of one stream; below half of it is a failure", gt=0)
    ready_s: int = Field(900, description="how long a start may take, seconds", ge=1)
    chunked_prefill: Literal["any", "enabled", "disabled"] = Field(
        "any", description="what the engine's own log must say; `disabled` adds the flags for it"
    )
    when_impossible: Literal["refuse", "report"] = Field(
        "refuse",
        description="when chunked prefill can't be off: refuse, or go on and say so, with the throughput as judge",
    )
    log: list[Pattern] = Field(
        default_factory=list, description="regular expressions; a line of the log of its last start must hold each"
    )
    forbid_log: list[Pattern] = Field(
        default_factory=list, description="regular expressions; no line of it may hold one"
    )
    log_unknown: Literal["fail", "pass"] = Field(
        "fail", description="what becomes of an expectation about which the log says nothing"
    )


class Ascend(Strict):
    """Ascend-vLLM's own scheduler; rendered into --additional-config."""

    scheduler: bool = Field(True, description="ascend_scheduler_config.enabled: turns chunked prefill off by itself")
    chunked_prefill: bool = Field(False, description="ascend_scheduler_config.chunked_prefill_enabled: keeps it on")


class RecipeFile(Strict):
    """recipes/NAME.yml: one way to serve one model."""

    description: str = Field("", description="one line, for people")
    image: words.ImageName = Field(description="REPOSITORY:TAG; spark.lock pins the digest")
    platform: Literal["gb10", "ascend"] = Field("gb10", description="whose rules the flags must keep")
    model: Model
    container: Container
    publish: Literal["loopback", "lan"] = Field(
        "lan",
        description="who reaches the server: `lan`, on every address of the host; `loopback`, programs of the host itself. "
        "An address in `container.ports` decides for its port",
    )
    server_key: SecretSource | None = Field(
        None,
        description="the API key the server asks of its clients: a source, as {env: SPARK_KEY}; never the key itself",
    )
    vllm: words.Flags = Field(default_factory=dict, description="flags of vllm serve under their own names, in order")
    ascend: Ascend | None = Field(None, description="for `platform: ascend`")
    expect: Expect = Field(default_factory=lambda: Expect.model_validate({}))
