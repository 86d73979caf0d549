"""The environment of an imported recipe: secrets are never written, and the user is asked for a shell's variables."""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.project.importing.report import DROP, Report
from sparkwright.project.importing.shell_words import variables
from sparkwright.trust.secret_names import is_secret, names_a_secret

#: the variables from which the hub's clients read a token
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_HUB_TOKEN"})
#: settings of a container's downloads; here the host downloads the model
DOWNLOADING = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HUB_ENABLE_HF_TRANSFER", "HF_XET_HIGH_PERFORMANCE"}
)
TOKEN_WAY = (
    "the host downloads the model itself; a gated one needs `secrets: {HF_TOKEN: {env: HF_TOKEN}}` in hosts/groups.yml"
)


def kept(env: Mapping[str, str], set_by_cluster: frozenset[str], report: Report) -> dict[str, str]:
    """Return the variables that a recipe may hold. set_by_cluster: those that a cluster sets for each member."""
    found: dict[str, str] = {}
    for name, value in env.items():
        if name in HUB_TOKENS:
            report.add("secret", name, f"not written: {TOKEN_WAY}")
        elif is_secret(name, value) or names_a_secret(name):
            report.add(
                "secret", name, "not written: a recipe holds no secret; a key for clients is `server_key: {env: NAME}`"
            )
        elif name in DOWNLOADING:
            report.add("dropped", name, "the container downloads nothing: the host does, and mounts the model's folder")
        elif name in set_by_cluster:
            report.add("dropped", name, "the cluster sets it for each member")
        elif variables(value):
            sentence = f"the variable {name} is filled from a shell ({value}): what is its value, or `{DROP}`"
            answer = report.ask(f"env.{name}", sentence)
            if answer and answer != DROP:
                found[name] = answer
            elif answer:
                report.add("dropped", name, "as answered")
        else:
            found[name] = value
            report.add("kept", f"env {name}")
    return found
