"""Rules about access to the server, its API key, parallelism on a single host, and problems that clients see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkwright.engines import shared_rules
from sparkwright.engines.findings import Finding, Fix
from sparkwright.engines.shared_rules import DOCKER_SOURCE, LOOPBACK_PREFIXES, key_in_arguments, wrong_published_port
from sparkwright.engines.vllm import flags, http
from sparkwright.engines.vllm.flags import MEMBERS, PIPELINE, TENSOR
from sparkwright.engines.vllm.rules.rule import Case, Example, rule, severity_of
from sparkwright.trust import process_option_rules
from sparkwright.visible import one_line

#: oldest release whose log is known to mask the key
FIRST_RELEASE_HIDING_KEY = "0.32.0"
GID_INDEX_VARIABLE = "NCCL_IB_GID_INDEX"
TEMPLATE_DEFAULTS_FLAG = "default-chat-template-kwargs"
#: strings that mean false but are truthy in a Jinja template
NEGATIVE_WORDS = ("false", "no", "off", "0")
#: a parser in the model's repository, such as nano_v3_reasoning_parser.py
PARSER_FILE_PATTERN = re.compile(
    r"(?:[\w.-]{0,80}[_-])?(reasoning|tool)[_-](?:call[_-])?parser[\w.-]{0,40}\.py", re.IGNORECASE
)


@rule(
    "api-key-in-arguments",
    sources=(
        "`docker inspect` and `ps` show a container's arguments to every user of the host's Docker socket",
        f"sparkwright passes no secret {http.KEY_VARIABLE} to a container: without the flag the server would accept any client",
    ),
    example=Example({"api-key": "sk-1"}),
)
def api_key(case: Case) -> Iterator[Finding]:
    """An API key in the flags is readable by every user of the host.
    Arguments appear in `ps`, `docker inspect`, the recipe and the logs of older releases. Use `server_key` in the recipe instead:
    it is passed in the engine's configuration file, which only the container can read, and sparkwright's checks send it.
    """
    if case.flag(http.KEY_FLAG):
        fix = Fix("remove it and name its source in the recipe: `server_key: {env: SPARK_KEY}`", {http.KEY_FLAG: None})
        yield from key_in_arguments(http.KEY_FLAG, fix, "docker inspect")


@rule(
    "open-to-network",
    sources=(
        "docker's documentation: a port published without an address is open on every address of the host, bypassing its firewall",
    ),
    example=Example(open_to_network=True),
)
def open_to_network(case: Case) -> Iterator[Finding]:
    """A server published beyond loopback without an API key is open to everyone on the network.
    Docker's published ports bypass ufw. Set `server_key` to make clients authenticate, or `publish: loopback` to limit access to
    programs on the host, such as a proxy or an SSH tunnel.
    """
    yield from shared_rules.open_to_network(case.request)


def _is_loopback(host: Any) -> bool:
    return str(host).strip("[]").startswith(LOOPBACK_PREFIXES)


#: options that make the server unreachable through a published port: name, predicate on its value, consequence
UNREACHABLE_OPTIONS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("host", _is_loopback, "the server listens on its container's loopback only"),
    ("uds", bool, "the server listens on a Unix socket in its container, and on no port"),
    ("headless", lambda value: value is True, "a headless engine serves no HTTP requests"),
    ("ssl-certfile", bool, "the server accepts HTTPS only, but sparkwright's checks use HTTP"),
    ("ssl-keyfile", bool, "the server accepts HTTPS only, but sparkwright's checks use HTTP"),
)


@rule(
    "out-of-reach",
    sources=(
        "docker's documentation: a published port forwards to the container's own address, not to its loopback",
        "vLLM 0.32.0, `vllm serve --help=all`: host, port (8000 by default), uds, headless, ssl-certfile; entrypoints/openai/api_server.py",
    ),
    example=Example({"host": "127.0.0.1"}),
)
def out_of_reach(case: Case) -> Iterator[Finding]:
    """The server must listen on the port that the container publishes.
    Otherwise it loads its model for minutes but is never reachable: the deploy fails after the previous server has been stopped. The first
    entry of `container.ports` is the server's port. A container's loopback is not reachable from outside, except on the host's network.
    For HTTPS, put a proxy in front of the server.
    """
    network = process_option_rules.parse_network(case.request.container.get("network") or "")[0]
    allowed_options = {"host"} if network == process_option_rules.HOST_NETWORK else set()
    if case.flag("node-rank"):
        allowed_options.add("headless")  # only the head of a cluster serves the API
    for name, applies, outcome in UNREACHABLE_OPTIONS:
        if case.flag(name) is not None and applies(case.flag(name)) and name not in allowed_options:
            fix = Fix("remove it", {name: None})
            yield Finding("error", f"{name}: {outcome}.", (fix,), DOCKER_SOURCE, name)
    yield from wrong_published_port(case.request, flags.port(case.request.flags), flags.PORT)


@rule(
    "key-in-log",
    sources=(
        "a real start of 0.32.0: \"non-default args: {..., 'api_key': '***'}\"; older releases print the key there",
    ),
    example=Example(has_server_key=True, version="0.19.1"),
)
def key_in_log(case: Case) -> Iterator[Finding]:
    """vLLM before 0.32 may print its API key in its log at startup.
    Docker keeps the log on the host, readable by root and the docker group. sparkwright masks the key wherever it shows or stores the log.
    """
    if case.request.has_server_key and severity_of(case.within("", FIRST_RELEASE_HIDING_KEY)) is not None:
        message = f"{case.engine} may print its API key in its log, which Docker keeps on the host."
        fix = Fix("use an image with vLLM 0.32 or newer")
        yield Finding("warning", message, (fix,), "a real start of 0.32.0", "server_key")


@rule(
    "parallel",
    sources=(
        "vLLM 0.17.1 and newer: World size (2) is larger than the number of available GPUs (1) in this node",
        "kubis.ai, gpt-oss-120b MXFP4 and Nemotron-3-Super-120B NVFP4 on one and two DGX Sparks (not measured by this project)",
        "StorageReview on two DGX Sparks: with many streams, pipeline parallelism has a higher throughput than tensor parallelism",
        "vLLM's documentation of parallelism and scaling; docs/parallel.md",
    ),
    example=Example({TENSOR: 2}),
)
def without_a_cluster(case: Case) -> Iterator[Finding]:
    """A GB10 has one GPU: to split a model over several hosts, use `parallel` instead of vLLM's flags.
    `parallel: {tensor: 2}` splits every layer over two hosts that form a cluster (`cluster` in hosts/groups.yml). A single stream becomes
    1.2 to 1.4 times faster; it is not twice as fast because every layer waits twice for the other host. gpt-oss-120b on two Sparks (one
    Spark in parentheses) reached 69.0 tok/s with one stream (57.5), 231 tok/s in total with 8 streams (154) and 472 with 32 (319). The
    number of attention heads must be divisible by the number of hosts.

    `parallel: {pipeline: 2}` puts half of the layers on each host. A single stream is no faster, because each token passes through all
    layers in turn; many streams keep both hosts busy, with little network traffic. It needs vLLM 0.20, and at least as many layers as hosts. Three
    hosts usually need it, because few models have a number of heads that is divisible by 3.

    Two servers behind a gateway, one on each host, serve more requests if the model fits on one host: one stream is as fast as on one host
    (57.7 tok/s), and the total was 178 tok/s with 8 streams, 382 with 32, and 568 with 64, where tensor parallelism reached 472. They fail
    and restart independently, while the failure of one host stops a whole cluster.
    """
    if case.request.platform != "gb10" or case.flag(MEMBERS) not in (None, 1):
        return
    sizes = {name: flags.parse_positive_integer(case.flag(name) or "") or 1 for name in (TENSOR, PIPELINE)}
    split_sizes = {name: size for name, size in sizes.items() if size > 1}
    if not split_sizes:
        return
    hosts = sizes[TENSOR] * sizes[PIPELINE]
    keys = ", ".join(f"{name.partition('-')[0]}: {size}" for name, size in split_sizes.items())
    flags_text = " and ".join(f"{name}: {size}" for name, size in split_sizes.items())
    verb = "needs" if len(split_sizes) == 1 else "need"
    message = f"{flags_text} {verb} {hosts} GPUs, and a GB10 has one: use a cluster."
    fixes = (
        Fix(
            f"write `parallel: {{{keys}}}` instead, and serve it from a group of {hosts} hosts with `cluster`",
            dict.fromkeys(split_sizes),
        ),
        Fix("remove the flags to serve from one host", dict.fromkeys(split_sizes)),
    )
    yield Finding("error", message, fixes, "vLLM's ParallelConfig", next(iter(split_sizes)))


@rule(
    "gid-index",
    sources=(
        "NCCL's documentation: if unset, NCCL uses the RoCE v2 entry of each adapter's IPv4 address; an empty value means 0",
        "reports of two Sparks whose index changed from 3 to 4, while running and after a reboot",
    ),
    example=Example(env={GID_INDEX_VARIABLE: "3"}),
)
def gid_index(case: Case) -> Iterator[Finding]:
    """NCCL should select the GID index of an RDMA address itself.
    An adapter's GID table changes with its links, and an index may differ between hosts and between the two halves of a card. With a stale
    index, cluster members hang after loading the model, or fail with "ibv_modify_qp failed".
    """
    if GID_INDEX_VARIABLE in case.request.env:
        message = f"{GID_INDEX_VARIABLE} pins a GID index, which differs between hosts and changes over time."
        yield Finding("warning", message, (Fix("remove it"),), "NCCL's documentation", "container.env")


@rule(
    "tool-calls",
    sources=(
        'vLLM: "Error: --enable-auto-tool-choice requires --tool-call-parser"; 0.32.0, a real start',
        "vLLM's documentation on tool calling: both are needed for tool_choice auto",
    ),
    example=Example({"tool-call-parser": "qwen3_coder"}),
)
def tool_calls(case: Case) -> Iterator[Finding]:
    """tool-call-parser and enable-auto-tool-choice must be set together.
    With the parser alone, the engine refuses requests with tools or returns tool calls as text. With the switch alone, it refuses to start.
    """
    parser, is_auto = case.flag("tool-call-parser"), case.flag("enable-auto-tool-choice")
    if parser and not is_auto:
        fix = Fix("add enable-auto-tool-choice", {"enable-auto-tool-choice": True})
        message = "tool-call-parser without enable-auto-tool-choice: the parser is not used, and tool calls are returned as text."
        yield Finding("warning", message, (fix,), "vLLM's documentation", "tool-call-parser")
    if is_auto and not parser:
        fix = Fix("set tool-call-parser to the model's parser, or remove the switch", {"enable-auto-tool-choice": None})
        message = f"enable-auto-tool-choice without tool-call-parser: {case.engine} refuses to start."
        yield Finding("error", message, (fix,), "a real start of 0.32.0", "enable-auto-tool-choice")


@rule(
    "reasoning-truncates-answers",
    sources=(
        "#31343, #31581: --default-chat-template-kwargs since 0.14.0",
        "issue reports: content null with small max_tokens",
    ),
    example=Example({"reasoning-parser": "qwen3"}),
)
def thinking(case: Case) -> Iterator[Finding]:
    """Reasoning tokens count against max_tokens.
    With a small max_tokens the response ends during the reasoning: `content` is null and `reasoning` has all the tokens. Clients can turn
    thinking off per request (chat_template_kwargs: {"enable_thinking": false}); from 0.14 on it can be turned off by default.
    """
    kwargs = case.flag(TEMPLATE_DEFAULTS_FLAG)
    if not case.flag("reasoning-parser") or (isinstance(kwargs, Mapping) and "enable_thinking" in kwargs):
        return
    change = {TEMPLATE_DEFAULTS_FLAG: {"enable_thinking": False}}
    fixes = (
        ()
        if case.within("0.14.0") is False
        else (Fix("turn thinking off by default; requests can still enable it", change),)
    )
    message = "thinking is on: a request with a small max_tokens gets null content unless it turns thinking off."
    yield Finding("info", message, fixes, "vLLM #31343", "reasoning-parser")


@rule(
    "parser-of-the-model",
    sources=(
        "nvidia/NVIDIA-Nemotron-3 model cards: the parser is a file of the model's own repository",
        "model-serving-minefield 65, 70: a parser that no engine includes, and request fields that only this parser reads",
    ),
    example=Example(
        {"reasoning-parser": "deepseek_r1"}, pinned_files={"/models/m": ["config.json", "nano_v3_reasoning_parser.py"]}
    ),
)
def parser_of_the_model(case: Case) -> Iterator[Finding]:
    """The server does not load the parser that is part of the model's repository.
    vLLM does not include such a parser. Without it, reasoning appears in the content or the answer in the reasoning, and the request
    fields that only this parser reads (see its source) are ignored.
    """
    for mount, files in case.request.pinned_files.items():
        for name in files:
            match = PARSER_FILE_PATTERN.fullmatch(name.rpartition("/")[2])
            flag = f"{match[1].lower()}-parser-plugin" if match else ""
            if match and case.flag(flag) is None:
                path = f"{mount}/{name}"
                message = f"the model's repository includes {one_line(name, max_chars=80)}, but {flag} is not set."
                fix = Fix(f"set {flag} to {one_line(path, max_chars=120)}", {flag: path})
                yield Finding("warning", message, (fix,), "spark.lock", flag)


@rule(
    "template-value-as-text",
    sources=("Jinja: a non-empty string is true", "model-serving-minefield 57, on a GB10"),
    example=Example({TEMPLATE_DEFAULTS_FLAG: {"enable_thinking": "false"}}),
)
def template_value_as_text(case: Case) -> Iterator[Finding]:
    """A chat template treats the string "false" as true.
    In Jinja, every non-empty string is true. In a recipe, write false without quotes.
    """
    kwargs = case.flag(TEMPLATE_DEFAULTS_FLAG)
    for name, value in kwargs.items() if isinstance(kwargs, Mapping) else ():
        if isinstance(value, str) and value.strip().lower() in NEGATIVE_WORDS:
            message = f'{TEMPLATE_DEFAULTS_FLAG}.{name} is the string "{value}", which the template treats as true.'
            fix = Fix(f"write {name}: false, without quotes", {TEMPLATE_DEFAULTS_FLAG: {**kwargs, name: False}})
            yield Finding("error", message, (fix,), "Jinja's documentation", TEMPLATE_DEFAULTS_FLAG)


@rule(
    "config-file-switches",
    sources=(
        "the parsers of 0.28.0 and 0.32.0: in that file, a number has an effect, but false has none",
        "#51573 fixed it in 0.28, but not for `vllm serve`",
    ),
    example=Example({"config": "/etc/vllm.yaml"}),
)
def config_file(case: Case) -> Iterator[Finding]:
    """Switches set to false in a --config file are ignored.
    vLLM silently drops `enable-chunked-prefill: false` in that file. Under `vllm:` in a recipe it becomes a flag and works.
    """
    if case.flag("config") is not None:
        message = "config: switches set to false in that file are silently ignored."
        fix = Fix("set the flags in the recipe", {"config": None})
        yield Finding("warning", message, (fix,), "the parsers of 0.28.0 and 0.32.0", "config")
