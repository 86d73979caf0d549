"""Records which `speculative-config` a real vLLM accepts; run by the engine's own Python.

    ENGINE/bin/python tests/real_engine/ask_speculation.py tests/data/vllm-0.32.0

Writes speculative-config.json: CONFIGS, each with the beginning of the engine's refusal, or "" if it is accepted. No
model is loaded: a valid config fails with TARGET, which counts as accepted.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from vllm.config import SpeculativeConfig

#: errors of a valid config without a model
TARGET = ("target_model_config", "'NoneType' object")
N = "num_speculative_tokens"
CONFIGS: list[dict[str, Any]] = [
    *({"method": "ngram", N: value} for value in (2, "2", 2.0, True, 0, -1, 2.5, "two", [2])),
    {"method": "ngram"},
    {"method": "[ngram]", N: 2},
    {"model": "ngram", N: 2},
    {"method": "ngram_gpu"},
    {"method": "ngrm", N: 2},
    {"method": "NGRAM", N: 2},
    {"method": "mtp"},
    *({"method": method, N: 2} for method in ("mtp", "qwen3_5_mtp", "step5_mtp", "fly", "eagle", "eagle3", "dflash")),
    *({"method": method, N: 2} for method in ("draft_model", "medusa", "custom_class")),
    {N: 2},
    {"method": "ngram", "num_spec_tokens": 2},
    *(
        {"method": "ngram", N: 2, **more}
        for more in (
            {"disable_by_batch_size": 4}, {"speculative_token_tree": "[(0,)]"}, {"xpress_topc": 1},
            {"enforce_eager": "yes"}, {"enforce_eager": "perhaps"}, {"quantization": 5}, {"revision": 5},
            {"prompt_lookup_min": 4, "prompt_lookup_max": 2}, {"prompt_lookup_min": 2, "prompt_lookup_max": 4},
            {"prompt_lookup_max": 0}, {"draft_tensor_parallel_size": 0}, {"max_model_len": 0},
        )
    ),
]  # fmt: skip


def find_refusal(config: dict[str, Any]) -> str:
    """Return why the engine refuses a config, or "" if it accepts it."""
    try:
        SpeculativeConfig(**config)
    except ValidationError as error:
        first = error.errors()[0]
        text = f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()
    except (AttributeError, ImportError) as error:
        text = str(error)
    else:
        return ""
    return "" if any(word in text for word in TARGET) else text[:120]


def main() -> None:
    folder = Path(sys.argv[1])
    rows = [{"config": config, "refusal": find_refusal(dict(config))} for config in CONFIGS]
    lines = ",\n ".join(json.dumps(row) for row in rows)
    (folder / "speculative-config.json").write_text(f"[\n {lines}\n]\n")


main()
