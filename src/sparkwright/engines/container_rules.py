"""Rules about a recipe's container, for all engines: options that weaken its isolation from the host, or disable its log.

`lint`, `plan` and `recipe.import` use the tables of mounts, devices, capabilities, variables and flags that give a server more access
than it needs. Sources: capabilities(7), mem(4), ld.so(8), environ(7), docker's documentation ("Docker daemon attack surface"), vLLM's
and SGLang's documentation of each flag and variable.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.http import OPEN_SERVER_ON_HOST_NETWORK_FIX
from sparkwright.engines.shared_rules import DOCKER_SOURCE
from sparkwright.trust import process_option_rules, security_option_rules
from sparkwright.visible import one_line

#: maximum length of a recipe's value in a message
MAX_SHOWN_CHARS = 80
DangerKind = Literal["root", "data", "code"]


@dataclass(frozen=True, slots=True)
class Danger:
    """A setting that gives a server too much access."""

    #: pattern of a host path, device, capability, variable or flag
    pattern: re.Pattern[str]
    #: the rest of a sentence that begins with the setting
    reason: str
    #: fix, as a clause
    fix: str = "remove it"
    #: root: equivalent to root on the host; data: access to data other than the server's; code: runs third-party code
    kind: DangerKind = "root"
    #: a read-only mount is harmless
    only_writable: bool = False


@dataclass(frozen=True, slots=True)
class DetectedDanger:
    """A danger in a recipe."""

    kind: DangerKind
    #: `container.volumes`, or a flag's name
    option: str
    #: the setting as written in the recipe: `volumes: /:/host`
    value: str
    #: the rest of a sentence that begins with `value`
    reason: str
    fix: str

    @property
    def message(self) -> str:
        """The full sentence for the user."""
        return f"{self.value} {self.reason}."


def _danger(
    pattern: str, reason: str, fix: str = "remove it", kind: DangerKind = "root", *, only_writable: bool = False
) -> Danger:
    return Danger(re.compile(pattern), reason, fix, kind, only_writable)


_HOME_PATTERN = r"(?:~|/root|/home/[^/]{1,64})"
_MOUNT_ONE_FOLDER_FIX = "mount the one folder that it needs, read-only"
#: folders of the host as normalized paths; the first match wins
DANGEROUS_MOUNTS: tuple[Danger, ...] = (
    _danger(
        r"/", "gives the container every file of the host, which is as good as root on the host", _MOUNT_ONE_FOLDER_FIX
    ),
    _danger(
        r"(?:/var)?/run(?:/docker\.sock|/containerd(?:/containerd\.sock)?|/podman(?:/podman\.sock)?|/user(?:/\d+)?|/user/\d+/docker\.sock)?|/var",
        "gives the container the Docker socket, which is as good as root on the host",
    ),
    _danger(r"/dev", "gives the container every device of the host", "name the device that it needs in `devices`"),
    _danger(
        r"/etc(?:/(?:passwd|shadow|group|gshadow|sudoers|ssh|pam\.d|systemd|profile\.d|ld\.so\.preload|cron[.\w]{0,20}|init\.d|docker)(?:/.*)?)?",
        "gives the container the accounts, keys and services of the host",
        _MOUNT_ONE_FOLDER_FIX,
    ),
    _danger(
        r"/var/lib(?:/(?:docker|containerd|kubelet)(?:/.*)?)?|/var/spool(?:/cron(?:/.*)?)?",
        "gives the container files that the host uses as root: those of all containers, and cron jobs",
        _MOUNT_ONE_FOLDER_FIX,
    ),
    _danger(
        r"/(?:boot|bin|sbin|usr|lib|lib64)(?:/.*)?",
        "is writable, and contains programs that the host runs as root",
        "add `:ro`, or remove it",
        only_writable=True,
    ),
    _danger(
        r"/(?:proc|sys)(?:/.*)?",
        "is writable: the container can change settings of the host's kernel",
        "add `:ro`, or remove it",
        only_writable=True,
    ),
    _danger(
        _HOME_PATTERN
        + r"/(?:\.ssh|\.aws|\.azure|\.kube|\.docker|\.gnupg|\.netrc|\.git-credentials|\.password-store|\.local/share/keyrings"
        r"|\.config(?:/gcloud)?|\.cache/huggingface/(?:token|stored_tokens))(?:/.{0,4096})?",
        "exposes the user's keys and passwords to the container",
        kind="data",
    ),
    _danger(
        _HOME_PATTERN
        + r"/(?:\.bashrc|\.profile|\.bash_profile|\.zshrc|\.config/(?:systemd|autostart)|\.local|\.local/bin)(?:/.{0,4096})?",
        "is writable, and contains programs and scripts that run at the user's next login",
        "add `:ro`, or remove it",
        "data",
        only_writable=True,
    ),
    _danger(
        _HOME_PATTERN + r"|/home",
        "gives the container a whole home folder: keys, tokens, and programs that its owner runs",
        _MOUNT_ONE_FOLDER_FIX,
        "data",
    ),
)
#: devices, and mounts of them
DANGEROUS_DEVICES: tuple[Danger, ...] = (
    _danger(r"/dev/(?:mem|kmem|port)", "is the memory of the host"),
    _danger(
        r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|dm-|md|loop|mapper/|disk/|nbd)\S*",
        "is a disk of the host, and bypasses its file permissions",
    ),
    _danger(
        r"/dev/(?:kmsg|console|tty\d*|input(?:/\S*)?|uinput|hidraw\d*)",
        "exposes the host's keyboard input, consoles or kernel log",
        kind="data",
    ),
    _danger(
        r"/dev/(?:vfio(?:/\S*)?|cpu(?:/\S*)?|ipmi\d*|watchdog\d*|sg\d+|bsg(?:/\S*)?)",
        "controls hardware of the host directly",
    ),
    _danger(r"/dev", "is every device of the host", "name the device that it needs"),
)
DANGEROUS_CAPABILITIES: tuple[Danger, ...] = (
    _danger(
        "ALL|SYS_ADMIN|SYS_MODULE|SYS_RAWIO",
        "is as good as root on the host",
        "remove it, or add only the capabilities that it needs",
    ),
    _danger("DAC_READ_SEARCH", "can read every file on each disk of the host from which the container mounts a file"),
    _danger("BPF|PERFMON", "can read memory of the host's kernel"),
    _danger(
        "SYS_BOOT|SYS_TIME|MAC_ADMIN|MAC_OVERRIDE|LINUX_IMMUTABLE|SYSLOG|AUDIT_CONTROL",
        "can change or read settings of the host, not only of the container",
        kind="data",
    ),
)
_BUILD_INTO_IMAGE_FIX = "build it into the image that spark.lock pins"
#: variables by name
DANGEROUS_VARIABLES: tuple[Danger, ...] = (
    _danger(
        r"LD_(?:PRELOAD|AUDIT)", "loads a library into each program in the container", _BUILD_INTO_IMAGE_FIX, "code"
    ),
    _danger(
        r"LD_LIBRARY_PATH|PYTHON(?:PATH|HOME|STARTUP|USERBASE)|PATH|NODE_PATH|NODE_OPTIONS|PERL5(?:LIB|OPT)|RUBYOPT|BASH_ENV|ENV",
        "sets where the container's programs load code from",
        _BUILD_INTO_IMAGE_FIX,
        "code",
    ),
    _danger(
        r"(?:PIP|UV)_(?:EXTRA_)?INDEX_URL|UV_INDEX|UV_DEFAULT_INDEX|PIP_CONFIG_FILE|PIP_TRUSTED_HOST",
        "sets where packages are installed from",
        _BUILD_INTO_IMAGE_FIX,
        "code",
    ),
    _danger(
        r"(?i:https?_proxy|all_proxy)|HF_ENDPOINT|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_NO_VERIFY|PYTHONHTTPSVERIFY",
        "redirects the container's traffic through another server, or makes it trust other certificates",
        "remove it; the host downloads the model",
        "data",
    ),
    _danger(
        r"VLLM_ALLOW_INSECURE_SERIALIZATION|SGLANG_ALLOW_\w{0,60}PICKLE\w{0,60}",
        "lets anyone who can reach the engine's internal ports run code in it",
        kind="code",
    ),
    _danger(r"VLLM_ALLOW_RUNTIME_LORA_UPDATING", "lets clients load files in the container as adapters", kind="data"),
    _danger(r"VLLM_SERVER_DEV_MODE", "opens developer endpoints to every client", kind="data"),
    _danger(r"VLLM_PLUGINS", "names packages whose code the engine runs at startup", _BUILD_INTO_IMAGE_FIX, "code"),
)
#: flags by name; a flag that is off or empty does not count
DANGEROUS_FLAGS: tuple[Danger, ...] = (
    _danger(
        "trust-remote-code",
        "runs Python code that comes with the model",
        "remove it if the engine supports the architecture",
        "code",
    ),
    _danger(
        r"(?:tool-parser|reasoning-parser)-plugin|custom-weight-loader|middleware|worker-cls|worker-extension-cls|scheduler-cls"
        r"|logits-processors|io-processor-plugin|custom-pipeline-class",
        "runs Python code from outside the engine",
        _BUILD_INTO_IMAGE_FIX,
        "code",
    ),
    _danger("trust-request-chat-template", "runs chat templates that clients send", kind="code"),
    _danger("enable-custom-logit-processor", "runs code that clients send", kind="code"),
    _danger("allowed-local-media-path", "lets clients read files in the container below that folder", kind="data"),
)
#: values of `load-format` for weights that are unpickled
_PICKLED_FORMATS = frozenset({"pt", "pickle", "npcache"})


def find_dangers(container: Mapping[str, Any], flags: Mapping[str, Any]) -> Iterator[DetectedDanger]:
    """Yield the dangers of a recipe.

    container: options of `docker run` by recipe key. flags: the engine's flags by canonical name.
    """
    for volume in container.get("volumes") or ():
        yield from _find_mount_danger(str(volume))
    for device in container.get("devices") or ():
        path = posixpath.normpath(str(device).partition(":")[0])
        yield from _find_first_danger(
            DANGEROUS_DEVICES, path, "container.devices", f"devices: {one_line(str(device), max_chars=MAX_SHOWN_CHARS)}"
        )
    for capability in container.get("cap_add") or ():
        name = security_option_rules.capability_name(str(capability))
        yield from _find_first_danger(DANGEROUS_CAPABILITIES, name, "container.cap_add", f"cap_add: {name}")
    for name in container.get("env") or {}:
        yield from _find_first_danger(DANGEROUS_VARIABLES, str(name), "container.env", f"env: {name}")
    for name, value in flags.items():
        if value not in (False, None, ""):
            yield from _find_first_danger(DANGEROUS_FLAGS, name, name, f"--{name}")
    if str(flags.get("load-format")) in _PICKLED_FORMATS:
        reason = "unpickles the weights, and so runs code that comes with the model"
        yield DetectedDanger(
            "code", "load-format", f"--load-format {flags['load-format']}", reason, "use weights in safetensors format"
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
            yield DetectedDanger(danger.kind, "container.volumes", recipe_line, danger.reason, danger.fix)
            return
    yield from _find_first_danger(DANGEROUS_DEVICES, path, "container.volumes", recipe_line)


def _find_first_danger(
    table: tuple[Danger, ...], value: str, option: str, recipe_line: str
) -> Iterator[DetectedDanger]:
    for danger in table:
        if danger.pattern.fullmatch(value):
            yield DetectedDanger(danger.kind, option, recipe_line, danger.reason, danger.fix)
            return


RULES: Rules[ServerRequest, ServerRequest] = Rules(describe_example=lambda request: {"container": request.container})
rule = RULES.rule


def _build_warning(message: str, fix: str, option: str) -> Finding:
    return Finding("warning", message, (Fix(fix),), DOCKER_SOURCE, f"container.{option}")


@rule(
    "root-on-the-host",
    sources=(
        "docker's documentation, Runtime privilege and Linux capabilities: privileged grants all devices and all capabilities",
        "docker's documentation, Protect the Docker daemon socket: whoever can use the socket can start a privileged container",
        "capabilities(7): SYS_ADMIN, SYS_MODULE and SYS_RAWIO each suffice to take over the system",
    ),
    example=ServerRequest(container={"privileged": True}),
)
def root_on_the_host(request: ServerRequest) -> Iterator[Finding]:
    """With these options, an attacker who takes over the server is root on the host.
    Engines read prompts, templates and model files written by strangers, and some run code that comes with a model. `gpus` and
    `devices` give a container its GPU and network adapters without these options; RDMA needs `devices: [/dev/infiniband]` and
    `cap_add: [IPC_LOCK]` or a `memlock` limit.
    """
    container = request.container
    if container.get("privileged"):
        message = "privileged: the container has root privileges on the host."
        yield _build_warning(message, "remove it; name what it needs in `devices` and `cap_add`", "privileged")
    yield from _danger_findings(request, "root")


def _danger_findings(request: ServerRequest, kind: DangerKind) -> Iterator[Finding]:
    for danger in find_dangers(request.container, request.flags):
        if danger.kind == kind:
            yield Finding("warning", danger.message, (Fix(danger.fix),), DOCKER_SOURCE, danger.option)


@rule(
    "data-of-the-host",
    sources=(
        "docker's documentation, Bind mounts: the container can read and change the files of the host that are mounted",
        "capabilities(7); console(4); the documentation of each variable",
    ),
    example=ServerRequest(container={"volumes": ["~/.ssh:/root/.ssh:ro"]}),
)
def data_of_the_host(request: ServerRequest) -> Iterator[Finding]:
    """A container has access to data or settings of the host that a server does not need.
    An attacker who takes over a server can use everything that its container can. A model server needs its model's folder, a cache and
    its port, but no keys from a home folder, no terminal, and no other proxy or hub.
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
    """The server runs code from outside the image.
    The image is pinned by its digest. Code that a variable, a flag or the model's repository adds runs with all privileges of the container:
    read it first, or build it into an image. spark.lock pins the commit of a model's code, but strangers wrote it.
    """
    yield from _danger_findings(request, "code")


@rule(
    "unconfined",
    sources=(
        "docker's documentation, Seccomp security profiles for Docker: the default profile blocks about 44 system calls",
        "docker's documentation, AppArmor security profiles for Docker",
    ),
    example=ServerRequest(container={"security_opt": ["seccomp=unconfined"]}),
)
def unconfined(request: ServerRequest) -> Iterator[Finding]:
    """Without Docker's profiles, the container can use every system call of the kernel.
    Most kernel vulnerabilities are in calls that the default seccomp profile blocks. An engine that needs such a call usually works with
    a single capability, e.g. `cap_add: [SYS_NICE]` for NUMA placement or `SYS_PTRACE` for a profiler.
    """
    for option in security_option_rules.unconfined_options(request.container.get("security_opt") or ()):
        message = f"security_opt: {option} turns off a protection of the host."
        yield _build_warning(message, "remove it, or add the capability that it needs", "security_opt")


@rule(
    "host-namespaces",
    sources=(
        "docker's documentation, PID settings: with host, the container sees all processes of the host",
        "docker's documentation, Host network driver: the container shares the host's addresses and ports; nothing is published",
    ),
    example=ServerRequest(container={"pid": "host"}),
)
def host_namespaces(request: ServerRequest) -> Iterator[Finding]:
    """A container that shares the host's processes or network is not isolated from them.
    With `pid: host` it can read the command line and, as root, the memory of the host's processes. With `network: host` it reaches services
    that listen only on the host's loopback, and every port that the engine opens, including those for internal coordination, is open on the
    host's addresses. Engines that span several hosts need the host's network; a single server does not.
    """
    container = request.container
    if container.get("pid") == "host":
        message = "pid: host: the container can see and kill the processes of the host."
        yield _build_warning(message, "remove it", "pid")
    if (
        process_option_rules.parse_network(container.get("network") or "")[0] == process_option_rules.HOST_NETWORK
        and request.open_to_network
    ):
        ports = f"port {request.published_port} and every other port" if request.published_port else "every port"
        message = f"network: host exposes {ports} that the engine opens on the host's addresses."
        yield _build_warning(message, OPEN_SERVER_ON_HOST_NETWORK_FIX, "network")


@rule(
    "log-not-kept",
    sources=("docker's documentation, Configure logging drivers: with none, `docker logs` has no output",),
    example=ServerRequest(container={"log_driver": "none"}),
)
def log_not_kept(request: ServerRequest) -> Iterator[Finding]:
    """A deploy of a server without a log fails before the running server is stopped.
    The engine's log shows whether expectations such as `chunked_prefill` are met, the stages of a start, and the reason for a crash.
    """
    if request.container.get("log_driver") == "none":
        message = "log_driver: none: Docker keeps no log, which a deploy has to read."
        fix = Fix("remove it; limit the log's size with `log_options`")
        yield Finding("error", message, (fix,), DOCKER_SOURCE, "container.log_driver")
