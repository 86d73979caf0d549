"""vllm-project/recipes: models/OWNER/NAME.yaml, with lists of arguments and overrides for the DGX Spark.

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
    by_type,
    partial_mapping,
    scalar,
    word_list,
)
from sparkwright.visible import one_line

KIND = "vllm-project/recipes"
#: a Spark in its vocabulary: the profile, its brand and its generation
PROFILE, GENERATION, BRAND = "dgx_spark_gb10", "blackwell", "nvidia"
#: GB that a Spark has for one server: 128 less the system's own use
SPARK_GB = 112
MAX_SPARKS = 8
SINGLE_HOST_STRATEGY, MULTI_HOST_STRATEGY = "single_node_tp", "multi_node_tp"
TASKS = {"embedding": "embed", "embeddings": "embed", "rerank": "rerank", "reranking": "rerank", "reranker": "rerank"}
#: keys that are read, or are only for people
READ_KEYS = {
    *("meta", "model", "variants", "omni", "hardware_overrides", "strategy_overrides", "features", "opt_in_features"),
    *("dependencies", "compatible_strategies", "guide"),
}
#: keys that a recipe has no use for, each with the reason
DROPPED_KEYS = {
    "kv_offload_support": "where keys and values may be moved to: a Spark has one memory",
    "default_strategy": "a Spark has one GPU; its memory says over how many it is split",
    "strategy_hardware": "a Spark has one GPU; its memory says over how many it is split",
    "strategy_min_gpus": "a Spark has one GPU; its memory says over how many it is split",
    "hardware_opt_in_features": "they are opt-in there: add their flags by hand",
    "hardware_notes": "for people",
}
_LAYER = partial_mapping(extra_args=word_list, extra_env=VARIABLES_SHAPE, docker_image=object)
_BY_HARDWARE = {str: (None, _LAYER)}
_STRATEGY = partial_mapping(extra_args=word_list, extra_env=VARIABLES_SHAPE, hardware_overrides=_BY_HARDWARE)
_VARIANT = {
    **_LAYER,
    **partial_mapping(model_id=scalar, precision=scalar, min_vllm_version=scalar, hardware_overrides=_BY_HARDWARE),
    **partial_mapping(supported_hardware=word_list, precision_hardware=partial_mapping(brand=scalar)),
}
_DEPENDENCY = by_type("a text or a mapping", (SCALAR_TYPES, scalar), (dict, partial_mapping(command=scalar)))
_MODEL = partial_mapping(model_id=scalar, min_vllm_version=scalar, base_args=word_list, base_env=VARIABLES_SHAPE)
#: shape of a file, checked before it is read
SHAPE = {
    **partial_mapping(
        meta=partial_mapping(title=scalar, hardware={}, tasks=word_list), hardware_overrides=_BY_HARDWARE
    ),
    "model": _MODEL,
    "variants": {str: (None, _VARIANT)},
    **partial_mapping(
        features={str: (None, partial_mapping(args=word_list))},
        opt_in_features=word_list,
        compatible_strategies=word_list,
    ),
    **partial_mapping(strategy_overrides={str: (None, _STRATEGY)}, dependencies=[_DEPENDENCY]),
}


def matches(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    return isinstance(data.get("model"), dict) and "variants" in data and "model_id" in data["model"]


def convert(data: dict[str, Any], report: ImportReport) -> ForeignRecipe:
    """Return the recipe for a Spark.

    Raises Refused for a recipe that vLLM-Omni serves, and for one that no number of Sparks can serve.
    """
    meta, base = as_mapping(data.get("meta")), as_mapping(data["model"])
    if data.get("omni"):
        fix = "sparkwright proves a server by text, vectors or scores."
        raise Refused("it is served by vLLM-Omni, which makes images, sound or video.", fix=fix)
    for key in (key for key in data if key not in READ_KEYS):
        report.add("dropped", key, DROPPED_KEYS.get(key, "sparkwright does not know this key"))
    name, variant = _select_variant(data, report)
    hosts = _host_count(data, name, variant, report)
    strategy = SINGLE_HOST_STRATEGY if hosts == 1 else MULTI_HOST_STRATEGY
    if PROFILE not in as_mapping(meta.get("hardware")):
        report.add("note", PROFILE, "the recipe does not list the DGX Spark among the hardware that it was run on")
    args, env = _collect_arguments(data, base, variant, strategy, report)
    _resolve_dependencies(data, report)
    model_id = as_text(variant.get("model_id") or base.get("model_id"))
    image = _select_image(base, variant, report)
    imports = engine.get_engine("vllm").imports
    tensor = [f"--{imports.tensor}", str(hosts)] if imports and hosts > 1 else []
    title = as_text(meta.get("title"))
    precision = as_text(variant.get("precision"))
    suffix = "" if name == "default" else f"-{name}"
    foreign = ForeignRecipe(
        kind=KIND,
        name=f"{as_text(base.get('model_id')).rpartition('/')[2]}{suffix}",
        description=f"{title}, {precision}" if precision else title,
        engine="vllm",
        model=model_id,
        hosts=hosts,
        task=next((TASKS[item] for item in as_texts(meta.get("tasks")) if item in TASKS), ""),
    )
    return parse_arguments(build_arguments(image, [model_id, *args, *tensor], env=format_pairs(env)), foreign, report)


def _select_variant(data: dict[str, Any], report: ImportReport) -> tuple[str, dict[str, Any]]:
    """Return the checkpoint: the one that names the Spark, the only one that fits, else the user's answer."""
    variants = {name: as_mapping(value) for name, value in as_mapping(data["variants"]).items()}
    if not variants:
        raise Refused("`variants` is empty.")
    spark_variants = [
        name for name, value in variants.items() if PROFILE in as_mapping(value.get("hardware_overrides"))
    ]
    fitting = [
        name for name, value in variants.items() if 0 < _memory_gb(value) <= SPARK_GB and not _is_other_hardware(value)
    ]
    fitting_when_split = [
        name
        for name, value in variants.items()
        if 0 < _memory_gb(value) <= SPARK_GB * MAX_SPARKS and not _is_other_hardware(value)
    ]
    candidates = spark_variants or fitting or fitting_when_split or list(variants)
    if len(candidates) == 1:
        report.add("note", f"variant {candidates[0]}", _describe_variant(variants[candidates[0]]))
        return candidates[0], variants[candidates[0]]
    choices = "; ".join(f"{name} ({_describe_variant(variants[name])})" for name in candidates)
    answer = report.ask("variant", f"which checkpoint: {one_line(choices, max_chars=600)}", candidates)
    variant = answer or candidates[0]
    return variant, variants[variant]


def _is_other_hardware(variant: dict[str, Any]) -> bool:
    """Return True if a variant is for hardware other than the DGX Spark, or other than NVIDIA's."""
    only = as_texts(variant.get("supported_hardware"))
    brand = as_text(as_mapping(variant.get("precision_hardware")).get("brand"))
    return (bool(only) and PROFILE not in only) or brand.lower() not in ("", BRAND)


def _memory_gb(variant: dict[str, Any]) -> float:
    value = variant.get("vram_minimum_gb")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _describe_variant(variant: dict[str, Any]) -> str:
    return f"{as_text(variant.get('precision'))}, needs {_memory_gb(variant):g} GB"


def _host_count(data: dict[str, Any], name: str, variant: dict[str, Any], report: ImportReport) -> int:
    """Return the number of Sparks: one if its memory is enough, else the next power of two, which attention heads divide by."""
    needed, hosts = _memory_gb(variant), 1
    while hosts * SPARK_GB < needed:
        hosts *= 2
    if hosts == 1:
        return 1
    strategies = as_texts(data.get("compatible_strategies"))
    fix = "Choose a smaller checkpoint with `--answer variant=NAME`, where it has one."
    if hosts > MAX_SPARKS:
        raise Refused(f"the checkpoint {name} needs {needed:g} GB: more than {MAX_SPARKS} Sparks have.", fix=fix)
    if MULTI_HOST_STRATEGY not in strategies:
        message = (
            f"the checkpoint {name} needs {needed:g} GB, more than a Spark has, and it is not split over hosts there."
        )
        raise Refused(message, fix=fix)
    report.add("note", f"{needed:g} GB", f"more than one Spark has: {hosts} of them, {SPARK_GB} GB each")
    return hosts


def _collect_arguments(
    data: dict[str, Any], base: dict[str, Any], variant: dict[str, Any], strategy: str, report: ImportReport
) -> tuple[list[str], dict[str, str]]:
    """Return all arguments in its own order, and the environment: model, checkpoint, the Spark's own, generation, features."""
    own = as_mapping(variant.get("hardware_overrides"))
    general = as_mapping(data.get("hardware_overrides"))
    by_name = as_mapping(as_mapping(data.get("strategy_overrides")).get(strategy))
    by_strategy = as_mapping(by_name.get("hardware_overrides"))
    replaced = by_strategy.get(GENERATION) or by_strategy.get(BRAND)
    generation = [replaced] if replaced else [general.get(GENERATION) or general.get(BRAND), own.get(GENERATION)]
    layers = [variant, own.get(PROFILE), by_name, *generation, general.get(PROFILE)]
    words, env = as_texts(base.get("base_args")), as_mapping(base.get("base_env"))
    for layer in (as_mapping(layer) for layer in layers):
        words += as_texts(layer.get("extra_args"))
        env |= as_mapping(layer.get("extra_env"))
    opt_in = as_texts(data.get("opt_in_features"))
    for name, entry in as_mapping(data.get("features")).items():
        feature = as_mapping(entry)
        if name in opt_in or "modes" in feature:
            report.add("dropped", f"feature {name}", "it is opt-in there: add its flags by hand")
        else:
            words += as_texts(feature.get("args"))
    if PROFILE in own:
        report.add("kept", f"hardware_overrides.{PROFILE}", "what its author changed for a Spark")
    return words, {name: as_text(value) for name, value in env.items()}


def _resolve_dependencies(data: dict[str, Any], report: ImportReport) -> None:
    """Ask for an image with the packages that it installs in addition to vLLM: nothing is installed in a container."""
    rows = [as_mapping(dependency) for dependency in data.get("dependencies") or () if isinstance(dependency, dict)]
    needed = [as_text(row.get("command")) for row in rows if not row.get("optional")]
    if needed:
        commands = one_line("; ".join(needed), max_chars=300)
        sentence = (
            f"it installs packages besides vLLM ({commands}): give `image` one that has them, and answer "
            f"`{DROP_ANSWER}` here"
        )
        if report.ask("dependencies", sentence, (DROP_ANSWER,)):
            report.add("dropped", "dependencies", f"not installed: {commands}")


def _select_image(base: dict[str, Any], variant: dict[str, Any], report: ImportReport) -> str:
    own = as_mapping(as_mapping(variant.get("hardware_overrides")).get(PROFILE))
    image_value = own.get("docker_image") or variant.get("docker_image") or base.get("docker_image")
    while isinstance(image_value, dict):
        image_value = next((image_value[key] for key in (BRAND, "cu130", "default") if key in image_value), None)
    image = as_text(image_value)
    min_version = as_text(variant.get("min_vllm_version") or base.get("min_vllm_version"))
    if not image and (base.get("nightly_required") or min_version == "nightly"):
        sentence = "it needs a vLLM newer than any release: which image, as REPOSITORY:TAG (a nightly of that day, not `nightly`)"
        return report.ask("image", sentence)
    if not image and min_version:
        report.add("note", f"vLLM {min_version} or newer", "what the recipe asks for")
    return image
