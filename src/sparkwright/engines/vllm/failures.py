"""Log lines that report a failure of vLLM or of a cluster member, each with a sentence that explains it.

Sources: real start-up failures of vLLM 0.32.0 in tests/data (rows marked "real"); vLLM's source and issues for the rest.
The word lint skips lines marked "words: data", which quote the log.
"""

from __future__ import annotations

import re

from sparkwright.engines.log.failure_collector import FailurePattern, failure_pattern
from sparkwright.engines.log.machine_failures import CRASH_FAILURES, HOST_FAILURES, IMAGE_FAILURES

FABRIC_ADVICE = "correct `fabric` in the host's file"
#: phrases in the failure message of a member that failed because another member did; the cause is in the other member's log
PEER_FAILURE_PHRASES = (
    *("members joined within", "did not answer within", "the head at", "a rank did not answer"),
    *("the connection to the member", "RDMA to"),
)
#: NCCL's version as a number, such as 22809 for 2.28.9
NCCL_VERSION_PATTERN = r"(\d)0?([1-9]?\d)(?=\d\d\b)0?([1-9]?\d)"
HEAD_UNREACHABLE = "the head at {0}:{1} did not answer: see its own log, and check that the hosts can reach each other over the fabric."
#: the same failure, for a server on a single host
RENDEZVOUS_FAILED = "its processes could not connect to each other at {0}:{1} on this host."

#: failures of a start
START_FAILURES: tuple[FailurePattern, ...] = (
    # rendezvous
    failure_pattern(  # real
        "DistStoreError: Timed out",
        r"DistStoreError: Timed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined",
        "{1} of {2} members joined within {0} s: the cause is in the log of the missing member.",
    ),
    failure_pattern(  # real
        "DistNetworkError: The server socket has failed to listen",
        r"DistNetworkError: The server socket has failed to listen .{0,200}?port: (\d+),.{0,200}EADDRINUSE",
        "its master port {0} is in use on this host: find the process with `ss -ltnp`, or choose another `cluster.port`.",
    ),
    failure_pattern(  # real
        "DistNetworkError: The client socket has timed out",
        r"DistNetworkError: The client socket has timed out after \d+ms while trying to connect to \(([^,\s]{1,200}), (\d+)\)",
        HEAD_UNREACHABLE,
        single_host_sentence=RENDEZVOUS_FAILED,
    ),
    failure_pattern(
        "DistNetworkError: The client socket has failed to connect",
        r"DistNetworkError: The client socket has failed to connect .{0,100}?\(([^,\s]{1,200}), (\d+)\)",
        HEAD_UNREACHABLE,
        single_host_sentence=RENDEZVOUS_FAILED,
    ),
    # interfaces
    failure_pattern(
        "Unable to find address for: ",
        r"Unable to find address for: (\S{1,100})",
        f"this host has no interface {{0}} with an address (GLOO_SOCKET_IFNAME): {FABRIC_ADVICE}.",
    ),
    failure_pattern(
        "no socket interface found",
        r"Bootstrap ?: no socket interface found",
        f"the interface in NCCL_SOCKET_IFNAME does not exist on this host: {FABRIC_ADVICE}.",
    ),
    failure_pattern(
        "Gloo connectFullMesh failed",
        "",
        "the members cannot connect to each other at the addresses that gloo selected: compare the hosts' `fabric` and firewalls.",
    ),
    # RDMA
    failure_pattern(
        "Mismatched NCCL version detected",
        r"Mismatched NCCL version detected ?: rank (\d{1,4}) version "
        rf"{NCCL_VERSION_PATTERN} rank (\d{{1,4}}) version {NCCL_VERSION_PATTERN}",
        "members have different NCCL versions (rank {0}: {1}.{2}.{3}, rank {4}: {5}.{6}.{7}): remove the override of the image's NCCL "
        "(LD_PRELOAD, VLLM_NCCL_SO_PATH or a mount).",
    ),
    failure_pattern(
        "ibv_modify_qp failed",
        r"ibv_modify_qp failed with (?:error )?([^,]{1,80}?)(?:,|\s*$)",
        "RDMA to another member could not be set up ({0}): leave NCCL_IB_GID_INDEX unset, and compare addresses and MTU of the fabric.",
    ),
    failure_pattern(
        "ibv_reg_mr",
        r"ibv_reg_mr\w{0,20} failed with (?:error )?.{0,10}?Cannot allocate memory",
        "RDMA memory could not be registered: a known bug in kernel 7.0 on GB10 (boot 6.17, or add kho=off), or a memlock limit.",
    ),
    # parallelism
    failure_pattern(
        "is larger than the number of available GPUs",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "{0} GPUs are configured, and this host has {1}: serve it from a cluster (`parallel` in the recipe).",
    ),
    failure_pattern(
        "Total number of attention heads",
        r"attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "its {0} attention heads are not divisible by tensor-parallel-size {1}: use `parallel: {{pipeline: {1}}}`.",
    ),
    failure_pattern(
        "Number of experts in the model must be greater than 0",
        "",
        "the model has no experts: remove enable-expert-parallel.",
    ),
    failure_pattern(
        "Pipeline parallelism is not supported for this model",
        "",
        "this engine does not support pipeline parallelism for this model: use `parallel: {{tensor: ...}}`.",
    ),
)

#: failures of a member whose peer exited, during the start or later
LOST_PEER_FAILURES: tuple[FailurePattern, ...] = (
    failure_pattern(
        "NCCL error",
        r"NCCL error\b.{0,200}?remote process exited or there was a network error",
        "the connection to the member was lost (NCCL): its process exited, or the network failed.",
        single_host_sentence="NCCL lost the connection to another process of the server.",
    ),
)

#: failures of a group while it serves, those closest to the cause first
SERVING_FAILURES: tuple[FailurePattern, ...] = (
    failure_pattern(  # real: the rank hangs after this line, and its container keeps running
        "could not broadcast input array from shape",
        r"ValueError: could not broadcast input array from shape \((\d+),\) into shape \((\d+),\)",
        "this rank received a prompt of {0} tokens, but its max-model-len is {1}, unlike that of the other members.",
        "always",
    ),
    failure_pattern(
        "Got completion from peer",
        r"Got completion from peer ([^<\s]{1,100})\S* with status=(\w+)",
        "RDMA to {0} failed while the group was serving (status {1}): see that member's log, and compare the MTU and the link of both hosts.",
    ),
    failure_pattern(  # real: TP when a member's process exits, PP when its rank exits
        "gloo/transport/tcp/pair.cc",
        r"gloo/transport/tcp/pair\.cc:\d+\] (?:Connection closed by peer|(?:Read|Write) error) \[([^\]\s]{1,100})\]",
        "the connection to the member at {0} was lost: its process exited, or the network failed.",
        single_host_sentence="the connection between its processes was lost: one of them exited.",
    ),
    failure_pattern(  # real
        "RPC call to ",
        r"TimeoutError: RPC call to (\w{1,100}) timed out",
        "a rank did not answer {0} within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: it exited or is hung; see every member's log.",
        single_host_sentence="its worker did not answer {0} within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: it exited or is hung.",
    ),
    failure_pattern(  # workers are numbered from 0 in each data-parallel engine
        "Worker proc VllmWorker-",
        r"EngineCore_DP(\d+)\b.{0,300}?Worker proc VllmWorker-(\d+) died unexpectedly",  # words: data
        "worker {1} of its data-parallel engine {0} was killed or crashed.",
        "always",
        "consequence",
    ),
    failure_pattern(  # real
        "Worker proc VllmWorker-",
        r"Worker proc VllmWorker-(\d+) died unexpectedly",  # words: data
        "the process of rank {0} was killed or crashed.",
        "always",
        "consequence",
        "its worker process was killed or crashed.",
    ),
)


CHUNKED_PREFILL_REQUIRED = "prefix caching on this recurrent model needs chunked prefill, which is turned off."
MODEL_NOT_FOUND = "there is no model at {0} in the container."
#: exceptions of a process that exits because another process exited
SECONDARY_ERROR_PATTERN = re.compile(
    r"^(?:(?:Async)?EngineDeadError|KeyboardInterrupt|SystemExit|CancelledError|BrokenPipeError|ConnectionResetError|EOFError)\b"
    r"|Engine core initialization failed|WorkerProc initialization failed|Executor failed|^RuntimeError: cancelled"
    r"|Engine process failed to start|Worker failed with error '|failed to be inspected"
)

#: errors of the safetensors reader for a truncated file
TRUNCATED_FILE_ERRORS = (
    "Error while deserializing header",
    "MetadataIncompleteBuffer",
    "InvalidHeaderDeserialization",
    "HeaderTooLarge",
)

#: specific rows first: the first row that matches any line of the log wins
FAILURES: tuple[FailurePattern, ...] = (
    # the command line (argparse: "vllm: error:" or "vllm serve: error:")
    failure_pattern(
        "error: unrecognized arguments: ", r"error: unrecognized arguments: (.+)", "unknown argument: {0}."
    ),
    failure_pattern(
        "ignored explicit argument ",
        r"error: argument ([^\s:/]{1,100}+)\S{0,200}?: ignored explicit argument '?([^']*)",
        "{0} takes no value, got {1}.",
    ),
    failure_pattern(
        "invalid choice: ",
        r"error: argument ([^\s:/]{1,100}+)\S{0,200}?: invalid choice: '?([^\s']+)",
        "the engine does not accept {1} for {0}.",
    ),
    failure_pattern(
        "expected one argument",
        r"error: argument ([^\s:/]{1,100}+)\S{0,200}?: expected one argument",
        "{0} needs a value.",
    ),
    failure_pattern("enable-auto-tool-choice requires", "", "enable-auto-tool-choice needs a tool-call-parser."),
    failure_pattern(
        "cannot be used with the tokenizer of",  # 0.32, real: after the weights are loaded
        r"TypeError: (--.{1,200}?) cannot be used with the tokenizer of",
        "{0}: the parser is for another model; this model's tokenizer lacks the parser's tokens.",
    ),
    failure_pattern("odel should be provided as the first positional", "", "its arguments name no model."),
    # without the exception's name the line is only a warning: real, 0.11 to 0.32
    failure_pattern(
        "should provide the model as a positional",
        r"ValueError: With `vllm serve`, you should provide the model as a positional",
        "its arguments name no model.",
    ),
    failure_pattern("error: ", r"vllm(?: serve)?: error: (.+?)\.?$", "the engine refuses its arguments: {0}."),
    # settings that exclude each other
    failure_pattern(
        "Chunked prefill is required for mamba cache mode", r"mode 'align'", CHUNKED_PREFILL_REQUIRED
    ),  # 0.15 to 0.32, real
    failure_pattern("Chunked prefill is required for Mamba prefix caching", "", CHUNKED_PREFILL_REQUIRED),  # 0.33
    failure_pattern(
        "In Mamba cache align mode, block_size",  # 0.17 to 0.26
        r"block_size \((\d+)\) must be <= max_num_batched_tokens \((\d+)\)",
        "the hybrid model's block of {0} tokens exceeds max-num-batched-tokens ({1}).",
    ),
    failure_pattern(
        "Chunked MM input is required", "", "this hybrid needs chunked multi-modal input, which is turned off."
    ),
    failure_pattern(
        "is smaller than max_model_len",
        r"max_num_batched_tokens \((\d+)\) is smaller than max_model_len \((\d+)\)",
        "with chunked prefill off, max-num-batched-tokens ({0}) must be at least max-model-len ({1}).",
    ),
    failure_pattern(
        "must be greater than or equal to max_num_seqs",
        r"max_num_batched_tokens \((\d+)\) must be greater than or equal to max_num_seqs \((\d+)\)",
        "max-num-seqs {1} is more than max-num-batched-tokens {0}.",
    ),
    failure_pattern(
        "exceeds available Mamba cache blocks",
        r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)",
        "max-num-seqs {0} is more than the {1} Mamba cache blocks that fit in memory.",
    ),
    failure_pattern(
        "User-specified max_model_len",
        r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=([\d.]+)",
        "max-model-len {0} is more than the model's {1}.",
    ),
    # memory
    failure_pattern(
        "Free memory on device",
        r"Free memory on device [^(]{0,80}\(([\d.]{1,20})/([\d.]{1,20}) GiB\) on startup is less than desired GPU memory utilization"
        r" \(([\d.]+), ([\d.]+) GiB\)",
        "{0} of {1} GiB were free, and the engine requested {3} (utilization {2}).",
    ),
    failure_pattern(
        "on kv cache allocation is less than",
        r"Available memory on node \d+ \(([\d.]{1,20})/[\d.]{1,20} GiB\).{0,200} less than requested "
        r".{0,200}?\(([\d.]{1,20}) GiB",
        "its KV cache needs {1} GiB of memory, and {0} GiB were free.",
    ),
    failure_pattern(
        "GiB KV cache is needed",
        r"max seq len \((\d+)\).{0,200}?(?<![\d.])([\d.]{1,20}) GiB KV cache is needed"
        r".{0,200}?KV cache memory \(([\d.]{1,20}) GiB",
        "max-model-len {0} needs {1} GiB of KV cache, and {2} GiB are left for it.",
    ),
    failure_pattern(
        "tokens that can be stored in KV cache",  # <= 0.9
        r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((\d+)",
        "max-model-len {0} is more than the {1} tokens of its KV cache.",
    ),
    failure_pattern("No available memory for the cache blocks", "", "no memory is left for its KV cache."),
    *(
        failure_pattern(needle, "", "it ran out of memory.")
        for needle in ("CUDA out of memory", "OutOfMemoryError", "NV_ERR_NO_MEMORY")
    ),
    # the model
    failure_pattern(
        "and is not supported anymore",
        r"Model architecture (\w+) was supported in vLLM until (v?[\d.]*\d), and",
        "this engine no longer supports {0} (the last version that did: {1}).",
    ),
    failure_pattern(
        "Model architecture",
        r"Model architectures? \[?'?(\w{1,200}+)'?[^\]]{0,500}\]? (?:are|is) not supported",
        "this engine cannot load {0}.",
    ),
    failure_pattern(
        "does not recognize this architecture",
        r"model type `?([\w.-]+)`? but Transformers does not recognize",
        "this engine does not support the model type {0}: a newer release may.",
    ),
    failure_pattern(
        "Repo id must be in the form", r"Repo id must be in the form .{0,300}: '([^']{1,500})'", MODEL_NOT_FOUND
    ),
    failure_pattern("Invalid repository ID or local directory", r"directory specified: '([^']+)'", MODEL_NOT_FOUND),
    failure_pattern(
        "is not a local folder and is not a valid",
        r"(?<!\S)(\S{1,500}) is not a local folder and is not a valid",
        MODEL_NOT_FOUND,
    ),
    failure_pattern(
        "Cannot find any model weights with", r"model weights with [`']?([^`'\s]+)", "there are no weights in {0}."
    ),
    failure_pattern(
        "trust_remote_code=True",
        r"(?:Please pass the argument|set the option) `?trust_remote_code=True",
        "the model comes with its own code, which needs trust-remote-code.",
    ),
    failure_pattern(
        ".safetensors",
        r"(?:FileNotFoundError|SafetensorError|No such file).{0,500}?(?<![\w./-])([\w./-]{1,500}\.safetensors)",
        "the model's file {0} is missing or broken.",
    ),
    *(failure_pattern(needle, "", "a file of the model is truncated.") for needle in TRUNCATED_FILE_ERRORS),
    # the machine and the image
    *HOST_FAILURES,
    *IMAGE_FAILURES,
    failure_pattern(  # triton issue 8182, vLLM issues 12498 and 36802: 99 KiB a block on GB10
        "out of resource: shared memory",
        r"(OutOfResources: out of resource: shared memory, Required: \d+, Hardware limit: \d+)",
        "{0}: a kernel needs more shared memory than a block of this GPU has; use another attention-backend or moe-backend.",
        "always",
    ),
    failure_pattern(
        "This kernel only supports sm",
        r"This kernel only supports (sm\w+)",
        "its kernels support only {0}, not this GPU.",
        "always",
    ),
    failure_pattern(  # issues 24377 and 30163 on GB10; TensorRT-LLM issue 11368: the tiles need more shared memory than a GB10 has
        "cutlass FP4 gemm",
        r"Failed to (?:run|initialize) cutlass FP4 gemm",
        "the image's CUTLASS kernel for FP4 fails on this GPU: use a newer image.",
        "always",
    ),
    failure_pattern(  # issues 40758 and 43367 on GB10, with the variable that helps
        "cutlass_gemm_caller",
        r"cutlass_gemm_caller.{0,120}?Error Internal",
        "the image's CUTLASS kernel for FP8 fails on this GPU: use a newer image, or set "
        "VLLM_DISABLED_KERNELS=CutlassFp8BlockScaledMMKernel under container.env.",
        "always",
    ),
    failure_pattern(
        "invalid resource handle",  # 0.26, fp8 KV cache, head_dim 256, FlashInfer prefill on GB10 (issue 50331)
        "",
        "its attention kernel failed with an invalid resource handle: a known bug of FlashInfer with an fp8 KV cache on this GPU.",
        "always",
    ),
    failure_pattern(
        "'_IncludedRouter' object has no",  # 0.23 and NGC 26.06 (issue 45596)
        r"has no attribute 'path'",
        "its web framework is broken: every request, even /health, is answered with 500 (a bug of this image).",
        "always",
    ),
    *START_FAILURES,
    failure_pattern("an illegal memory access", "", "a kernel accessed invalid memory (CUDA: illegal memory access)."),
    failure_pattern("CUDA error: ", r"CUDA error: (.+?)\.?$", "CUDA failed: {0}."),
    failure_pattern(
        "NCCL error",
        r"NCCL error\b.{0,200}?: (?!.*remote process exited)(.+?)\.?$",
        "NCCL failed between its workers: {0}.",
    ),
    *LOST_PEER_FAILURES,
    failure_pattern(
        "Timed out waiting for engine core", "", "its engine was not ready within VLLM_ENGINE_READY_TIMEOUT_S."
    ),
    failure_pattern(  # a model's class is imported in a separate process, whose exception is logged first
        "failed to be inspected",
        r"Model architectures \[?'?(\w{1,200}+)'?[^\]]{0,500}\]? failed to be inspected",
        "its code for {0} could not be imported: see the preceding lines.",
        kind="consequence",
    ),
    # general messages
    failure_pattern(
        "Assertion failed, ", r"Assertion failed, (.+?)\.?(?: \[type=|$)", "the engine refuses its settings: {0}."
    ),
    failure_pattern("Value error, ", r"Value error, (.+?)\.?(?: \[type=|$)", "the engine refuses its settings: {0}."),
    failure_pattern(  # the engine's copy of a worker's exception, for logs that lack the worker's lines
        "Worker failed with error '",
        r"Worker failed with error '(.{1,300}?)\.?', please check",
        "{0}.",
        "always",
        "consequence",
    ),
    *SERVING_FAILURES,
    *(
        failure_pattern(needle, "", "its engine failed while it served a request.", "always", "while serving")
        for needle in (
            *("EngineDeadError", "EngineCore encountered a fatal error", "EngineCore encountered an issue"),
            "Engine background task failed",  # until 0.7
        )
    ),
    *CRASH_FAILURES,
    *(
        failure_pattern(needle, "", "a worker of its engine failed.", "always", "consequence")
        for needle in ("WorkerProc hit an exception", "WorkerProc failed to start")
    ),
    *(
        failure_pattern(needle, "", "its engine failed to start.", "always", "consequence")
        for needle in (
            "Engine core initialization failed",
            "Engine process failed to start",
            "EngineCore failed to start",
        )
    ),
    failure_pattern(
        "died unexpectedly",  # words: data
        r"(?:Engine core|Worker) proc \S+ died unexpectedly",  # words: data
        "a process of its engine was killed.",
        "always",
        "consequence",
    ),
)
