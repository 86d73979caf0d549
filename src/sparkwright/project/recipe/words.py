"""Types of a recipe's values for Docker: a wrong one is refused with its line, before any host is contacted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sparkwright.engines import engine
from sparkwright.engines.probes import table as probes
from sparkwright.project.documents.validation import nearest
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABELS, TAKEN_ENDINGS, TAKEN_NAMES, ContainerSpec
from sparkwright.protocol.docker_option import DockerOption
from sparkwright.trust import container_words
from sparkwright.trust.image_name import why_not_an_image
from sparkwright.visible import one_line

T = TypeVar("T")


def _by(why_not: Callable[[T], str]) -> AfterValidator:
    """Return a validator from a function that returns why a value is refused, or ""."""

    def check(value: T) -> T:
        if reason := why_not(value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


def _not_an_image(ref: str) -> str:
    shown = f"'{one_line(ref, at_most=80)}'"
    if "@" in ref:
        return f"{shown} has a digest: use a tag; spark.lock pins its digest."
    reason = why_not_an_image(ref)
    return f"{shown} {reason}." if reason else ""


def _not_an_environment(env: dict[str, str]) -> str:
    return _first(container_words.variable(*item) for item in env.items())


def _not_a_name(name: str) -> str:
    end = next((taken_ending for taken_ending in TAKEN_ENDINGS if name.endswith(taken_ending)), "")
    if end:
        return f"'{one_line(name, at_most=80)}': names that end with `{end}` are sparkwright's own. Use another."
    return f"'{name}' is a name of the gateway's containers. Use another." if name in TAKEN_NAMES else ""


def _not_labels(labels: dict[str, str]) -> str:
    own = next((name for name in labels if name.startswith(OWN_LABELS)), "")
    if own:
        return f"'{one_line(own, at_most=80)}': labels that start with `{OWN_LABELS}` are reserved. Rename it."
    return _first(map(container_words.label, labels))


def _not_limits(limits: dict[str, str]) -> str:
    return _first(map(container_words.limit_name, limits))


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _text(value: object) -> object:
    """Refuse a number: without quotes YAML reads 22:22 as one, to the base of 60."""
    if isinstance(value, int | float):
        raise ValueError('quote it: "8000:8000".')
    return value


def _not_a_day(written: str) -> str:
    try:
        return "" if not written or date.fromisoformat(written).isoformat() == written else _DAY
    except ValueError:
        return _DAY


_DAY = "write a day as YYYY-MM-DD."


def _tokens(value: object) -> object:
    """Return "100k" as 100,000 and "128K" as 131,072, as vLLM reads its lengths; any other value unchanged."""
    number, unit = (value[:-1], value[-1:]) if isinstance(value, str) else ("", "")
    if unit in ("k", "K") and number.isdecimal() and len(number) < 10:
        return int(number) * (1000 if unit == "k" else 1024)
    return value


Tokens = Annotated[int, BeforeValidator(_tokens), WithJsonSchema({"type": ["integer", "string"]})]
Probe = Annotated[Any, _by(probes.why_not), WithJsonSchema(probes.schema())]
Day = Annotated[str, _by(_not_a_day)]
ImageName = Annotated[str, _by(_not_an_image)]
Port = Annotated[str, BeforeValidator(_text), _by(container_words.port)]
Gpus = Annotated[str, _by(container_words.gpus)]
Ulimit = Annotated[str, _by(container_words.ulimit)]
Ulimits = Annotated[dict[str, Ulimit], _by(_not_limits)]
Volume = Annotated[str, _by(container_words.volume)]
Source = Annotated[str, _by(container_words.source)]
Target = Annotated[str, _by(container_words.target)]
Environment = Annotated[dict[str, str], _by(_not_an_environment)]
ContainerName = Annotated[str, _by(_not_a_name)]
Labels = Annotated[dict[str, str], _by(_not_labels)]


def _not_an_engine(name: str) -> str:
    if name in engine.TITLES:
        return ""
    return f"'{one_line(name, at_most=80)}' is not an engine. {nearest(name, engine.TITLES)}{ENGINES}"


#: appended to the nearest name
ENGINES = f" Engines: {', '.join(sorted(engine.TITLES))}."
EngineName = Annotated[str, _by(_not_an_engine), Field(json_schema_extra={"enum": [*engine.TITLES]})]


def _named_by(name: str) -> AfterValidator:
    """Return a validator that renames flags to the engine's own names."""

    def named(flags: dict[str, Any]) -> dict[str, Any]:
        own = engine.of(name)
        return own.flags.named(flags) if own.served else flags

    return AfterValidator(named)


def _known_to(name: str) -> Any:
    """Return a field whose schema lists the engine's known flags."""

    def known(schema: dict[str, Any]) -> None:
        own = engine.of(name)
        schema |= {"properties": own.flags.properties()} if own.served else {}

    return Field(json_schema_extra=known)


VllmFlags = Annotated[dict[str, Any], _named_by("vllm"), _known_to("vllm")]
LlamaFlags = Annotated[dict[str, Any], _named_by("llama_cpp"), _known_to("llama_cpp")]
SglangFlags = Annotated[dict[str, Any], _named_by("sglang"), _known_to("sglang")]
OpenaiSection = Annotated[dict[str, Any], _known_to("openai")]


def docker_options() -> dict[str, Any]:
    """Return the options of `docker run` from protocol/container.py as fields: type, rule, default and meaning."""
    kinds, usual = get_type_hints(ContainerSpec), ContainerSpec("", "")
    return {
        name: (_checked(kinds[name], option), Field(getattr(usual, name), description=option.about))
        for name, option in DOCKER_OPTIONS.items()
        if option.about
    }


def _checked(kind: Any, option: DockerOption) -> Any:
    """Return the type of an option's value with its rule; for a list, with the rule of its items."""
    if kind == tuple[str, ...]:
        return tuple[Annotated[str, _by(option.why_not)], ...]
    return Annotated[kind, _by(option.why_not)]
