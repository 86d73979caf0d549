"""Models that vLLM 0.32.0 can't split between layers: all generating models for which its own `supports_pp` is false.

Real: read from the installed engine, class by class, on a CPU. Not read, for a package was missing:
CohereAsrForConditionalGeneration, Dots3NoteForCausalLM, FunASRForConditionalGeneration, KananaVForConditionalGeneration;
DeepseekV4ForConditionalGeneration is a stub there.
"""

from __future__ import annotations

#: the first release that is newer than this list
UNTIL = "0.33.0"
MODELS = frozenset(
    """
        AriaForConditionalGeneration DiffusionGemmaForBlockDiffusion
        FireRedASR2ForConditionalGeneration Gemma3nForCausalLM Gemma3nForConditionalGeneration HrmTextForCausalLM
        IQuestLoopCoderForCausalLM Idefics3ForConditionalGeneration Mamba2ForCausalLM NemotronH_Nano_Omni_Reasoning_V3
        NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 NemotronParseForConditionalGeneration
        PaddleOCRVLForConditionalGeneration Phi4MMForCausalLM SmolVLMForConditionalGeneration WhisperForConditionalGeneration
        Zamba2ForCausalLM
    """.split()
)
