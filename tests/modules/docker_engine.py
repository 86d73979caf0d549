"""A minimal Docker Engine with one container, as modules see it over HTTP."""

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.measure.json_server import json_server


def container_attrs(
    name: str = "qwen35", *, port: int = 0, running: bool = True, age_s: float = 0, restarts: int = 0, **config: Any
) -> dict[str, Any]:
    """Return the attributes of a container with this published port (0: none) and these changes of its Config."""
    started = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
    state = {"Running": running, "Status": "running" if running else "exited", "Pid": 1, "ExitCode": 0}
    bindings = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]} if port else {}
    policies = {"RestartPolicy": {"Name": "no"}, "LogConfig": {"Type": "json-file"}}
    image = "vllm/vllm-openai:v0.32.0"
    return {
        "Id": name.ljust(64, "0"),
        "Name": f"/{name}",
        "Image": "sha256:" + "b" * 64,
        "RestartCount": restarts,
        "State": {**state, "StartedAt": started, "FinishedAt": ""},
        "Config": {"Image": image, "Labels": {}, "Cmd": [], "Entrypoint": None, "Env": [], "Tty": False, **config},
        "HostConfig": {"PortBindings": bindings, "NetworkMode": "default", **policies},
        "Mounts": [],
    }


def docker_engine(container: dict[str, Any], log: bytes = b"") -> AbstractContextManager[str]:
    """Run a Docker Engine that answers requests for its version, the container qwen35 and its log. Yields its URL."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/version"):
            return 200, {"ApiVersion": "1.43", "MinAPIVersion": "1.24"}
        if path.endswith("/containers/qwen35/json"):
            return 200, container
        if "/containers/qwen35/logs" in path:
            return 200, b"\x01\0\0\0" + len(log).to_bytes(4, "big") + log if log else b""
        return 404, {"message": "no such container"}

    return json_server(answer)
