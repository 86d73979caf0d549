"""The command groups in `--help`, with the arguments of two examples for each command. Every command needs a row here."""

from __future__ import annotations

Examples = tuple[str, str]

GROUPS: dict[str, dict[str, Examples]] = {
    "Serve": {
        "deploy": ("--host spark1", "--host lab --canary 1 --serial 25%"),
        "plan": ("--host spark1", "--host all --json"),
        "restart": ("--host spark1", "--host lab --serial 1 --wait"),
        "switch": ("--host spark1 --to qwen3-1.7b", "--host spark1 --to qwen3-1.7b --check"),
        "rollback": ("--host spark1", "--host spark1 --check --diff"),
        "verify": ("--host spark1", "--host all --json"),
        "play": ("playbooks/drain.yml --host spark1", "drain --host lab --check --diff"),
        "gateway.deploy": ("--host lab", "--host lab --check --diff"),
        "gateway.rollback": ("--host lab", "--host lab --check --diff"),
        "gateway.status": ("--host lab", "--host lab --json"),
        "client": ("--host spark1 --json", "--host spark1 --for claude-code --check"),
        "render": ("--host spark1", "--host spark1 --recipe llama-3.1-8b"),
        "runs": ("--host spark1", "--host all --json"),
        "attach": ("--host spark1", "--host spark1 --run 20261122T101500-1f0c9a3e"),
        "stop": ("--host spark1", "--host spark1 --run 20261122T101500-1f0c9a3e"),
        "unlock": ("--host spark1", "--host spark1 --stop"),
    },
    "Look after": {
        "status": ("", "--host lab --watch --every 10"),
        "health.check": ("--host spark1", "--host all --smoke --json"),
        "health.install": (
            "--host spark1 --every 5m",
            "--host lab --heal restart --webhook-file /etc/sparkwright/webhook",
        ),
        "health.uninstall": ("--host spark1", "--host lab"),
        "monitoring.install": ("--to monitoring", "--host lab --textfile /var/lib/prometheus/node-exporter"),
        "diagnose": ("--host spark1", "--host spark1 --token-s 60"),
        "doctor": ("--host spark1", "--host lab --fix"),
        "logs": ("--host spark1 --tail 100", "--file saved.log --state"),
        "history": ("--host spark1", "--host spark1 --last 5"),
        "incident": ("--host spark1", "--host spark1 --to ticket-17"),
        "report": ("--host all", "--host spark1 --since 24h --to spark1.html"),
    },
    "Measure": {
        "bench.smoke": ("--host spark1", "--url http://127.0.0.1:8000/v1"),
        "bench.serve": ("--host spark1 --concurrency 1..16", "--host spark1 --rate 0.5,1,2 --requests 100"),
        "bench.ab": ("--host spark1 --flag chunked-prefill", "--host spark1 -a qwen3.5-35b -b qwen3.5-35b-unchunked"),
        "bench.sweep": (
            "--host spark1 --flag speculative-config.num_speculative_tokens --values unset,1,2,3",
            "--host spark1 --flag max-num-seqs --values 4,8 --flag max-num-batched-tokens --values 2048,4096",
        ),
        "bench.hol": ("--host spark1", "--host spark1 --flag chunked-prefill"),
        "bench.itl": ("--host spark1", "--host spark1 --long-tokens 32768"),
        "bench.mixed": ("--host spark1", "--host spark1 --concurrency 8 --requests 50"),
        "bench.context": ("--host spark1", "--host spark1 --depth 100000 --streams 4"),
        "bench.compare": ("before after", "before theirs.json --json"),
        "bench.report": ("before", "results/before --json"),
        "bench.import": ("theirs.json", "theirs.json --name vllm-0.32"),
        "bench.list": ("", "--json"),
    },
    "Models and images": {
        "lock": ("--host spark1", "--update --host all"),
        "lint": ("", "--recipe qwen3.5-35b --engine-version 0.32.0"),
        "explain": ("", "unchunked-budget"),
        "model.inspect": ("Qwen/Qwen3.5-35B-A3B", "/srv/models/qwen35/config.json"),
        "models.list": ("", "--host spark1 --json"),
        "models.verify": ("--host spark1", "--host spark1 --deep"),
        "models.copy": ("--from spark1 --to spark2", "--from spark1 --to lab --check"),
        "models.prune": ("--host spark1", "--host lab --yes"),
        "images.copy": ("--from spark1 --to spark2", "--from spark1 --to lab --image vllm/vllm-openai:v0.32.0"),
        "images.prune": ("--host spark1", "--host lab --check"),
        "caches.list": ("--host spark1", "--host lab --json"),
        "caches.prune": ("--host spark1", "--host lab --check"),
    },
    "Recipes": {
        "recipe.list": ("", "--host all --json"),
        "recommend": ("--host spark1 --for coding", "--host spark1 --for chat --json"),
        "recipe.import": ("models/Qwen3.6-35B-A3B.yaml", "--from-host spark1 --container vllm --name qwen3-8b"),
        "recipe.search": ("qwen3.6", "nvfp4 --update"),
        "recipe.export": ("qwen3.5-35b --format compose", "qwen3.5-35b --format docker-run --unpinned"),
    },
    "Hosts": {
        "hosts.list": ("", "--host lab --json"),
        "hosts.add": ("spark2 --address ops@spark-1a2b.local", "spark2 --groups lab --recipe gpt-oss-120b --yes"),
        "hosts.check": ("--host spark1", "--host lab --json"),
        "host.clean": ("--host spark1 --check", "--host spark1 --server --models --yes"),
        "provision": ("--host spark1", "--host lab --check --diff"),
        "ollama.ps": ("--host spark1", "--host all --json"),
        "ollama.unload": ("--host spark1", "--host spark1 --timeout-s 120"),
        "cluster.inspect": ("--host pair", "--host pair --write"),
        "cluster.check": ("--host pair", "--host pair --bandwidth"),
        "runtime.fetch": ("", "--machine aarch64,x86_64 --python 3.11,3.12"),
        "runtime.install": ("--host spark1", "--host lab"),
    },
    "Project and sandbox": {
        "init": ("my-sparks", "my-sparks --address ops@spark-1a2b.local"),
        "playbook.eject": ("parts/prove", "--list"),
        "playbook.update": ("parts/prove --check", "parts/prove --mine"),
        "playbook.clean": ("--check", "--yes"),
        "mcp": ("", "--project ~/lab --allow-changes"),
        "schema": ("recipe", "host --json"),
        "docs.module": ("", "container"),
        "completion": ("bash", "fish"),
        "sandbox.fault": ("oom", "none"),
        "sandbox.pair": ("", "--debug"),
        "sandbox.status": ("", "--json"),
        "sandbox.down": ("", "--debug"),
    },
}

COMMAND_NAMES = tuple(name for commands in GROUPS.values() for name in commands)


def find_examples(name: str) -> Examples | None:
    """Return the arguments of a command's two examples, or None for a task that is not ours."""
    return next((commands[name] for commands in GROUPS.values() if name in commands), None)
