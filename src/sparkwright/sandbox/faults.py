"""The faults of the sandbox. One is active at a time; it affects running containers and later starts."""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "slow": "the engine generates 5.7 tokens a second instead of 47",
    "slow-at-depth": "from 4,096 tokens of context on, generation has a fifth of its rate, as with another attention kernel",
    "stale-cache": "the compile cache of an earlier start is bad: a start that loads it generates 5.7 tokens a second",
    "wedge": "the engine generates no tokens, and /health returns 200 (503 on SGLang, whose health check generates a token)",
    "slow-start": "the engine exits, is restarted, and does not finish loading",
    "power": "the GPU stays at low power and a low clock under load, and generates 5.7 tokens a second",
    "hot": "the GPU is at 96 C",
    "oom": "the engine finds too little memory at its start, although enough was free",
    "cpu-only": "the engine starts without the GPU, as from an image without its kernels, and generates 2.9 tokens a second",
    "weight-only": "the engine starts with another kernel for its experts: Marlin, weight-only, which costs no decode rate",
    "bad-drafts": "the engine starts with a drafter that does not fit: 15 % of its first tokens are accepted instead of 85 %",
    "other-text": "the engine starts with damaged weights: the same image and arguments generate another text",
    "garbled": "the engine starts with a kernel that does not fit the GPU: it answers every prompt with the same few letters",
    "tool-text": "the tool call parser finds nothing: calls arrive as text in the content",
    "tool-stream": "the tool call parser works without `stream` only: in a stream calls arrive as text in the content",
    "many-tools": "with more than 30 tools in a request the model's calls arrive as text in the content",
    "think-text": "the reasoning parser finds nothing: the thinking arrives in the content",
    "content-null": "a parser takes all of the text: the content is null",
    "port-taken": "something else listens on the server's port, if that is free, and on the next one",
    "wrong-arch": "the registry's images have no linux/arm64",
    "moved-tag": "the tag means another digest upstream; the pinned one is still there",
    "moved-model": "the model's main branch means another commit upstream; the pinned one is still there",
    "stubborn": "the engine does not end on SIGTERM",
    "ollama-busy": "a request keeps Ollama's model in memory, if it fits beside the server",
    "ollama-loads": "Ollama is loading a second model: what lists or unloads models waits for it",
    "ollama-returns": "a client loads Ollama's model again right after it was unloaded",
    "engine-exits": "the engine ends with exit code 0 at the first request",
    "crash-loop": "the engine exits by itself shortly after its start, every time, until it is stopped by hand",
    "overshoot": "a start takes more than its share, 3 GiB a second, until nothing is left: then the host is lost",
    "unkillable": "the same, of an engine that hangs in the driver: nothing ends it but the end of its host",
    "other-program": "another program takes 3 GiB a second while a server starts: then the host is lost",
    "leak": "a running server takes 0.5 GiB more each second until nothing is left: then the host is lost",
    "no-space": "the disk is full",
    "half-model": "the hub cuts every file after half its bytes, and one file on the disk is damaged",
}

#: faults of a cluster member: sandbox1 and sandbox2
MEMBER_FAULTS: dict[str, str] = {
    "rank-killed": "the member's rank is killed: idle, the head learns it from the next request; a stream ends with an error",
    "worker-never-joins": "a worker that is started never reaches the head, and logs nothing more",
    "sockets": "NCCL finds no adapter at the next start and falls back to sockets",
    "other-digest": "the member's container is from an image of another digest, as started by hand",
    "leftover-member": "a rank of an earlier start still runs under another name",
    "link-degraded": "one half of the port is down, and the other gives 100 Gb/s",
    "reboot": "the host reboots: containers without a restart policy stay stopped, a deploy's run is cut off",
}

#: faults of a start: a running server is affected only when it is started again
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
