"""vllm-project/recipes: models/OWNER/NAME.yaml, with lists of arguments and overrides for the DGX Spark.

Source: vllm-project/recipes@8959cf6, taxonomy.yaml and src/lib/command-synthesis.js (the order of arguments).
"""

from __future__ import annotations

from typing import Any

from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.project.importing.docker_words import of_words, pairs, words_of
from sparkwright.project.importing.foreign import (
    DROP,
    VARIABLES,
    WORD,
    Foreign,
    Report,
    either,
    mapping,
    partly,
    scalar,
    text,
    texts,
    words,
)
from sparkwright.visible import one_line

KIND = "vllm-project/recipes"
#: a Spark in its vocabulary: the profile, its brand and its generation
PROFILE, GENERATION, BRAND = "dgx_spark_gb10", "blackwell", "nvidia"
#: GB that a Spark has for one server: 128 less the system's own use
SPARK_GB = 112
MOST_SPARKS = 8
STRATEGY, STRATEGY_OF_SEVERAL = "single_node_tp", "multi_node_tp"
TASKS = {"embedding": "embed", "embeddings": "embed", "rerank": "rerank", "reranking": "rerank", "reranker": "rerank"}
#: keys that are read, or are only for people
READ = {
    *("meta", "model", "variants", "omni", "hardware_overrides", "strategy_overrides", "features", "opt_in_features"),
    *("dependencies", "compatible_strategies", "guide"),
}
#: keys that a recipe has no use for, each with the reason
DROPPED = {
    "kv_offload_support": "where keys and values may be moved to: a Spark has one memory",
    "default_strategy": "a Spark has one GPU; its memory says over how many it is split",
    "strategy_hardware": "a Spark has one GPU; its memory says over how many it is split",
    "strategy_min_gpus": "a Spark has one GPU; its memory says over how many it is split",
    "hardware_opt_in_features": "they are opt-in there: add their flags by hand",
    "hardware_notes": "for people",
}
_LAYER = partly(extra_args=words, extra_env=VARIABLES, docker_image=object)
_BY_HARDWARE = {str: (None, _LAYER)}
_STRATEGY = partly(extra_args=words, extra_env=VARIABLES, hardware_overrides=_BY_HARDWARE)
_VARIANT = {
    **_LAYER,
    **partly(model_id=scalar, precision=scalar, min_vllm_version=scalar, hardware_overrides=_BY_HARDWARE),
    **partly(supported_hardware=words, precision_hardware=partly(brand=scalar)),
}
_DEPENDENCY = either("a text or a mapping", (WORD, scalar), (dict, partly(command=scalar)))
_MODEL = partly(model_id=scalar, min_vllm_version=scalar, base_args=words, base_env=VARIABLES)
#: shape of a file, checked before it is read
SHAPE = {
    **partly(meta=partly(title=scalar, hardware={}, tasks=words), hardware_overrides=_BY_HARDWARE),
    "model": _MODEL,
    "variants": {str: (None, _VARIANT)},
    **partly(features={str: (None, partly(args=words))}, opt_in_features=words, compatible_strategies=words),
    **partly(strategy_overrides={str: (None, _STRATEGY)}, dependencies=[_DEPENDENCY]),
}


def is_one(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    return isinstance(data.get("model"), dict) and "variants" in data and "model_id" in data["model"]


def read(data: dict[str, Any], report: Report) -> Foreign:
    """Return the recipe for a Spark.

    Raises Refused for a recipe that vLLM-Omni serves, and for one that no number of Sparks can serve.
    """
    meta, base = mapping(data.get("meta")), mapping(data["model"])
    if data.get("omni"):
        fix = "sparkwright proves a server by text, vectors or scores."
        raise Refused("it is served by vLLM-Omni, which makes images, sound or video.", fix=fix)
    for key in (key for key in data if key not in READ):
        report.add("dropped", key, DROPPED.get(key, "sparkwright does not know this key"))
    name, variant = _variant(data, report)
    hosts = _hosts(data, name, variant, report)
    strategy = STRATEGY if hosts == 1 else STRATEGY_OF_SEVERAL
    if PROFILE not in mapping(meta.get("hardware")):
        report.add("note", PROFILE, "the recipe does not list the DGX Spark among the hardware that it was run on")
    args, env = _arguments(data, base, variant, strategy, report)
    _dependencies(data, report)
    model_id = text(variant.get("model_id") or base.get("model_id"))
    image = _image(base, variant, report)
    own = engine.of("vllm").imports
    tensor = [f"--{own.tensor}", str(hosts)] if own and hosts > 1 else []
    title = text(meta.get("title"))
    precision = text(variant.get("precision"))
    suffix = "" if name == "default" else f"-{name}"
    found = Foreign(
        kind=KIND,
        name=f"{text(base.get('model_id')).rpartition('/')[2]}{suffix}",
        description=f"{title}, {precision}" if precision else title,
        engine="vllm",
        model=model_id,
        hosts=hosts,
        task=next((TASKS[item] for item in texts(meta.get("tasks")) if item in TASKS), ""),
    )
    return of_words(words_of(image, [model_id, *args, *tensor], env=pairs(env)), found, report)


def _variant(data: dict[str, Any], report: Report) -> tuple[str, dict[str, Any]]:
    """Return the checkpoint: the one that names the Spark, the only one that fits, else the user's answer."""
    all_ = {name: mapping(value) for name, value in mapping(data["variants"]).items()}
    if not all_:
        raise Refused("`variants` is empty.")
    ours = [name for name, value in all_.items() if PROFILE in mapping(value.get("hardware_overrides"))]
    fits = [name for name, value in all_.items() if 0 < _gb(value) <= SPARK_GB and not _elsewhere(value)]
    split = [name for name, value in all_.items() if 0 < _gb(value) <= SPARK_GB * MOST_SPARKS and not _elsewhere(value)]
    few = ours or fits or split or list(all_)
    if len(few) == 1:
        report.add("note", f"variant {few[0]}", _about(all_[few[0]]))
        return few[0], all_[few[0]]
    offered = "; ".join(f"{name} ({_about(all_[name])})" for name in few)
    answer = report.ask("variant", f"which checkpoint: {one_line(offered, at_most=600)}", few)
    variant = answer or few[0]
    return variant, all_[variant]


def _elsewhere(variant: dict[str, Any]) -> bool:
    """Return True if a variant is for hardware other than the DGX Spark, or other than NVIDIA's."""
    only = texts(variant.get("supported_hardware"))
    brand = text(mapping(variant.get("precision_hardware")).get("brand"))
    return (bool(only) and PROFILE not in only) or brand.lower() not in ("", BRAND)


def _gb(variant: dict[str, Any]) -> float:
    found = variant.get("vram_minimum_gb")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else 0.0


def _about(variant: dict[str, Any]) -> str:
    return f"{text(variant.get('precision'))}, needs {_gb(variant):g} GB"


def _hosts(data: dict[str, Any], name: str, variant: dict[str, Any], report: Report) -> int:
    """Return the number of Sparks: one if its memory is enough, else the next power of two, which attention heads divide by."""
    needed, hosts = _gb(variant), 1
    while hosts * SPARK_GB < needed:
        hosts *= 2
    if hosts == 1:
        return 1
    able = texts(data.get("compatible_strategies"))
    fix = "Choose a smaller checkpoint with `--answer variant=NAME`, where it has one."
    if hosts > MOST_SPARKS:
        raise Refused(f"the checkpoint {name} needs {needed:g} GB: more than {MOST_SPARKS} Sparks have.", fix=fix)
    if STRATEGY_OF_SEVERAL not in able:
        message = (
            f"the checkpoint {name} needs {needed:g} GB, more than a Spark has, and it is not split over hosts there."
        )
        raise Refused(message, fix=fix)
    report.add("note", f"{needed:g} GB", f"more than one Spark has: {hosts} of them, {SPARK_GB} GB each")
    return hosts


def _arguments(
    data: dict[str, Any], base: dict[str, Any], variant: dict[str, Any], strategy: str, report: Report
) -> tuple[list[str], dict[str, str]]:
    """Return all arguments in its own order, and the environment: model, checkpoint, the Spark's own, generation, features."""
    own = mapping(variant.get("hardware_overrides"))
    general = mapping(data.get("hardware_overrides"))
    by_name = mapping(mapping(data.get("strategy_overrides")).get(strategy))
    by_strategy = mapping(by_name.get("hardware_overrides"))
    replaced = by_strategy.get(GENERATION) or by_strategy.get(BRAND)
    generation = [replaced] if replaced else [general.get(GENERATION) or general.get(BRAND), own.get(GENERATION)]
    layers = [variant, own.get(PROFILE), by_name, *generation, general.get(PROFILE)]
    words, env = texts(base.get("base_args")), mapping(base.get("base_env"))
    for layer in (mapping(layer) for layer in layers):
        words += texts(layer.get("extra_args"))
        env |= mapping(layer.get("extra_env"))
    opt_in = texts(data.get("opt_in_features"))
    for name, entry in mapping(data.get("features")).items():
        feature = mapping(entry)
        if name in opt_in or "modes" in feature:
            report.add("dropped", f"feature {name}", "it is opt-in there: add its flags by hand")
        else:
            words += texts(feature.get("args"))
    if PROFILE in own:
        report.add("kept", f"hardware_overrides.{PROFILE}", "what its author changed for a Spark")
    return words, {name: text(value) for name, value in env.items()}


def _dependencies(data: dict[str, Any], report: Report) -> None:
    """Ask for an image with the packages that it installs in addition to vLLM: nothing is installed in a container."""
    rows = [mapping(dependency) for dependency in data.get("dependencies") or () if isinstance(dependency, dict)]
    needed = [text(row.get("command")) for row in rows if not row.get("optional")]
    if needed:
        listed = one_line("; ".join(needed), at_most=300)
        sentence = (
            f"it installs packages besides vLLM ({listed}): give `image` one that has them, and answer `{DROP}` here"
        )
        if report.ask("dependencies", sentence, (DROP,)):
            report.add("dropped", "dependencies", f"not installed: {listed}")


def _image(base: dict[str, Any], variant: dict[str, Any], report: Report) -> str:
    own = mapping(mapping(variant.get("hardware_overrides")).get(PROFILE))
    written = own.get("docker_image") or variant.get("docker_image") or base.get("docker_image")
    while isinstance(written, dict):
        written = next((written[key] for key in (BRAND, "cu130", "default") if key in written), None)
    image = text(written)
    least = text(variant.get("min_vllm_version") or base.get("min_vllm_version"))
    if not image and (base.get("nightly_required") or least == "nightly"):
        sentence = "it needs a vLLM newer than any release: which image, as REPOSITORY:TAG (a nightly of that day, not `nightly`)"
        return report.ask("image", sentence)
    if not image and least:
        report.add("note", f"vLLM {least} or newer", "what the recipe asks for")
    return image
