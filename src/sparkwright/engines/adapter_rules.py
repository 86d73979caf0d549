"""Rules about LoRA adapters, for any engine: an adapter fits the model that it was made for, and the engine's limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import engine as engines
from sparkwright.engines.advice import Explained
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.flags import AdapterFlags
from sparkwright.engines.model import config_parts
from sparkwright.visible import one_line

#: key of a recipe
KEY = "adapters"
#: modules whose inputs, and whose outputs, are as wide as the model's hidden states, in every architecture that has them
READS_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj", "q_a_proj")
WRITES_HIDDEN = ("o_proj", "down_proj")
#: architectures whose attention has heads times head_dim outputs, and nothing else in those matrices
PLAIN_ATTENTION = (
    *("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM"),
    *("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
)
#: families of models, as words of a name
FAMILIES = (
    *(
        "bloom",
        "cohere",
        "command",
        "deepseek",
        "ernie",
        "falcon",
        "gemma",
        "glm",
        "gpt",
        "granite",
        "hunyuan",
        "internlm",
    ),
    *(
        "kimi",
        "lfm",
        "llama",
        "minimax",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "phi",
        "qwen",
        "seed",
        "smollm",
        "yi",
    ),
)
#: letters of a name of a family that other words may end in
MOST_SHORT = 3
_SIZE = re.compile(r"(?<![0-9a-z.])a?[0-9]{1,4}(?:\.[0-9]{1,2})?[bm](?![0-9a-z])")
#: what makers of quantised copies put into a name
_COPY = re.compile(
    r"(?<![a-z0-9])(?:fp8|fp4|nvfp4|mxfp4|int4|int8|awq|gptq|bnb|4bit|8bit|w[48]a[48]|w4a16|w8a16|dynamic|block|unsloth|"
    r"bf16|gguf|hf|quantized|modelopt|autoround)(?![a-z0-9])"
)


@dataclass(frozen=True)
class Case:
    """The input of the rules."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # under their own names
    model: str = "org/model"  # name of the pinned model on the hub
    config: Mapping[str, Any] = field(default_factory=dict)  # of the pinned model, as the lock keeps it
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the lock's `adapter` entries, by name
    engine: str = "vllm"

    @property
    def place(self) -> AdapterFlags:
        """The engine's flags for adapters."""
        place = engines.of(self.engine).flags.ADAPTERS
        assert place is not None, "recipes of other engines cannot have adapters"
        return place


RULES: Rules[Case, Case] = Rules()
rule = RULES.rule

_LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32}


@rule(
    "adapter-base",
    sources=(
        "peft: matrix A of a module is [rank, inputs] and B [outputs, rank], with the sizes of the base model's own matrix",
        "vLLM 0.32.0, real starts: an adapter of a larger model ends the start, one of a smaller model is loaded without a word",
        "llama.cpp b11549, a real start: tensor has incorrect shape (hint: maybe wrong base model?)",
    ),
    example=Case(
        config=_LLAMA, adapters={"sql": {"base": "org/other", "sizes": {"q_proj": [2048, 2048]}, "layers": 16}}
    ),
)
def adapter_base(case: Case) -> Iterator[Finding]:
    """An adapter fits one base model.
    vLLM loads an adapter of a smaller model without a word, into a corner of its matrices, and answers by it. An adapter's matrices have the sizes of the model that it was trained on: another size, other heads or more layers are refused here, from
    the header of its weights and the model's config.json. Two models of one size cannot be told apart so: there its
    `base_model_name_or_path` speaks. It may name an older or a quantised copy of the model, so a name that is merely different is
    said and not refused; one of another family or size is.
    """
    for name, about in case.adapters.items():
        base = one_line(str(about.get("base") or ""), at_most=120)
        why = _misfit(about, case.config) or _plainly_other(base, case)
        if why:
            made_for = f" It was made for {base}." if base and base not in why else ""
            way = Way(f"take an adapter of {case.model}, or serve the model it was made for")
            sentence = f"the adapter {name} is not one of {case.model}: {why}.{made_for}"
            yield Finding("error", sentence, (way,), "the adapter's files and the model's config.json", KEY)
            continue
        if base and _plain(base) != _plain(case.model):
            fits = "the sizes of its matrices fit" if about.get("sizes") else "its sizes are not known"
            sentence = f"the adapter {name} was made for {base}, and the model is {case.model}; {fits}."
            way = Way("check that the two have the same weights, if not the same precision")
            yield Finding("warning", sentence, (way,), "the adapter's adapter_config.json", KEY)


@rule(
    "adapter-rank",
    sources=("vLLM 0.32.0, lora/peft_helper.py: LoRA rank 64 is greater than max_lora_rank 16",),
    example=Case(adapters={"sql": {"rank": 64}}),
)
def adapter_rank(case: Case) -> Iterator[Finding]:
    """The rank of an adapter is at most the engine's.
    The engine reserves room for that rank, in every layer and for every adapter of a batch. vLLM's default is 16, and an adapter
    with a larger one ends its start.
    """
    place = case.place
    most = _number(case.flags.get(place.max_rank)) or place.usual_rank
    for name, about in case.adapters.items():
        rank = about.get("rank") or 0
        if not most or rank <= most:
            continue
        fits = next((allowed for allowed in place.ranks if allowed >= rank), 0 if place.ranks else rank)
        sentence = f"the adapter {name} has rank {rank}, and {place.max_rank} is {most}: the server does not start."
        ways = (Way(f"set {place.max_rank} to {fits}", {place.max_rank: fits}),) if fits else ()
        yield Finding("error", sentence, ways, place.source, place.max_rank if place.max_rank in case.flags else KEY)


@rule(
    "adapters-at-once",
    sources=("vLLM 0.32.0, config/lora.py: max_loras, the number of LoRAs in a single batch, is 1 by default",),
    example=Case(adapters={"sql": {}, "law": {}}),
)
def adapters_at_once(case: Case) -> Iterator[Finding]:
    """Requests for more adapters than fit in a batch wait for one another.
    They are answered all the same, one adapter after the other; each further place costs the memory of an adapter of the largest
    rank. SGLang counts the model without an adapter as one of them.
    """
    place = case.place
    if not place.at_once:
        return
    places = _number(case.flags.get(place.at_once)) or place.usual_at_once
    wanted = len(case.adapters) + place.base_counts
    if wanted > places:
        sentence = f"{len(case.adapters)} adapters and {place.at_once} {places}: requests for different ones wait for one another."
        way = Way(f"set {place.at_once} to {wanted}, which takes memory for each", {place.at_once: wanted})
        yield Finding("warning", sentence, (way,), place.source, place.at_once if place.at_once in case.flags else KEY)


@rule(
    "adapter-kind",
    sources=("vLLM 0.32.0, lora/peft_helper.py: `_validate_features`", "SGLang 0.5.23, lora/lora_manager.py"),
    example=Case(adapters={"sql": {"extras": ["use_dora"]}}),
)
def adapter_kind(case: Case) -> Iterator[Finding]:
    """Some adapters do more than a plain LoRA, and the engine refuses them.
    DoRA, biases, whole modules that were trained beside the matrices: an engine that does not compute them does not load the
    adapter, and one that ignored them would answer as another model.
    """
    title = engines.TITLES[case.engine]
    for name, about in case.adapters.items():
        refused = [extra for extra in about.get("extras") or () if extra in case.place.refused]
        if refused:
            sentence = (
                f"the adapter {name} has {', '.join(refused)} in its adapter_config.json, which {title} does not serve."
            )
            yield Finding(
                "error", sentence, (Way("merge it into the model, or train a plain LoRA"),), case.place.source, KEY
            )


def _misfit(about: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return why an adapter's matrices do not fit a model; empty if nothing is known against it."""
    own = config.get("general.architecture")
    if about.get("architecture") and own and about["architecture"] != own:
        return f"its architecture is {one_line(about['architecture'], at_most=40)}, and the model's {own}"
    part = config_parts.text(config)
    hidden, layers = part.number("hidden_size", "n_embd", "d_model"), part.layers
    last = about.get("layers")
    if last and layers and last > layers + config_parts.prediction_layers(config):
        return f"it changes layer {last}, and the model has {layers}"
    heads = _heads(part, config, hidden)
    for module, (inputs, outputs) in (about.get("sizes") or {}).items():
        wanted = heads.get(module, (0, 0))
        reads = hidden if module in READS_HIDDEN else wanted[0]
        writes = hidden if module in WRITES_HIDDEN else wanted[1]
        for size, own_size, word in ((inputs, reads, "inputs"), (outputs, writes, "outputs")):
            if size and own_size and size != own_size:
                return f"its {module} has {size} {word}, and the model's {own_size}"
    return ""


def _heads(part: config_parts.Part, config: Mapping[str, Any], hidden: int | None) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of the matrices of attention, 0 for unknown ones; empty unless its attention is plain."""
    heads = part.number("num_attention_heads")
    if not heads or not hidden or (config.get("architectures") or [""])[0] not in PLAIN_ATTENTION:
        return {}
    size = part.number("head_dim") or hidden // heads
    kv = (part.number("num_key_value_heads") or heads) * size
    return {"q_proj": (0, heads * size), "k_proj": (0, kv), "v_proj": (0, kv), "o_proj": (heads * size, 0)}


def _plainly_other(base: str, case: Case) -> str:
    """Return why a base model's name is one of another family or size than the model; empty if it may be the same."""
    mine = f"{case.model} {case.config.get('model_type', '')} {case.config.get('general.architecture', '')}".lower()
    theirs = base.rpartition("/")[2].lower()
    families = [_families(text) for text in (theirs, mine)]
    sizes = [set(_SIZE.findall(text)) for text in (theirs, case.model.rpartition("/")[2].lower())]
    if all(families) and not families[0] & families[1]:
        return f"it was made for {base}, a model of another family"
    if all(sizes) and not sizes[0] & sizes[1]:
        return f"it was made for {base}, a model of another size"
    return ""


def _families(text: str) -> set[str]:
    """Return the families of models that a text names: `codellama` is a llama, `philosophy` no phi."""
    words = re.findall(r"[a-z]+", text)
    return {
        family
        for family in FAMILIES
        for word in words
        if word == family or (len(family) > MOST_SHORT and word.endswith(family))
    }


def _plain(model: str) -> str:
    """Return a model's name without its owner and without what a quantised copy adds."""
    return re.sub(r"[^a-z0-9.]+", "", _COPY.sub("", model.rpartition("/")[2].lower()))


def _number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


def explained(name: str) -> Explained | None:
    """Return a rule by name; None if there is none."""
    found = RULES.get(name)
    if found is None:
        return None
    finding = next(iter(found.findings(found.example)))
    return Explained("", found.name, found.title, found.reason, found.sources, {}, "", None, finding)
