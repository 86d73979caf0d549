"""vLLM's compile caches, the variables that set their locations, and explanations for a prefix cache without hits.

Sources: 0.32.0 (envs.py, compilation/backends.py and compiler_interface.py, env_override.py, model_executor/warmup), FlashInfer
(jit/env.py) and PyTorch (_inductor/runtime/cache_dir_utils.py). After a start of 0.32.0 on a CPU, graphs and kernels were below
these folders (docs/caches.md has figures).

VLLM_CACHE_ROOT                    torch.compile's graphs with code from Inductor and Triton, FlashInfer's tuned configurations
TORCHINDUCTOR_CACHE_DIR            Inductor's code outside of vLLM's graphs; by default in /tmp, which is deleted with the container
TRITON_CACHE_DIR                   Triton's kernels and their autotuning (TRITON_CACHE_AUTOTUNING); vLLM does not override it
FLASHINFER_WORKSPACE_BASE          FlashInfer's kernels, in the subfolder .cache/flashinfer
CUDA_CACHE_PATH                    code that the driver compiles from PTX if the image has none for the GPU (CUDA's manual)
/tmp/torchinductor_root            Inductor's precompiled C++ header, 149 MB on a CPU. codecache.py always uses the temporary folder and the
                                   user's name, and ignores TORCHINDUCTOR_CACHE_DIR; the user in vLLM's images is root
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
    fixed_folders={"/tmp/torchinductor_root": "inductor_headers"},
    default_suffixes=("/.cache/vllm", "/.cache/flashinfer", "/.triton/cache", "/.nv/ComputeCache"),
    # flags of the HTTP server, the log and the answers, which do not affect compiled code. Changing any other flag creates a new
    # cache: a slow start is better than a wrong cache
    irrelevant_flags=frozenset(
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


# The prefix cache: settings in /metrics, and reasons why a recurrent model may never have a hit.
#
# Sources: vLLM 0.11 to 0.33 (see docs/measuring.md and the rows); /metrics of 0.32.0.

ISSUE_REFERENCE = "vllm issue 36493"

#: limits of the prefix cache for recurrent hybrids: first release, first release without the limit, and the limit
HYBRID_LIMITS: tuple[tuple[str, str, str], ...] = (
    ("", "0.11.1", "this release turns it off for recurrent models; Gated DeltaNet has it from 0.15 on"),
    ("0.11.1", "0.15.0", "this release supports it only for Mamba models; Gated DeltaNet has it from 0.15 on"),
    ("0.15.0", "", "a recurrent layer's state is cached only at block ends, and only at a few of them"),
)

#: remedies for recurrent hybrids: first release, remedy, and source
REMEDIES: tuple[tuple[str, str, str], ...] = (
    ("0.15.0", "an unquantized KV cache (kv-cache-dtype auto) halves the block", "the formula of its block"),
    ("0.24.0", "states are cached according to their use", "#37898"),
    ("0.26.0", "prefix-match-unit allows hits within a block", "#46384"),
)


def block_tokens(cache_labels: Mapping[str, str]) -> int:
    """Return the tokens per block of the prefix cache; 0 if unknown. For hybrids, 0.18 to 0.22 report a block that is too small.

    cache_labels: cache settings in /metrics.
    """
    sizes = (cache_labels.get(name, "") for name in ("block_size", "effective_attention_block_size"))
    return max([0, *(int(size) for size in sizes if size.isdigit())])


def is_off(cache_labels: Mapping[str, str]) -> bool | None:
    """Return True if the engine reports that prefix caching is off; None if it does not report the setting."""
    setting = cache_labels.get("enable_prefix_caching")
    return None if setting not in ("True", "False") else setting == "False"


def is_hybrid(cache_labels: Mapping[str, str]) -> bool:
    """Return True if the cache also stores recurrent states."""
    padded, mode = cache_labels.get("mamba_page_size_padded", "None"), cache_labels.get("mamba_cache_mode", "none")
    return padded != "None" or mode not in ("none", "None", "")


def explain_misses(version: Version | None) -> tuple[str, str]:
    """Return the reason why a recurrent model may have no hits, and the remedies in this release and later ones."""
    reason = next((text for since, until, text in HYBRID_LIMITS if within(version, since, until)), HYBRID_LIMITS[-1][2])
    # remedies of this release come first
    remedies = sorted(REMEDIES, key=lambda remedy: at_least(version, remedy[0]) is not True)
    fixes = [
        f"{'' if at_least(version, since) else f'from {since} on, '}{text} ({source})"
        for since, text, source in remedies
    ]
    return f". A recurrent hybrid ({ISSUE_REFERENCE}): {reason}", "; ".join(
        [*fixes, "prompts shorter than a block never have hits"]
    )
