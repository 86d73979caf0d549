"""Environment variables that vLLM reads, by release, and the flags that replaced removed ones.

Source: `environment_variables` in vllm/envs.py of every minor release from 0.10.2 to 0.33.0, and of each 0.11. From 0.17 on the
engine logs "Unknown vLLM environment variable detected"; before, such a variable silently has no effect.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from sparkwright.engines.vllm.versions import at_least, within

PREFIX = "VLLM_"
#: set by images, but not read by vLLM
OF_IMAGES = frozenset({"VERSION", "BUILD_COMMIT", "BUILD_PIPELINE", "BUILD_URL", "IMAGE_TAG"})
#: the first release whose variables are not all known
AFTER = "0.34.0"


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables with the same history."""

    since: str  # the first release that reads them; "" for 0.10.2 or before
    removed: str  # the first release that no longer does; "" if 0.33.0 does
    names: str  # without VLLM_, separated by white space


@dataclass(frozen=True, slots=True)
class Unread:
    """A variable that a release does not read."""

    name: str
    why: str  # half a sentence
    certain: bool
    instead: str = ""  # the replacement, a flag as "attention-backend" or another variable


#: flags that replaced variables, by name without VLLM_.
#: Sources: the help of 0.33.0, and the removals of 0.15.0, 0.16.0, 0.24.0 and 0.31.0
SUCCESSORS = {
    "ATTENTION_BACKEND": "attention-backend",
    "ALL2ALL_BACKEND": "all2all-backend",
    "DISABLE_NCCL_FOR_DP_SYNCHRONIZATION": "disable-nccl-for-dp-synchronization",
    "FLASHINFER_MOE_BACKEND": "moe-backend",
    "MXFP4_USE_MARLIN": "moe-backend",
    "NVFP4_GEMM_BACKEND": "linear-backend",
    "TEST_FORCE_FP8_MARLIN": "linear-backend",
    "USE_FBGEMM": "linear-backend",
    **dict.fromkeys(
        (
            "USE_FLASHINFER_MOE_FP16",
            "USE_FLASHINFER_MOE_FP4",
            "USE_FLASHINFER_MOE_FP8",
            "USE_FLASHINFER_MOE_MXFP4_BF16",
            "USE_FLASHINFER_MOE_MXFP4_MXFP8",
            "USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS",
        ),
        "moe-backend",
    ),
    **dict.fromkeys(
        (
            "DISABLE_FLASHINFER_PREFILL",
            "FLASHINFER_DISABLE_Q_QUANTIZATION",
            "FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH",
            "FLASH_ATTN_VERSION",
            "USE_CUDNN_PREFILL",
            "USE_TRTLLM_ATTENTION",
            "USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL",
            "V1_USE_PREFILL_DECODE_ATTENTION",
        ),
        "attention-config",
    ),
    **dict.fromkeys(
        (
            "PROFILER_DELAY_ITERS",
            "PROFILER_MAX_ITERS",
            "TORCH_CUDA_PROFILE",
            "TORCH_PROFILER_DIR",
            "TORCH_PROFILER_DISABLE_ASYNC_LLM",
            "TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL",
            "TORCH_PROFILER_RECORD_SHAPES",
            "TORCH_PROFILER_USE_GZIP",
            "TORCH_PROFILER_WITH_FLOPS",
            "TORCH_PROFILER_WITH_PROFILE_MEMORY",
            "TORCH_PROFILER_WITH_STACK",
        ),
        "profiler-config",
    ),
}

TABLE: tuple[Variables, ...] = (
    Variables(
        "",
        "0.11.0",
        """
        GPT_OSS_USE_CONTAINER_TOOL TEST_DYNAMO_FULLGRAPH_CAPTURE
        """,
    ),
    Variables(
        "",
        "0.11.1",
        """
        DISABLE_PAD_FOR_CUDAGRAPH LOGITS_PROCESSOR_THREADS SKIP_DEEP_GEMM_WARMUP USE_AITER_UNIFIED_ATTENTION
        USE_DEEP_GEMM_E8M0_HOPPER USE_RAY_COMPILED_DAG USE_RAY_SPMD_WORKER USE_TRITON_FLASH_ATTN
        USE_TRTLLM_FP4_GEMM USE_V1 V0_USE_OUTLINES_CACHE
        """,
    ),
    Variables(
        "",
        "0.12.0",
        """
        CPU_MOE_PREPACK
        """,
    ),
    Variables(
        "",
        "0.13.0",
        """
        MM_INPUT_CACHE_GIB TEST_USE_PRECOMPILED_NIGHTLY_WHEEL
        """,
    ),
    Variables(
        "",
        "0.15.0",
        """
        ATTENTION_BACKEND FLASHINFER_DISABLE_Q_QUANTIZATION FLASH_ATTN_VERSION USE_CUDNN_PREFILL
        USE_TRTLLM_ATTENTION V1_USE_PREFILL_DECODE_ATTENTION
        """,
    ),
    Variables(
        "",
        "0.16.0",
        """
        ALL2ALL_BACKEND TORCH_PROFILER_DIR TORCH_PROFILER_RECORD_SHAPES TORCH_PROFILER_WITH_FLOPS
        TORCH_PROFILER_WITH_PROFILE_MEMORY TORCH_PROFILER_WITH_STACK
        """,
    ),
    Variables(
        "",
        "0.18.0",
        """
        ENABLE_FUSED_MOE_ACTIVATION_CHUNKING FUSED_MOE_CHUNK_SIZE SLEEP_WHEN_IDLE
        """,
    ),
    Variables(
        "",
        "0.19.0",
        """
        ROCM_CUSTOM_PAGED_ATTN
        """,
    ),
    Variables(
        "",
        "0.20.0",
        """
        MOE_DP_CHUNK_SIZE
        """,
    ),
    Variables(
        "",
        "0.22.0",
        """
        NIXL_ABORT_REQUEST_TIMEOUT
        """,
    ),
    Variables(
        "",
        "0.23.0",
        """
        RPC_TIMEOUT
        """,
    ),
    Variables(
        "",
        "0.24.0",
        """
        FLASHINFER_MOE_BACKEND MXFP4_USE_MARLIN USE_FLASHINFER_MOE_FP4 USE_FLASHINFER_MOE_FP8
        USE_FLASHINFER_MOE_MXFP4_BF16 USE_FLASHINFER_MOE_MXFP4_MXFP8 USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS
        USE_NVFP4_CT_EMULATIONS
        """,
    ),
    Variables(
        "",
        "0.26.0",
        """
        CI_USE_S3 FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB ROCM_USE_AITER_PAGED_ATTN TPU_BUCKET_PADDING_GAP
        TPU_MOST_MODEL_LEN
        """,
    ),
    Variables(
        "",
        "0.28.0",
        """
        CPU_SGL_KERNEL
        """,
    ),
    Variables(
        "",
        "0.29.0",
        """
        TEST_FORCE_FP8_MARLIN
        """,
    ),
    Variables(
        "",
        "0.32.0",
        """
        ENGINE_ITERATION_TIMEOUT_S
        """,
    ),
    Variables(
        "",
        "0.33.0",
        """
        USE_RAY_COMPILED_DAG_CHANNEL_TYPE USE_RAY_COMPILED_DAG_OVERLAP_COMM USE_RAY_WRAPPED_PP_COMM
        """,
    ),
    Variables(
        "",
        "",
        """
        ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE ALLOW_INSECURE_SERIALIZATION ALLOW_LONG_MAX_MODEL_LEN
        ALLOW_RUNTIME_LORA_UPDATING ALLREDUCE_USE_SYMM_MEM API_KEY ASSETS_CACHE AUDIO_FETCH_TIMEOUT CACHE_ROOT
        COMPUTE_NANS_IN_LOGITS CONFIGURE_LOGGING CONFIG_ROOT CPU_KVCACHE_SPACE CPU_NUM_OF_RESERVED_CPU
        CPU_OMP_THREADS_BIND CUDART_SO_PATH CUSTOM_SCOPES_FOR_PROFILING DEBUG_LOG_API_SERVER_RESPONSE
        DISABLED_KERNELS DISABLE_COMPILE_CACHE DOCKER_BUILD_CONTEXT DO_NOT_TRACK DP_MASTER_IP DP_MASTER_PORT
        DP_RANK DP_RANK_LOCAL DP_SIZE ENABLE_CUDAGRAPH_GC ENABLE_RESPONSES_API_STORE ENABLE_V1_MULTIPROCESSING
        EXECUTE_MODEL_TIMEOUT_SECONDS GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS HAS_FLASHINFER_CUBIN HOST_IP
        HTTP_TIMEOUT_KEEP_ALIVE IMAGE_FETCH_TIMEOUT KEEP_ALIVE_ON_ENGINE_DEATH KV_CACHE_LAYOUT
        KV_EVENTS_USE_INT_BLOCK_HASHES LOGGING_CONFIG_PATH LOGGING_LEVEL LOGGING_PREFIX LOGGING_STREAM
        LOG_BATCHSIZE_INTERVAL LOG_STATS_INTERVAL LOOPBACK_IP LORA_RESOLVER_CACHE_DIR MAIN_CUDA_VERSION
        MARLIN_USE_ATOMIC_ADD MAX_AUDIO_CLIP_FILESIZE_MB MAX_TOKENS_PER_EXPERT_FP4_MOE
        MEDIA_LOADING_THREAD_COUNT MLA_DISABLE MODEL_REDIRECT_PATH MOE_ROUTING_SIMULATION_STRATEGY
        MQ_MAX_CHUNK_BYTES_MB MSGPACK_ZERO_COPY_THRESHOLD NCCL_SO_PATH NIXL_SIDE_CHANNEL_HOST
        NIXL_SIDE_CHANNEL_PORT NO_USAGE_STATS PLUGINS PORT PP_LAYER_PARTITION PROCESS_NAME_PREFIX
        RANDOMIZE_DP_DUMMY_INPUTS RAY_BUNDLE_INDICES RAY_PER_WORKER_GPUS RINGBUFFER_WARNING_INTERVAL
        ROCM_FP8_PADDING ROCM_MOE_PADDING ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16
        ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB ROCM_QUICK_REDUCE_QUANTIZATION ROCM_USE_AITER ROCM_USE_AITER_FP8BMM
        ROCM_USE_AITER_LINEAR ROCM_USE_AITER_MHA ROCM_USE_AITER_MLA ROCM_USE_AITER_MOE ROCM_USE_AITER_RMSNORM
        ROCM_USE_SKINNY_GEMM RPC_BASE_PATH SERVER_DEV_MODE SKIP_P2P_CHECK TARGET_DEVICE TEST_FORCE_LOAD_FORMAT
        TOOL_PARSE_REGEX_TIMEOUT_SECONDS TPU_USING_PATHWAYS TRACE_FUNCTION TUNED_CONFIG_FOLDER USAGE_SOURCE
        USAGE_STATS_SERVER USE_DEEP_GEMM USE_DEEP_GEMM_E8M0 USE_FLASHINFER_SAMPLER USE_FUSED_MOE_GROUPED_TOPK
        USE_MODELSCOPE USE_PRECOMPILED USE_STANDALONE_COMPILE USE_TRITON_AWQ V1_OUTPUT_PROC_CHUNK_SIZE
        V1_USE_OUTLINES_CACHE VIDEO_FETCH_TIMEOUT VIDEO_LOADER_BACKEND WORKER_MULTIPROC_METHOD XGRAMMAR_CACHE_MB
        XLA_CACHE_PATH XLA_CHECK_RECOMPILATION XLA_USE_SPMD
        """,
    ),
    Variables(
        "0.11.0",
        "0.11.1",
        """
        DISABLE_NCCL_FOR_DP_SYNCHRONIZATION ROCM_USE_TRITON_ROPE
        """,
    ),
    Variables(
        "0.11.0",
        "0.15.0",
        """
        DISABLE_FLASHINFER_PREFILL FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH
        """,
    ),
    Variables(
        "0.11.0",
        "0.24.0",
        """
        USE_FBGEMM USE_FLASHINFER_MOE_FP16
        """,
    ),
    Variables(
        "0.11.0",
        "0.33.0",
        """
        ROCM_USE_AITER_FP4_ASM_GEMM
        """,
    ),
    Variables(
        "0.11.0",
        "",
        """
        ASSETS_CACHE_MODEL_CLEAN DBO_COMM_SMS DEEPEP_BUFFER_SIZE_MB ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING
        ENABLE_INDUCTOR_MAX_AUTOTUNE MEDIA_URL_ALLOW_REDIRECTS NCCL_INCLUDE_PATH NVTX_SCOPES_FOR_PROFILING
        OBJECT_STORAGE_SHM_BUFFER_NAME PATTERN_MATCH_DEBUG ROCM_FP8_MFMA_PAGE_ATTN USE_NCCL_SYMM_MEM
        """,
    ),
    Variables(
        "0.11.1",
        "0.12.0",
        """
        FLAT_LOGPROBS
        """,
    ),
    Variables(
        "0.11.1",
        "0.15.0",
        """
        USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL
        """,
    ),
    Variables(
        "0.11.1",
        "0.16.0",
        """
        TORCH_CUDA_PROFILE
        """,
    ),
    Variables(
        "0.11.1",
        "0.24.0",
        """
        NVFP4_GEMM_BACKEND
        """,
    ),
    Variables(
        "0.11.1",
        "",
        """
        COMPILE_CACHE_SAVE_FORMAT DEBUG_DUMP_PATH DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE
        DEEPEP_LOW_LATENCY_USE_MNNVL DEEP_GEMM_WARMUP DISABLE_PYNCCL DISABLE_SHARED_EXPERTS_STREAM
        FLASHINFER_WORKSPACE_BUFFER_SIZE FORCE_AOT_LOAD GC_DEBUG GPT_OSS_SYSTEM_TOOL_MCP_LABELS MEDIA_CONNECTOR
        MOE_USE_DEEP_GEMM RAY_DP_PACK_STRATEGY ROCM_SLEEP_MEM_CHUNK_SIZE ROCM_USE_AITER_FUSION_SHARED_EXPERTS
        ROCM_USE_AITER_TRITON_GEMM ROCM_USE_AITER_TRITON_ROPE ROCM_USE_AITER_UNIFIED_ATTENTION
        SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD TOOL_JSON_ERROR_AUTOMATIC_RETRY USE_AOT_COMPILE USE_BYTECODE_HOOK
        """,
    ),
    Variables(
        "0.12.0",
        "0.16.0",
        """
        PROFILER_DELAY_ITERS PROFILER_MAX_ITERS TORCH_PROFILER_DISABLE_ASYNC_LLM
        TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL TORCH_PROFILER_USE_GZIP
        """,
    ),
    Variables(
        "0.12.0",
        "",
        """
        DEEPEPLL_NVFP4_DISPATCH LOGGING_COLOR MARLIN_INPUT_DTYPE USE_V2_MODEL_RUNNER
        """,
    ),
    Variables(
        "0.13.0",
        "0.20.0",
        """
        ENABLE_MOE_DP_CHUNK
        """,
    ),
    Variables(
        "0.13.0",
        "",
        """
        DEBUG_WORKSPACE FLOAT32_MATMUL_PRECISION MOONCAKE_ABORT_REQUEST_TIMEOUT MOONCAKE_BOOTSTRAP_PORT
        SKIP_PRECOMPILED_VERSION_SUFFIX USE_EXPERIMENTAL_PARSER_CONTEXT
        """,
    ),
    Variables(
        "0.14.0",
        "0.23.0",
        """
        MORIIO_CONNECTOR_READ_MODE MORIIO_NUM_WORKERS MORIIO_POST_BATCH_SIZE MORIIO_QP_PER_TRANSFER
        """,
    ),
    Variables(
        "0.14.0",
        "",
        """
        BLOCKSCALE_FP8_GEMM_FLASHINFER DEBUG_MFU_METRICS ENGINE_READY_TIMEOUT_S LOG_MODEL_INSPECTION
        """,
    ),
    Variables(
        "0.15.0",
        "0.30.0",
        """
        MM_HASHER_ALGORITHM
        """,
    ),
    Variables(
        "0.15.0",
        "",
        """
        DISABLE_LOG_LOGO LORA_DISABLE_PDL ROCM_SHUFFLE_KV_CACHE_LAYOUT ROCM_USE_AITER_FP4BMM
        USE_DEEP_GEMM_TMA_ALIGNED_SCALES USE_MEGA_AOT_ARTIFACT
        """,
    ),
    Variables(
        "0.16.0",
        "",
        """
        LORA_RESOLVER_HF_REPO_LIST USE_FLASHINFER_MOE_INT4
        """,
    ),
    Variables(
        "0.17.0",
        "",
        """
        ALLREDUCE_USE_FLASHINFER CUDA_COMPATIBILITY_PATH DISABLE_REQUEST_ID_RANDOMIZATION
        ELASTIC_EP_DRAIN_REQUESTS ELASTIC_EP_SCALE_UP_LAUNCH ENABLE_CUDA_COMPATIBILITY ENABLE_PREGRAD_PASSES
        FLASHINFER_ALLREDUCE_BACKEND RAY_EXTRA_ENV_VARS_TO_COPY RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY
        SYSTEM_START_DATE USE_OINK_OPS WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY WEIGHT_OFFLOADING_DISABLE_UVA
        """,
    ),
    Variables(
        "0.18.0",
        "0.30.0",
        """
        NIXL_EP_MAX_NUM_RANKS
        """,
    ),
    Variables(
        "0.18.0",
        "",
        """
        ENABLE_FLA_PACKED_RECURRENT_DECODE MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS ZENTORCH_WEIGHT_PREPACK
        """,
    ),
    Variables(
        "0.19.0",
        "0.31.0",
        """
        XPU_ENABLE_XPU_GRAPH
        """,
    ),
    Variables(
        "0.19.0",
        "",
        """
        BATCH_INVARIANT MAX_N_SEQUENCES MEDIA_FETCH_MAX_RETRIES SPARSE_INDEXER_MAX_LOGITS_MB
        USE_SIMPLE_KV_OFFLOAD
        """,
    ),
    Variables(
        "0.20.0",
        "0.33.0",
        """
        USE_RAY_V2_EXECUTOR_BACKEND
        """,
    ),
    Variables(
        "0.20.0",
        "",
        """
        CPU_ATTN_SPLIT_KV CPU_INT4_W4A8 HUMMING_INPUT_QUANT_CONFIG HUMMING_MOE_GEMM_TYPE
        HUMMING_ONLINE_QUANT_CONFIG HUMMING_USE_F16_ACCUM LORA_ENABLE_DUAL_STREAM MEDIA_CACHE
        MEDIA_CACHE_MAX_SIZE_MB MEDIA_CACHE_TTL_HOURS MULTI_STREAM_GEMM_TOKEN_THRESHOLD SSM_CONV_STATE_LAYOUT
        USE_LAYERNAME
        """,
    ),
    Variables(
        "0.21.0",
        "",
        """
        ENFORCE_STRICT_TOOL_CALLING SKIP_MODEL_NAME_VALIDATION XPU_USE_SAMPLER_KERNEL
        """,
    ),
    Variables(
        "0.22.0",
        "0.29.0",
        """
        TRITON_ATTN_USE_TD
        """,
    ),
    Variables(
        "0.22.0",
        "",
        """
        FLASHINFER_AUTOTUNE_CACHE_DIR MOONCAKE_DISK_STAGING_USABLE_RATIO MOONCAKE_STORE_TIER_LOG
        ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB RUST_FRONTEND_PATH
        USE_BREAKABLE_CUDAGRAPH USE_FASTOKENS USE_PRECOMPILED_RUST USE_RUST_FRONTEND USE_SPINLOOP_EXT
        """,
    ),
    Variables(
        "0.23.0",
        "0.30.0",
        """
        PREFIX_CACHE_RETENTION_INTERVAL
        """,
    ),
    Variables(
        "0.23.0",
        "",
        """
        DISTRIBUTED_USE_SPLIT_GROUP GPU_NIC_PCIE_MAPPING NIC_SELECTION_VARS RAY_DP_PLACEMENT_NODE_IPS
        ROCM_AITER_MOE_DISPATCH_POLICY ROCM_USE_AITER_LINEAR_HIPBMM
        """,
    ),
    Variables(
        "0.24.0",
        "",
        """
        DEEPEP_V2_ALLOW_HYBRID_MODE DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION DEEPEP_V2_PREFER_OVERLAP
        FASTSAFETENSORS_QUEUE_SIZE MAX_AUDIO_DECODE_DURATION_S MAX_AUDIO_PREPROCESS_WORKERS
        MXFP8_EMULATION_DEQUANT_AT_LOAD REGEX_COMPILATION_TIMEOUT_S TRITON_FORCE_FIRST_CONFIG
        WORKER_SHUTDOWN_TIMEOUT_SECONDS WSL2_ENABLE_PIN_MEMORY
        """,
    ),
    Variables(
        "0.25.0",
        "",
        """
        GPU_SYNC_CHECK MAX_IMAGE_PIXELS MOE_SKIP_PADDING MOONCAKE_LOAD_RECV_THREADS ROCM_USE_AITER_CUSTOM_AR
        """,
    ),
    Variables(
        "0.26.0",
        "",
        """
        BUILD_COMMIT BUILD_PIPELINE BUILD_URL EC_SIDE_CHANNEL_HOST EC_SIDE_CHANNEL_PORT ENABLE_STARTUP_PLAN
        FLASHINFER_AUTOTUNE_SKIP_OPS IMAGE_TAG MAX_COMPLETION_PROMPTS P2P_SIDE_CHANNEL_HOST
        P2P_SIDE_CHANNEL_PORT TRITON_USE_TD
        """,
    ),
    Variables(
        "0.27.0",
        "",
        """
        DCP_Q_REPLICATE ENABLE_COHERE_API KIMI_K3_SHARD_SP_SHARED_EXPERT USE_RUST_BENCH
        """,
    ),
    Variables(
        "0.28.0",
        "0.31.0",
        """
        KIMI_K3_GEMM_RS ROCM_USE_AITER_MOE_SITUV2_A8W4
        """,
    ),
    Variables(
        "0.28.0",
        "",
        """
        ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN GDN_DECODE_KERNEL KIMI_K3_AUX_ATTN_RES_STREAM
        MAX_AUDIO_DECODE_BYTES MAX_BAD_WORDS_TOTAL_TOKENS MAX_NUM_BAD_WORDS MAX_STOP_STRINGS RAISE_ON_LOGIT_NANS
        ROCM_AITER_MLA_ASM_PADDING USE_DIRECT_DCP_A2A USE_DIRECT_DCP_KV_GATHER USE_DIRECT_DCP_Q_GATHER
        USE_HW_AGNOSTIC
        """,
    ),
    Variables(
        "0.29.0",
        "",
        """
        B12X_MOE_FP4_FORCE_A16 CPU_CI_ENV DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION ENABLE_HPC_OPS
        KIMI_K3_GEMM_AR KV_OFFLOAD_MAX_BATCH_DESCRIPTORS MAX_MEDIA_DOWNLOAD_SIZE_MB REPLICATE_EMBED
        XPU_FORCE_N_CONTIG_WEIGHT XPU_INC_WNA16_BACKEND
        """,
    ),
    Variables(
        "0.30.0",
        "0.31.0",
        """
        PLE_CPU_OFFLOAD
        """,
    ),
    Variables(
        "0.30.0",
        "",
        """
        ALLREDUCE_USE_FLASHINFER_PCIE_IPC MAX_EMBED_DECODE_BYTES
        """,
    ),
    Variables(
        "0.31.0",
        "0.33.0",
        """
        ROCM_AITER_MLA_DCP_VERIFY
        """,
    ),
    Variables(
        "0.31.0",
        "",
        """
        ENABLE_GEMM_RS MOONCAKE_CONNECTOR_TIMEOUT MXFP4_EMULATION_DEQUANT_AT_LOAD ROCM_USE_AITER_MOE_SITUV2
        SKIP_VERSION_SUFFIX TRITON_JIT_WARMUP_NUM_THREADS XPU_PP_MICROBATCH
        """,
    ),
    Variables(
        "0.32.0",
        "0.33.0",
        """
        ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS ROCM_MONO_DECODE
        """,
    ),
    Variables(
        "0.32.0",
        "",
        """
        CHAT_TEMPLATE_RENDER_TIMEOUT FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE P2P_HANDSHAKE_TIMEOUT_S
        P2P_IDLE_TIMEOUT_S P2P_MAX_PEERS ROCM_USE_AITER_MOE_A4W4_DSV4 ROCM_USE_AITER_TRITON_SPARSE_MLA
        """,
    ),
    Variables(
        "0.33.0",
        "",
        """
        BEAM_ALWAYS_CONSTRAIN_OUTPUT CHAT_TEMPLATE_FUEL COHERE2_ATTN_MOE_DUAL_STREAM_TOKEN_THRESHOLD
        HTTP_MAX_REQUEST_BODY_SIZE MAX_MEDIA_REQUEST_DECODE_BYTES MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB
        REQUEST_BODY_LOG_LEVEL ROCM_MUSE_MOE_ONLINE_QUANT ROCM_MUSE_MOE_REDUCE_DTYPE
        STEP5_SHARD_SP_SHARED_EXPERT
        """,
    ),
)


@cache
def histories() -> dict[str, tuple[str, str]]:
    """Return (since, removed) by name without VLLM_."""
    return {name: (row.since, row.removed) for row in TABLE for name in row.names.split()}


def unread(name: str, version: Version | None) -> Unread | None:
    """Return why a release does not read a variable; None if it does, or the variable is not vLLM's.

    Args:
        name: the variable, as in the recipe.
        version: of the engine; None while it is not known, and then nothing is certain.
    """
    if not name.startswith(PREFIX):
        return None
    short = name.removeprefix(PREFIX)
    if short in OF_IMAGES:
        return None
    history = histories().get(short)
    engine = f"vLLM {version}" if version else "vLLM 0.33.0"
    if history is None:
        near = difflib.get_close_matches(short, histories(), 1, 0.85)
        known = at_least(version, AFTER) is False
        return Unread(name, f"{engine} reads no such variable", known, f"{PREFIX}{near[0]}" if near else "")
    since, removed = history
    if within(version, since, removed) or (version is None and not removed):
        return None
    instead = SUCCESSORS.get(short, "")
    if removed and at_least(version, removed) is not False:
        return Unread(name, f"it is read by no vLLM from {removed} on", version is not None, instead)
    return Unread(name, f"it is read by vLLM {since} and newer, not by {version}", True)
