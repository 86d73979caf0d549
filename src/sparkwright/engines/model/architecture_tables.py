"""Layer types of model families, by the names in their config.json.

Sources: vLLM's registry and model classes of 0.11.0, 0.17.1, 0.32.0 and 0.33.0 (which class is a hybrid, which is free of
attention), transformers 5.19.0 (words of layer lists), flash-linear-attention (its own model types).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def spread(rows: Mapping[T, str]) -> dict[str, T]:
    """Return a table by name, from rows that hold many names for one value."""
    return {name: value for value, names in rows.items() for name in names.split()}


GDN = "Gated DeltaNet"
KDA = "KDA"
MAMBA = "Mamba"
MAMBA2 = "Mamba2"
SHORT_CONV = "short convolution"
LIGHTNING = "lightning attention"
LINEAR = "linear attention"
RWKV = "RWKV"
RG_LRU = "RG-LRU"
GLA = "gated linear attention"

#: explicit layer lists; block_types repeats until the layers are used up (RecurrentGemma)
LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "_block_types")
REPEATING_LISTS = ("block_types", "_block_types")

#: other spellings: Nemotron-H's string, MiniMax's list of 0 and 1, Kimi's mapping
LETTERS = "hybrid_override_pattern"
NUMBERS = "attn_type_list"
LINEAR_CONFIG = "linear_attn_config"

#: words of a layer list -> the mechanism they name, "" if they leave it open. Transformers 5 writes linear_attention for
#: former names of mamba; a hybrid layer has both, side by side (Falcon-H1, Zamba2).
RECURRENT_LAYERS: dict[str, str] = spread(
    {
        "": "linear_attention recurrent hybrid hybrid_sliding mamba",
        MAMBA2: "mamba2",
        SHORT_CONV: "conv short_conv",
        KDA: "kda",
        GDN: "gated_deltanet",
    }
)
BOTH_IN_ONE_LAYER = ("hybrid", "hybrid_sliding")
ATTENTION_LAYERS = frozenset(
    """
        full_attention attention sliding_attention chunked_attention indexed_attention deepseek_sparse_attention
        qwen_sparse_attention compressed_sparse_attention heavily_compressed_attention minimax_m3_sparse
    """.split()
)
OTHER_LAYERS = frozenset({"moe", "mlp"})

#: keys that only a recurrent layer needs -> its mechanism, "" if the key leaves it open; specific ones first.
#: Either of a tuple's keys alone proves nothing. mamba_ssm_dtype is a hint and no proof, so it is not here.
RECURRENT_KEYS: dict[tuple[str, ...], str] = {
    ("linear_conv_kernel_dim",): GDN,
    ("linear_num_value_heads",): GDN,
    ("mamba_num_heads",): MAMBA2,
    ("mamba_n_heads",): MAMBA2,
    ("mamba_headdim",): MAMBA2,
    ("ssm_state_size",): MAMBA2,
    ("mamba_d_state",): MAMBA,
    ("mamba_d_conv",): MAMBA,
    ("mamba_expand",): MAMBA,
    ("ssm_cfg",): MAMBA,
    ("conv_L_cache",): SHORT_CONV,
    ("lru_width",): RG_LRU,
    ("state_size", "conv_kernel"): MAMBA,
    ("time_step_rank",): MAMBA,
    ("linear_num_heads",): LINEAR,
}

#: model_type -> mechanism, for models that keep attention in some layers. Shell patterns, specific ones first.
HYBRID_TYPES: dict[str, str] = spread(
    {
        GDN: "qwen3_next* qwen3_5* qwen4_exp* olmo_hybrid*",
        KDA: "kimi_linear* kimi_k3* glm5_next*",
        MAMBA2: "nemotron_h* granitemoehybrid bamba falcon_h1* zamba2 plamo2",
        MAMBA: "zamba jamba samba",
        SHORT_CONV: "lfm2* lfm3*",
        LIGHTNING: "minimax minimax_text_01 minimax_m1 bailing_hybrid bailing_moe_linear*",
        RG_LRU: "recurrent_gemma",
    }
)

#: model_type -> mechanism, for models without any attention
ATTENTION_FREE_TYPES: dict[str, str] = {
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": MAMBA2,
    "rwkv*": RWKV,
    "gated_deltanet": GDN,
    "gla": GLA,
}

#: architectures[0] -> mechanism: the classes that are IsHybrid in one of the releases that were read. "": hybrid in vLLM, and
#: the config has the mechanism. An architecture beats a model_type: Bailing 2.5 and 3 share theirs.
HYBRID_ARCHITECTURES: dict[str, str] = spread(
    {
        "": """
            AliceAIForCausalLM ClefFlashForJointSchema InternS2MobiusForConditionalGeneration
            InternS2PreviewForConditionalGeneration MiniCPMOcrForConditionalGeneration
            MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration
        """,
        LIGHTNING: "BailingMoeV2_5ForCausalLM MiniMaxForCausalLM MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM",
        KDA: """
            BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration Glm5NextForCausalLM
            Glm5NextForConditionalGeneration KimiK3ForConditionalGeneration KimiLinearForCausalLM
        """,
        MAMBA2: """
            BambaForCausalLM FalconH1ForCausalLM GraniteMoeHybridForCausalLM NemotronHForCausalLM
            NemotronHPuzzleForCausalLM NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2
            NemotronH_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 Plamo2ForCausalLM Zamba2ForCausalLM
        """,
        SHORT_CONV: "ColBERTLfm2Model Lfm2ForCausalLM Lfm2MoeForCausalLM Lfm2VlForConditionalGeneration",
        GDN: """
            ColQwen3_5 OlmoHybridForCausalLM Qwen3NextForCausalLM Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration
            Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration Qwen4ExpForCausalLM
            Qwen4ExpForConditionalGeneration
        """,
        MAMBA: "JambaForCausalLM JambaForSequenceClassification",
    }
)

#: the same, of engines other than vLLM, whose classes are built the same way
OTHER_HYBRID_ARCHITECTURES: dict[str, str] = {
    "BailingMoeLinearV2ForCausalLM": LIGHTNING,
    "MiniMaxVL01ForConditionalGeneration": LIGHTNING,
    "RecurrentGemmaForCausalLM": RG_LRU,
    "ZambaForCausalLM": MAMBA,
}

#: architectures[0] -> mechanism, IsAttentionFree
ATTENTION_FREE_ARCHITECTURES: dict[str, str] = {
    "FalconMambaForCausalLM": MAMBA,
    "MambaForCausalLM": MAMBA,
    "Mamba2ForCausalLM": MAMBA2,
}

#: the same, of engines other than vLLM
OTHER_ATTENTION_FREE_ARCHITECTURES: dict[str, str] = {"RwkvForCausalLM": RWKV, "Rwkv7ForCausalLM": RWKV}

#: architectures known by name to keep a recurrent state
RECURRENT_ARCHITECTURES: dict[str, str] = {
    **HYBRID_ARCHITECTURES,
    **OTHER_HYBRID_ARCHITECTURES,
    **ATTENTION_FREE_ARCHITECTURES,
    **OTHER_ATTENTION_FREE_ARCHITECTURES,
}

#: keys that only the config of a draft has: a small model that guesses ahead for another one
DRAFT_KEYS = ("speculators_model_type", "speculators_config", "dflash_config", "draft_vocab_size")

#: names of drafts; checked against vLLM 0.32.0's speculative decoding models. Eagle2_5_VL is a vision model, no draft.
DRAFT_NAMES = re.compile(
    r"MTP|Draft|DSpark|DFlash|Medusa|Speculator|Eagle3|[Pp]-?[Ee]agle|^Eagle(?!2_5)|AssistantModel|^ExtractHiddenStates|XPress"
)

#: keys that hold the longest sequence; of several the smallest counts, but model_max_length beats them all (vLLM 0.32.0)
LENGTHS = tuple(
    """
        max_position_embeddings n_positions max_seq_len seq_length max_target_positions max_sequence_length
        max_seq_length seq_len
    """.split()
)
LENGTH_THAT_WINS = "model_max_length"
