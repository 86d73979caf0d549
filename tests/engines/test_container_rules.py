"""Options of a recipe's container: invalid ones are refused with their line, unsafe ones are warnings."""

import os
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app import findings
from sparkwright.errors import Exit, Refused
from sparkwright.host.containers import server_key
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.engine_settings import resolve_settings

HEAD = "image: vllm/vllm-openai:v0.32.0\nmodel: {id: a/b, dir: /b, mount: /model}\n"
NO_LOCK = {"image": None, "model": None}
#: the beginning of a recipe for another engine
ENGINE_HEADS = {
    "llama_cpp": "engine: llama_cpp\nimage: ghcr.io/ggml-org/llama.cpp:server-cuda13\nmodel: {id: a/b, dir: /b, mount: /model, file: x.gguf}\nllama_cpp: {}\n",
    "sglang": "engine: sglang\nimage: lmsysorg/sglang:v0.5.23\nmodel: {id: a/b, dir: /b, mount: /model}\nsglang: {}\n",
}


def load_recipe(folder: Path, options: str, rest: str = "", head: str = HEAD) -> recipe.Recipe:
    (folder / "recipes").mkdir(exist_ok=True)
    lines = "".join(f"  {line}\n" for line in options.splitlines())
    (folder / "recipes/one.yml").write_text(f"{head}container:\n  name: box\n{lines}{rest}")
    return recipe.load(folder, "one")


@pytest.mark.parametrize(
    ("options", "line", "sentence"),
    [
        ("network: host\nports: ['8000:8000']", 6, "`container.ports` has no effect with `network: host`"),
        ("network: none", 5, "nothing can reach the server"),
        ("network: host\nnetworks: [a]", 6, "cannot join other networks"),
        ("networks:\n  - a\n  - name=a,alias=b", 7, "joins 'a' twice"),
        ("network: a\nnetworks: [a]", 6, "joins 'a' twice"),
        ("networks: [host]", 5, "can't be used as an additional network"),
        ("sysctls:\n  kernel.shmmax: '1'", 6, "kernel.shmmax belongs to the host with `ipc: host`"),
        ("network: host\nsysctls:\n  net.core.somaxconn: '1'", 7, "belongs to the host with `network: host`"),
        ("memory_swap: 8g", 5, "needs `memory`"),
        ("memory: 8g\nmemory_swap: 4g", 6, "is less than `memory`"),
        ("log_driver: none\nlog_options: {max-size: 1m}", 6, "`container.log_options` has no effect with"),
        ("devices: ['/dev/a:/dev/c', '/dev/b:/dev/c']", 5, "two devices have the path '/dev/c'"),
        ("volumes: ['/a:/c']\ntmpfs: [/c/]", 6, "'/a:/c' is already mounted at /c"),
        ("volumes: ['/a:/c', '/a/b:/d']", 5, "'/a/b:/d' is inside /a, where the container may write"),
        ("volumes: ['~/.local/share/:/c']", 5, "sparkwright's own folder is inside ~/.local/share/, where"),
        ("volumes: ['/:/host']", 5, "is inside /, where"),
        ("tmpfs: [/model]", 5, "the model's folder is already mounted at /model"),
        ("log_driver: splunk\nlog_options: {splunk-token: 0123456789abcdef0123}", 6, "looks like a secret"),
        ("healthcheck: {test: 'true', intervall: 30s}", 5, "'intervall' is not a key of a health check"),
        ("healthcheck: {interval: 30}", 5, "quote it"),
        ("healthcheck: {interval: '30'}", 5, "'30' is not a duration"),
        ("healthcheck: {timeout: 1us}", 5, "is less than 1ms"),
        ("healthcheck: {test: NONE, retries: '3'}", 5, "remove its other keys"),
        ("healthcheck: {retries: '0'}", 5, "must be a whole number from 1"),
        ("cpus: -1", 5, "must be between 0.01"),
        ("oom_score_adj: -1001", 5, "must be from -1000 to 1000, got -1001"),
        ("user: 1000", 5, "must be a string, got 1000; quote it"),
        ("privileged: maybe", 5, "must be true or false"),
        ("cap_ad: [ALL]", 5, "Did you mean `cap_add`"),
        ("cap_add: ALL", 5, "must be a list"),
    ],
)
def test_invalid_options_are_refused_with_their_line(options: str, line: int, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as error:
        load_recipe(tmp_path, options)
    assert sentence in f"{error.value.message} {error.value.fix}"
    assert error.value.where.endswith(f"recipes/one.yml:{line}")
    assert error.value.exit is Exit.REFUSED


@pytest.mark.parametrize(
    ("options", "rest", "rules"),
    [
        ("privileged: true", "", {"root-on-the-host": 5}),
        ("ipc: host\ncap_add: [NET_RAW, cap_sys_admin]", "", {"root-on-the-host": 6}),
        ("cap_add: [ALL]", "", {"root-on-the-host": 5}),
        ("cap_add: [SYS_PTRACE, IPC_LOCK]", "", {}),
        ("volumes: ['/var/run/docker.sock:/var/run/docker.sock']", "", {"root-on-the-host": 5}),
        ("volumes: ['/run:/run:ro']", "", {"root-on-the-host": 5}),
        ("volumes: ['/:/host:ro']", "", {"root-on-the-host": 5}),
        ("volumes: ['/etc:/etc:ro']", "", {"root-on-the-host": 5}),
        ("volumes: ['/dev/mem:/dev/mem']", "", {"root-on-the-host": 5}),
        ("volumes: ['/usr:/host/usr']", "", {"root-on-the-host": 5}),
        ("volumes: ['~/.ssh:/root/.ssh:ro']", "", {"data-of-the-host": 5}),
        ("volumes: ['/home/ann/.aws/:/aws:ro']", "", {"data-of-the-host": 5}),
        ("volumes: ['~/:/me:ro']", "", {"data-of-the-host": 5}),
        ("devices: [/dev/nvme0n1]", "", {"root-on-the-host": 5}),
        ("devices: [/dev/infiniband, /dev/fuse]", "", {}),
        ("cap_add: [DAC_READ_SEARCH]", "", {"root-on-the-host": 5}),
        ("env: {LD_PRELOAD: /x.so}", "", {"code-of-others": 5}),
        ("env: {HF_ENDPOINT: 'http://x'}", "", {"data-of-the-host": 5}),
        ("volumes: ['/data:/data', '/usr/share/x:/x:ro', '/etc/localtime:/etc/localtime:ro']", "", {}),
        ("security_opt: ['seccomp:unconfined']", "", {"unconfined": 5}),
        ("security_opt: [no-new-privileges]", "", {}),
        ("pid: host", "", {"host-namespaces": 5}),
        ("network: host", "", {"host-namespaces": 5}),
        ("network: host", "vllm: {host: 127.0.0.1}\n", {}),
        ("network: host", "server_key: {env: K}\n", {}),
    ],
)
def test_unsafe_options_are_warnings(options: str, rest: str, rules: dict[str, int], tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, options, rest)
    settings = resolve_settings(loaded_recipe, NO_LOCK)
    warnings = [finding for finding in settings.findings if finding.flag.startswith("container.")]
    locations = [findings.finding_location(loaded_recipe, finding) for finding in warnings]
    lines = [int(location.rpartition(":")[2]) for location in locations]
    assert dict(zip((finding.rule for finding in warnings), lines, strict=True)) == rules
    assert {finding.severity for finding in warnings} <= {"warning"}
    assert [line for line in findings.plan_warnings(loaded_recipe, settings) if "recipes/one.yml" in line] == [
        f"{location}: {finding.sentence}" for location, finding in zip(locations, warnings, strict=True)
    ]


def test_a_container_without_a_log_is_an_error(tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, "log_driver: none")
    settings = resolve_settings(loaded_recipe, NO_LOCK)
    (finding,) = (finding for finding in settings.findings if finding.flag == "container.log_driver")
    assert (finding.rule, finding.severity) == ("log-not-kept", "error")
    assert findings.finding_location(loaded_recipe, finding).endswith("recipes/one.yml:5")


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        ("trust-remote-code: true", {"trust-remote-code": "code-of-others"}),
        ("trust-remote-code: false", {}),
        ("tool-parser-plugin: /etc/sparkwright/x.py", {"tool-parser-plugin": "code-of-others"}),
        ("load-format: pt", {"load-format": "code-of-others"}),
        ("allowed-local-media-path: /", {"allowed-local-media-path": "data-of-the-host"}),
    ],
)
def test_flags_that_run_foreign_code_are_warnings(flags: str, rules: dict[str, str], tmp_path: Path) -> None:
    loaded_recipe = load_recipe(tmp_path, "ipc: host", f"vllm: {{{flags}}}\n")
    findings = resolve_settings(loaded_recipe, NO_LOCK).findings
    warnings = {finding.flag: finding.rule for finding in findings if finding.severity == "warning"}
    assert {flag: rule for flag, rule in warnings.items() if rule.endswith(("-others", "-host"))} == rules


@pytest.mark.parametrize("engine", ENGINE_HEADS)
def test_unsafe_options_are_warnings_for_every_engine(engine: str, tmp_path: Path) -> None:
    options = "privileged: true\npid: host\nnetwork: host\nsecurity_opt: ['seccomp=unconfined']\nlog_driver: none"
    loaded_recipe = load_recipe(tmp_path, options, head=ENGINE_HEADS[engine])
    settings = resolve_settings(loaded_recipe, NO_LOCK)
    assert {item.flag: item.rule for item in settings.findings if item.flag.startswith("container.")} == {
        "container.privileged": "root-on-the-host",
        "container.pid": "host-namespaces",
        "container.network": "host-namespaces",
        "container.security_opt": "unconfined",
        "container.log_driver": "log-not-kept",
    }
    warnings = findings.plan_warnings(loaded_recipe, settings)
    assert any(f"port {loaded_recipe.engine.http.port} and" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("rest", "ports", "url", "open_to_network"),
    [
        ("", ("8000:8000",), "http://127.0.0.1:8000", True),
        ("vllm: {port: 9000}\n", ("9000:9000",), "http://127.0.0.1:9000", True),
        ("vllm: {port: 9000, host: 127.0.0.1}\n", ("127.0.0.1:9000:9000",), "http://127.0.0.1:9000", False),
        ("vllm: {host: 0.0.0.0}\n", ("0.0.0.0:8000:8000",), "http://127.0.0.1:8000", True),
    ],
)
def test_the_host_network_uses_the_port_of_the_engine(
    rest: str, ports: tuple[str, ...], url: str, open_to_network: bool, tmp_path: Path
) -> None:
    loaded_recipe = load_recipe(tmp_path, "network: host", rest)
    names: dict[str, Any] = recipe.scope(Host("spark1", "spark1"), "ops", loaded_recipe, NO_LOCK)
    assert (tuple(names["container"]["ports"]), names["base_url"]) == (ports, url)
    assert loaded_recipe.open_to_network is open_to_network
    assert "out-of-reach" not in {finding.rule for finding in resolve_settings(loaded_recipe, NO_LOCK).findings}


def test_on_the_host_network_another_port_or_loopback_is_refused(tmp_path: Path) -> None:
    host = Host("spark1", "spark1", serve_port=9000, where="hosts/spark1.yml")
    with pytest.raises(Refused, match=r"`serve_port: 9000` has no effect with the recipe's `network: host`") as error:
        recipe.scope(host, "ops", load_recipe(tmp_path, "network: host"), NO_LOCK)
    assert error.value.where == "hosts/spark1.yml"
    with pytest.raises(Refused, match="`publish: loopback` has no effect") as error:
        load_recipe(tmp_path, "network: host", "publish: loopback\n")
    assert error.value.where.endswith("recipes/one.yml:6")


@pytest.mark.parametrize(
    ("user", "dropped", "own_file"),
    [
        *(("", (), True), ("0:0", (), True), ("1234567", (), False)),
        ("0", ("NET_RAW",), True),
        ("0", ("CAP_DAC_OVERRIDE",), None),
    ],
)
def test_which_users_can_read_the_key_file(user: str, dropped: tuple[str, ...], own_file: bool | None) -> None:
    """Root in a container without CAP_DAC_OVERRIDE can read only files that root owns."""
    expected = os.getuid() == 0 if own_file is None else own_file
    assert server_key.can_read_private_file(user, (), dropped) is expected
