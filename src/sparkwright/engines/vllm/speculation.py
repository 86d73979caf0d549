"""Methods of vLLM's speculative decoding and the keys of `speculative-config`, by release.

Sources: `SpeculativeConfig` in vllm/config/speculative.py of 0.11.2, 0.12.0, 0.13.0, 0.14.1, 0.15.1, 0.16.0, 0.17.1, 0.18.1, 0.19.1,
0.20.2, 0.21.0, 0.22.1 and of each minor release to 0.33.0. Methods and keys of 0.11.2 are assumed for every supported release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: first release whose methods and keys have not been reviewed
FIRST_RELEASE_WITH_UNKNOWN_KEYS = "0.34.0"

CONFIG_FLAG = "speculative-config"
#: key of the flag: tokens per draft
TOKENS_KEY = "num_speculative_tokens"

#: source of a method's drafts: layers of the model itself, a second model, or the text generated so far
Drafter = Literal["own layers", "second model", "either", "text"]


@dataclass(frozen=True, slots=True)
class SpeculationMethod:
    """A value of `method` in `speculative-config`."""

    drafter: Drafter
    #: first release with it; "" for every supported release
    since: str = ""
    #: first release without it; "" if it was not removed
    until: str = ""
    #: current name of a deprecated method; "" for other methods
    current_name: str = ""


#: former names of mtp, by the first release with them; "" for every supported release. The engine accepts them and logs a warning
FORMER_MTP_NAMES = {
    "": "deepseek_mtp ernie_mtp glm4_moe_mtp longcat_flash_mtp mimo_mtp pangu_ultra_moe_mtp qwen3_next_mtp",
    "0.14.0": "exaone_moe_mtp",
    "0.15.0": "glm4_moe_lite_mtp step3p5_mtp",
    "0.16.0": "glm_ocr_mtp",
    "0.17.0": "nemotron_h_mtp qwen3_5_mtp",
    "0.20.0": "exaone4_5_mtp hy_v3_mtp",
    "0.21.0": "gemma4_mtp mimo_v2_mtp",
    "0.24.0": "minimax_m3_mtp",
    "0.25.0": "bailing_hybrid_mtp",
    "0.26.0": "inkling_mtp",
    "0.27.0": "kimi_k3_mtp",
    "0.28.0": "bailing_hybrid_v3_mtp dots3_note_mtp",
    "0.29.0": "hy_v4_mtp qwen4_exp_mtp",
    "0.30.0": "glm5_next_mtp",
    "0.33.0": "step5_mtp",
}

METHODS: dict[str, SpeculationMethod] = {
    "mtp": SpeculationMethod("either"),
    "eagle": SpeculationMethod("second model"),
    "eagle3": SpeculationMethod("second model"),
    "draft_model": SpeculationMethod("second model"),
    "dflash": SpeculationMethod("second model", since="0.20.0"),
    "dspark": SpeculationMethod("either", since="0.25.0"),
    "ngram": SpeculationMethod("text"),
    "ngram_gpu": SpeculationMethod("text", since="0.18.0"),
    "suffix": SpeculationMethod("text"),
    "medusa": SpeculationMethod("second model", until="0.33.0"),
    "mlp_speculator": SpeculationMethod("second model", until="0.33.0"),
    "custom_class": SpeculationMethod("second model", since="0.22.0"),
    "extract_hidden_states": SpeculationMethod("text", since="0.17.0"),
    **{
        name: SpeculationMethod("either", since=since, current_name="mtp")
        for since, names in FORMER_MTP_NAMES.items()
        for name in names.split()
    },
}


@dataclass(frozen=True, slots=True)
class SpeculationKey:
    """A key of `speculative-config`."""

    #: int, float, bool, text; "" if any value may be valid
    kind: str
    #: None for no limit
    minimum: float | None = None
    since: str = ""
    until: str = ""


KEYS: dict[str, SpeculationKey] = {
    "method": SpeculationKey("text"),
    "model": SpeculationKey("text"),
    TOKENS_KEY: SpeculationKey("int", 1),
    "enforce_eager": SpeculationKey("bool"),
    "draft_tensor_parallel_size": SpeculationKey("int", 1),
    "quantization": SpeculationKey("text"),
    "max_model_len": SpeculationKey("int", 1),
    "revision": SpeculationKey("text"),
    "code_revision": SpeculationKey("text"),
    "disable_by_batch_size": SpeculationKey("int", 2, until="0.17.0"),
    "disable_padded_drafter_batch": SpeculationKey("bool"),
    "prompt_lookup_max": SpeculationKey("int", 1),
    "prompt_lookup_min": SpeculationKey("int", 1),
    "speculative_token_tree": SpeculationKey("text", until="0.21.0"),
    "target_model_config": SpeculationKey(""),
    "target_parallel_config": SpeculationKey(""),
    "draft_model_config": SpeculationKey(""),
    "draft_parallel_config": SpeculationKey(""),
    "suffix_decoding_max_tree_depth": SpeculationKey("int"),
    "suffix_decoding_max_cached_requests": SpeculationKey("int"),
    "suffix_decoding_max_spec_factor": SpeculationKey("float"),
    "suffix_decoding_min_token_prob": SpeculationKey("float"),
    "tensor_parallel_size": SpeculationKey("int", since="0.15.0"),
    "parallel_drafting": SpeculationKey("bool", since="0.16.0"),
    "draft_load_config": SpeculationKey("", since="0.17.0"),
    "use_local_argmax_reduction": SpeculationKey("bool", since="0.17.0"),
    "rejection_sample_method": SpeculationKey("text", since="0.18.0"),
    "moe_backend": SpeculationKey("text", since="0.19.0"),
    "synthetic_acceptance_rate": SpeculationKey("float", since="0.19.0", until="0.20.0"),
    "synthetic_acceptance_rates": SpeculationKey("", since="0.20.0"),
    "synthetic_acceptance_length": SpeculationKey("float", since="0.20.0"),
    "draft_sample_method": SpeculationKey("text", since="0.21.0"),
    "attention_backend": SpeculationKey("text", since="0.21.0"),
    "num_speculative_tokens_per_batch_size": SpeculationKey("", since="0.24.0"),
    "use_heterogeneous_vocab": SpeculationKey("bool", since="0.25.0"),
    "kv_cache_dtype": SpeculationKey("text", since="0.26.0"),
    "enable_adaptive_verification": SpeculationKey("bool", since="0.28.0"),
    "dspark_draft_topk": SpeculationKey("int", 1, since="0.28.0"),
    "index_share_for_mtp_iteration": SpeculationKey("bool", since="0.29.0"),
    "disable_eagle_block_drop": SpeculationKey("bool", since="0.30.0"),
    "disable_lookahead_block_hashes": SpeculationKey("bool", since="0.33.0"),
    "draft_lm_head_quantization": SpeculationKey("text", since="0.33.0"),
    "xpress_topc": SpeculationKey("int", 0, since="0.33.0"),
    "fly_window_size": SpeculationKey("int", 1, since="0.33.0"),
    "fly_entropy_threshold": SpeculationKey("float", 0, since="0.33.0"),
    "fly_entropy_top_k": SpeculationKey("int", 1, since="0.33.0"),
}
