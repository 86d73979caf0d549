"""The table of the rules of each engine by concept, with a reason where there is none: docs/engine-rules.md.

    python -m tests.docs.engine_rules        # writes the page

A cell that is a rule's name is checked against the engine's rules; anything else is the reason why there is none.
"""

from collections.abc import Iterator
from pathlib import Path

from sparkwright.engines import budget, container_rules, engine

PAGE = Path(__file__).parents[2] / "docs" / "engine-rules.md"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llama_cpp": "llama.cpp", "openai": "another server"}
#: reason for an engine with unknown flags
UNREAD = "its flags are not read"
#: the rules of vLLM, SGLang, llama.cpp and another server for each concept, separated by spaces, or the reason why there is none
CONCEPTS: dict[str, tuple[str, str, str, str]] = {
    "a flag that the release does not have": ("unknown-flag", "unknown-flag", "unknown-flag", UNREAD),
    "a value that the flag does not take": ("flag-value switch-with-value", "flag-value", "flag-value", UNREAD),
    "a flag without effect": (
        "ignored-flag config-file-switches", "speculation", "none is known: it uses a flag or refuses it", UNREAD,
    ),
    "an environment variable without effect": (
        "unread-variable", "its variables by release are not known", "each flag has one, which the image's help lists",
        UNREAD,
    ),
    "too little memory left for the host": (
        "memory-budget memory-utilization", "memory-budget", "memory-budget", "memory-budget",
    ),
    "memory that is unknown before the start": ("memory-utilization", "memory-unset", "fit-shrinks", "memory-unknown"),
    "a model download that spark.lock does not pin": ("downloads", "downloads", "downloads", "see code-of-others"),
    "a parser plugin that is not pinned": ("plugin-unpinned", "no plugins", "no plugins", "see code-of-others"),
    "an API key in arguments or log": (
        "api-key-in-arguments key-in-log", "api-key-in-arguments", "api-key-in-arguments", "secret-in-command",
    ),
    "a port open to the network without a key": (
        "open-to-network", "open-to-network", "open-to-network", "open-to-network",
    ),
    "a server that checks can't reach": ("out-of-reach", "out-of-reach", "out-of-reach", "out-of-reach"),
    "a stall that can't be detected": ("metrics can't be turned off", "no-metrics", "no-metrics", "no-heartbeat"),
    "an image without kernels for a GB10": ("cuda13-image", "image-kernels", "cuda12-image", "not known"),
    "a release that is newer than the tables": ("newer-release", "newer-release", "newer-release", "not known"),
    "a moving or frozen tag": ("moving-tag frozen-nightly", "moving-tag", "moving-tag", "not known"),
    "a model that this release does not load": (
        "architecture-support", "its registry was not read", "named in the GGUF; a start reports it", "not known",
    ),
    "the model as a file": ("a folder is served", "a folder is served", "model-file", "the path is in its own command"),
    "a context longer than the model's": (
        "model-length stretched-context", "model-length",
        "it reduces the length, which the check after a start reports", "not known",
    ),
    "slots, steps and their budget": (
        "explicit-chunked-prefill unchunked-budget seqs-over-budget block-over-budget", "adjusted by the engine",
        "slot-context", "not known",
    ),
    "layers of a recurrent model": (
        "mamba-cache-mode prefix-caching-needs-chunked-prefill seqs-over-mamba-blocks kv-scales-on-hybrid",
        "it sizes the state cache; the log of a failed start names the flag to change", "no separate setting",
        "not known",
    ),
    "experts for each token other than the model's": (
        "experts-per-token", "its overrides are not read", "experts-per-token", "not known",
    ),
    "tool calls and reasoning": (
        "tool-calls reasoning-truncates-answers template-value-as-text parser-of-the-model",
        "one flag each, checked by flag-value; the rest by the probes of a start",
        "on by default, by the model's template; the rest is checked by the probes of a start",
        "checked by the probes of a start",
    ),
    "speculation": (
        "speculation speculation-without-layers quantised-drafter", "speculation", "speculation", "not known",
    ),
    "weights that load slowly or twice": (
        "weights-loading", "not measured on a GB10", "load-mode: see unknown-flag", "not known",
    ),
    "layers or caches on the CPU": ("counted in the memory budget", "counted in the memory budget", "layers-on-cpu", "not known"),
    "types of the KV cache that need another option": ("flag-value", "flag-value", "quantised-v-cache", "not known"),
    "idle work": ("none is known", "idle-spin", "none is known", "not known"),
    "several hosts": (
        "parallel parallel-backend parallel-experts parallel-heads parallel-layers parallel-multiplied "
        "parallel-pipeline-model parallel-pipeline-release parallel-release gid-index",
        "refused: sparkwright starts it on one host only", "refused: sparkwright starts it on one host only", "refused",
    ),
    "Ascend": (
        "ascend-budget ascend-exclusive ascend-scheduler", "not supported there", "not supported there", "not known",
    ),
    "the container": (" ".join(container_rules.RULES),) * 4,
}  # fmt: skip
HEAD = """# What lint covers, by engine

`sparkwright lint` checks recipes, and `sparkwright explain RULE` explains a rule ([all rules](rules.md)). Each row below is a subject, and each
cell has the engine's rules about it, or the reason why there is none.

The page is written by `python -m tests.docs.engine_rules`; a test checks that no rule is missing.

"""


def rule_names(name: str) -> set[str]:
    """Return the names of an engine's rules, including those for all engines."""
    return {
        *(rule for rules in engine.get_engine(name).advice.RULES for rule in rules),
        *budget.RULES,
        *container_rules.RULES,
    }


def named_rules(name: str) -> Iterator[str]:
    """Yield the rules of an engine that are in the table."""
    column = list(ENGINES).index(name)
    every = set().union(*map(rule_names, ENGINES))
    for row in CONCEPTS.values():
        words = row[column].split()
        if set(words) <= every:
            yield from words


def render_page() -> str:
    lines = ["| | " + " | ".join(ENGINES.values()) + " |", "|---" * (len(ENGINES) + 1) + "|"]
    every = set().union(*map(rule_names, ENGINES))
    for concept, row in CONCEPTS.items():
        cells = (
            ", ".join(f"`{word}`" for word in cell.split()) if set(cell.split()) <= every else cell for cell in row
        )
        lines.append(f"| {concept} | {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render_page())
