"""A host with a server from a hostile image, and files around its mounts that no container may reach."""

import io
import json
import secrets
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.engines.compile_caches import HOST_FOLDER
from sparkwright.host.containers import container_files
from sparkwright.modules.server.container import Container
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.scope import cache_options
from sparkwright.protocol import expressions
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

TOP = Path(__file__).parents[2]
KEY = "e" * 32
PROGRAMS = (
    "sh", "cat", "ln", "mv", "rm", "mkdir", "mknod", "mount", "head", "cp", "chmod", "chown", "truncate", "sleep",
)  # fmt: skip
#: printed by the hostile image after an escape
ESCAPE_WORDS = ("READ", "WROTE", "MOUNTED", "DEVICE")
CANARY = "canary"
#: device nodes of a member's network adapters; replaced by another node on a machine without adapters
ADAPTERS = "/dev/infiniband"


def build_image(api: Any, name: str) -> str:
    """Build an image with the hostile server and the local programs that it needs."""
    program_paths = {program: shutil.which(program) or "" for program in PROGRAMS}
    paths = {f"bin/{program}": path for program, path in program_paths.items()}
    for path in program_paths.values():
        libraries = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout.split()
        paths |= {word.lstrip("/"): word for word in libraries if word.startswith("/")}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for inside, path in sorted(paths.items()):
            tar.add(Path(path).resolve(), arcname=inside)
        tar.add(Path(__file__).with_name("hostile.sh"), arcname="hostile.sh")
    changes = ['ENTRYPOINT ["/bin/sh", "/hostile.sh"]', "ENV PATH=/bin"]
    api.import_image_from_data(raw.getvalue(), repository=name, tag="v1", changes=changes)
    return f"{name}:v1"


@dataclass
class HostileServer:
    """A host with a hostile server.

    Attributes:
        home: of the host's user.
        name: of the server's container.
        mode: of the folders that the server leaves.
    """

    engine: Any
    home: Path
    image: str
    name: str
    mode: str = "0777"
    secret: str = field(default_factory=lambda: f"canary-{secrets.token_hex(8)}")

    @property
    def context(self) -> RecordingContext:
        return RecordingContext(self.home, secrets={"server_key of one": Secret("spk-" + "5" * 40)})

    def names(self, end: str, host: Host | None = None, parallel: int = 0, **options: Any) -> dict[str, Any]:
        """Return the playbook variables of its recipe, which uses every kind of mount.

        Args:
            end: what the server does after its attack, stay or leave.
            host: such as a member of a cluster; by default a single host.
            parallel: number of hosts that the model is split over.
            options: of the container.
        """
        project = self.home / "project"
        (project / "recipes").mkdir(parents=True, exist_ok=True)
        for folder in ("models/one", "data/own"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        (self.home / "models/one/config.json").write_text("{}")
        (project / "two.txt").write_text("text")
        env = {"CANARY": str(self.home / "outside" / CANARY), "WORD": self.secret, "MODE": self.mode}
        box = {"name": self.name, "gpus": "", "ipc": "", "ports": [], "env": env, **options}
        box = {"volumes": [f"{self.home}/data/own:/data"], "entrypoint": ["/bin/sh", "/hostile.sh"], **box}
        model = {"id": "a/b", "dir": f"{self.home}/models/one", "mount": "/model"}
        files = {"/etc/one/two": {"file": "two.txt"}}
        content = {"image": self.image, "model": model, "container": box, "files": files, "server_key": {"env": "KEY"}}
        content |= {"parallel": {"tensor": parallel}} if parallel else {}
        (project / "recipes/one.yml").write_text(json.dumps(content))
        loaded = recipe.load(project, "one")
        target = host or Host("spark1", "spark1", home=str(self.home))
        names = recipe.scope(target, "ops", loaded, {"image": None, "model": None})
        spec = replace(ContainerSpec.from_json(names["container"]), caches=KEY)
        spec = replace(spec, command=(*spec.command, end))
        docker_options = [*names["docker_options"], *map(list, cache_options(loaded, spec, str(self.home)))]
        return {**names, "container": spec.to_json(), "docker_options": docker_options}

    def deploy(self, end: str = "stay", **options: Any) -> Result:
        """Create and start the server like a deploy."""
        names = self.names(end, **options)
        text = json.dumps(names["container"])
        if not Path(ADAPTERS).exists():
            text = text.replace(f'"{ADAPTERS}"', f'"/dev/null:{ADAPTERS}"')
        args = Container.Args(spec=json.loads(text), files=names["recipe_files"])
        return Container().run(args, self.context)

    def drift(self) -> list[str]:
        """Return the drift that a plan finds."""
        names = self.names("stay")
        context = RecordingContext(self.home, secrets=self.context.secrets, check=True)
        args = Container.Args(spec=json.loads(json.dumps(names["container"])), files=names["recipe_files"])
        return [item["field"] for item in Container().run(args, context).data["drift"]]

    def run_script(self) -> None:
        script = expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), self.names("stay"))
        completed = subprocess.run(["sh", "-c", str(script)], capture_output=True, text=True, check=False, timeout=60)
        assert completed.returncode == 0, (completed.stderr, script)

    def inspect(self, name: str = "") -> dict[str, Any]:
        inspected: dict[str, Any] = self.engine.api.inspect_container(name or self.name)
        return inspected

    def wait_for_attack(self, starts: int = 1, name: str = "") -> None:
        """Wait until the server has attacked in this number of starts."""
        wait_until(lambda: self.log(name).count("ATTACKED") >= starts, f"{starts} attacks")

    def log(self, name: str = "") -> str:
        return str(self.engine.api.logs(name or self.name).decode(errors="replace"))

    def places(self) -> set[str]:
        """Return the paths that it could write to, from its log."""
        return {line.removeprefix("PLACE ") for line in self.log().splitlines() if line.startswith("PLACE ")}

    def writable(self) -> set[str]:
        """Return the paths that it may write to, from the Docker Engine."""
        return {mount["Destination"] for mount in self.inspect()["Mounts"] if mount["RW"]}

    def write_canaries(self) -> None:
        """Write a canary to every folder that the server must not reach."""
        (self.home / "outside").mkdir(exist_ok=True)
        for folder in self.forbidden_folders():
            if folder.is_dir() and not (folder / CANARY).exists():
                (folder / CANARY).write_text(f"{self.secret}\n")

    def forbidden_folders(self) -> list[Path]:
        """Return every parent folder of a mount, and a folder without mounts."""
        state, key = self.home / ".local/state/sparkwright", self.home / HOST_FOLDER / KEY
        home_folders = [self.home / name for name in ("outside", "", "models", "data", ".local/share/sparkwright")]
        caches = [self.home / HOST_FOLDER, key, key / "live", key / "live" / self.name]
        return [*home_folders, *caches, state, state / "server_keys", state / "recipe_files"]

    def check_no_escape(self) -> None:
        """Check the image's output and the host's files for signs of an escape."""
        containers = self.engine.api.containers(all=True, filters={"name": self.name})
        lines = [line for row in containers for line in self.log(row["Id"]).splitlines()]
        assert [line for line in lines if line.startswith(ESCAPE_WORDS)] == []
        canaries = {
            str(item): (item / CANARY).read_text() for item in self.forbidden_folders() if (item / CANARY).exists()
        }
        assert set(canaries.values()) == {f"{self.secret}\n"}, canaries
        assert str(self.home / "outside") in canaries
        assert [item for item in self.forbidden_folders() if item.is_symlink()] == []
        assert (self.home / "models/one/config.json").read_text() == "{}"
        assert sorted(path.name for path in (self.home / "models/one").iterdir()) == ["config.json"]


@contextmanager
def hostile_server(engine: Any, mode: str) -> Iterator[HostileServer]:
    """Yield a host, and remove all its containers, images and files afterwards."""
    name = f"escape-{secrets.token_hex(4)}"
    home = Path(tempfile.mkdtemp(prefix="sparkwright-test-"))
    server = HostileServer(engine, home, build_image(engine.api, name), name, mode)
    try:
        yield server
    finally:
        for row in engine.api.containers(all=True, filters={"name": name}):
            engine.api.remove_container(row["Id"], force=True, v=True)
        engine.api.remove_image(f"{name}:v1", force=True)
        subprocess.run(["rm", "-rf", str(home)], stderr=subprocess.DEVNULL, check=False)
        if home.exists():
            container_files.run_as_root(
                server.context, home, ("rm", "-rf", "--"), f"{container_files.MOUNT_POINT}/data", mount_parent=False
            )
            subprocess.run(["rm", "-rf", str(home)], check=False)
