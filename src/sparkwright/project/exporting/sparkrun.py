"""A recipe as sparkrun's version 2: image by digest, model by commit. Source: sparkrun 0.4.2 core/recipe.py and api/_pin.py."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sparkwright.errors import Refused
from sparkwright.project.exporting.export import Export
from sparkwright.shell import join

RUNTIMES = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llama-cpp"}
#: a quantisation in a pattern that names one, as *Q4_K_M*.gguf
_QUANTISATION = re.compile(r"\*-?([A-Za-z0-9][A-Za-z0-9_.-]{0,60}?)-?\*?\.gguf")


def text(export: Export) -> str:
    """Return the sparkrun recipe.

    Raises Refused for an engine that sparkrun has no runtime for, and for a GGUF that it cannot name.
    """
    file, own = export.recipe.file, export.recipe.engine
    imports = own.imports
    if own.name not in RUNTIMES or imports is None:
        raise Refused(f"sparkrun has no runtime for {own.title}.", where=export.recipe.source.where("engine"))
    split = export.recipe.split
    defaults: dict[str, Any] = {"host": "0.0.0.0", "port": int(_outside(export))}
    set_here = (own.flags.PORT, imports.host, *own.flags.SET_BY)
    given = own.command(list(export.spec.command)).flags
    flags = {name: value for name, value in given.items() if name not in set_here}
    words = [*imports.program, *_model(export)]
    words += ["--" + imports.host, "{host}", f"--{own.flags.PORT}", "{port}"]
    if split is not None:
        defaults |= {"tensor_parallel": split.tensor, "pipeline_parallel": split.pipeline}
        words += [f"--{imports.tensor}", "{tensor_parallel}", f"--{imports.pipeline}", "{pipeline_parallel}"]
    hosts = split.hosts if split else 1
    data: dict[str, Any] = {
        "recipe_version": "2",
        "description": file.description or export.recipe.name,
        "model": _named(export),
        **({"model_revision": export.commit} if export.commit else {}),
        "runtime": RUNTIMES[own.name],
        "container": export.image,
        "min_nodes": hosts,
        "max_nodes": hosts,
        "defaults": defaults,
        **({"env": dict(file.container.env)} if file.container.env else {}),
    }
    command = f"{' '.join(words)} {join(own.flags.argv(flags)).replace('{', '{{').replace('}', '}}')}"
    return yaml.safe_dump({**data, "command": command}, sort_keys=False, width=120)


def _outside(export: Export) -> str:
    """Return the port that clients use."""
    port = (export.spec.ports or ("8000:8000",))[0].partition("/")[0]
    return port.rpartition(":")[0].rpartition(":")[2] or "8000"


def _model(export: Export) -> list[str]:
    own = export.recipe.engine
    imports = own.imports
    if imports is not None and imports.repository:
        return [f"--{imports.repository}", "{model}"]
    return ["{model}"] if own.flags.ENTRYPOINT is None else [f"--{next(iter(own.flags.SET_BY))}", "{model}"]


def _named(export: Export) -> str:
    model = export.recipe.file.model
    if not model.file:
        return model.id
    found = _QUANTISATION.fullmatch(model.file.rpartition("/")[2])
    if found is None or "*" in found[1]:
        where = export.recipe.source.where("model", "file")
        raise Refused("sparkrun names a GGUF by its quantisation, which this pattern does not.", where=where)
    return f"{model.id}:{found[1]}"
