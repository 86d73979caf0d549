"""Layer types of model families, by names and keys in config.json.

Sources: vLLM's registry and model classes of 0.11.0, 0.17.1, 0.32.0 and 0.33.0 (is_hybrid and is_attention_free of each class),
transformers 5.19.0 (layer types in lists), flash-linear-attention (its model types).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def invert_rows(rows: Mapping[T, str]) -> dict[str, T]:
    """Return a map from name to value. rows: map from value to its names, separated by spaces."""
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

#: keys for a list of layer types
LAYER_LIST_KEYS = ("layer_types", "layers_block_type", "block_types", "_block_types")
#: keys for a list that is repeated over all layers (RecurrentGemma)
REPEATING_LIST_KEYS = ("block_types", "_block_types")

#: other formats: Nemotron-H's string, MiniMax's list of 0 and 1, Kimi's mapping
LAYER_LETTERS_KEY = "hybrid_override_pattern"
LAYER_NUMBERS_KEY = "attn_type_list"
LINEAR_CONFIG_KEY = "linear_attn_config"

#: mechanism by layer type, "" if ambiguous. Transformers 5 uses linear_attention for former names of mamba; a hybrid layer
#: combines recurrence and attention (Falcon-H1, Zamba2).
RECURRENT_LAYER_TYPES: dict[str, str] = invert_rows(
    {
        "": "linear_attention recurrent hybrid hybrid_sliding mamba",
        MAMBA2: "mamba2",
        SHORT_CONV: "conv short_conv",
        KDA: "kda",
        GDN: "gated_deltanet",
    }
)
HYBRID_LAYER_TYPES = ("hybrid", "hybrid_sliding")
ATTENTION_LAYER_TYPES = frozenset(
    """
        full_attention attention sliding_attention chunked_attention indexed_attention deepseek_sparse_attention
        qwen_sparse_attention compressed_sparse_attention heavily_compressed_attention minimax_m3_sparse
    """.split()
)
OTHER_LAYER_TYPES = frozenset({"moe", "mlp"})

#: mechanism by keys that only recurrent layers need, specific keys first. All keys of a tuple are required. mamba_ssm_dtype is
#: missing because other models have it too.
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

#: mechanism of hybrid models by model_type, as shell patterns, specific patterns first
HYBRID_MODEL_TYPES: dict[str, str] = invert_rows(
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

#: mechanism of models without attention by model_type, as shell patterns
ATTENTION_FREE_MODEL_TYPES: dict[str, str] = {
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": MAMBA2,
    "rwkv*": RWKV,
    "gated_deltanet": GDN,
    "gla": GLA,
}

#: mechanism by architectures[0], for classes that are IsHybrid in an examined release; "" if the config determines the mechanism.
#: It takes precedence over the model_type, which Bailing 2.5 and 3 share.
HYBRID_ARCHITECTURES: dict[str, str] = invert_rows(
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

#: mechanism of further hybrids, which have no class in vLLM or one that is not IsHybrid
OTHER_HYBRID_ARCHITECTURES: dict[str, str] = {
    "BailingMoeLinearV2ForCausalLM": LIGHTNING,
    "MiniMaxVL01ForConditionalGeneration": LIGHTNING,
    "RecurrentGemmaForCausalLM": RG_LRU,
    "ZambaForCausalLM": MAMBA,
}

#: mechanism by architectures[0], for classes that are IsAttentionFree
ATTENTION_FREE_ARCHITECTURES: dict[str, str] = {
    "FalconMambaForCausalLM": MAMBA,
    "MambaForCausalLM": MAMBA,
    "Mamba2ForCausalLM": MAMBA2,
}

#: mechanism of further models without attention, which vLLM does not support
OTHER_ATTENTION_FREE_ARCHITECTURES: dict[str, str] = {"RwkvForCausalLM": RWKV, "Rwkv7ForCausalLM": RWKV}

#: mechanism of all known architectures with recurrent layers
RECURRENT_ARCHITECTURES: dict[str, str] = {
    **HYBRID_ARCHITECTURES,
    **OTHER_HYBRID_ARCHITECTURES,
    **ATTENTION_FREE_ARCHITECTURES,
    **OTHER_ATTENTION_FREE_ARCHITECTURES,
}

#: keys that only draft models have
DRAFT_KEYS = ("speculators_model_type", "speculators_config", "dflash_config", "draft_vocab_size")

#: architectures of draft models; source: vLLM 0.32.0's speculative decoding models. Eagle2_5_VL is a vision model
DRAFT_NAME_PATTERN = re.compile(
    r"MTP|Draft|DSpark|DFlash|Medusa|Speculator|Eagle3|[Pp]-?[Ee]agle|^Eagle(?!2_5)|AssistantModel|^ExtractHiddenStates|XPress"
)

#: keys for the context length; vLLM 0.32.0 uses the smallest value, except that OVERRIDING_LENGTH_KEY takes precedence
LENGTH_KEYS = tuple(
    """
        max_position_embeddings n_positions max_seq_len seq_length max_target_positions max_sequence_length
        max_seq_length seq_len
    """.split()
)
OVERRIDING_LENGTH_KEY = "model_max_length"


# Architectures in vLLM 0.32.0 or 0.33.0 without recurrent layers. A name in none of these tables is unknown.
#
# Source: the registry of 0.32.0 without classes that are hybrid or attention-free and without draft models. _NEWER: classes
# added in 0.33.0.

_NEWER_GENERATING_NAMES = """
    Alpamayo2Super BeamForCausalLM DomynEdgeForCausalLM DoryForCausalLM FlintForCausalLM Kolibri1ForCausalLM
    MuseSparkForConditionalGeneration RadioMBartPrefixForCausalLM Step5ForCausalLM Step5ForConditionalGeneration
"""
_NEWER_POOLING_NAMES = "ColUltraVBertForRetrieval D3ForSequenceClassification Lfm2BidirectionalModel ModernVBertModel"
_GENERATING_NAMES = """
    AXK1ForCausalLM AfmoeForCausalLM ApertusForCausalLM ArceeForCausalLM AriaForConditionalGeneration
    AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration BailingMoeForCausalLM
    BailingMoeV2ForCausalLM BeeForConditionalGeneration Blip2ForConditionalGeneration BloomForCausalLM
    ChatGLMForConditionalGeneration ChatGLMModel Cohere2ForCausalLM Cohere2MoeForCausalLM
    Cohere2VisionForConditionalGeneration CohereAsrForConditionalGeneration CohereCompassForConditionalGeneration
    CohereForCausalLM Cosmos3EdgeForConditionalGeneration Cosmos3ForConditionalGeneration CwmForCausalLM
    DbrxForCausalLM DeciLMForCausalLM DeepseekForCausalLM DeepseekOCR2ForCausalLM DeepseekOCRForCausalLM
    DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV41ForCausalLM DeepseekV4ForCausalLM
    DeepseekV4ForConditionalGeneration DeepseekVLV2ForCausalLM DiffusionGemmaForBlockDiffusion Dots3NoteForCausalLM
    DotsOCRForCausalLM Eagle2_5_VLForConditionalGeneration Emu3ForConditionalGeneration Ernie4_5ForCausalLM
    Ernie4_5_MoeForCausalLM Ernie4_5_VLMoeForConditionalGeneration Exaone4ForCausalLM
    Exaone4_5_ForConditionalGeneration ExaoneForCausalLM ExaoneMoEForCausalLM ExaoneMoeForCausalLM FalconForCausalLM
    FireRedASR2ForConditionalGeneration FlexOlmoForCausalLM FunASRForConditionalGeneration
    FunAudioChatForConditionalGeneration GLM4VForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM
    GPTNeoXForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma3nForCausalLM
    Gemma3nForConditionalGeneration Gemma4ForCausalLM Gemma4ForConditionalGeneration
    Gemma4UnifiedForConditionalGeneration GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM
    Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration GlmAsrForConditionalGeneration GlmForCausalLM
    GlmMoeDsaForCausalLM GlmOcrForConditionalGeneration GptOssForCausalLM Granite4VisionForConditionalGeneration
    GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeSWAForCausalLM GraniteMoeSharedForCausalLM
    GraniteSWAForCausalLM GraniteSpeechForConditionalGeneration GraniteSpeechPlusForConditionalGeneration
    H2OVLChatModel HCXVisionV2ForCausalLM HYV3ForCausalLM HYV4ForCausalLM HfMoondream HrmTextForCausalLM
    HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM HunYuanVLForConditionalGeneration HyperCLOVAXForCausalLM
    IQuestCoderForCausalLM IQuestLoopCoderForCausalLM Idefics3ForConditionalGeneration InklingForCausalLM
    InklingForConditionalGeneration InternLM2ForCausalLM InternLM3ForCausalLM InternS1ForConditionalGeneration
    InternS1ProForConditionalGeneration InternVLChatModel InternVLForConditionalGeneration
    IsaacForConditionalGeneration Jais2ForCausalLM K2HorizonForCausalLM KananaVForConditionalGeneration
    KeyeForConditionalGeneration KeyeVL1_5ForConditionalGeneration KimiK25ForConditionalGeneration
    KimiVLForConditionalGeneration LLaMAForCausalLM LagunaForCausalLM LightOnOCRForConditionalGeneration
    Llama4ForCausalLM Llama4ForConditionalGeneration LlamaForCausalLM Llama_Nemotron_Nano_VL
    LlavaForConditionalGeneration LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration
    LlavaOnevision2ForConditionalGeneration LlavaOnevisionForConditionalGeneration LongcatFlashForCausalLM
    LongcatFlashNgramForCausalLM MellumForCausalLM MiDashengLMModel MiMoForCausalLM MiMoV2FlashForCausalLM
    MiMoV2ForCausalLM MiMoV2OmniForCausalLM MiniCPM3ForCausalLM MiniCPMForCausalLM MiniCPMO MiniCPMV
    MiniMaxM2ForCausalLM MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration Ministral3ForCausalLM
    Mistral3ForConditionalGeneration MistralForCausalLM MistralLarge3ForCausalLM MixtralForCausalLM
    Molmo2ForConditionalGeneration MolmoForCausalLM Moondream3ForCausalLM MoonshotKimiaForCausalLM MossAudioModel
    MossTranscribeDiarizeForConditionalGeneration MuseGlimmerForCausalLM MuseGlimmerForConditionalGeneration NVLM_D
    NanbeigeForCausalLM NemotronForCausalLM NemotronParseForConditionalGeneration OPTForCausalLM Olmo2ForCausalLM
    Olmo3ForCausalLM OlmoForCausalLM OlmoeForCausalLM OpenCUAForConditionalGeneration
    OpenPanguVLForConditionalGeneration OpenVLAForActionPrediction OrionForCausalLM Ovis Ovis2_5 Ovis2_6ForCausalLM
    Ovis2_6_MoeForCausalLM PaddleOCRVLForConditionalGeneration PaliGemmaForConditionalGeneration
    PanguEmbeddedForCausalLM PanguProMoEV2ForCausalLM PanguUltraMoEForCausalLM Param2MoEForCausalLM Phi3ForCausalLM
    Phi3VForCausalLM Phi4ForCausalLMV Phi4MMForCausalLM PhiForCausalLM PhiMoEForCausalLM
    PixtralForConditionalGeneration Plamo3ForCausalLM QianfanOCRForConditionalGeneration
    Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration
    Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration
    Qwen3ASRForConditionalGeneration Qwen3ASRRealtimeGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM
    Qwen3OmniMoeForConditionalGeneration Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration
    RForConditionalGeneration Rnj1ForCausalLM SarvamMLAForCausalLM SarvamMoEForCausalLM SeedOssForCausalLM
    SkyworkR1VChatModel SmolLM3ForCausalLM SmolVLMForConditionalGeneration SolarForCausalLM StableLmForCausalLM
    Starcoder2ForCausalLM Step1ForCausalLM Step3TextForCausalLM Step3VLForConditionalGeneration Step3p5ForCausalLM
    Step3p7ForConditionalGeneration StepVLForConditionalGeneration TeleChat2ForCausalLM TeleChat3ForCausalLM
    TeleFLMForCausalLM UltravoxModel UnlimitedOCRForCausalLM VaultGemmaForCausalLM
    VibeVoiceAsrForConditionalGeneration VoxtralForConditionalGeneration VoxtralRealtimeGeneration
    WhisperForConditionalGeneration
"""

_POOLING_NAMES = """
    BertForMaskedLM BertForSequenceClassification BertForTokenClassification BertModel
    BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel CLIPModel ClefOmniForJointSchema ColBERTJinaRobertaModel
    ColBERTModernBertModel ColModernVBertForRetrieval ColPaliForRetrieval ColQwen3 DeepseekV3BidirectionalModel
    EmbeddingGemma2Model GPT2ForSequenceClassification Gemma2Model Gemma3TextModel GteModel
    GteNewForSequenceClassification GteNewModel HF_ColBERT InternLM2ForRewardModel JinaEmbeddingsV5Model
    JinaForRanking JinaVLForRanking LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel LlamaModel
    LlamaNemotronVLForSequenceClassification LlamaNemotronVLModel MistralModel ModernBertForSequenceClassification
    ModernBertForTokenClassification ModernBertModel NomicBertModel OpenAIPrivacyFilterForTokenClassification
    OpsColQwen3Model Qwen2ForProcessRewardModel Qwen2ForRewardModel Qwen2Model
    Qwen3ASRForcedAlignerForTokenClassification Qwen3VLNemotronEmbedModel RobertaForMaskedLM
    RobertaForSequenceClassification RobertaForTokenClassification RobertaModel SiglipModel
    VoyageQwen3BidirectionalEmbedModel XLMRobertaForSequenceClassification XLMRobertaForTokenClassification
    XLMRobertaModel
"""

GENERATING_ARCHITECTURES = frozenset((*_GENERATING_NAMES.split(), *_NEWER_GENERATING_NAMES.split()))

#: embedding, reward, reranking and classification models
POOLING_ARCHITECTURES = frozenset((*_POOLING_NAMES.split(), *_NEWER_POOLING_NAMES.split()))

_DROPPED_NAMES = """
    AquilaForCausalLM AquilaModel ArcticForCausalLM AyaVisionForConditionalGeneration BaiChuanForCausalLM
    BaichuanForCausalLM ChameleonForConditionalGeneration Cheers CheersForConditionalGeneration
    DonutForConditionalGeneration Dots1ForCausalLM ErnieForSequenceClassification ErnieForTokenClassification
    ErnieModel Fairseq2LlamaForCausalLM FireRedLIDForConditionalGeneration FuyuForCausalLM GritLM
    Grok1ForCausalLM Grok1ModelForCausalLM HCXVisionForCausalLM InternLM2VEForCausalLM InternLMForCausalLM
    JAISLMHeadModel MPTForCausalLM MantisForConditionalGeneration MllamaForConditionalGeneration
    MotifForCausalLM MptForCausalLM MusicFlamingoForConditionalGeneration OuroForCausalLM PersimmonForCausalLM
    Phi3SmallForCausalLM Phi4MultimodalForCausalLM QWenLMHeadModel QwenVLForConditionalGeneration RWForCausalLM
    StableLMEpochForCausalLM Tarsier2ForConditionalGeneration TarsierForConditionalGeneration
    TeleChatForCausalLM XverseForCausalLM
"""
#: architectures that newer releases of vLLM no longer load; see engines/vllm/architecture_support.py
DROPPED_ARCHITECTURES = frozenset(_DROPPED_NAMES.split())
