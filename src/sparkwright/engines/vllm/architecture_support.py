"""Releases of vLLM that load an architecture: all in a registry from 0.10.2 to 0.33.0, and some that are in none.

Source: the registries in architecture_releases, read from each release's wheel; Qwen3.5 came with 0.17.0 (merged 2026-02-09,
0.16.0 lacks it). Between two releases that were read it is not known when a name came or went.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from sparkwright.engines.vllm.versions import parse

# Architectures by the releases of vLLM that have a model for them: FIRST..LAST, then names; without LAST the newest has it.
#
# Source: `registry.py` in the wheel of each of RELEASES. Written by tests/real_engine/releases/sources.py; do not edit.

#: the releases that were read, oldest first
ARCHITECTURES = """
0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.1 0.15.1 0.16.0 0.17.1 0.18.1 0.19.1 0.20.2 0.21.0 0.22.1 0.23.0
   0.24.0 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""

TABLE = """
0.10.2.. ApertusForCausalLM ArceeForCausalLM AriaForConditionalGeneration BailingMoeForCausalLM
   BertForSequenceClassification BertModel Blip2ForConditionalGeneration BloomForCausalLM
   ChatGLMForConditionalGeneration ChatGLMModel Cohere2ForCausalLM Cohere2VisionForConditionalGeneration
   CohereForCausalLM DbrxForCausalLM DeciLMForCausalLM DeepSeekMTPModel DeepseekForCausalLM DeepseekV2ForCausalLM
   DeepseekV3ForCausalLM DeepseekVLV2ForCausalLM Eagle3LlamaForCausalLM EagleDeepSeekMTPModel EagleLlama4ForCausalLM
   EagleLlamaForCausalLM EagleMiniCPMForCausalLM Emu3ForConditionalGeneration Ernie4_5ForCausalLM
   Ernie4_5_MoeForCausalLM Ernie4_5_VLMoeForConditionalGeneration ErnieMTPModel Exaone4ForCausalLM ExaoneForCausalLM
   FalconForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM GLM4VForCausalLM GPT2ForSequenceClassification
   GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoXForCausalLM Gemma2ForCausalLM Gemma2Model
   Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma3TextModel Gemma3nForCausalLM Gemma3nForConditionalGeneration
   GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeMTPModel Glm4vForConditionalGeneration
   Glm4vMoeForConditionalGeneration GlmForCausalLM GptOssForCausalLM GraniteForCausalLM GraniteMoeForCausalLM
   GraniteMoeHybridForCausalLM GraniteMoeSharedForCausalLM GraniteSpeechForConditionalGeneration GteModel
   GteNewForSequenceClassification GteNewModel H2OVLChatModel HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM
   Idefics3ForConditionalGeneration InternLM2ForCausalLM InternLM2ForRewardModel InternLM3ForCausalLM
   InternS1ForConditionalGeneration InternVLChatModel InternVLForConditionalGeneration JambaForCausalLM
   JambaForSequenceClassification JinaVLForRanking KeyeForConditionalGeneration KeyeVL1_5ForConditionalGeneration
   KimiVLForConditionalGeneration LLaMAForCausalLM Lfm2ForCausalLM Llama4ForCausalLM Llama4ForConditionalGeneration
   LlamaForCausalLM LlamaForCausalLMEagle3 LlamaModel Llama_Nemotron_Nano_VL LlavaForConditionalGeneration
   LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration LlavaOnevisionForConditionalGeneration
   Mamba2ForCausalLM MambaForCausalLM MiDashengLMModel MiMoForCausalLM MiMoMTPModel MiniCPM3ForCausalLM
   MiniCPMForCausalLM MiniCPMO MiniCPMV Mistral3ForConditionalGeneration MistralForCausalLM MistralModel
   MixtralForCausalLM ModernBertForSequenceClassification ModernBertModel MolmoForCausalLM NVLM_D NemotronForCausalLM
   NemotronHForCausalLM NomicBertModel OPTForCausalLM Olmo2ForCausalLM OlmoForCausalLM OlmoeForCausalLM
   OrionForCausalLM Ovis Ovis2_5 PaliGemmaForConditionalGeneration Phi3ForCausalLM Phi3VForCausalLM Phi4MMForCausalLM
   PhiForCausalLM PhiMoEForCausalLM PixtralForConditionalGeneration Qwen2AudioForConditionalGeneration
   Qwen2ForCausalLM Qwen2ForProcessRewardModel Qwen2ForRewardModel Qwen2Model Qwen2MoeForCausalLM
   Qwen2VLForConditionalGeneration Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel
   Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3NextMTP
   RForConditionalGeneration RobertaForMaskedLM RobertaForSequenceClassification RobertaModel SeedOssForCausalLM
   SkyworkR1VChatModel SmolLM3ForCausalLM SmolVLMForConditionalGeneration SolarForCausalLM StableLmForCausalLM
   Starcoder2ForCausalLM Step3TextForCausalLM Step3VLForConditionalGeneration TeleChat2ForCausalLM TeleFLMForCausalLM
   Terratorch TransformersForCausalLM UltravoxModel VoxtralForConditionalGeneration WhisperForConditionalGeneration
   XLMRobertaForSequenceClassification XLMRobertaModel Zamba2ForCausalLM
0.10.2..0.10.2 BartForConditionalGeneration BartModel DonutForConditionalGeneration Florence2ForConditionalGeneration
   MBartForConditionalGeneration MllamaForConditionalGeneration NemotronH_Nano_VL Phi4FlashForCausalLM
0.10.2..0.11.0 MotifForCausalLM TransformersForMultimodalLM TransformersModel
0.10.2..0.12.0 Phi4MultimodalForCausalLM
0.10.2..0.22.1 JAISLMHeadModel
0.10.2..0.23.0 BambaForCausalLM Dots1ForCausalLM InternLM2VEForCausalLM InternLMForCausalLM MiniMaxForCausalLM
   MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM MiniMaxVL01ForConditionalGeneration QWenLMHeadModel
   QwenVLForConditionalGeneration XverseForCausalLM
0.10.2..0.24.0 AquilaForCausalLM AquilaModel AyaVisionForConditionalGeneration BaiChuanForCausalLM BaichuanForCausalLM
   Grok1ModelForCausalLM MantisForConditionalGeneration Tarsier2ForConditionalGeneration
   TarsierForConditionalGeneration
0.10.2..0.25.1 FuyuForCausalLM PersimmonForCausalLM
0.10.2..0.26.0 Plamo2ForCausalLM
0.10.2..0.28.0 ArcticForCausalLM ChameleonForConditionalGeneration Fairseq2LlamaForCausalLM GritLM
   HCXVisionForCausalLM MPTForCausalLM MptForCausalLM PrithviGeoSpatialMAE RWForCausalLM StableLMEpochForCausalLM
0.10.2..0.32.0 MedusaModel
0.11.0.. BailingMoeV2ForCausalLM BertForTokenClassification CwmForCausalLM DeepseekV32ForCausalLM DotsOCRForCausalLM
   LongCatFlashMTPModel LongcatFlashForCausalLM NemotronH_Nano_VL_V2 Olmo3ForCausalLM Qwen3VLForConditionalGeneration
   Qwen3VLMoeForConditionalGeneration
0.11.1.. AfmoeForCausalLM BeeForConditionalGeneration BertSpladeSparseEmbeddingModel CLIPModel DeepseekOCRForCausalLM
   Eagle3Qwen2_5vlForCausalLM FlexOlmoForCausalLM KimiLinearForCausalLM Lfm2MoeForCausalLM
   LightOnOCRForConditionalGeneration MiniMaxM2ForCausalLM ModernBertForTokenClassification OpenPanguMTPModel
   PaddleOCRVLForConditionalGeneration PanguEmbeddedForCausalLM PanguUltraMoEForCausalLM
   Qwen3OmniMoeForConditionalGeneration SiglipModel TransformersEmbeddingModel TransformersForSequenceClassification
   TransformersMoEEmbeddingModel TransformersMoEForCausalLM TransformersMoEForSequenceClassification
   TransformersMultiModalEmbeddingModel TransformersMultiModalForCausalLM
   TransformersMultiModalForSequenceClassification TransformersMultiModalMoEForCausalLM
0.11.1..0.26.0 OuroForCausalLM
0.12.0.. Eagle3Qwen3vlForCausalLM EagleMistralLarge3ForCausalLM HunYuanVLForConditionalGeneration
   MistralLarge3ForCausalLM OpenCUAForConditionalGeneration Plamo3ForCausalLM
0.12.0..0.25.1 TeleChatForCausalLM
0.13.0.. AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration Jais2ForCausalLM
0.14.1.. ExaoneMoeMTP GlmAsrForConditionalGeneration IQuestCoderForCausalLM IQuestLoopCoderForCausalLM
   IsaacForConditionalGeneration KananaVForConditionalGeneration Lfm2VlForConditionalGeneration
   LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel MiMoV2FlashForCausalLM
   NemotronParseForConditionalGeneration PanguProMoEV2ForCausalLM
0.14.1..0.15.1 VoxtralStreamingGeneration
0.14.1..0.24.0 Grok1ForCausalLM
0.14.1..0.26.0,0.32.0.. ExaoneMoEForCausalLM
0.15.1.. BgeM3EmbeddingModel Eagle2_5_VLForConditionalGeneration Glm4MoeLiteForCausalLM Glm4MoeLiteMTPModel
   KimiK25ForConditionalGeneration Molmo2ForConditionalGeneration Step1ForCausalLM Step3p5ForCausalLM Step3p5MTP
   StepVLForConditionalGeneration
0.16.0.. DeepseekOCR2ForCausalLM FunAudioChatForConditionalGeneration GlmMoeDsaForCausalLM
   GlmOcrForConditionalGeneration GlmOcrMTPModel HF_ColBERT InternS1ProForConditionalGeneration
   NemotronHPuzzleForCausalLM OpenPanguVLForConditionalGeneration Qwen3ASRForConditionalGeneration
   VoxtralRealtimeGeneration VoyageQwen3BidirectionalEmbedModel
0.16.0..0.24.0 MusicFlamingoForConditionalGeneration
0.17.1.. AXK1ForCausalLM BailingMoeV2_5ForCausalLM ColBERTJinaRobertaModel ColBERTModernBertModel
   ColModernVBertForRetrieval ColQwen3 ExtractHiddenStatesModel FireRedASR2ForConditionalGeneration
   FunASRForConditionalGeneration LlamaNemotronVLForSequenceClassification LlamaNemotronVLModel NemotronHMTPModel
   OpsColQwen3Model Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM Qwen3ASRRealtimeGeneration Qwen3VLNemotronEmbedModel
   Qwen3_5ForConditionalGeneration Qwen3_5MTP Qwen3_5MoeForConditionalGeneration Qwen3_5MoeMTP
0.18.1.. ColPaliForRetrieval Eagle3DeepseekV2ForCausalLM Eagle3DeepseekV3ForCausalLM HCXVisionV2ForCausalLM
   HyperCLOVAXForCausalLM MoonshotKimiaForCausalLM OlmoHybridForCausalLM SarvamMLAForCausalLM SarvamMoEForCausalLM
0.18.1..0.23.0 ErnieForSequenceClassification ErnieForTokenClassification ErnieModel
0.19.1.. CohereAsrForConditionalGeneration ColBERTLfm2Model ColQwen3_5 Gemma4ForCausalLM
   Gemma4ForConditionalGeneration Qwen3ASRForcedAlignerForTokenClassification
0.20.2.. DFlashDraftModel DeepSeekV4MTPModel DeepseekV4ForCausalLM Eagle3MiniMaxM2ForCausalLM
   Exaone4_5_ForConditionalGeneration Exaone4_5_MTP Granite4VisionForConditionalGeneration HYV3ForCausalLM
   HYV3MTPModel JinaEmbeddingsV5Model JinaForRanking Ministral3ForCausalLM NemotronH_Nano_Omni_Reasoning_V3
   NemotronH_Super_Omni_Reasoning_V3 Param2MoEForCausalLM Phi4ForCausalLMV Rnj1ForCausalLM TeleChat3ForCausalLM
0.20.2..0.28.0 Cheers CheersForConditionalGeneration FireRedLIDForConditionalGeneration
0.21.0.. Cohere2MoeForCausalLM EagleCohereForCausalLM EagleMistralForCausalLM Gemma4MTPModel HfMoondream
   LagunaForCausalLM MiMoV2ForCausalLM MiMoV2MTPModel MiMoV2OmniForCausalLM MiMoV2OmniMTPModel Moondream3ForCausalLM
   QianfanOCRForConditionalGeneration
0.22.1.. InternS2PreviewForConditionalGeneration MellumForCausalLM MiniCPMV4_6ForConditionalGeneration
   OpenVLAForActionPrediction PEagleDraftModel PeagleLlamaForCausalLM
0.23.0.. Cosmos3ForConditionalGeneration Gemma4UnifiedForConditionalGeneration
   GraniteSpeechPlusForConditionalGeneration Step3p7ForConditionalGeneration
0.24.0.. DiffusionGemmaForBlockDiffusion Eagle3Qwen3ForCausalLM HrmTextForCausalLM MiniMaxM3MTP
   MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration MossAudioModel PeagleQwen3ForCausalLM
0.25.1.. BailingMoeV25MTPModel DFlashLagunaForCausalLM DSparkDraftModel LlavaOnevision2ForConditionalGeneration
   MossTranscribeDiarizeForConditionalGeneration OpenAIPrivacyFilterForTokenClassification Qwen3DSparkModel
   UnlimitedOCRForCausalLM
0.26.0.. BertForMaskedLM Cosmos3EdgeForConditionalGeneration Gemma4DSparkModel InklingForCausalLM
   InklingForConditionalGeneration InklingMTPModel LongcatFlashNgramForCausalLM RobertaForTokenClassification
   XLMRobertaForTokenClassification
0.27.1.. ExaoneMoeForCausalLM K3DSparkModel KimiK3ForConditionalGeneration KimiK3MTPModel Qwen3_5ForCausalLM
   Qwen3_5MoeForCausalLM VaultGemmaForCausalLM VibeVoiceAsrForConditionalGeneration
0.28.0.. BailingMoeV3ForCausalLM BailingMoeV3MTPModel DFlash2DraftModel DFlashMuseGlimmerAssistantModel
   Dots3NoteForCausalLM Dots3NoteMTPModel InternS2MobiusForConditionalGeneration InternS2MobiusMTP
   MuseGlimmerAssistantModel MuseGlimmerForCausalLM MuseGlimmerForConditionalGeneration
0.29.0.. DeepseekV32MTPModel DeepseekV3BidirectionalModel GraniteMoeSWAForCausalLM GraniteSWAForCausalLM
   HYV4ForCausalLM HYV4MTPModel NemotronH_Omni_Reasoning_V3 Qwen3OmniDSparkModel Qwen4ExpForCausalLM
   Qwen4ExpForConditionalGeneration Qwen4ExpMTP
0.30.0.. BailingMoeV3VLForConditionalGeneration CohereCompassForConditionalGeneration DSparkV41DraftModel
   DeepseekV41ForCausalLM DeepseekV4ForConditionalGeneration Glm5NextForCausalLM Glm5NextForConditionalGeneration
   Glm5NextMTPModel K2HorizonForCausalLM NanbeigeForCausalLM
0.31.0.. LiLiCorrDraftModel
0.32.0.. ClefOmniForJointSchema EmbeddingGemma2Model MiniCPMV4_7ForConditionalGeneration
0.33.0.. AliceAIForCausalLM Alpamayo2Super BeamForCausalLM ClefFlashForJointSchema ColUltraVBertForRetrieval
   D3ForSequenceClassification DFlash2BeamDraftModel DFlashQwen3XPressModel DomynEdgeForCausalLM DoryForCausalLM
   FlintForCausalLM Kolibri1ForCausalLM Lfm2BidirectionalModel MiniCPMOcrForConditionalGeneration ModernVBertModel
   MuseSparkDSparkModel MuseSparkForConditionalGeneration ParseAuxMTPModel Qwen3XPressModel
   RadioMBartPrefixForCausalLM Step5ForCausalLM Step5ForConditionalGeneration Step5MTP TransformersForMTP
   TransformersMoEForMTP
"""


RELEASES = tuple(ARCHITECTURES.split())
#: the newest release whose registry was read
NEWEST = RELEASES[-1]
#: architectures whose first release is known, though it lies between two that were read
CAME = dict.fromkeys(("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"), "0.17.0")
#: recurrent architectures in none of these registries
NEVER = (
    *("BailingMoeLinearV2ForCausalLM", "RecurrentGemmaForCausalLM", "Rwkv7ForCausalLM", "RwkvForCausalLM"),
    "ZambaForCausalLM",
)


@dataclass(frozen=True, slots=True)
class Support:
    """The releases that load an architecture. None: not known; for `until` and `gone` also that the newest release still loads
    it."""

    since: str | None = None  # the oldest release known to load it
    until: str | None = None  # the last release known to load it
    lacking: str | None = None  # the newest release known not to load it, before `since`
    gone: str | None = None  # the oldest release known to have dropped it
    #: releases between, which lack it: the last one that has it, and the first that has it again
    gaps: tuple[tuple[str, str], ...] = ()


def _rows() -> Iterator[tuple[str, Support]]:
    releases = ""
    for word in TABLE.split():
        if ".." in word:
            releases = word
        else:
            yield word, _support(releases, CAME.get(word))


def _support(releases: str, came: str | None) -> Support:
    runs = [run.partition("..")[::2] for run in releases.split(",")]
    first, last = RELEASES.index(runs[0][0]), runs[-1][1]
    gaps = tuple((before[1], after[0]) for before, after in itertools.pairwise(runs))
    return Support(came or RELEASES[first], last or None, RELEASES[first - 1] if first else None, _gone(last), gaps)


def _gone(last: str) -> str | None:
    """Return the first release without it: the next minor one, unless a patch release is known to lack it."""
    if not last:
        return None
    after, held = RELEASES[RELEASES.index(last) + 1], Version(last)
    return after if Version(after).minor == held.minor else f"{held.major}.{held.minor + 1}.0"


SUPPORT: dict[str, Support] = {
    **dict(_rows()),
    **dict.fromkeys(NEVER, Support(lacking=NEWEST)),
    # before the oldest of these releases
    "Phi3SmallForCausalLM": Support(until="0.9.2", gone=RELEASES[0]),
}


def loads(name: str, version: str) -> bool | None:
    """Return True if this release of vLLM loads the architecture; None if that is not known (then ask the engine).

    Args:
        name: architectures[0].
        version: as the engine reports it; a build of its own (+cu130, .post1) counts as its release.
    """
    known = SUPPORT.get(name)
    release = _version(version)
    if known is None or release is None:
        return None
    if known.lacking and release <= Version(known.lacking):
        return False
    if known.gone and release >= Version(known.gone):
        return False
    if any(Version(before) < release < Version(after) for before, after in known.gaps):
        return None
    return True if known.since and Version(known.since) <= release <= Version(known.until or NEWEST) else None


def in_words(name: str) -> str:
    """Return the releases in words; "" if nothing is known."""
    known = SUPPORT.get(name)
    if known is None:
        return ""
    if known.since and known.until:
        return f"{known.since} to {known.until}, not since"
    if known.until:
        return f"up to {known.until}, not since"
    if known.since:
        older = f"none up to {known.lacking}" if known.lacking else "older ones were not checked"
        return f"{known.since} and newer; {older}"
    return f"none up to {known.lacking}"


def _version(text: str) -> Version | None:
    held = parse(text)
    return Version(held.base_version) if held and (held.is_postrelease or held.local) else held
