"""Types of a recipe's values for Docker: a wrong one is refused with its line, before any host is contacted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sparkwright.engines import engine
from sparkwright.engines.probes import table as probes
from sparkwright.project.documents.validation import suggest_name
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABELS, RESERVED_NAMES, RESERVED_SUFFIXES, ContainerSpec
from sparkwright.protocol.docker_option import DockerOption
from sparkwright.trust import container_option_rules
from sparkwright.trust.image_name import check_image
from sparkwright.visible import one_line

T = TypeVar("T")


def _build_validator(reason_of: Callable[[T], str]) -> AfterValidator:
    """Return a validator from a function that returns why a value is refused, or ""."""

    def check(value: T) -> T:
        if reason := reason_of(value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


def _check_image(ref: str) -> str:
    quoted_image = f"'{one_line(ref, max_chars=80)}'"
    if "@" in ref:
        return f"{quoted_image} has a digest: use a tag; spark.lock pins its digest."
    reason = check_image(ref)
    return f"{quoted_image} {reason}." if reason else ""


def _check_environment(env: dict[str, str]) -> str:
    return _first_reason(container_option_rules.check_variable(*item) for item in env.items())


def _check_container_name(name: str) -> str:
    end = next((taken_ending for taken_ending in RESERVED_SUFFIXES if name.endswith(taken_ending)), "")
    if end:
        return f"'{one_line(name, max_chars=80)}': names that end with `{end}` are sparkwright's own. Use another."
    return f"'{name}' is a name of the gateway's containers. Use another." if name in RESERVED_NAMES else ""


def _check_labels(labels: dict[str, str]) -> str:
    own = next((name for name in labels if name.startswith(OWN_LABELS)), "")
    if own:
        return f"'{one_line(own, max_chars=80)}': labels that start with `{OWN_LABELS}` are reserved. Rename it."
    return _first_reason(map(container_option_rules.check_label_name, labels))


def _check_limits(limits: dict[str, str]) -> str:
    return _first_reason(map(container_option_rules.check_limit_name, limits))


def _first_reason(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _refuse_number(value: object) -> object:
    """Refuse a number: without quotes YAML reads 22:22 as one, to the base of 60."""
    if isinstance(value, int | float):
        raise ValueError('quote it: "8000:8000".')
    return value


def _check_day(text: str) -> str:
    try:
        return "" if not text or date.fromisoformat(text).isoformat() == text else _DAY_MESSAGE
    except ValueError:
        return _DAY_MESSAGE


_DAY_MESSAGE = "write a day as YYYY-MM-DD."


def _parse_tokens(value: object) -> object:
    """Return "100k" as 100,000 and "128K" as 131,072, as vLLM reads its lengths; any other value unchanged."""
    number, unit = (value[:-1], value[-1:]) if isinstance(value, str) else ("", "")
    if unit in ("k", "K") and number.isdecimal() and len(number) < 10:
        return int(number) * (1000 if unit == "k" else 1024)
    return value


Tokens = Annotated[int, BeforeValidator(_parse_tokens), WithJsonSchema({"type": ["integer", "string"]})]
Probe = Annotated[Any, _build_validator(probes.check_probe), WithJsonSchema(probes.schema())]
Day = Annotated[str, _build_validator(_check_day)]
ImageName = Annotated[str, _build_validator(_check_image)]
Port = Annotated[str, BeforeValidator(_refuse_number), _build_validator(container_option_rules.check_port)]
Gpus = Annotated[str, _build_validator(container_option_rules.check_gpus)]
Ulimit = Annotated[str, _build_validator(container_option_rules.check_ulimit)]
Ulimits = Annotated[dict[str, Ulimit], _build_validator(_check_limits)]
Volume = Annotated[str, _build_validator(container_option_rules.check_volume)]
Source = Annotated[str, _build_validator(container_option_rules.check_volume_source)]
Target = Annotated[str, _build_validator(container_option_rules.check_mount_target)]
Environment = Annotated[dict[str, str], _build_validator(_check_environment)]
ContainerName = Annotated[str, _build_validator(_check_container_name)]
Labels = Annotated[dict[str, str], _build_validator(_check_labels)]


def _check_engine_name(name: str) -> str:
    if name in engine.TITLES:
        return ""
    return f"'{one_line(name, max_chars=80)}' is not an engine. {suggest_name(name, engine.TITLES)}{ENGINES_HINT}"


#: appended to the nearest name
ENGINES_HINT = f" Engines: {', '.join(sorted(engine.TITLES))}."
EngineName = Annotated[str, _build_validator(_check_engine_name), Field(json_schema_extra={"enum": [*engine.TITLES]})]


def _build_flag_renamer(name: str) -> AfterValidator:
    """Return a validator that renames flags to the engine's own names."""

    def rename_flags(flags: dict[str, Any]) -> dict[str, Any]:
        own = engine.get_engine(name)
        return own.flags.normalize(flags) if own.served else flags

    return AfterValidator(rename_flags)


def _flags_field(name: str) -> Any:
    """Return a field whose schema lists the engine's known flags."""

    def add_flags(schema: dict[str, Any]) -> None:
        own = engine.get_engine(name)
        schema |= {"properties": own.flags.properties()} if own.served else {}

    return Field(json_schema_extra=add_flags)


VllmFlags = Annotated[dict[str, Any], _build_flag_renamer("vllm"), _flags_field("vllm")]
LlamaFlags = Annotated[dict[str, Any], _build_flag_renamer("llama_cpp"), _flags_field("llama_cpp")]
SglangFlags = Annotated[dict[str, Any], _build_flag_renamer("sglang"), _flags_field("sglang")]
OpenaiSection = Annotated[dict[str, Any], _flags_field("openai")]


def container_fields() -> dict[str, Any]:
    """Return the options of `docker run` from protocol/container.py as fields: type, rule, default and meaning."""
    kinds, usual = get_type_hints(ContainerSpec), ContainerSpec("", "")
    return {
        name: (_option_type(kinds[name], option), Field(getattr(usual, name), description=option.about))
        for name, option in DOCKER_OPTIONS.items()
        if option.about
    }


def _option_type(kind: Any, option: DockerOption) -> Any:
    """Return the type of an option's value with its rule; for a list, with the rule of its items."""
    if kind == tuple[str, ...]:
        return tuple[Annotated[str, _build_validator(option.why_not)], ...]
    return Annotated[kind, _build_validator(option.why_not)]
