"""Rules about a recipe's container, for any engine: options that weaken the isolation from the host, or hide the evidence of a
server's health."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.http import OPEN_WAY_OF_HOST
from sparkwright.trust import process_option_rules, security_option_rules
from sparkwright.visible import one_line

DOCKER_SOURCE = "docker's documentation"

RULES: Rules[ServerRequest, ServerRequest] = Rules(describe_example=lambda request: {"container": request.container})
rule = RULES.rule


def _build_warning(sentence: str, way: str, option: str) -> Finding:
    return Finding("warning", sentence, (Way(way),), DOCKER_SOURCE, f"container.{option}")


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
    container = request.container
    if container.get("privileged"):
        sentence = "privileged: the container can do on the host what root can."
        yield _build_warning(sentence, "remove it; name what it needs in `devices` and `cap_add`", "privileged")
    yield from _danger_findings(request, "root")


def _danger_findings(request: ServerRequest, kind: DangerKind) -> Iterator[Finding]:
    for danger in find_dangers(request.container, request.flags):
        if danger.kind == kind:
            yield Finding("warning", danger.sentence, (Way(danger.fix),), DOCKER_SOURCE, danger.option)


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
    yield from _danger_findings(request, "data")


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
    yield from _danger_findings(request, "code")


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
    for item in security_option_rules.unconfined_options(request.container.get("security_opt") or ()):
        sentence = f"security_opt: {item} turns a protection of the host off."
        yield _build_warning(sentence, "remove it, or add the capability that it needs", "security_opt")


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
    container = request.container
    if container.get("pid") == "host":
        sentence = "pid: host: the container sees the processes of the host, and can end them."
        yield _build_warning(sentence, "remove it", "pid")
    if (
        process_option_rules.parse_network(container.get("network") or "")[0] == process_option_rules.HOST
        and request.open_to_network
    ):
        own = f"port {request.published}, and each other" if request.published else "each port"
        sentence = f"network: host: {own} that the engine opens, is open on the host's addresses."
        yield _build_warning(sentence, OPEN_WAY_OF_HOST, "network")


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
        yield _build_warning(sentence, "remove it; limit the log's size with `log_options`", "log_driver")


# Mounts, devices, capabilities, variables and flags that give a server more access than it needs, each with a
# sentence for the user.
#
# One table, read by `lint`, by `plan` and by `recipe.import`. Sources: capabilities(7), mem(4), ld.so(8), environ(7),
# docker's documentation ("Docker daemon attack surface"), vLLM's and SGLang's documentation of each flag and
# variable.

#: greatest length of a value in a sentence
MAX_SHOWN_CHARS = 80
DangerKind = Literal["root", "data", "code"]


@dataclass(frozen=True, slots=True)
class Danger:
    """A row of the table of dangers."""

    #: pattern of the value: a path of the host, a device, a capability, a variable or a flag
    pattern: re.Pattern[str]
    #: the access that it gives: the rest of a sentence that begins with the value
    sentence: str
    #: fix, as a clause
    fix: str = "remove it"
    #: root: equal to root on the host; data: reads or changes data that is not the server's; code: runs third-party code
    kind: DangerKind = "root"
    #: a read-only mount is harmless
    only_writable: bool = False


@dataclass(frozen=True, slots=True)
class DetectedDanger:
    """A danger in a recipe."""

    kind: DangerKind
    #: `container.volumes`, or a flag's name
    option: str
    #: line of the recipe: `volumes: /:/host`
    value: str
    #: the access that it gives, the rest of a sentence that begins with the value
    why: str
    fix: str

    @property
    def sentence(self) -> str:
        """The full sentence for the user."""
        return f"{self.value} {self.why}."


def _danger(
    pattern: str, sentence: str, fix: str = "remove it", kind: DangerKind = "root", *, only_writable: bool = False
) -> Danger:
    return Danger(re.compile(pattern), sentence, fix, kind, only_writable)


_HOME = r"(?:~|/root|/home/[^/]{1,64})"
_ONE_FOLDER = "mount the one folder that it needs, read-only"
#: folders of the host, by their shortest path; the first match wins
DANGEROUS_MOUNTS: tuple[Danger, ...] = (
    _danger(r"/", "gives the container every file of the host, which is as good as root on the host", _ONE_FOLDER),
    _danger(
        r"(?:/var)?/run(?:/docker\.sock|/containerd(?:/containerd\.sock)?|/podman(?:/podman\.sock)?|/user(?:/\d+)?|/user/\d+/docker\.sock)?|/var",
        "gives the container the Docker socket, which is as good as root on the host",
    ),
    _danger(r"/dev", "gives the container every device of the host", "name the device that it needs in `devices`"),
    _danger(
        r"/etc(?:/(?:passwd|shadow|group|gshadow|sudoers|ssh|pam\.d|systemd|profile\.d|ld\.so\.preload|cron[.\w]{0,20}|init\.d|docker)(?:/.*)?)?",
        "gives the container the accounts, keys and services of the host",
        _ONE_FOLDER,
    ),
    _danger(
        r"/var/lib(?:/(?:docker|containerd|kubelet)(?:/.*)?)?|/var/spool(?:/cron(?:/.*)?)?",
        "gives the container what the host runs as root: the files of all containers, its timed jobs",
        _ONE_FOLDER,
    ),
    _danger(
        r"/(?:boot|bin|sbin|usr|lib|lib64)(?:/.*)?",
        "is writable, and holds programs that the host runs as root",
        "add `:ro`, or remove it",
        only_writable=True,
    ),
    _danger(
        r"/(?:proc|sys)(?:/.*)?",
        "is writable: settings of the host's kernel",
        "add `:ro`, or remove it",
        only_writable=True,
    ),
    _danger(
        _HOME
        + r"/(?:\.ssh|\.aws|\.azure|\.kube|\.docker|\.gnupg|\.netrc|\.git-credentials|\.password-store|\.local/share/keyrings"
        r"|\.config(?:/gcloud)?|\.cache/huggingface/(?:token|stored_tokens))(?:/.{0,4096})?",
        "shows the container keys and passwords of the user",
        kind="data",
    ),
    _danger(
        _HOME
        + r"/(?:\.bashrc|\.profile|\.bash_profile|\.zshrc|\.config/(?:systemd|autostart)|\.local|\.local/bin)(?:/.{0,4096})?",
        "is writable, and holds what the user runs at the next login",
        "add `:ro`, or remove it",
        "data",
        only_writable=True,
    ),
    _danger(
        _HOME + r"|/home",
        "gives the container all of a home: keys, tokens, and what its owner runs",
        _ONE_FOLDER,
        "data",
    ),
)
#: devices, and mounts of them
DANGEROUS_DEVICES: tuple[Danger, ...] = (
    _danger(r"/dev/(?:mem|kmem|port)", "is the memory of the host"),
    _danger(
        r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|dm-|md|loop|mapper/|disk/|nbd)\S*",
        "is a disk of the host, without its files' rights",
    ),
    _danger(
        r"/dev/(?:kmsg|console|tty\d*|input(?:/\S*)?|uinput|hidraw\d*)",
        "shows what is typed or logged on the host",
        kind="data",
    ),
    _danger(
        r"/dev/(?:vfio(?:/\S*)?|cpu(?:/\S*)?|ipmi\d*|watchdog\d*|sg\d+|bsg(?:/\S*)?)",
        "drives hardware of the host directly",
    ),
    _danger(r"/dev", "is every device of the host", "name the device that it needs"),
)
DANGEROUS_CAPABILITIES: tuple[Danger, ...] = (
    _danger(
        "ALL|SYS_ADMIN|SYS_MODULE|SYS_RAWIO",
        "is as good as root on the host",
        "remove it, or add only the capabilities that it needs",
    ),
    _danger("DAC_READ_SEARCH", "reads any file of the host whose disk the container has a file of"),
    _danger("BPF|PERFMON", "reads memory of the host's kernel"),
    _danger(
        "SYS_BOOT|SYS_TIME|MAC_ADMIN|MAC_OVERRIDE|LINUX_IMMUTABLE|SYSLOG|AUDIT_CONTROL",
        "changes or reads the host, not the container",
        kind="data",
    ),
)
_BUILD_INTO_IMAGE = "build it into the image that spark.lock pins"
#: variables by name
DANGEROUS_VARIABLES: tuple[Danger, ...] = (
    _danger(r"LD_(?:PRELOAD|AUDIT)", "loads a library into each program of the container", _BUILD_INTO_IMAGE, "code"),
    _danger(
        r"LD_LIBRARY_PATH|PYTHON(?:PATH|HOME|STARTUP|USERBASE)|PATH|NODE_PATH|NODE_OPTIONS|PERL5(?:LIB|OPT)|RUBYOPT|BASH_ENV|ENV",
        "says where the container's programs take code from",
        _BUILD_INTO_IMAGE,
        "code",
    ),
    _danger(
        r"(?:PIP|UV)_(?:EXTRA_)?INDEX_URL|UV_INDEX|UV_DEFAULT_INDEX|PIP_CONFIG_FILE|PIP_TRUSTED_HOST",
        "says where packages are installed from",
        _BUILD_INTO_IMAGE,
        "code",
    ),
    _danger(
        r"(?i:https?_proxy|all_proxy)|HF_ENDPOINT|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_NO_VERIFY|PYTHONHTTPSVERIFY",
        "leads what the container downloads and sends through another server, or trusts other certificates",
        "remove it; the host downloads the model",
        "data",
    ),
    _danger(
        r"VLLM_ALLOW_INSECURE_SERIALIZATION|SGLANG_ALLOW_\w{0,60}PICKLE\w{0,60}",
        "lets whoever reaches the engine's inner ports run code in it",
        kind="code",
    ),
    _danger(r"VLLM_ALLOW_RUNTIME_LORA_UPDATING", "lets clients load files of the container as adapters", kind="data"),
    _danger(r"VLLM_SERVER_DEV_MODE", "opens endpoints for developers to every client", kind="data"),
    _danger(r"VLLM_PLUGINS", "names packages whose code the engine runs at its start", _BUILD_INTO_IMAGE, "code"),
)
#: flags by name; a flag that is off or empty does not count
DANGEROUS_FLAGS: tuple[Danger, ...] = (
    _danger(
        "trust-remote-code",
        "runs Python code that comes with the model",
        "remove it, if the engine knows the architecture",
        "code",
    ),
    _danger(
        r"(?:tool-parser|reasoning-parser)-plugin|custom-weight-loader|middleware|worker-cls|worker-extension-cls|scheduler-cls"
        r"|logits-processors|io-processor-plugin|custom-pipeline-class",
        "runs Python code that is not the engine's",
        _BUILD_INTO_IMAGE,
        "code",
    ),
    _danger("trust-request-chat-template", "runs chat templates that clients send", kind="code"),
    _danger("enable-custom-logit-processor", "runs code that clients send", kind="code"),
    _danger("allowed-local-media-path", "lets clients read files of the container below that folder", kind="data"),
)
#: values of `load-format` that are unpickled
_PICKLED_FORMATS = frozenset({"pt", "pickle", "npcache"})


def find_dangers(container: Mapping[str, Any], flags: Mapping[str, Any]) -> Iterator[DetectedDanger]:
    """Yield the dangers of a recipe.

    Args:
        container: options of `docker run`, by their names in a recipe.
        flags: of the engine, by their names.
    """
    for volume in container.get("volumes") or ():
        yield from _find_mount_danger(str(volume))
    for device in container.get("devices") or ():
        path = posixpath.normpath(str(device).partition(":")[0])
        yield from _find_first(
            DANGEROUS_DEVICES, path, "container.devices", f"devices: {one_line(str(device), max_chars=MAX_SHOWN_CHARS)}"
        )
    for capability in container.get("cap_add") or ():
        name = security_option_rules.capability_name(str(capability))
        yield from _find_first(DANGEROUS_CAPABILITIES, name, "container.cap_add", f"cap_add: {name}")
    for name in container.get("env") or {}:
        yield from _find_first(DANGEROUS_VARIABLES, str(name), "container.env", f"env: {name}")
    for name, value in flags.items():
        if value not in (False, None, ""):
            yield from _find_first(DANGEROUS_FLAGS, name, name, f"--{name}")
    if str(flags.get("load-format")) in _PICKLED_FORMATS:
        why = "unpickles the weights, and so runs code that comes with the model"
        yield DetectedDanger(
            "code", "load-format", f"--load-format {flags['load-format']}", why, "take weights as safetensors"
        )


def _find_mount_danger(volume: str) -> Iterator[DetectedDanger]:
    source, _, rest = volume.partition(":")
    modes = rest.partition(":")[2].split(",")
    if not source.startswith(("/", "~")):
        return
    path = re.sub("^//", "/", posixpath.normpath(source))
    recipe_line = f"volumes: {one_line(volume, max_chars=MAX_SHOWN_CHARS)}"
    for danger in DANGEROUS_MOUNTS:
        if danger.pattern.fullmatch(path) and not (danger.only_writable and "ro" in modes):
            yield DetectedDanger(danger.kind, "container.volumes", recipe_line, danger.sentence, danger.fix)
            return
    yield from _find_first(DANGEROUS_DEVICES, path, "container.volumes", recipe_line)


def _find_first(table: tuple[Danger, ...], value: str, option: str, recipe_line: str) -> Iterator[DetectedDanger]:
    for danger in table:
        if danger.pattern.fullmatch(value):
            yield DetectedDanger(danger.kind, option, recipe_line, danger.sentence, danger.fix)
            return
