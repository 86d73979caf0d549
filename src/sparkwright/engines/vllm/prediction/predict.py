"""Prediction of an engine's effective settings from its flags. None: not known.

The engine's own config dump, read by `logs`, is the truth; `make test-engine` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines import advice
from sparkwright.engines.advice import Effective
from sparkwright.engines.model.architecture import Architecture
from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.prediction import ascend, defaults
from sparkwright.engines.vllm.prediction.block_size import block_size
from sparkwright.engines.vllm.versions import at_least

#: architectures whose default cache mode was `all` until 0.27, and that took `all` until 0.31. source 0.17.1
#: (SupportsMambaPrefixCaching); seen: 0.28.0
CACHE_MODE_ALL = frozenset(
    """
        BambaForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM GraniteMoeHybridForCausalLM JambaForCausalLM
        MambaForCausalLM Mamba2ForCausalLM NemotronHForCausalLM NemotronHPuzzleForCausalLM Zamba2ForCausalLM
    """.split()
)

PREFIX_CACHING = {
    "recurrent": defaults.PREFIX_CACHING_HYBRID,
    "dense": defaults.PREFIX_CACHING_DENSE,
    "attention_free": defaults.PREFIX_CACHING_ATTENTION_FREE,
}


@dataclass(frozen=True)
class VllmRequest(advice.ServerRequest):
    """The settings of a recipe for vLLM. Flags may have any spelling; they are kept under their own names."""

    #: number of Mamba cache blocks that fitted at the last start, if a log reports it
    mamba_blocks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", flags.named(self.flags))

    def flag(self, name: str) -> Any:
        """Return a flag's value under any of its spellings; None if it is not set."""
        return flags.value(self.flags, name)


def effective(request: VllmRequest, architecture: Architecture, version: Version | None) -> Effective:
    """Return the settings that follow from flags, model and version. A combination that the engine refuses is predicted as
    requested."""
    chunked = _chunked_prefill(request, version)
    prefix = _prefix_caching(request, architecture, version)
    length = _number(request, "max-model-len") or architecture.max_position_embeddings
    share = flags.share(request.flags)
    return Effective(
        chunked_prefill=chunked,
        prefix_caching=prefix,
        mamba_cache_mode=_mamba_cache_mode(request, architecture, prefix, version),
        block_tokens=block_size(architecture.config, str(request.flag("kv-cache-dtype") or "auto")),
        budget=_budget(request, chunked, length),
        max_num_seqs=_number(request, "max-num-seqs") or defaults.default(defaults.MAX_NUM_SEQS, version),
        max_model_len=length,
        memory_utilization=defaults.default(defaults.MEMORY_UTILIZATION, version) if share is None else share,
    )


def _chunked_prefill(request: VllmRequest, version: Version | None) -> bool | None:
    if request.platform == "ascend":
        return ascend.chunked_prefill(request.flags)
    answer = request.flag("enable-chunked-prefill")
    if answer is None or answer is True:
        return True
    honoured = at_least(version, defaults.CHUNKED_PREFILL_OPTIONAL_SINCE)
    return None if honoured is None and version is not None else honoured is False


def _prefix_caching(request: VllmRequest, architecture: Architecture, version: Version | None) -> bool | None:
    answer = request.flag("enable-prefix-caching")
    if isinstance(answer, bool):
        honoured = at_least(version, defaults.RECURRENT_PREFIX_CACHING_SINCE) is not False
        return answer and (honoured or architecture.kind != "recurrent")
    name = PREFIX_CACHING.get(architecture.kind)
    return None if name is None else defaults.default(name, version)


def _mamba_cache_mode(
    request: VllmRequest, architecture: Architecture, prefix: bool | None, version: Version | None
) -> str | None:
    if architecture.kind not in ("recurrent", "attention_free") or prefix is None:
        return None
    if not prefix:
        return "none"
    answer = request.flag("mamba-cache-mode")
    if architecture.name not in CACHE_MODE_ALL or answer == "align":
        return "align"
    until = defaults.ALL_REFUSED_SINCE if answer == "all" else defaults.ALIGN_ONLY_SINCE
    align_only = at_least(version, until)
    return None if align_only is None else "align" if align_only else "all"


def _budget(request: VllmRequest, chunked: bool | None, length: int | None) -> int | None:
    answer = _number(request, "max-num-batched-tokens")
    if answer is not None:
        return answer
    usual = int(defaults.DEFAULTS[defaults.MAX_NUM_BATCHED_TOKENS][0].value)
    if chunked is False:  # raised so that a whole prompt fits one step (source 0.11.0, 0.17.1, 0.33.0)
        return max(usual, length) if length else None
    return usual


def _number(request: VllmRequest, name: str) -> int | None:
    answer = request.flag(name)
    return flags.integer(answer) if answer is not None else None
