"""Only one module changes containers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import sparkwright

SOURCE = Path(sparkwright.__file__).parent
LIFECYCLE = SOURCE / "host/containers/lifecycle.py"
#: methods of docker's SDK that change a container, a network or a volume, with names that no other class uses
CHANGING_METHODS = {
    *("remove_container", "update_container", "create_container", "create_container_from_config", "put_archive"),
    *("prune_containers", "prune_images", "prune_networks", "prune_volumes", "remove_network", "remove_volume"),
    *("connect_container_to_network", "disconnect_container_from_network", "exec_create", "exec_start"),
}
#: methods with names that other classes use too; they count if called on one of ENGINE
ENGINE_METHODS = {"start", "stop", "kill", "rename", "restart", "pause", "unpause", "run", "get", "prune", "remove"}
ENGINE = ("api", "api(context)", "docker()", "client", "sdk", "docker().containers", "client.containers")


def find_docker_calls(path: Path) -> Iterator[str]:
    """Yield the calls in a file that change something in Docker."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            if name in CHANGING_METHODS or (name in ENGINE_METHODS and owner.endswith(ENGINE)):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {owner}.{name}"


def test_only_the_lifecycle_module_changes_containers() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != LIFECYCLE and SOURCE / "sandbox" not in path.parents]
    assert [call for path in sorted(files) for call in find_docker_calls(path)] == []
    methods = {call.rpartition(".")[2] for call in find_docker_calls(LIFECYCLE)}
    assert methods >= {"stop", "rename", "remove_container", "start"}
