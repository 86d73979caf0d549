"""Compile caches of vLLM, and the variables that set their location.

source: read in 0.32.0 (envs.py, compilation/backends.py and compiler_interface.py, env_override.py, model_executor/warmup) and in
FlashInfer (jit/env.py) and PyTorch (_inductor/runtime/cache_dir_utils.py). seen: on 0.32.0 on a CPU, graphs and
kernels lie below these folders after a start (docs/caches.md has figures).

VLLM_CACHE_ROOT                    torch.compile's graphs, what Inductor and Triton made for them, FlashInfer's tuned configurations
TORCHINDUCTOR_CACHE_DIR            Inductor, for what is compiled outside of vLLM's own graphs; else /tmp, which goes with the container
TRITON_CACHE_DIR                   Triton's kernels; vLLM keeps what the caller gives. Their autotuning too (TRITON_CACHE_AUTOTUNING)
FLASHINFER_WORKSPACE_BASE          FlashInfer's kernels, in .cache/flashinfer below it
CUDA_CACHE_PATH                    what the driver compiles of PTX for a GPU that the image has no code for (CUDA's manual)
/tmp/torchinductor_root            Inductor's precompiled C++ header, 149 MB on a CPU: codecache.py takes the temporary folder and the
                                   user's name on purpose, whatever TORCHINDUCTOR_CACHE_DIR says. The user of vLLM's images is root
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from sparkwright.engines.compile_caches import CompileCaches
from sparkwright.engines.vllm.versions import at_least, within

CACHES = CompileCaches(
    variables={
        "VLLM_CACHE_ROOT": "vllm",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "CUDA_CACHE_PATH": "cuda",
    },
    places={"/tmp/torchinductor_root": "inductor_headers"},
    usual=("/.cache/vllm", "/.cache/flashinfer", "/.triton/cache", "/.nv/ComputeCache"),
    # about the HTTP server, its log and its answers. All other flags matter: an empty cache costs a slow start, a wrong one more
    indifferent=frozenset(
        (
            *("host", "port", "uds", "root-path", "api-key", "served-model-name", "config"),
            *("allowed-origins", "allowed-methods", "allowed-headers", "allow-credentials"),
            *("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs"),
            *("uvicorn-log-level", "disable-uvicorn-access-log", "enable-log-requests", "disable-log-requests"),
            *("disable-log-stats", "max-log-len", "enable-request-id-headers", "enable-server-load-tracking"),
            *("chat-template", "chat-template-content-format", "response-role", "return-tokens-as-token-ids"),
            *("enable-auto-tool-choice", "tool-call-parser", "tool-parser-plugin", "reasoning-parser"),
            *("generation-config", "override-generation-config", "master-addr", "master-port"),
        )
    ),
)


# vLLM's reports about its prefix cache, and reasons why a recurrent model may never hit it.
#
# Sources: vLLM 0.11 to 0.33 as docs/measuring.md and the rows name them; 0.32.0's own /metrics.

ISSUE = "vllm issue 36493"

#: (from, until, what it means for a recurrent hybrid)
HYBRID_LIMITS: tuple[tuple[str, str, str], ...] = (
    ("", "0.11.1", "this engine turns it off for recurrent models; 0.15 is the first with it for Gated DeltaNet"),
    ("0.11.1", "0.15.0", "only Mamba's family has it here; 0.15 is the first with it for Gated DeltaNet"),
    ("0.15.0", "", "a recurrent layer's state is kept at the ends of whole blocks only, and of few of them"),
)

#: (from, what helps a recurrent hybrid there, its source)
REMEDIES: tuple[tuple[str, str, str], ...] = (
    ("0.15.0", "an unquantized KV cache (kv-cache-dtype auto) halves the block", "the formula of its block"),
    ("0.24.0", "states are admitted by their use", "#37898"),
    ("0.26.0", "prefix-match-unit lets a part of a block hit", "#46384"),
)


def block_tokens(cache: Mapping[str, str]) -> int:
    """Return the block size in which prefixes hit, from /metrics; 0 if it has none. 0.18 to 0.22 report too small a block for
    hybrids."""
    sizes = (cache.get(name, "") for name in ("block_size", "effective_attention_block_size"))
    return max([0, *(int(item) for item in sizes if item.isdigit())])


def is_off(cache: Mapping[str, str]) -> bool | None:
    """Return True if the engine reports that prefix caching is off; None if it reports nothing."""
    setting = cache.get("enable_prefix_caching")
    return None if setting not in ("True", "False") else setting == "False"


def is_hybrid(cache: Mapping[str, str]) -> bool:
    """Return True if the cache holds recurrent states too."""
    padded, mode = cache.get("mamba_page_size_padded", "None"), cache.get("mamba_cache_mode", "none")
    return padded != "None" or mode not in ("none", "None", "")


def why(version: Version | None) -> tuple[str, str]:
    """Return why a recurrent model may not hit, and what helps on this engine or from which release on."""
    reason = next((text for since, until, text in HYBRID_LIMITS if within(version, since, until)), HYBRID_LIMITS[-1][2])
    available = [f"{text} ({source})" for since, text, source in REMEDIES if at_least(version, since)]
    later = [
        f"from {since} {text} ({source})" for since, text, source in REMEDIES if at_least(version, since) is not True
    ]
    fix = "; ".join([*available, *later, "prompts shorter than a block can never hit"])
    return f". A recurrent hybrid ({ISSUE}): {reason}", fix
