"""One file changes containers, and it changes only those that sparkwright created."""

import ast
from collections.abc import Iterator
from pathlib import Path

import sparkwright

SOURCE = Path(sparkwright.__file__).parent
GUARD = SOURCE / "host/containers/lifecycle.py"
#: calls of docker's SDK that change a container, a network or a volume; no other class has methods of these names
CHANGING_METHODS = {
    *("remove_container", "update_container", "create_container", "create_container_from_config", "put_archive"),
    *("prune_containers", "prune_images", "prune_networks", "prune_volumes", "remove_network", "remove_volume"),
    *("connect_container_to_network", "disconnect_container_from_network", "exec_create", "exec_start"),
}
#: the same, of names that other classes have too: told by what they are called on
ENGINE_METHODS = {"start", "stop", "kill", "rename", "restart", "pause", "unpause", "run", "get", "prune", "remove"}
ENGINE = ("api", "api(context)", "docker()", "client", "sdk", "docker().containers", "client.containers")


def find_docker_calls(path: Path) -> Iterator[str]:
    """The calls in a file that would change what Docker has."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on, name = ast.unparse(node.func.value), node.func.attr
            if name in CHANGING_METHODS or (name in ENGINE_METHODS and on.endswith(ENGINE)):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {on}.{name}"


def test_only_the_lifecycle_module_changes_containers() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != GUARD and SOURCE / "sandbox" not in path.parents]
    assert [found for path in sorted(files) for found in find_docker_calls(path)] == []
    assert {found.rpartition(".")[2] for found in find_docker_calls(GUARD)} >= {
        "stop",
        "rename",
        "remove_container",
        "start",
    }
