"""Clients that are programs: guidellm and aiperf, in a venv of their own, .bench/clients (7 GB with PyTorch).

Both make prompts with a tokenizer. They get one of 500 words, in a Hugging Face cache of the run's own: nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients import TOKENS, Absent, Said, process

TOP = Path(__file__).parent.parent.parent
VENV = Path(os.environ.get("CLIENTS_VENV", TOP / ".bench/clients"))
PINNED = {"guidellm": "0.8.1", "aiperf": "0.13.0"}
TOKENIZER = "exact/words"
WORDS = 500
PROMPT_TOKENS = 16


@dataclass(frozen=True)
class CommandLine:
    """words: its arguments, given (url, streams, requests, folder). read: parses the results in the folder, without the cost."""

    name: str
    words: Callable[[str, int, int, Path], list[str]]
    read: Callable[[Path], dict[str, Any]]

    def run(self, url: str, streams: int, folder: Path) -> Said:
        """Run this many concurrent streams, one request each."""
        return self._run(url, streams, streams, folder)

    def start_cpu_s(self, url: str, streams: int, folder: Path) -> float:
        """Return the CPU time with a single request: the program's start, with the workers for this many streams."""
        return self._run(url, streams, 1, folder).cpu_s

    def _run(self, url: str, streams: int, requests: int, folder: Path) -> Said:
        results = folder / "results"
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tokenizer(folder)), "NO_COLOR": "1"}
        words = [str(VENV / "bin" / self.name), *self.words(url, streams, requests, results)]
        cpu_s = process.run(words, results, env)[1]
        return Said(**self.read(results), cpu_s=cpu_s)


def installed(name: str) -> CommandLine:
    """Return a program. If it is missing, both are installed together, as they share dependencies. Raises Absent."""
    if not (VENV / "bin" / name).exists():
        wanted = [f"{one}=={version}" for one, version in PINNED.items()]
        print(f"installing {' '.join(wanted)} into {VENV}: some gigabytes, once", flush=True)
        if not (VENV / "bin/pip").exists():
            venv.create(VENV, with_pip=True)
        if subprocess.run([str(VENV / "bin/pip"), "install", "--quiet", *wanted], check=False).returncode:
            raise Absent(f"pip can't install {name} {PINNED[name]}")
    return {"guidellm": GUIDELLM, "aiperf": AIPERF}[name]


def tokenizer(folder: Path) -> Path:
    """Write a word-level tokenizer as in huggingface_hub's cache, and return the cache's home."""
    home, commit = folder / "huggingface", "0" * 40
    repository = home / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    if snapshot.exists():
        return home
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    vocabulary = {word: n for n, word in enumerate(["<unk>", "</s>", "word", *(f"w{n}" for n in range(WORDS))])}
    whole = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    for name, content in {"tokenizer": whole, "tokenizer_config": settings, "config": {"model_type": "llama"}}.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    return home


def _guidellm_words(url: str, streams: int, requests: int, folder: Path) -> list[str]:
    return [
        "run",
        *("--backend", f"kind=openai_http,target={url},model=m,request_format=/v1/chat/completions"),
        *("--profile", f"kind=concurrent,streams={streams}"),
        *("--constraint", f"kind=max_requests,count={requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
        "--disable-console",
    ]


def _guidellm_read(folder: Path) -> dict[str, Any]:
    """Read guidellm's results, which have only the first and last token's time: its token latencies are means per request."""
    found = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
    itl = found["metrics"]["inter_token_latency_ms"]["successful"]
    return {
        "ttft_s": [one["time_to_first_token_ms"] / 1000 for one in found["requests"]["successful"]],
        "gaps_s": None,
        "itl_p99_s": itl["percentiles"]["p99"] / 1000,
        "largest_s": itl["max"] / 1000,
        "tok_per_s": found["metrics"]["output_tokens_per_second"]["successful"]["mean"],
    }


def _aiperf_words(url: str, streams: int, requests: int, folder: Path) -> list[str]:
    return [
        "profile",
        *("--model", "m", "--url", url, "--endpoint-type", "chat", "--streaming", "--tokenizer", TOKENIZER),
        *("--concurrency", str(streams), "--request-count", str(requests), "--use-server-token-count"),
        *("--prompt-input-tokens-mean", str(PROMPT_TOKENS), "--prompt-output-tokens-mean", str(TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--export-level", "records", "--output-artifact-dir", str(folder)),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
    ]


def _aiperf_read(folder: Path) -> dict[str, Any]:
    """Read aiperf's results: "inter token latency" is a mean per request, "inter chunk latency" has each gap."""
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    records = [json.loads(line)["metrics"] for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    gaps_ms = (gap for one in records for gap in one["inter_chunk_latency"]["value"])
    return {
        "ttft_s": [one["time_to_first_token"]["value"] / 1000 for one in records],
        "gaps_s": sorted(gap / 1000 for gap in gaps_ms),
        "itl_p99_s": summary["inter_token_latency"]["p99"] / 1000,
        "largest_s": summary["inter_chunk_latency"]["max"] / 1000,
        "tok_per_s": summary["output_token_throughput"]["avg"],
    }


GUIDELLM = CommandLine("guidellm", _guidellm_words, _guidellm_read)
AIPERF = CommandLine("aiperf", _aiperf_words, _aiperf_read)
