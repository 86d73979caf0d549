"""Rules about access to the server and its key, splits on a single host, and problems that clients see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkwright.engines import shared_rules
from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.shared_rules import DOCKER_SOURCE, LOOPBACK_PREFIXES, key_in_arguments, wrong_published_port
from sparkwright.engines.vllm import flags, http
from sparkwright.engines.vllm.flags import MEMBERS, PIPELINE, TENSOR
from sparkwright.engines.vllm.rules.rule import Case, Example, rule, severity_of
from sparkwright.trust import process_option_rules
from sparkwright.visible import one_line

#: the oldest release whose log was seen to hide the key
LOG_HIDES_KEY_SINCE = "0.32.0"


@rule(
    "api-key-in-arguments",
    sources=(
        "`docker inspect` and `ps` show a container's arguments to every user of the host's Docker socket",
        f"sparkwright passes no secret {http.KEY_VARIABLE} to a container: without the flag the server would ask for no key",
    ),
    example=Example({"api-key": "sk-1"}),
)
def api_key(case: Case) -> Iterator[Finding]:
    """An API key among the flags is readable by every user of the host.
    Arguments appear in `ps`, `docker inspect`, the recipe and the logs of older releases. `server_key` in the recipe is passed in the
    engine's configuration file, which only its container can read, and sparkwright's checks use it too.
    """
    if case.flag(http.KEY_FLAG):
        way = Way("remove it and name its source in the recipe: `server_key: {env: SPARK_KEY}`", {http.KEY_FLAG: None})
        yield from key_in_arguments(http.KEY_FLAG, way, "docker inspect")


@rule(
    "open-to-network",
    sources=(
        "docker's documentation: a port published without an address is open on every address of the host, bypassing its firewall",
    ),
    example=Example(open_to_network=True),
)
def open_to_network(case: Case) -> Iterator[Finding]:
    """A server published beyond loopback without an API key is open to everyone on the network.
    Docker's published ports bypass ufw. `server_key` makes clients authenticate; `publish: loopback` limits the server to programs on
    the host, such as a proxy or an ssh tunnel.
    """
    yield from shared_rules.open_to_network(case.asked)


def _is_loopback(host: Any) -> bool:
    return str(host).strip("[]").startswith(LOOPBACK_PREFIXES)


#: options that make the server unreachable through a published port: for which values, and the outcome
UNREACHABLE_OPTIONS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("host", _is_loopback, "the server listens on its container's loopback only"),
    ("uds", bool, "the server listens on a Unix socket in its container, and on no port"),
    ("headless", lambda value: value is True, "a headless engine serves no HTTP requests"),
    ("ssl-certfile", bool, "the server takes HTTPS only, and every check of sparkwright asks it over HTTP"),
    ("ssl-keyfile", bool, "the server takes HTTPS only, and every check of sparkwright asks it over HTTP"),
)


@rule(
    "out-of-reach",
    sources=(
        "docker's documentation: a published port leads to the container's own address, not to its loopback",
        "vLLM 0.32.0, `vllm serve --help=all`: host, port, uds, headless, ssl-certfile; entrypoints/openai/api_server.py",
        "the server listens on 8000 by default",
    ),
    example=Example({"host": "127.0.0.1"}),
)
def out_of_reach(case: Case) -> Iterator[Finding]:
    """The server must listen on the port that the container publishes.
    Otherwise it starts, loads its model for minutes, and is never reachable: the deploy fails after the previous server was stopped. The
    first of `container.ports` is the server's; a container's loopback is not reachable from outside, unless it is on the host's network. For HTTPS put a proxy in front.
    """
    intended = (
        {"host"}
        if process_option_rules.parse_network(case.asked.container.get("network") or "")[0] == process_option_rules.HOST
        else set()
    )
    intended |= {"headless"} if case.flag("node-rank") else set()  # a cluster's worker has no API; its head has
    for name, applies, outcome in UNREACHABLE_OPTIONS:
        if case.flag(name) is not None and applies(case.flag(name)) and name not in intended:
            way = Way("remove it", {name: None})
            yield Finding("error", f"{name}: {outcome}.", (way,), DOCKER_SOURCE, name)
    yield from wrong_published_port(case.asked, flags.port(case.asked.flags), flags.PORT)


@rule(
    "key-in-log",
    sources=(
        "a real start of 0.32.0: \"non-default args: {..., 'api_key': '***'}\"; older releases print the key there",
    ),
    example=Example(server_key=True, version="0.19.1"),
)
def key_in_log(case: Case) -> Iterator[Finding]:
    """Before 0.32, the engine may print its API key in its log when it starts.
    Docker keeps that log on the host, readable by root and the docker group. sparkwright masks the key wherever it shows or stores the log.
    """
    if case.asked.server_key and severity_of(case.within("", LOG_HIDES_KEY_SINCE)) is not None:
        sentence = f"{case.engine} may print its API key in its log, which Docker keeps on the host."
        way = Way("use an image with vLLM 0.32 or newer")
        yield Finding("warning", sentence, (way,), "a real start of 0.32.0", "server_key")


GID_INDEX = "NCCL_IB_GID_INDEX"


@rule(
    "parallel",
    sources=(
        "vLLM 0.17.1 and newer: World size (2) is larger than the number of available GPUs (1) in this node",
        "kubis.ai, gpt-oss-120b MXFP4 and Nemotron-3-Super-120B NVFP4 on one and two DGX Sparks (others' figures, not ours)",
        "StorageReview on two DGX Sparks: pipeline parallelism gives more than tensor parallelism for many streams",
        "vLLM's documentation of parallelism and scaling; docs/parallel.md",
    ),
    example=Example({TENSOR: 2}),
)
def without_a_cluster(case: Case) -> Iterator[Finding]:
    """A GB10 has one GPU: a model is split over several hosts by `parallel`, never by a flag.
    `parallel: {tensor: 2}` splits every layer over two hosts that form a cluster (`cluster` in hosts/groups.yml). It makes a single stream
    faster, by 1.2 to 1.4 times and not by 2, for every layer waits twice for the other host. Two Sparks with gpt-oss-120b gave 69.0 tok/s for
    one stream (57.5 from one Spark), 231 in total for 8 streams (154), 472 for 32 (319). It needs attention heads that divide by the
    number of hosts.

    `parallel: {pipeline: 2}` gives each host half of the layers. A token passes through all of them in turn, so one stream is no faster; many
    streams fill both hosts, and little goes over the cable. It has no limits but the number of layers and vLLM 0.20, so it is what three hosts
    mostly need: few models have heads that divide by 3.

    Two servers, one on each host, behind a gateway are for more requests of a model that fits on one host: one stream is as fast as on one host
    (57.7 tok/s), 8 streams gave 178 in total, 32 gave 382, and 64 gave 568 where tensor parallelism gave 472. They fail and restart
    one at a time; of a cluster, one host's failure ends all.
    """
    if case.asked.platform != "gb10" or case.flag(MEMBERS) not in (None, 1):
        return
    sizes = {name: flags.parse_positive_integer(case.flag(name) or "") or 1 for name in (TENSOR, PIPELINE)}
    split = {name: size for name, size in sizes.items() if size > 1}
    if not split:
        return
    hosts = sizes[TENSOR] * sizes[PIPELINE]
    keys = ", ".join(f"{name.partition('-')[0]}: {size}" for name, size in split.items())
    flags_text = " and ".join(f"{name}: {size}" for name, size in split.items())
    verb = "needs" if len(split) == 1 else "need"
    sentence = f"{flags_text} {verb} {hosts} GPUs, and a GB10 has one: use a cluster."
    ways = (
        Way(
            f"write `parallel: {{{keys}}}` instead, and serve it from a group of {hosts} hosts with `cluster`",
            dict.fromkeys(split),
        ),
        Way("remove it to serve from one host", dict.fromkeys(split)),
    )
    yield Finding("error", sentence, ways, "vLLM's ParallelConfig", next(iter(split)))


@rule(
    "gid-index",
    sources=(
        "NCCL's documentation: unset, it takes for each adapter the RoCE v2 entry of its IPv4 address; empty means 0",
        "reports of two Sparks whose index moved from 3 to 4 while they ran, and after a reboot",
    ),
    example=Example(env={GID_INDEX: "3"}),
)
def gid_index(case: Case) -> Iterator[Finding]:
    """The index of an RDMA address is left to NCCL.
    The table of an adapter's addresses changes with its links, and an index may differ between hosts and between the two halves of one card. One that
    no longer fits lets members hang after the model was loaded, or fail with "ibv_modify_qp failed".
    """
    if GID_INDEX in case.asked.env:
        sentence = f"{GID_INDEX} pins an address's index, which differs between hosts and moves."
        yield Finding("warning", sentence, (Way("remove it"),), "NCCL's documentation", "container.env")


THINKING_SWITCH = "default-chat-template-kwargs"
#: texts that are true in a Jinja template, though they mean no
NEGATIVE_WORDS = ("false", "no", "off", "0")
#: a parser among a model's files, as nano_v3_reasoning_parser.py
PARSER_FILE = re.compile(r"(?:[\w.-]{0,80}[_-])?(reasoning|tool)[_-](?:call[_-])?parser[\w.-]{0,40}\.py", re.IGNORECASE)


@rule(
    "tool-calls",
    sources=(
        'vLLM: "Error: --enable-auto-tool-choice requires --tool-call-parser"; 0.32.0, a real start',
        "vLLM's documentation on tool calling: both are needed for tool_choice auto",
    ),
    example=Example({"tool-call-parser": "qwen3_coder"}),
)
def tool_calls(case: Case) -> Iterator[Finding]:
    """A tool-call parser and enable-auto-tool-choice need each other.
    The parser alone is accepted and never used: requests with tools are refused, or the call comes back as text. With the switch
    alone the engine refuses to start.
    """
    parser, auto = case.flag("tool-call-parser"), case.flag("enable-auto-tool-choice")
    if parser and not auto:
        way = Way("add enable-auto-tool-choice", {"enable-auto-tool-choice": True})
        consequence = "the parser is never used, tool calls come back as text."
        sentence = f"tool-call-parser without enable-auto-tool-choice: {consequence}"
        yield Finding("warning", sentence, (way,), "vLLM's documentation", "tool-call-parser")
    if auto and not parser:
        way = Way("set tool-call-parser to the model's parser, or remove the switch", {"enable-auto-tool-choice": None})
        sentence = f"enable-auto-tool-choice without tool-call-parser: {case.engine} refuses to start."
        yield Finding("error", sentence, (way,), "a real start of 0.32.0", "enable-auto-tool-choice")


@rule(
    "reasoning-truncates-answers",
    sources=(
        "#31343, #31581: --default-chat-template-kwargs since 0.14.0",
        "issue reports: content null with small max_tokens",
    ),
    example=Example({"reasoning-parser": "qwen3"}),
)
def thinking(case: Case) -> Iterator[Finding]:
    """A reasoning model spends max_tokens on reasoning first.
    With a small max_tokens the response ends during the reasoning: `content` is null and `reasoning` has all tokens. Clients can turn
    thinking off per request (chat_template_kwargs: {"enable_thinking": false}); from 0.14 on the server can do so by default.
    """
    kwargs = case.flag(THINKING_SWITCH)
    if not case.flag("reasoning-parser") or (isinstance(kwargs, Mapping) and "enable_thinking" in kwargs):
        return
    change = {THINKING_SWITCH: {"enable_thinking": False}}
    possible = case.within("0.14.0")
    ways = () if possible is False else (Way("turn thinking off by default; requests can still enable it", change),)
    sentence = "thinking is on: a request with a small max_tokens gets null content unless it turns thinking off."
    yield Finding("info", sentence, ways, "vLLM #31343", "reasoning-parser")


@rule(
    "parser-of-the-model",
    sources=(
        "nvidia/NVIDIA-Nemotron-3 model cards: the parser is a file of the model's own repository",
        "model-serving-minefield 65, 70: a parser that no engine ships, and fields of a request that only this parser reads",
    ),
    example=Example(
        {"reasoning-parser": "deepseek_r1"}, pinned={"/models/m": ["config.json", "nano_v3_reasoning_parser.py"]}
    ),
)
def parser_of_the_model(case: Case) -> Iterator[Finding]:
    """The model ships a parser of its own, and the server does not load it.
    No engine has such a parser. Without it thinking arrives in the content, or the answer in the thinking, and the fields of a request
    that only this parser reads do nothing: its source names them.
    """
    for mount, files in case.asked.pinned.items():
        for name in files:
            match = PARSER_FILE.fullmatch(name.rpartition("/")[2])
            flag = f"{match[1].lower()}-parser-plugin" if match else ""
            if match and case.flag(flag) is None:
                path = f"{mount}/{name}"
                sentence = f"the model ships {one_line(name, max_chars=80)}, and {flag} does not load it."
                yield Finding(
                    "warning",
                    sentence,
                    (Way(f"set {flag} to {one_line(path, max_chars=120)}", {flag: path}),),
                    "spark.lock",
                    flag,
                )


@rule(
    "template-value-as-text",
    sources=("Jinja: a text that is not empty is true", "model-serving-minefield 57, on a GB10"),
    example=Example({THINKING_SWITCH: {"enable_thinking": "false"}}),
)
def template_value_as_text(case: Case) -> Iterator[Finding]:
    """A chat template takes the text "false" for true.
    Its conditions are Jinja's, for which every text that is not empty is true. In a recipe, write false without quotes.
    """
    kwargs = case.flag(THINKING_SWITCH)
    for name, value in kwargs.items() if isinstance(kwargs, Mapping) else ():
        if isinstance(value, str) and value.strip().lower() in NEGATIVE_WORDS:
            sentence = f'{THINKING_SWITCH}.{name} is the text "{value}", which the template takes for true.'
            way = Way(f"write {name}: false, without quotes", {THINKING_SWITCH: {**kwargs, name: False}})
            yield Finding("error", sentence, (way,), "Jinja's documentation", THINKING_SWITCH)


@rule(
    "config-file-switches",
    sources=(
        "0.28.0 and 0.32.0, asked: a number in that file is heard, a false is not",
        "#51573 repaired it in 0.28, but not for `vllm serve`",
    ),
    example=Example({"config": "/etc/vllm.yaml"}),
)
def config_file(case: Case) -> Iterator[Finding]:
    """--config drops every switch that is false.
    `enable-chunked-prefill: false` in that file is silently ignored. Under `vllm:` in a recipe it becomes a flag and works.
    """
    if case.flag("config") is not None:
        sentence = "config: switches set to false in that file are silently ignored."
        way = Way("set the flags in the recipe", {"config": None})
        yield Finding("warning", sentence, (way,), "0.28.0 and 0.32.0, asked", "config")
