"""Architectures that vLLM 0.32.0 or 0.33.0 knows and that hold no recurrent layer.

Source: the registry of 0.32.0, less the classes that are hybrid or free of attention, less drafts; NEWER: that of 0.33.0, whose classes
were read. What came later is missing: what is not here and not in architecture_tables is unknown, not recurrent.
"""

from __future__ import annotations

from sparkwright.engines.model.architecture_tables import spread

_NEWER_GENERATE = """
    Alpamayo2Super BeamForCausalLM DomynEdgeForCausalLM DoryForCausalLM FlintForCausalLM Kolibri1ForCausalLM
    MuseSparkForConditionalGeneration RadioMBartPrefixForCausalLM Step5ForCausalLM Step5ForConditionalGeneration
"""
_NEWER_POOL = "ColUltraVBertForRetrieval D3ForSequenceClassification Lfm2BidirectionalModel ModernVBertModel"
#: of 0.33.0, and not of 0.32.0
NEWER = frozenset((*_NEWER_GENERATE.split(), *_NEWER_POOL.split()))
_GENERATE = """
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

_POOL = """
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

GENERATE = frozenset((*_GENERATE.split(), *_NEWER_GENERATE.split()))

#: embedding, reward, reranking and classifying models
POOL = frozenset((*_POOL.split(), *_NEWER_POOL.split()))

#: the last release that loaded it: what 0.32.0 says of the ones that were dropped
DROPPED: dict[str, str] = spread(
    {
        "0.9.2": "Phi3SmallForCausalLM",
        "0.10.2": "DonutForConditionalGeneration MllamaForConditionalGeneration MotifForCausalLM",
        "0.12.0": "Phi4MultimodalForCausalLM",
        "0.22.0": "JAISLMHeadModel",
        "0.23.0": """
            BaiChuanForCausalLM BaichuanForCausalLM Dots1ForCausalLM ErnieForSequenceClassification
            ErnieForTokenClassification ErnieModel InternLM2VEForCausalLM InternLMForCausalLM QWenLMHeadModel
            QwenVLForConditionalGeneration Tarsier2ForConditionalGeneration XverseForCausalLM
        """,
        "0.24.0": """
            AquilaForCausalLM AquilaModel AyaVisionForConditionalGeneration Grok1ForCausalLM Grok1ModelForCausalLM
            MantisForConditionalGeneration MusicFlamingoForConditionalGeneration TarsierForConditionalGeneration
        """,
        "0.25.0": "FuyuForCausalLM PersimmonForCausalLM TeleChatForCausalLM",
        "0.26.0": "OuroForCausalLM",
        "0.28.0": """
            ArcticForCausalLM ChameleonForConditionalGeneration Cheers CheersForConditionalGeneration
            Fairseq2LlamaForCausalLM FireRedLIDForConditionalGeneration GritLM HCXVisionForCausalLM MPTForCausalLM
            MptForCausalLM RWForCausalLM StableLMEpochForCausalLM
        """,
    }
)
