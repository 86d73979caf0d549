"""Failure patterns for every engine: problems with the machine or the image, and crashes. Specific patterns come first.

Sources: the reports named in tests/data/last-words, and the messages of CUDA and Triton.
"""

from __future__ import annotations

from sparkwright.engines.log.failure_collector import FailurePattern, failure_pattern

NO_GPU = "the container sees no GPU."
OLD_DRIVER = "the host's NVIDIA driver is too old for the image."
NO_COMPILER = (
    "a kernel must be compiled at the start, but the image has no {0}: use an image that has it, or another backend."
)

#: the host, its driver and its disk
HOST_FAILURES: tuple[FailurePattern, ...] = (
    failure_pattern("Address already in use", "", "its port is in use inside the container's network."),
    failure_pattern(  # torch's shared memory
        "unable to write to file </",
        r"unable to write to file </\S{1,200}>: No space left on device",
        "the container's /dev/shm is full: raise shm_size.",
        "always",
    ),
    failure_pattern("No space left on device", "", "the disk is full."),
    failure_pattern("Permission denied: '", r"Permission denied: '([^']+)'", "it has no permission to use {0}."),
    failure_pattern("could not select device driver", "", "the Docker engine has no GPU runtime."),
    failure_pattern("exec format error", "", "the image is for another CPU architecture."),
    failure_pattern("No CUDA GPUs are available", "", NO_GPU),
    failure_pattern(  # Triton's message, observed on a Spark without a GPU reservation
        "0 active drivers ([])", "", NO_GPU
    ),
    failure_pattern("Found no NVIDIA driver", "", NO_GPU),
    failure_pattern("Failed to infer device type", "", NO_GPU),
    failure_pattern("libcuda.so.1: cannot open", "", NO_GPU),
    failure_pattern("libnvidia-ml.so.1: cannot open", "", NO_GPU),
    failure_pattern("The NVIDIA driver on your system is too old", "", OLD_DRIVER),
    failure_pattern("CUDA driver version is insufficient", "", OLD_DRIVER),
    failure_pattern(  # gpustack issue 4678: images since vLLM 0.15 bundle CUDA's compatibility library
        "Error 803: ",
        r"Error 803: system has unsupported display driver",
        "the image's CUDA compatibility library is incompatible with the host's driver (CUDA error 803): set "
        "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib under container.env, or use another image.",
    ),
    failure_pattern(  # CUDA error 222
        "PTX was compiled with an unsupported toolchain",
        "",
        "the image's CUDA is too new for the host's driver: update the driver in the DGX Dashboard, "
        "or use an image with an older CUDA.",
        "always",
    ),
)

#: problems with the image: missing code for this GPU, libraries or compilers
IMAGE_FAILURES: tuple[FailurePattern, ...] = (
    failure_pattern(  # triton issues 8539, 9181: Triton bundles the ptxas of CUDA 12
        "ptxas fatal",
        r"ptxas fatal\s*: Value '(sm_\w{1,20})' is not defined for option 'gpu-name'",
        "Triton's ptxas does not support this GPU ({0}): set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas under container.env, "
        "or use an image with CUDA 13.",
        "always",
    ),
    failure_pattern(
        "ptxas fatal",
        r"ptxas fatal\s*: (.+?)\.?$",
        "the image's ptxas cannot compile a kernel: {0}.",
        "always",
    ),
    failure_pattern(
        "Unsupported gpu architecture",
        r"nvcc fatal\s*: Unsupported gpu architecture '(\w{1,40})'",
        "the image's nvcc does not support this GPU ({0}): use an image with CUDA 13.",
        "always",
    ),
    failure_pattern(
        "nvcc fatal",
        r"nvcc fatal\s*: (.+?)\.?$",
        "the image's nvcc cannot compile a kernel: {0}.",
        "always",
    ),
    failure_pattern("Could not find nvcc", "", NO_COMPILER.format("nvcc"), "always"),
    failure_pattern("Failed to find C compiler", "", NO_COMPILER.format("C compiler"), "always"),
    failure_pattern(
        "fatal error: ",
        r"fatal error: (\S{1,200}\.(?:h|hpp|cuh)): No such file or directory",
        "a kernel must be compiled at the start, but the image has no {0}.",
        "always",
    ),
    failure_pattern(
        "fatal error: Killed signal",
        r"fatal error: Killed signal terminated program (\w{1,40})",
        "the compiler of a kernel ({0}) was killed: the host ran out of memory; set MAX_JOBS to a small number under container.env.",
        "always",
    ),
    failure_pattern(
        "undefined symbol: ",
        r"(?:ImportError|OSError): (?:\S{0,500}/)?(\S{1,200}?\.so[\w.]*): undefined symbol: (\w{1,300})",
        "{0} is incompatible with the image's PyTorch or CUDA (undefined symbol {1}): use another image.",
    ),
    failure_pattern(
        "cannot open shared object file",
        r"(?:ImportError|OSError): (lib[\w.+-]{1,100}): cannot open shared object file",
        "the image lacks {0}: its components were built for different versions of CUDA; use another image.",
    ),
    failure_pattern("no kernel image is available", "", "its kernels were not built for this GPU.", "always"),
    failure_pattern(  # openai/harmony issues 46 and 95; vLLM issue 22525
        "error downloading or loading vocab file",
        "",
        "the vocabulary of gpt-oss is not in the container, which has no internet access: mount o200k_base.tiktoken and "
        "name its folder in TIKTOKEN_ENCODINGS_BASE under container.env.",
    ),
)

#: crashes, used to explain an exit only if the log contains no known exception
CRASH_FAILURES: tuple[FailurePattern, ...] = (
    failure_pattern(
        "what(): ",
        r"^\s*what\(\):\s{0,4}(.+?)\.?$",
        "it exited with an uncaught exception: {0}.",
        "always",
        "consequence",
    ),
    failure_pattern(
        "terminate called",
        r"terminate called after throwing an instance of '([^']{1,200})'",
        "it exited with an uncaught exception ({0}).",
        "always",
        "consequence",
    ),
    failure_pattern(
        "Assertion `",
        r"Assertion `(.{1,200}?)' failed\.?",
        "an assertion of a library failed: {0}.",
        "always",
        "consequence",
    ),
    failure_pattern(  # vLLM issue 1771: more shared memory fixed it
        "Bus error",
        r"(?:Fatal Python error: |^|: )Bus error",
        "its process exited with a bus error: the container's /dev/shm was full (raise shm_size), or a file was truncated while it was read.",
        "always",
        "consequence",
    ),
    failure_pattern(
        "Fatal Python error: ",
        r"Fatal Python error: (\w[\w ]{0,60}\w)",
        "its process crashed: {0}.",
        "always",
        "consequence",
    ),
    *(
        failure_pattern(needle, pattern, "its process crashed: Segmentation fault.", "always", "consequence")
        for needle, pattern in (
            ("Segfault encountered", ""),
            ("SIGSEGV received", ""),
            ("Segmentation fault", r"Segmentation fault \(core dumped\)|^Segmentation fault$"),
        )
    ),
)
