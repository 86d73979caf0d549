"""Types of the values in a recipe, validated before any host is contacted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sparkwright.engines import engine
from sparkwright.engines.probes import table as probes
from sparkwright.project.documents.validation import build_message_validator, build_validator, suggest_name
from sparkwright.project.inventory.models import image_tag_error
from sparkwright.protocol.container import (
    DOCKER_OPTIONS,
    OWN_LABEL_PREFIX,
    RESERVED_NAMES,
    RESERVED_SUFFIXES,
    ContainerSpec,
)
from sparkwright.protocol.docker_option import DockerOption
from sparkwright.trust import container_option_rules
from sparkwright.visible import one_line


def _environment_error(env: dict[str, str]) -> str:
    return _first_message(container_option_rules.check_variable(*variable) for variable in env.items())


def _container_name_error(name: str) -> str:
    for suffix in RESERVED_SUFFIXES:
        if name.endswith(suffix):
            return f"'{one_line(name, max_chars=80)}': names that end with `{suffix}` are reserved. Use another."
    return f"'{name}' is reserved for the gateway's containers. Use another." if name in RESERVED_NAMES else ""


def _labels_error(labels: dict[str, str]) -> str:
    reserved = next((name for name in labels if name.startswith(OWN_LABEL_PREFIX)), "")
    if reserved:
        quoted_label = one_line(reserved, max_chars=80)
        return f"'{quoted_label}': labels that start with `{OWN_LABEL_PREFIX}` are reserved. Rename it."
    return _first_message(map(container_option_rules.check_label_name, labels))


def _limits_error(limits: dict[str, str]) -> str:
    return _first_message(map(container_option_rules.check_limit_name, limits))


def _first_message(messages: Iterable[str]) -> str:
    return next(filter(None, messages), "")


def _refuse_number(value: object) -> object:
    """Refuse a number: YAML reads 22:22 without quotes as a number in base 60."""
    if isinstance(value, int | float):
        raise ValueError('quote it: "8000:8000".')
    return value


def _day_error(text: str) -> str:
    try:
        is_valid = not text or date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_valid = False
    return "" if is_valid else "write a day as YYYY-MM-DD."


def _parse_tokens(value: object) -> object:
    """Return "100k" as 100,000 and "128K" as 131,072, as vLLM does; any other value unchanged."""
    number, unit = (value[:-1], value[-1:]) if isinstance(value, str) else ("", "")
    if unit in ("k", "K") and number.isdecimal() and len(number) < 10:
        return int(number) * (1000 if unit == "k" else 1024)
    return value


Tokens = Annotated[int, BeforeValidator(_parse_tokens), WithJsonSchema({"type": ["integer", "string"]})]
Probe = Annotated[Any, build_message_validator(probes.probe_error), WithJsonSchema(probes.schema())]
Day = Annotated[str, build_message_validator(_day_error)]
ImageName = Annotated[str, build_validator(image_tag_error)]
Port = Annotated[str, BeforeValidator(_refuse_number), build_message_validator(container_option_rules.check_port)]
Gpus = Annotated[str, build_message_validator(container_option_rules.check_gpus)]
Ulimit = Annotated[str, build_message_validator(container_option_rules.check_ulimit)]
Ulimits = Annotated[dict[str, Ulimit], build_message_validator(_limits_error)]
Volume = Annotated[str, build_message_validator(container_option_rules.check_volume)]
ModelFolder = Annotated[str, build_message_validator(container_option_rules.check_model_folder)]
Target = Annotated[str, build_message_validator(container_option_rules.check_mount_target)]
Environment = Annotated[dict[str, str], build_message_validator(_environment_error)]
ContainerName = Annotated[str, build_message_validator(_container_name_error)]
Labels = Annotated[dict[str, str], build_message_validator(_labels_error)]


def _engine_name_error(name: str) -> str:
    if name in engine.TITLES:
        return ""
    return f"'{one_line(name, max_chars=80)}' is not an engine. {suggest_name(name, engine.TITLES)}"


EngineName = Annotated[
    str, build_message_validator(_engine_name_error), Field(json_schema_extra={"enum": [*engine.TITLES]})
]


def _build_flag_renamer(name: str) -> AfterValidator:
    """Return a validator that changes each flag to the engine's canonical name."""

    def rename_flags(flags: dict[str, Any]) -> dict[str, Any]:
        section_engine = engine.get_engine(name)
        return section_engine.flags.normalize(flags) if section_engine.is_supported else flags

    return AfterValidator(rename_flags)


def _flags_field(name: str) -> Any:
    """Return a field whose schema lists the engine's known flags."""

    def add_flags(schema: dict[str, Any]) -> None:
        section_engine = engine.get_engine(name)
        schema |= {"properties": section_engine.flags.properties()} if section_engine.is_supported else {}

    return Field(json_schema_extra=add_flags)


VllmFlags = Annotated[dict[str, Any], _build_flag_renamer("vllm"), _flags_field("vllm")]
LlamaFlags = Annotated[dict[str, Any], _build_flag_renamer("llama_cpp"), _flags_field("llama_cpp")]
SglangFlags = Annotated[dict[str, Any], _build_flag_renamer("sglang"), _flags_field("sglang")]
OpenaiSection = Annotated[dict[str, Any], _flags_field("openai")]


def container_fields() -> dict[str, Any]:
    """Return the options of protocol/container.py as Pydantic fields, with the defaults of ContainerSpec."""
    types, defaults = get_type_hints(ContainerSpec), ContainerSpec("", "")
    return {
        name: (_option_type(types[name], option), Field(getattr(defaults, name), description=option.description))
        for name, option in DOCKER_OPTIONS.items()
        if option.description
    }


def _option_type(value_type: Any, option: DockerOption) -> Any:
    """Return the type of an option's value with its validator, which for a list checks each item."""
    validator = build_message_validator(option.check)
    return tuple[Annotated[str, validator], ...] if value_type == tuple[str, ...] else Annotated[value_type, validator]
