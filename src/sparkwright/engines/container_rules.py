"""Rules about a recipe's container, for any engine: options that weaken the isolation from the host, or hide the evidence of a
server's health."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines import dangers
from sparkwright.engines.advice import Explained, ServerRequest
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.server_key import OPEN_WAY_OF_HOST
from sparkwright.trust import process_words, security_words

DOCKER = "docker's documentation"

RULES: Rules[ServerRequest, ServerRequest] = Rules()
rule = RULES.rule


def _warning(sentence: str, way: str, option: str) -> Finding:
    return Finding("warning", sentence, (Way(way),), DOCKER, f"container.{option}")


@rule(
    "root-on-the-host",
    sources=(
        "docker's documentation, Runtime privilege and Linux capabilities: privileged gives all devices and all capabilities",
        "docker's documentation, Protect the Docker daemon socket: who may use the socket can start a privileged container",
        "capabilities(7): SYS_ADMIN, SYS_MODULE and SYS_RAWIO each suffice to take over the system",
    ),
    example=ServerRequest(container={"privileged": True}),
)
def root_on_the_host(request: ServerRequest) -> Iterator[Finding]:
    """With these options, whoever breaks into the server is root on the host.
    Engines read prompts, templates and model files that strangers wrote, and some run code that comes with a model. `gpus` and
    `devices` give a container its GPU and its adapters without any of this; RDMA needs `devices: [/dev/infiniband]` and
    `cap_add: [IPC_LOCK]` or a `memlock` limit.
    """
    box = request.container
    if box.get("privileged"):
        sentence = "privileged: the container can do on the host what root can."
        yield _warning(sentence, "remove it; name what it needs in `devices` and `cap_add`", "privileged")
    yield from _dangers(request, "root")


def _dangers(request: ServerRequest, kind: dangers.Kind) -> Iterator[Finding]:
    for danger in dangers.of(request.container, request.flags):
        if danger.kind == kind:
            yield Finding("warning", danger.sentence, (Way(danger.fix),), DOCKER, danger.option)


@rule(
    "data-of-the-host",
    sources=(
        "docker's documentation, Bind mounts: the container reads and changes the files of the host that are mounted",
        "capabilities(7); console(4); the documentation of each variable",
    ),
    example=ServerRequest(container={"volumes": ["~/.ssh:/root/.ssh:ro"]}),
)
def data_of_the_host(request: ServerRequest) -> Iterator[Finding]:
    """A container is given data or ways of the host that a server does not need.
    Whoever breaks into a server has what its container has. A model server needs its model's folder, a cache and its port: neither the
    keys in a home, nor a terminal, nor another proxy or hub.
    """
    yield from _dangers(request, "data")


@rule(
    "code-of-others",
    sources=(
        "ld.so(8): LD_PRELOAD; Python's documentation, Environment variables",
        "transformers' documentation, Custom models: trust_remote_code runs the Python files of the model's repository",
        "vLLM's documentation, Security: pickle, plugins and insecure serialization",
    ),
    example=ServerRequest(container={"env": {"LD_PRELOAD": "/opt/x.so"}}),
)
def code_of_others(request: ServerRequest) -> Iterator[Finding]:
    """The server runs code that is neither the image's nor the engine's.
    The image is pinned by its digest. Code that a variable, a flag or the model's repository brings in runs with all that the container
    has: read it first, or build it into an image. A model's own code is pinned with its commit by spark.lock, and still is a stranger's.
    """
    yield from _dangers(request, "code")


@rule(
    "unconfined",
    sources=(
        "docker's documentation, Seccomp security profiles for Docker: the default profile blocks some 44 system calls",
        "docker's documentation, AppArmor security profiles for Docker",
    ),
    example=ServerRequest(container={"security_opt": ["seccomp=unconfined"]}),
)
def unconfined(request: ServerRequest) -> Iterator[Finding]:
    """Without Docker's profiles, every system call of the kernel is open to the container.
    Holes in the kernel are mostly in calls that the default seccomp profile blocks. An engine that needs one of them usually works with
    a single capability, e.g. `cap_add: [SYS_NICE]` for NUMA placement or `SYS_PTRACE` for a profiler.
    """
    for item in security_words.unconfined(request.container.get("security_opt") or ()):
        sentence = f"security_opt: {item} turns a protection of the host off."
        yield _warning(sentence, "remove it, or add the capability that it needs", "security_opt")


@rule(
    "host-namespaces",
    sources=(
        "docker's documentation, PID settings: with host, the container sees all processes of the host",
        "docker's documentation, Host network driver: the container shares the host's addresses and ports; nothing is published",
    ),
    example=ServerRequest(container={"pid": "host"}),
)
def host_namespaces(request: ServerRequest) -> Iterator[Finding]:
    """A container that shares the host's processes or network is not kept apart from them.
    With `pid: host` it can read the command line and, as root, the memory of the host's processes. With `network: host` it reaches services
    that listen on the host's loopback only, and every port that the engine opens, its own coordination among them, is open on the host's
    addresses. Engines that span several hosts need the host's network; a single server does not.
    """
    box = request.container
    if box.get("pid") == "host":
        sentence = "pid: host: the container sees the processes of the host, and can end them."
        yield _warning(sentence, "remove it", "pid")
    if process_words.parts(box.get("network") or "")[0] == process_words.HOST and request.open_to_network:
        own = f"port {request.published}, and each other" if request.published else "each port"
        sentence = f"network: host: {own} that the engine opens, is open on the host's addresses."
        yield _warning(sentence, OPEN_WAY_OF_HOST, "network")


@rule(
    "log-not-kept",
    sources=("docker's documentation, Configure logging drivers: with none, `docker logs` has no output",),
    example=ServerRequest(container={"log_driver": "none"}),
)
def log_not_kept(request: ServerRequest) -> Iterator[Finding]:
    """Without a log, much of what a deploy proves stays unknown.
    Expectations such as `chunked_prefill` are read from the engine's log, and so are the stages of a start and the reason of a death.
    """
    if request.container.get("log_driver") == "none":
        sentence = "log_driver: none: Docker keeps no log, so nothing can be read of a start or a death."
        yield _warning(sentence, "remove it; limit the log's size with `log_options`", "log_driver")


def explained(name: str) -> Explained | None:
    """Return a rule by name; None if there is none."""
    rule = RULES.get(name)
    if rule is None:
        return None
    finding = next(iter(rule.findings(rule.example)))
    box = rule.example.container
    return Explained("", rule.name, rule.title, rule.reason, rule.sources, {}, "", None, finding, box)
