"""Facts about the shipped recipes that their files do not contain: uses, size and reported speed.

Every figure has a source. bytes_per_token is computed from a model's config.json (engines/model/roofline.py); it gives an upper
bound on the speed, not an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

USES = ("chat", "coding", "agents", "long-context", "search", "vision")
_GENERAL_USES = ("chat", "coding", "agents")


@dataclass(frozen=True)
class ReportedRate:
    """The decode rate of a single stream on a DGX Spark, as reported by others."""

    tok_per_s: float
    source: str
    date: str = ""  # date of the report, YYYY-MM-DD; empty if unknown

    def __str__(self) -> str:
        return f"{self.tok_per_s:g} tok/s reported by {self.source}, {self.date or 'no date given'}"


@dataclass(frozen=True)
class VendorRun:
    """A run on a DGX Spark by the authors of the model or its engine, published without a decode rate."""

    source: str
    date: str

    def __str__(self) -> str:
        return f"no figure; its makers serve it on a DGX Spark ({self.source}, {self.date})"


@dataclass(frozen=True)
class CatalogueEntry:
    """Facts about a shipped recipe."""

    model: str  # id on the hub
    uses: tuple[str, ...]  # from USES
    weights_gb: float = 0.0  # 0 if unknown
    bytes_per_token: int = 0  # weight bytes read per token; 0 if unknown
    reported_rate: ReportedRate | None = None
    vendor_run: VendorRun | None = None


_QWEN35 = CatalogueEntry(
    "Qwen/Qwen3.5-35B-A3B-FP8",
    ("chat", "coding", "agents"),
    weights_gb=35.0,
    bytes_per_token=3_650_000_000,
    reported_rate=ReportedRate(47.0, "ai-muninn.com (one ASUS GX10, FP8, no speculation)", "2026-03-05"),
)
#: entries by the name of the shipped recipe
ENTRIES: Mapping[str, CatalogueEntry] = {
    # 568M parameters in FP32
    "bge-reranker-v2-m3": CatalogueEntry("BAAI/bge-reranker-v2-m3", ("search",), weights_gb=2.3),
    # weights of both hosts together
    "deepseek-v4-flash": CatalogueEntry(
        "deepseek-ai/DeepSeek-V4-Flash-0731",
        _GENERAL_USES,
        weights_gb=167.0,
        reported_rate=ReportedRate(
            37.6, "getainode/ainode #94 (two hosts, DSpark with 5 tokens, a patched build of vLLM)", "2026-09-14"
        ),
    ),
    # computed from its config.json: experts at 4.5 bits, the rest in BF16
    "gemma-4-26b": CatalogueEntry(
        "nvidia/Gemma-4-26B-A4B-NVFP4",
        ("chat", "vision"),
        weights_gb=18.2,
        vendor_run=VendorRun("vllm-project/recipes #916, a build of July 2026", "2026-09-02"),
    ),
    "glm-4.7-flash": CatalogueEntry("zai-org/GLM-4.7-Flash", _GENERAL_USES),
    "gpt-oss-120b": CatalogueEntry(
        "openai/gpt-oss-120b",
        _GENERAL_USES,
        weights_gb=63.0,
        reported_rate=ReportedRate(57.5, "kubis.ai (llama-benchy 0.3.5, 50 runs, no speculation)"),
    ),
    "gpt-oss-120b-gguf": CatalogueEntry("ggml-org/gpt-oss-120b-GGUF", _GENERAL_USES, weights_gb=64.0),
    "llama-3.1-8b": CatalogueEntry(
        "meta-llama/Llama-3.1-8B-Instruct", ("chat",), weights_gb=16.1, bytes_per_token=16_060_000_000
    ),
    # 75 GB on disk, 81.6 GB loaded: sgl-project/sglang #20580, 2026-03-14
    "nemotron-3-super": CatalogueEntry(
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        (*_GENERAL_USES, "long-context"),
        weights_gb=75.0,
        reported_rate=ReportedRate(
            23.6, "spark-arena/recipe-registry #19 (MTP with 3 tokens, five runs)", "2026-08-05"
        ),
    ),
    "qwen3-1.7b": CatalogueEntry("Qwen/Qwen3-1.7B", ("chat",), weights_gb=3.4),
    "qwen3-coder-next": CatalogueEntry("Qwen/Qwen3-Coder-Next-FP8", ("coding", "agents"), weights_gb=80.0),
    "qwen3-embedding-0.6b": CatalogueEntry("Qwen/Qwen3-Embedding-0.6B", ("search",), weights_gb=1.2),
    # computed from its config.json: linear layers in FP8, embeddings and vision encoder in BF16
    "qwen3-vl-30b": CatalogueEntry("Qwen/Qwen3-VL-30B-A3B-Instruct-FP8", ("vision", "chat"), weights_gb=32.0),
    "qwen3.5-35b": _QWEN35,
    "qwen3.5-35b-200k": replace(_QWEN35, uses=("long-context", "coding", "agents")),
    # the reports are about Qwen3.6 or other formats: see recipes/qwen3.5-35b-mtp.yml
    "qwen3.5-35b-mtp": replace(_QWEN35, reported_rate=None),
    "qwen3.5-35b-unchunked": replace(_QWEN35, uses=("chat",), reported_rate=None),
    # 8.57 bits a parameter: 0xBakeer/inference-atlas #159
    "qwen3.6-35b": CatalogueEntry(
        "Qwen/Qwen3.6-35B-A3B-FP8",
        (*_GENERAL_USES, "vision"),
        weights_gb=37.5,
        reported_rate=ReportedRate(
            58.6, "0xBakeer/inference-atlas #159 (256 tokens in and out, MTP with 2 tokens)", "2026-08-31"
        ),
    ),
    "qwen3.6-35b-gguf": CatalogueEntry(
        "unsloth/Qwen3.6-35B-A3B-MTP-GGUF",
        _GENERAL_USES,
        vendor_run=VendorRun("NVIDIA/dgx-spark-playbooks, llama-cpp", "2026-07-24"),
    ),
    # 6.06 bits a parameter: 0xBakeer/inference-atlas #140
    "qwen3.6-35b-nvfp4": CatalogueEntry(
        "nvidia/Qwen3.6-35B-A3B-NVFP4",
        (*_GENERAL_USES, "long-context", "vision"),
        weights_gb=26.5,
        reported_rate=ReportedRate(
            97.7, "vllm-project/recipes #918 (8k in, 256 out, MTP with 3 tokens, v0.28.0)", "2026-09-02"
        ),
    ),
    # 10.64 GiB on each of two GPUs: vllm-project/recipes, Qwen3.8-27B, 2026-08-15
    "qwen3.8-27b": CatalogueEntry(
        "unsloth/Qwen3.8-27B-NVFP4",
        (*_GENERAL_USES, "vision"),
        weights_gb=22.9,
        reported_rate=ReportedRate(
            22.0, "0xBakeer/inference-atlas #218 (256 tokens in and out, MTP with 3 tokens)", "2026-09-16"
        ),
    ),
    # 30,866,866,928 bytes: vllm-project/recipes; 28.75 GB a token: kubesimplify.com
    "qwen3.8-27b-fp8": CatalogueEntry(
        "Qwen/Qwen3.8-27B-FP8",
        (*_GENERAL_USES, "vision"),
        weights_gb=30.9,
        bytes_per_token=28_750_000_000,
        reported_rate=ReportedRate(8.2, "kubesimplify.com (llama-benchy 0.4.0, no speculation)", "2026-08-17"),
    ),
    # size in memory; its files are 135 GB, of which a 51 GB table stays on disk: recipes/qwen3.8-flash-next.yml
    "qwen3.8-flash-next": CatalogueEntry(
        "nvidia/Qwen3.8-Flash-Next-NVFP4",
        _GENERAL_USES,
        weights_gb=84.0,
        reported_rate=ReportedRate(
            30.1, "sgl-project/sglang #37995 (1024 in, 256 out, 3 drafted steps, a development image)", "2026-09-06"
        ),
    ),
}
EMPTY_ENTRY = CatalogueEntry("", ())


def find_entry(name: str, model: str) -> CatalogueEntry:
    """Return the facts about a shipped recipe; EMPTY_ENTRY for any other recipe, or if the user changed its model."""
    entry = ENTRIES.get(name, EMPTY_ENTRY)
    return entry if entry.model == model else EMPTY_ENTRY


def find_bytes_per_token(model: str) -> int:
    """Return the bytes that a model's server reads per token; 0 if unknown."""
    return max((entry.bytes_per_token for entry in ENTRIES.values() if entry.model == model), default=0)
