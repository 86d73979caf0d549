"""The faults of the sandbox. One fault is active at a time; it affects running containers and those started later.

Each fault is implemented by the code that it affects: search for its name. One-time events are functions in cluster.py.
"""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "slow": "the engine generates 5.7 tokens a second instead of 47",
    "slow-at-depth": "after a prompt of 4,096 or more tokens, the engine generates at a fifth of its rate, as with a slow kernel",
    "stale-cache": "the compile cache of an earlier start is bad: a start that loads it generates 5.7 tokens a second",
    "wedge": "the engine generates no tokens, but /health returns 200 (503 on SGLang, whose health check generates a token)",
    "slow-start": "the engine exits, is restarted, and does not finish loading",
    "power": "the GPU stays at low power and a low clock under load, and generates 5.7 tokens a second",
    "hot": "the GPU is at 96 C",
    "oom": "the engine finds too little memory when it starts, although enough is free",
    "cpu-only": "the engine starts without the GPU, as with an image without its kernels, and generates 2.9 tokens a second",
    "weight-only": "the engine starts with another mixture-of-experts kernel: Marlin, weight-only, at the same decode rate",
    "bad-drafts": "the engine starts with an unsuitable drafter: the first token of 15 % of its drafts is accepted, not 85 %",
    "other-text": "the engine starts with damaged weights: the same image and arguments generate different text",
    "garbled": "the engine starts with a kernel that is wrong for the GPU: it answers every prompt with the same few letters",
    "tool-text": "the tool call parser finds nothing: calls arrive as text in the content",
    "tool-stream": "the tool call parser works only without `stream`: in a stream, calls arrive as text in the content",
    "many-tools": "with more than 30 tools in a request, the model's calls arrive as text in the content",
    "think-text": "the reasoning parser finds nothing: the thinking arrives in the content",
    "content-null": "the reasoning parser takes all of the text: the content is null",
    "port-taken": "another program listens on the server's port, if it is free, and on the next port",
    "wrong-arch": "the registry's images have no linux/arm64",
    "moved-tag": "the tag points to another digest in the registry; the pinned digest is still available",
    "moved-model": "the model's main branch points to another commit on the hub; the pinned commit is still available",
    "stubborn": "the engine ignores SIGTERM",
    "ollama-busy": "a request keeps Ollama's model in memory, if there is room for it and the server",
    "ollama-loads": "Ollama is loading a second model: requests that list or unload models wait for it",
    "ollama-returns": "a client loads Ollama's model again right after it was unloaded",
    "engine-exits": "the engine exits with code 0 at the first request",
    "crash-loop": "the engine exits shortly after every start, until its container is stopped manually",
    "overshoot": "a starting engine exceeds its share by 3 GiB a second until the memory is exhausted: the host goes down",
    "unkillable": "like overshoot, but the engine hangs in the driver: it can't be killed, and ends only when the host goes down",
    "other-program": "another program allocates 3 GiB a second while a server starts, until the host goes down",
    "leak": "a running server allocates 0.5 GiB more each second until the memory is exhausted: the host goes down",
    "no-space": "the disk is full",
    "half-model": "the hub breaks off every large download after half of its bytes, and one file on disk is damaged",
}

#: faults of a cluster member: sandbox1 and sandbox2
MEMBER_FAULTS: dict[str, str] = {
    "rank-killed": "the member's rank is killed: an idle head notices with the next request; a running stream ends with an error",
    "worker-never-joins": "a worker in a new container never reaches the head, and logs nothing more",
    "sockets": "NCCL finds no adapter in a new container and falls back to sockets",
    "other-digest": "the member's container runs an image with another digest, as if it had been started manually",
    "leftover-member": "a rank of an earlier start still runs under another name",
    "link-degraded": "one half of the port is down, and the other runs at 100 Gb/s",
    "reboot": "the host reboots: containers without a restart policy stay stopped, and a running deploy is cut off",
}

#: faults that take effect when a server starts: a running server is affected only after a restart
START_FAULTS = frozenset(
    {
        "oom",
        "cpu-only",
        "weight-only",
        "bad-drafts",
        "other-text",
        "garbled",
        "stale-cache",
        "tool-text",
        "tool-stream",
        "many-tools",
        "think-text",
        "content-null",
    }
)

#: the fault in which another program exhausts the memory while a server starts
OTHER_PROGRAM = "other-program"
#: faults in which the memory is exhausted while a server starts
GROWING_FAULTS = ("overshoot", OTHER_PROGRAM, "unkillable")

#: for each fault of the GPU, the values of nvidia-smi that it changes, by field
GPU_FAULTS: dict[str, dict[str, str]] = {
    "power": {"power.draw": "21.40", "clocks.sm": "712", "clocks.current.sm": "712", "utilization.gpu": "96"},
    "hot": {"temperature.gpu": "96"},
}
