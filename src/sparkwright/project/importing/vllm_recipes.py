"""Reads recipes of vllm-project/recipes: models/OWNER/NAME.yaml, with lists of arguments and overrides for the DGX Spark.

Source: vllm-project/recipes@8959cf6, taxonomy.yaml and src/lib/command-synthesis.js (the order of arguments).
"""

from __future__ import annotations

from typing import Any

from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.project.importing.docker_command import build_arguments, format_pairs, parse_arguments
from sparkwright.project.importing.foreign_recipe import (
    DROP_ANSWER,
    SCALAR_TYPES,
    VARIABLES_SHAPE,
    ForeignRecipe,
    ImportReport,
    as_mapping,
    as_text,
    as_texts,
    partial_mapping,
    scalar,
    shape_by_type,
    word_list,
)
from sparkwright.visible import one_line

KIND = "vllm-project/recipes"
#: keys under which these recipes have settings for a DGX Spark
PROFILE, GENERATION, BRAND = "dgx_spark_gb10", "blackwell", "nvidia"
#: memory of a Spark for one server, GB: 128 minus the system's own use
SPARK_MEMORY_GB = 112
MAX_SPARKS = 8
SINGLE_HOST_STRATEGY, MULTI_HOST_STRATEGY = "single_node_tp", "multi_node_tp"
TASKS = {"embedding": "embed", "embeddings": "embed", "rerank": "rerank", "reranking": "rerank", "reranker": "rerank"}
#: keys that are read, or do not affect the server
READ_KEYS = {
    *("meta", "model", "variants", "omni", "hardware_overrides", "strategy_overrides", "features", "opt_in_features"),
    *("dependencies", "compatible_strategies", "guide"),
}
#: keys that an import drops, each with the reason
DROPPED_KEYS = {
    "kv_offload_support": "a Spark has a single memory: there is nowhere to offload keys and values to",
    "default_strategy": "a Spark has one GPU; the number of hosts follows from the memory needed",
    "strategy_hardware": "a Spark has one GPU; the number of hosts follows from the memory needed",
    "strategy_min_gpus": "a Spark has one GPU; the number of hosts follows from the memory needed",
    "hardware_opt_in_features": "opt-in features: add their flags by hand",
    "hardware_notes": "notes for readers",
}
_LAYER_SHAPE = partial_mapping(extra_args=word_list, extra_env=VARIABLES_SHAPE, docker_image=object)
_HARDWARE_SHAPE = {str: (None, _LAYER_SHAPE)}
_STRATEGY_SHAPE = partial_mapping(extra_args=word_list, extra_env=VARIABLES_SHAPE, hardware_overrides=_HARDWARE_SHAPE)
_VARIANT_SHAPE = {
    **_LAYER_SHAPE,
    **partial_mapping(model_id=scalar, precision=scalar, min_vllm_version=scalar, hardware_overrides=_HARDWARE_SHAPE),
    **partial_mapping(supported_hardware=word_list, precision_hardware=partial_mapping(brand=scalar)),
}
_DEPENDENCY_SHAPE = shape_by_type(
    "a string or a mapping", (SCALAR_TYPES, scalar), (dict, partial_mapping(command=scalar))
)
_MODEL_SHAPE = partial_mapping(model_id=scalar, min_vllm_version=scalar, base_args=word_list, base_env=VARIABLES_SHAPE)
#: shape of a file, checked before it is read
SHAPE = {
    **partial_mapping(
        meta=partial_mapping(title=scalar, hardware={}, tasks=word_list), hardware_overrides=_HARDWARE_SHAPE
    ),
    "model": _MODEL_SHAPE,
    "variants": {str: (None, _VARIANT_SHAPE)},
    **partial_mapping(
        features={str: (None, partial_mapping(args=word_list))},
        opt_in_features=word_list,
        compatible_strategies=word_list,
    ),
    **partial_mapping(strategy_overrides={str: (None, _STRATEGY_SHAPE)}, dependencies=[_DEPENDENCY_SHAPE]),
}


def matches(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    return isinstance(data.get("model"), dict) and "variants" in data and "model_id" in data["model"]


def convert(data: dict[str, Any], report: ImportReport) -> ForeignRecipe:
    """Return the recipe for a Spark.

    Raises Refused for a recipe for vLLM-Omni, and for a model that the supported number of Sparks cannot serve.
    """
    meta, model_section = as_mapping(data.get("meta")), as_mapping(data["model"])
    if data.get("omni"):
        fix = "sparkwright supports servers for text, vectors and scores."
        raise Refused("the recipe needs vLLM-Omni, which generates images, audio or video.", fix=fix)
    for key in (key for key in data if key not in READ_KEYS):
        report.add("dropped", key, DROPPED_KEYS.get(key, "unknown key"))
    name, variant = _select_variant(data, report)
    host_count = _host_count(data, name, variant, report)
    strategy = SINGLE_HOST_STRATEGY if host_count == 1 else MULTI_HOST_STRATEGY
    if PROFILE not in as_mapping(meta.get("hardware")):
        report.add("note", PROFILE, "the DGX Spark is not in the recipe's list of tested hardware")
    args, env = _collect_arguments(data, model_section, variant, strategy, report)
    _resolve_dependencies(data, report)
    model_id = as_text(variant.get("model_id") or model_section.get("model_id"))
    image = _select_image(model_section, variant, report)
    imports = engine.get_engine("vllm").imports
    tensor_words = [f"--{imports.tensor_flag}", str(host_count)] if imports and host_count > 1 else []
    title = as_text(meta.get("title"))
    precision = as_text(variant.get("precision"))
    suffix = "" if name == "default" else f"-{name}"
    foreign = ForeignRecipe(
        kind=KIND,
        name=f"{as_text(model_section.get('model_id')).rpartition('/')[2]}{suffix}",
        description=f"{title}, {precision}" if precision else title,
        engine="vllm",
        model=model_id,
        hosts=host_count,
        task=next((TASKS[task] for task in as_texts(meta.get("tasks")) if task in TASKS), ""),
    )
    return parse_arguments(
        build_arguments(image, [model_id, *args, *tensor_words], env=format_pairs(env)), foreign, report
    )


def _select_variant(data: dict[str, Any], report: ImportReport) -> tuple[str, dict[str, Any]]:
    """Return the name and content of the checkpoint for the Spark, or of the only one that fits. Otherwise, ask the user."""
    variants = {name: as_mapping(variant) for name, variant in as_mapping(data["variants"]).items()}
    if not variants:
        raise Refused("`variants` is empty.")

    def list_fitting(max_gb: int) -> list[str]:
        return [
            name
            for name, variant in variants.items()
            if 0 < _memory_gb(variant) <= max_gb and not _is_other_hardware(variant)
        ]

    spark_variants = [
        name for name, variant in variants.items() if PROFILE in as_mapping(variant.get("hardware_overrides"))
    ]
    names = (
        spark_variants or list_fitting(SPARK_MEMORY_GB) or list_fitting(SPARK_MEMORY_GB * MAX_SPARKS) or list(variants)
    )
    if len(names) == 1:
        report.add("note", f"variant {names[0]}", _describe_variant(variants[names[0]]))
        return names[0], variants[names[0]]
    choices = "; ".join(f"{name} ({_describe_variant(variants[name])})" for name in names)
    name = report.ask("variant", f"which checkpoint: {one_line(choices, max_chars=600)}", names) or names[0]
    return name, variants[name]


def _is_other_hardware(variant: dict[str, Any]) -> bool:
    """Return True if a variant is only for hardware other than the DGX Spark."""
    supported = as_texts(variant.get("supported_hardware"))
    brand = as_text(as_mapping(variant.get("precision_hardware")).get("brand"))
    return (bool(supported) and PROFILE not in supported) or brand.lower() not in ("", BRAND)


def _memory_gb(variant: dict[str, Any]) -> float:
    value = variant.get("vram_minimum_gb")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _describe_variant(variant: dict[str, Any]) -> str:
    return f"{as_text(variant.get('precision'))}, needs {_memory_gb(variant):g} GB"


def _host_count(data: dict[str, Any], name: str, variant: dict[str, Any], report: ImportReport) -> int:
    """Return the number of Sparks with enough memory: a power of two, so that attention heads can be split evenly."""
    required_gb, host_count = _memory_gb(variant), 1
    while host_count * SPARK_MEMORY_GB < required_gb:
        host_count *= 2
    if host_count == 1:
        return 1
    fix = "Choose a smaller checkpoint with `--answer variant=NAME`, if there is one."
    if host_count > MAX_SPARKS:
        raise Refused(f"the checkpoint {name} needs {required_gb:g} GB: more than {MAX_SPARKS} Sparks have.", fix=fix)
    if MULTI_HOST_STRATEGY not in as_texts(data.get("compatible_strategies")):
        message = (
            f"the checkpoint {name} needs {required_gb:g} GB, more than a Spark has, and cannot be split over hosts."
        )
        raise Refused(message, fix=fix)
    report.add(
        "note", f"{required_gb:g} GB", f"too much for one Spark: split over {host_count}, {SPARK_MEMORY_GB} GB each"
    )
    return host_count


def _collect_arguments(
    data: dict[str, Any], model_section: dict[str, Any], variant: dict[str, Any], strategy: str, report: ImportReport
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment variables for a Spark, in the order of command-synthesis.js."""
    variant_overrides = as_mapping(variant.get("hardware_overrides"))
    overrides = as_mapping(data.get("hardware_overrides"))
    strategy_layer = as_mapping(as_mapping(data.get("strategy_overrides")).get(strategy))
    strategy_overrides = as_mapping(strategy_layer.get("hardware_overrides"))
    strategy_generation = strategy_overrides.get(GENERATION) or strategy_overrides.get(BRAND)
    generation_layers = [overrides.get(GENERATION) or overrides.get(BRAND), variant_overrides.get(GENERATION)]
    if strategy_generation:
        generation_layers = [strategy_generation]
    layers = [
        variant,
        variant_overrides.get(PROFILE),
        strategy_layer,
        *generation_layers,
        overrides.get(PROFILE),
    ]
    words, env = as_texts(model_section.get("base_args")), as_mapping(model_section.get("base_env"))
    for layer in (as_mapping(layer) for layer in layers):
        words += as_texts(layer.get("extra_args"))
        env |= as_mapping(layer.get("extra_env"))
    opt_in_features = as_texts(data.get("opt_in_features"))
    for name, entry in as_mapping(data.get("features")).items():
        feature = as_mapping(entry)
        if name in opt_in_features or "modes" in feature:
            report.add("dropped", f"feature {name}", "opt-in feature: add its flags by hand")
        else:
            words += as_texts(feature.get("args"))
    if PROFILE in variant_overrides:
        report.add("kept", f"hardware_overrides.{PROFILE}", "the author's settings for a Spark")
    return words, {name: as_text(value) for name, value in env.items()}


def _resolve_dependencies(data: dict[str, Any], report: ImportReport) -> None:
    """Ask the user about packages that the recipe installs. They must be in the image: a deploy installs nothing."""
    dependencies = [as_mapping(entry) for entry in data.get("dependencies") or () if isinstance(entry, dict)]
    install_commands = [as_text(entry.get("command")) for entry in dependencies if not entry.get("optional")]
    if install_commands:
        commands = one_line("; ".join(install_commands), max_chars=300)
        question = (
            f"the recipe installs packages in addition to vLLM ({commands}): set `image` to an image with these packages, "
            f"and answer `{DROP_ANSWER}` here"
        )
        if report.ask("dependencies", question, (DROP_ANSWER,)):
            report.add("dropped", "dependencies", f"not installed: {commands}")


def _select_image(model_section: dict[str, Any], variant: dict[str, Any], report: ImportReport) -> str:
    spark_layer = as_mapping(as_mapping(variant.get("hardware_overrides")).get(PROFILE))
    image_value = spark_layer.get("docker_image") or variant.get("docker_image") or model_section.get("docker_image")
    while isinstance(image_value, dict):
        image_value = next((image_value[key] for key in (BRAND, "cu130", "default") if key in image_value), None)
    image = as_text(image_value)
    min_version = as_text(variant.get("min_vllm_version") or model_section.get("min_vllm_version"))
    if not image and (model_section.get("nightly_required") or min_version == "nightly"):
        question = (
            "the recipe needs a nightly build of vLLM: its image, as REPOSITORY:TAG with a dated tag, not `nightly`"
        )
        return report.ask("image", question)
    if not image and min_version:
        report.add("note", f"vLLM {min_version} or newer", "required by the recipe")
    return image
