"""A recipe, and its container on a host."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.flags import adapter_name, with_adapters, with_model
from sparkwright.engines.http import GENERATE
from sparkwright.engines.memory import Memory, sum_weights
from sparkwright.engines.parallel import MemberSettings, Split
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import suggest_name, validate
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import rules, section_rules
from sparkwright.project.recipe.models import Container, RecipeFile
from sparkwright.project.recipe.section_rules import flag_place, is_on_host_network
from sparkwright.protocol.container import (
    CLUSTER_LABEL,
    MEMBERS_LABEL,
    RANK_LABEL,
    SECRET_PREFIX,
    ContainerSpec,
    locked_ids,
)
from sparkwright.secret import Secret
from sparkwright.trust import container_option_rules
from sparkwright.trust.image_name import with_digest
from sparkwright.trust.names import check_file_name
from sparkwright.visible import one_line

#: variable in a client's setup for a key that comes from a file or command
DEFAULT_KEY_VARIABLE = "SPARK_KEY"
#: suffixes of weight files, for all engines
WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt")
#: characters that make a file name a pattern
GLOB_CHARACTER_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Recipe:
    """A validated recipe."""

    #: name of its file, without .yml
    name: str
    file: RecipeFile
    source: document.Document

    @property
    def image(self) -> str:
        return self.file.image

    @property
    def engine(self) -> Engine:
        return self.file.resolved_engine

    @property
    def split(self) -> Split | None:
        """The split of the model over several hosts; None for one host."""
        parallel = self.file.parallel
        return Split(parallel.tensor, parallel.pipeline) if parallel else None

    @property
    def served_name(self) -> str:
        """Main name of the model in requests."""
        return self._model_names[0]

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names in requests, of model and adapters; `served_name` first."""
        return tuple(dict.fromkeys((*self._model_names, *self.adapter_names)))

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Names of the adapters in requests; empty if the engine cannot select adapters by name."""
        adapter_flags = self.engine.flags.ADAPTER_FLAGS
        if adapter_flags is None or not adapter_flags.selected_by_name:
            return ()
        return tuple(adapter_name(adapter_flags, self.served_name, adapter.name) for adapter in self.file.adapters)

    @property
    def _model_names(self) -> tuple[str, ...]:
        file = self.file.model.file
        model = file if file and not GLOB_CHARACTER_PATTERN.search(file) else self.file.model.mount
        return self.engine.flags.served_names(self.file.flags, model)

    def file_flags(self, lock_entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags for single files of the model; until the model is pinned, with the recipe's patterns as values.

        lock_entry: the model's entry in the lock; empty until it is pinned.
        """
        model, file_rules = self.file.model, self.engine.files
        if file_rules is None:
            return {}
        if lock_entry:
            return dict(
                file_rules.select_files(lock_entry.get("files") or (), model.file, model.mmproj, model.draft).flags
            )
        patterns = model.model_dump(include={"file", "mmproj", "draft"})
        patterns_by_flag = {
            flag: patterns.get(key.removeprefix("model.")) for flag, key in self.engine.flags.RESERVED_FLAGS.items()
        }
        return {flag: pattern for flag, pattern in patterns_by_flag.items() if pattern}

    def with_models(self, flags: Mapping[str, Any], pinned: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags with the container paths of additional models and adapters added.

        Args:
            flags: under their canonical names.
            pinned: the lock's entries of additional models and adapters, by role.
        """
        new_flags = dict(flags)
        paths = {role: self._further_model_path(role, pinned.get(role) or {}) for role in self.file.further_models}
        for role in self.file.models:
            new_flags = with_model(new_flags, self.engine.flags.MODEL_FLAGS[role], paths[role])
        adapter_flags = self.engine.flags.ADAPTER_FLAGS
        if adapter_flags is None:
            return new_flags
        adapter_paths = {adapter.name: paths[adapter.role] for adapter in self.file.adapters}
        return with_adapters(new_flags, adapter_flags, adapter_paths)

    def _further_model_path(self, role: str, lock_entry: Mapping[str, Any]) -> str:
        """Return the container path of an additional model or adapter; until its file is pinned, with the recipe's pattern."""
        model, file_rules = self.file.further_models[role], self.engine.files
        if file_rules is None:
            return model.mount
        rows = lock_entry.get("files") or ()
        file = file_rules.select_files(rows, model.file).flags["model"] if rows else model.file
        return f"{model.mount.rstrip('/')}/{file}"

    @property
    def memory_utilization(self) -> float:
        """Share of the host's memory that the engine uses, 0 to 1; see `memory`."""
        return self.memory({}).share

    @property
    def engine_port(self) -> int:
        """Port on which the server listens inside its container. Raises Refused if the flag is invalid."""
        self._refuse_invalid_flag(self.engine.flags.PORT)
        return self.engine.flags.port(self.file.flags)

    def memory(
        self,
        lock_entry: Mapping[str, Any],
        flags: Mapping[str, Any] | None = None,
        further_entries: Mapping[str, Any] | None = None,
    ) -> Memory:
        """Return the host memory that the engine uses. Raises Refused if its memory flag is invalid.

        Args:
            lock_entry: the model's entry in the lock; empty until it is pinned.
            flags: flags with which the server is started (`compute_memory`); by default, those of the recipe.
            further_entries: the lock's entries of additional models and adapters, by role.
        """
        self._refuse_invalid_flag(self.engine.flags.MEMORY)
        memory = self.engine.advice.memory(self.file.flags if flags is None else flags, lock_entry)
        for role, entry in (further_entries or {}).items():
            name = role if role not in self.file.models else f"{role} model"
            memory = memory.with_model(name, sum_weights(entry or {}, WEIGHT_SUFFIXES))
        return memory.split(self.split.hosts if self.split else 1)

    def where(self, flag: str) -> str:
        """Return "file:line" of a flag. flag: its canonical name."""
        return self.source.where(*flag_place(self.source, flag))

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as playbooks see it. `server_key` is the variable for the key in a client's setup.

        Optional sections that are not set are left out.
        """
        key = self.file.server_key
        derived = {
            "server_key": (key.env or DEFAULT_KEY_VARIABLE) if key else "",
            "open_to_network": self.open_to_network,
        }
        excluded = {"date", *engines.TITLES} - {self.file.engine}
        if self.file.engine == engines.DEFAULT_ENGINE:
            excluded.add("engine")
        if self.file.parallel is None:
            excluded.add("parallel")
        if self.file.task == GENERATE:
            excluded.add("task")
        data = self.file.model_dump(mode="python", exclude=excluded)
        if not self.file.model.file_key:
            data["model"] = {
                name: value for name, value in data["model"].items() if name not in ("file", "mmproj", "draft")
            }
        for name in ("files", "models", "adapters"):
            if not data[name]:
                del data[name]
        for name in ("probes", "depths", "load"):
            if not data["expect"][name]:
                del data["expect"][name]
        if self.file.expect.answers == "judged":
            del data["expect"]["answers"]
        return {"name": self.name, **data, "served_name": self.served_name, **derived}

    def _refuse_invalid_flag(self, flag: str) -> None:
        if problem := self.engine.flags.find_value_problem(self.file.flags, flag):
            raise Refused(
                f"`{self.file.engine}.{flag}` {problem}.", where=self.where(flag), fix="Correct or remove it."
            )

    @property
    def open_to_network(self) -> bool:
        """True if the server can be used from the network without a key."""
        addresses = rules.published_addresses(self.file)
        return self.file.server_key is None and not all(map(rules.is_loopback, addresses))

    @property
    def published_container_port(self) -> int:
        """Container port of the first published port, to which clients send requests.

        0 if no port is published, or the first one is not a TCP port.
        """
        if is_on_host_network(self.file):
            return self.engine_port
        number, _, protocol = (self.file.container.ports or [":0"])[0].rpartition(":")[2].partition("/")
        return int(number) if protocol in ("", "tcp") else 0

    @property
    def key_secret(self) -> str:
        """Name of the secret with the server's key in a run."""
        return f"server_key of {self.name}"

    def secrets(self) -> dict[str, Secret]:
        """Read the server's key from its source; empty without `server_key`. Raises Refused if it is missing or invalid."""
        if self.file.server_key is None:
            return {}
        return {self.key_secret: secret_source.read_server_key(self.file.server_key, self.source.where("server_key"))}


def names(project: Path) -> list[str]:
    """Return the names of a project's recipes."""
    return sorted(path.stem for path in document.list_files(project / "recipes"))


def load(project: Path, name: str, *, named_at: str = "") -> Recipe:
    """Read recipes/NAME.yml. Raises Refused if it is missing or invalid.

    named_at: "file:line" of the setting that names the recipe.
    """
    if reason := check_file_name(name):
        message = f"the recipe '{one_line(name, max_chars=80)}' {reason}."
        raise Refused(message, where=named_at, fix="Name a file in recipes/, without .yml.")
    path = project / "recipes" / f"{name}.yml"
    if not document.exists(path):
        document.refuse_yaml_suffix(path)
        fix = suggest_name(name, names(project))
        raise Refused(f"no recipe '{one_line(name, max_chars=80)}'.", where=named_at, fix=fix)
    return _parse_recipe(path, document.read_text(path))


@lru_cache(maxsize=document.CACHE_SIZE)
def _parse_recipe(path: Path, text: str) -> Recipe:
    """Parse and validate a recipe. Cached because a command loads the same recipe several times."""
    source = document.parse(text, path)
    file = section_rules.apply_parallel(validate(RecipeFile, source), source)
    rules.check(file, source)
    return Recipe(path.stem, file, source)


def load_valid(project: Path, nested_names: Iterable[str] = ()) -> tuple[list[Recipe], list[Refused]]:
    """Return the valid recipes of a project, and the errors of the invalid ones.

    nested_names: also these recipes, in folders of recipes/.
    """
    recipes, refusals = [], []
    for name in (*names(project), *nested_names):
        try:
            recipes.append(load(project, name))
        except Refused as error:
            refusals.append(error)
    return recipes, refusals


def serve_port(host: Host, recipe: Recipe) -> int:
    """Return the host port on which the server answers.

    Raises Refused if the host sets a port other than the engine's for a server on the host's network.
    """
    if is_on_host_network(recipe.file):
        if host.serve_port not in (None, recipe.engine_port):
            message = f"`serve_port: {host.serve_port}` has no effect with the recipe's `network: host`."
            where = host.set_at.get("serve_port", host.where)
            raise Refused(message, where=where, fix="Remove it; the engine's flag `port` sets the port.")
        return recipe.engine_port
    if host.serve_port:
        return host.serve_port
    return int(recipe.file.container.ports[0].split(":")[-2]) if recipe.file.container.ports else recipe.engine_port


def build_container_spec(
    recipe: Recipe,
    host: Host,
    home: str,
    image_entry: Mapping[str, Any] | None,
    command: tuple[str, ...],
    files: Mapping[str, str],
    member_settings: MemberSettings | None = None,
) -> ContainerSpec:
    """Return the container of a recipe on a host.

    Args:
        image_entry: the image's entry in the lock; None until it is pinned.
        command: the words after the image, except those for the server's key.
        files: see ContainerSpec.
        member_settings: settings of the host as a member of a cluster.
    """
    file, container = recipe.file, recipe.file.container
    models = (file.model, *file.further_models.values())
    volumes = [*(f"{model.dir}:{model.mount}:ro" for model in models), *container.volumes]
    entrypoint = tuple(container.entrypoint) if container.entrypoint is not None else recipe.engine.flags.ENTRYPOINT
    key = recipe.engine.key if file.server_key else None
    options = {
        name: getattr(container, name) for name in ContainerSpec.__dataclass_fields__ if name in Container.model_fields
    }
    if member_settings is not None:
        for name, value in member_settings.options.items():
            options[name] = _merge_option(options[name], value)
        options["env"] = {**member_settings.env, **container.env}
        options["restart"] = "no"  # a rank that restarts alone would join the other ranks' old group and hang
    return dataclasses.replace(
        ContainerSpec(**options, image=file.image),
        image=with_digest(file.image, image_entry["digest"] if image_entry else ""),
        ports=tuple(_list_ports(recipe, host)),
        volumes=tuple(home + volume[1:] if volume.startswith("~/") else volume for volume in volumes),
        labels={**container.labels, **recipe.engine.labels, **_cluster_labels(host)},
        entrypoint=key.program(entrypoint) if key else entrypoint,
        command=command + (key.words if key else ()),
        image_ids=locked_ids(image_entry),
        files=dict(files),
        server_key=SECRET_PREFIX + recipe.key_secret if file.server_key else "",
    )


def _cluster_labels(host: Host) -> dict[str, str]:
    cluster = host.cluster
    if cluster is None:
        return {}
    rank, members = str(cluster.rank(host.name)), ",".join(cluster.members)
    return {CLUSTER_LABEL: cluster.name, RANK_LABEL: rank, MEMBERS_LABEL: members}


def _merge_option(value: Any, addition: Any) -> Any:
    """Return an option's value with a cluster's additions: mappings and lists are merged, other values replaced."""
    if isinstance(value, Mapping):
        return {**addition, **value}
    if isinstance(value, tuple | list):
        return type(value)(dict.fromkeys((*value, *addition)))
    return addition


def _list_ports(recipe: Recipe, host: Host) -> list[str]:
    """Return the ports on which the server answers; empty for a worker of a cluster."""
    if host.is_worker:
        return []
    if not is_on_host_network(recipe.file):
        return _published_ports(recipe.file, host)
    # Docker publishes nothing on the host's network, but records the setting
    address, port = rules.published_addresses(recipe.file)[0].strip("[]"), recipe.engine_port
    if not container_option_rules.is_ip_address(address):
        address = "127.0.0.1" if rules.is_loopback(address) else ""
    return [f"{address}:{port}:{port}" if address else f"{port}:{port}"]


def _published_ports(file: RecipeFile, host: Host) -> list[str]:
    """Return the recipe's ports with their addresses; the host's `serve_port` replaces the first one.

    Raises Refused if `serve_port` conflicts with another port.
    """
    ports = []
    for n, (port, address) in enumerate(zip(file.container.ports, rules.published_addresses(file), strict=True)):
        host_port, container_port = port.rsplit(":", 2)[-2:]
        host_port = str(host.serve_port) if host.serve_port and not n else host_port
        ports.append(":".join([*([address] if address else []), host_port, container_port]))
    if container_option_rules.find_port_conflict(ports):
        message = f"`serve_port: {host.serve_port}` is also published by the recipe's `container.ports`."
        raise Refused(message, where=host.set_at.get("serve_port", host.where), fix="Use another port.")
    return ports
