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

from sparkwright.engines.compile_caches import CompileCaches

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
