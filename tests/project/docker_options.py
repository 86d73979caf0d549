"""Options of `docker run`: two values of each, and how `docker inspect` reports the first."""

from dataclasses import dataclass, field
from typing import Any

NULL = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/one", "CgroupPermissions": "rw"}
HEALTH = {"Test": ["CMD-SHELL", "true"], "Interval": 90_000_000_000, "Retries": 3, "Timeout": 5_000_000_000}
#: test_docker_options.py replaces them by the names of its networks
NETWORK_A, NETWORK_B = "NETWORK-a", "NETWORK-b"


@dataclass(frozen=True)
class Case:
    """An option with two values.

    path, inspected: where `docker inspect` has the first value, and in which form; None is not compared. container: other fields
    of the recipe's container. drifts_without: a recipe without the option differs; False if the engine's own configuration may
    set it. starts: the container can start; a privileged one cannot within an unprivileged machine.
    """

    name: str
    value: Any
    other: Any
    path: str
    inspected: Any
    container: dict[str, Any] = field(default_factory=dict)
    drifts_without: bool = True
    starts: bool = True


CASES = [
    Case("ipc", "private", "shareable", "HostConfig.IpcMode", "private", drifts_without=False),
    Case("shm_size", "64mb", "1g", "HostConfig.ShmSize", 2**26, drifts_without=False),
    Case("env", {"A": "1"}, {"A": "2"}, "Config.Env", ["A=1", "PATH=/usr/bin", "OF=image"]),
    Case("labels", {"a": "1"}, {"a": "2"}, "Config.Labels.a", "1"),
    Case("ulimits", {"nofile": "1024:2048"}, {"nofile": "1024"}, "HostConfig.Ulimits", [{"Name": "nofile", "Soft": 1024, "Hard": 2048}]),
    Case("ports", ["127.0.0.1:18437:8000"], ["127.0.0.1:18438:8000"], "HostConfig.PortBindings", {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "18437"}]}),
    Case("network", "host", "bridge", "HostConfig.NetworkMode", "host", container={"ports": None}),
    Case("network", NETWORK_A, NETWORK_B, "HostConfig.NetworkMode", NETWORK_A),
    Case("network", f"name={NETWORK_A},alias=llm", NETWORK_A, "HostConfig.NetworkMode", NETWORK_A),
    Case("networks", [NETWORK_A], [NETWORK_A, f"name={NETWORK_B},alias=llm"], f"NetworkSettings.Networks.{NETWORK_A}.Links", None),
    Case("networks", [NETWORK_A], [f"name={NETWORK_A},alias=llm"], "HostConfig.NetworkMode", NETWORK_B, container={"network": NETWORK_B}),
    Case("hostname", "spark.lan", "spark2.lan", "Config.Hostname", "spark.lan"),
    Case("extra_hosts", ["hub:10.0.0.1", "me:host-gateway", "six:[::1]"], ["hub:10.0.0.2"], "HostConfig.ExtraHosts", ["hub:10.0.0.1", "me:host-gateway", "six:::1"]),
    Case("dns", ["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"], "HostConfig.Dns", ["10.0.0.1", "10.0.0.2"]),
    Case("user", "1000:1000", "1000", "Config.User", "1000:1000"),
    Case("group_add", ["44", "7"], ["44"], "HostConfig.GroupAdd", ["44", "7"]),
    Case("privileged", True, False, "HostConfig.Privileged", True, starts=False),
    Case("cap_add", ["SYS_PTRACE", "cap_ipc_lock"], ["SYS_NICE"], "HostConfig.CapAdd", ["CAP_IPC_LOCK", "CAP_SYS_PTRACE"]),
    Case("cap_drop", ["NET_RAW"], ["CAP_MKNOD"], "HostConfig.CapDrop", ["CAP_NET_RAW"]),
    Case("security_opt", ["no-new-privileges"], ["no-new-privileges:true", "seccomp=unconfined"], "HostConfig.SecurityOpt", ["no-new-privileges"]),
    Case("security_opt", ["label=disable"], [], "HostConfig.SecurityOpt", ["label=disable"], drifts_without=False),
    Case("devices", ["/dev/null:/dev/one:rw"], ["/dev/null:/dev/one:r"], "HostConfig.Devices", [NULL]),
    Case("pid", "host", "", "HostConfig.PidMode", "host"),
    Case("init", True, False, "HostConfig.Init", True),
    Case("working_dir", "/tmp/", "/usr", "Config.WorkingDir", "/tmp"),
    Case("stop_signal", "INT", "SIGQUIT", "Config.StopSignal", "INT"),
    Case("healthcheck", {"test": "true", "interval": "1m30s", "retries": "3"}, {"test": "true", "interval": "2m"}, "Config.Healthcheck", HEALTH),
    Case("healthcheck", {"test": "NONE"}, {"timeout": "7s"}, "Config.Healthcheck.Test", ["NONE"]),
    Case("tmpfs", ["/scratch:size=64m,noexec", "/cache"], ["/scratch:noexec,size=32m"], "HostConfig.Tmpfs", {"/cache": "", "/scratch": "size=64m,noexec"}),
    Case("sysctls", {"net.core.somaxconn": "1024"}, {"net.core.somaxconn": "512"}, "HostConfig.Sysctls", {"net.core.somaxconn": "1024"}),
    Case("memory", "512m", "1g", "HostConfig.Memory", 2**29),
    Case("memory_swap", "600m", "-1", "HostConfig.MemorySwap", 600 * 2**20, container={"memory": "512m"}),
    Case("cpus", 1, 0.5, "HostConfig.NanoCpus", 10**9),
    Case("cpuset_cpus", "0-0", "0,1", "HostConfig.CpusetCpus", "0-0"),
    Case("oom_score_adj", 500, 250, "HostConfig.OomScoreAdj", 500),
    Case("log_driver", "json-file", "local", "HostConfig.LogConfig.Type", "json-file", drifts_without=False),
    Case("log_options", {"max-size": "10m"}, {"max-size": "20m"}, "HostConfig.LogConfig.Config", {"max-size": "10m"}, drifts_without=False),
    Case("volumes", ["words-options:/data"], ["words-options:/other"], "HostConfig.Binds", None),
]  # fmt: skip
