"""The files of a project for two simulated Sparks that serve a model together."""

from __future__ import annotations

from pathlib import Path

from sparkwright.errors import Failed, Refused
from sparkwright.project import schema_line
from sparkwright.project.inventory.patterns import GROUPS_FILE

GROUP, RECIPE, HEAD, WORKER = "sandbox-pair", "sandbox-pair", "sandbox1", "sandbox2"

HOST_TEXT = """\
# A simulated Spark of a pair, with a link to the other. `sandbox.fault --host {name}` breaks it on purpose.

connection: sandbox
user: spark
fabric: {{interfaces: [enp1s0f1np1, enP2p1s0f1np1], address: 127.0.0.{place}}}  # the link is this machine's loopback
"""

GROUP_TEXT = f"""
{GROUP}:                  # both serve one model together, sandbox1 answers
  hosts: [{HEAD}, {WORKER}]
  cluster: {{recipe: {RECIPE}, head: {HEAD}}}
"""

RECIPE_TEXT = """\
# A model split between the two simulated Sparks: half of each layer on either of them.

description: Qwen3.5-35B-A3B FP8 over two simulated Sparks
image: vllm/vllm-openai:v0.32.0

model:
  id: Qwen/Qwen3.5-35B-A3B-FP8
  dir: ~/models/qwen35-35b-hf
  mount: /models/qwen35

parallel: {tensor: 2}          # sets network, devices and addresses: docs/clusters.md

container:
  name: qwen35-pair
  gpus: all

vllm:
  host: 127.0.0.1
  port: 18472                  # of this machine
  served-model-name: qwen3.5-35b
  max-model-len: 131072
  gpu-memory-utilization: 0.85
  enable-prefix-caching: true
  kv-cache-dtype: fp8
  max-num-seqs: 8
  max-num-batched-tokens: 4096

expect:
  tok_per_s: 47                # the sandbox's rank gives what one host gives
  ready_s: 120
"""


def lay(root: Path) -> list[Path]:
    """Write them into a project. Returns what was written. Raises Refused before anything when one of them is there already."""
    groups = root / "hosts" / GROUPS_FILE
    texts = {
        root / f"hosts/{HEAD}.yml": schema_line.line("host") + HOST_TEXT.format(name=HEAD, place=1),
        root / f"hosts/{WORKER}.yml": schema_line.line("host") + HOST_TEXT.format(name=WORKER, place=2),
        root / f"recipes/{RECIPE}.yml": schema_line.line("recipe") + RECIPE_TEXT,
    }
    if there := [path for path in texts if path.exists()]:
        raise Refused(f"{there[0]} already exists.", fix="Remove it first.")
    before = groups.read_text() if groups.exists() else schema_line.line("groups")
    if any(line.startswith(f"{GROUP}:") for line in before.splitlines()):
        raise Refused(f"{groups} already has a group {GROUP}.", fix="Remove it first.")
    texts[groups] = before + ("" if before.endswith("\n") or not before else "\n") + GROUP_TEXT
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise Failed(f"{path}: {error.strerror}.") from None
    return list(texts)
