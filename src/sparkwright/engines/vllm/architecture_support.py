"""Which releases of vLLM load an architecture: recurrent ones, and dense ones that were dropped.

Source: the registries of 0.11.0, 0.17.1, 0.32.0 and 0.33.0, read; what 0.32.0 and 0.33.0 say of the ones they dropped; Qwen3.5
came after 0.16.0 (merged 2026-02-09). Between two of these releases it is not known when a name came.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from sparkwright.engines.model import architecture_dense
from sparkwright.engines.model.architecture_tables import spread
from sparkwright.engines.vllm.versions import parse

#: the newest release whose registry was read
NEWEST = "0.33.0"


@dataclass(frozen=True, slots=True)
class Support:
    """since: the oldest release known to load it. until: the last one that does. lacking: the newest one known not to, before
    `since`. None: not known; for until also: the newest release still does.
    """

    since: str | None = None
    until: str | None = None
    lacking: str | None = None


SUPPORT: dict[str, Support] = spread(
    {
        Support(since="0.11.0"): """
            FalconH1ForCausalLM FalconMambaForCausalLM GraniteMoeHybridForCausalLM JambaForCausalLM
            JambaForSequenceClassification Lfm2ForCausalLM MambaForCausalLM Mamba2ForCausalLM NemotronHForCausalLM
            NemotronH_Nano_VL_V2 Qwen3NextForCausalLM Zamba2ForCausalLM
        """,
        Support(since="0.11.0", until="0.23.0"): """
            BambaForCausalLM MiniMaxForCausalLM MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM
        """,
        Support(until="0.23.0"): "MiniMaxVL01ForConditionalGeneration",
        Support(until="0.10.2"): "Phi4FlashForCausalLM",
        Support(since="0.11.0", until="0.26.0"): "Plamo2ForCausalLM",
        Support(since="0.17.1", lacking="0.11.0"): """
            BailingMoeV2_5ForCausalLM KimiLinearForCausalLM Lfm2MoeForCausalLM Lfm2VlForConditionalGeneration
            NemotronHPuzzleForCausalLM
        """,
        Support(since="0.17.0", lacking="0.16.0"): """
            Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
        """,
        Support(since="0.32.0", lacking="0.17.1"): """
            BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration ColBERTLfm2Model ColQwen3_5
            Glm5NextForCausalLM Glm5NextForConditionalGeneration InternS2MobiusForConditionalGeneration
            InternS2PreviewForConditionalGeneration KimiK3ForConditionalGeneration MiniCPMV4_6ForConditionalGeneration
            MiniCPMV4_7ForConditionalGeneration NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Omni_Reasoning_V3
            NemotronH_Super_Omni_Reasoning_V3 OlmoHybridForCausalLM Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM
            Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration
        """,
        Support(since="0.33.0", lacking="0.32.0"): """
            AliceAIForCausalLM ClefFlashForJointSchema MiniCPMOcrForConditionalGeneration
        """,
        Support(lacking=NEWEST): """
            BailingMoeLinearV2ForCausalLM RecurrentGemmaForCausalLM Rwkv7ForCausalLM RwkvForCausalLM ZambaForCausalLM
        """,
    }
) | {
    **{name: Support(until=last) for name, last in architecture_dense.DROPPED.items()},
    **{name: Support(since="0.33.0", lacking="0.32.0") for name in architecture_dense.NEWER},
}


def loads(name: str, version: str) -> bool | None:
    """Whether this release of vLLM loads the architecture; None where that is not known (then ask the engine).

    name: architectures[0]. version: as the engine says it; a build of its own (+cu130, .post1) counts as its release.
    """
    known = SUPPORT.get(name)
    asked = _version(version)
    if known is None or asked is None:
        return None
    too_old = known.lacking is not None and asked <= Version(known.lacking)
    dropped = known.until is not None and asked > Version(known.until)
    if too_old or dropped:
        return False
    return True if known.since and Version(known.since) <= asked <= Version(NEWEST) else None


def in_words(name: str) -> str:
    """The releases, for a person; "" where nothing is known."""
    known = SUPPORT.get(name)
    if known is None:
        reads = name in architecture_dense.GENERATE or name in architecture_dense.POOL
        return "0.32.0 knows it; when it came is not known" if reads else ""
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
