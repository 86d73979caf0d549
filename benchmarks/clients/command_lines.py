"""Clients that are programs: guidellm and aiperf, in the venv .bench/clients (7 GB with PyTorch).

Both create prompts with a tokenizer. They use one of 500 words, in a Hugging Face cache for this run, so that nothing is
downloaded.
"""

import json
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients import TOKENS, Absent, Report
from benchmarks.clients.libraries import run_client
from benchmarks.common import TOP

VENV = Path(os.environ.get("CLIENTS_VENV", TOP / ".bench/clients"))
PINNED = {"guidellm": "0.8.1", "aiperf": "0.13.0"}
TOKENIZER = "exact/words"
WORDS = 500
PROMPT_TOKENS = 16


@dataclass(frozen=True)
class CommandLine:
    """A program. words returns its arguments for (url, streams, requests, folder); read reads its results, without the cost."""

    name: str
    words: Callable[[str, int, int, Path], list[str]]
    read: Callable[[Path], dict[str, Any]]

    def run(self, url: str, streams: int, folder: Path) -> Report:
        """Run this many concurrent streams, one request each."""
        return self._run(url, streams, streams, folder)

    def start_cpu_s(self, url: str, streams: int, folder: Path) -> float:
        """Return the CPU time with a single request: the program's start, with the workers for this many streams."""
        return self._run(url, streams, 1, folder).cpu_s

    def _run(self, url: str, streams: int, requests: int, folder: Path) -> Report:
        results = folder / "results"
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(write_tokenizer(folder)), "NO_COLOR": "1"}
        words = [str(VENV / "bin" / self.name), *self.words(url, streams, requests, results)]
        return Report(cpu_s=run_client(words, results, env).cpu_s, **self.read(results))


def install(name: str) -> CommandLine:
    """Return a program. If it is missing, both are installed together, as they share dependencies. Raises Absent."""
    if not (VENV / "bin" / name).exists():
        packages = [f"{package}=={version}" for package, version in PINNED.items()]
        print(f"installing {' '.join(packages)} into {VENV}: some gigabytes, once", flush=True)
        if not (VENV / "bin/pip").exists():
            venv.create(VENV, with_pip=True)
        if subprocess.run([str(VENV / "bin/pip"), "install", "--quiet", *packages], check=False).returncode:
            raise Absent(f"pip can't install {name} {PINNED[name]}")
    return {"guidellm": GUIDELLM, "aiperf": AIPERF}[name]


def write_tokenizer(folder: Path) -> Path:
    """Write a word-level tokenizer into a cache of huggingface_hub, and return the cache's home."""
    home, commit = folder / "huggingface", "0" * 40
    repository = home / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    if snapshot.exists():
        return home
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    vocabulary = {word: n for n, word in enumerate(["<unk>", "</s>", "word", *(f"w{n}" for n in range(WORDS))])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    for name, content in {
        "tokenizer": tokenizer,
        "tokenizer_config": settings,
        "config": {"model_type": "llama"},
    }.items():
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


def _read_guidellm(folder: Path) -> dict[str, Any]:
    """Read guidellm's results. It keeps only the times of the first and last token: its token latencies are means per request."""
    results = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
    itl = results["metrics"]["inter_token_latency_ms"]["successful"]
    return {
        "ttft_s": [request["time_to_first_token_ms"] / 1000 for request in results["requests"]["successful"]],
        "gaps_s": None,
        "itl_p99_s": itl["percentiles"]["p99"] / 1000,
        "largest_s": itl["max"] / 1000,
        "tok_per_s": results["metrics"]["output_tokens_per_second"]["successful"]["mean"],
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


def _read_aiperf(folder: Path) -> dict[str, Any]:
    """Read aiperf's results: "inter token latency" is a mean per request, "inter chunk latency" has each gap."""
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    records = [json.loads(line)["metrics"] for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    gaps_ms = (gap for record in records for gap in record["inter_chunk_latency"]["value"])
    return {
        "ttft_s": [record["time_to_first_token"]["value"] / 1000 for record in records],
        "gaps_s": sorted(gap / 1000 for gap in gaps_ms),
        "itl_p99_s": summary["inter_token_latency"]["p99"] / 1000,
        "largest_s": summary["inter_chunk_latency"]["max"] / 1000,
        "tok_per_s": summary["output_token_throughput"]["avg"],
    }


GUIDELLM = CommandLine("guidellm", _guidellm_words, _read_guidellm)
AIPERF = CommandLine("aiperf", _aiperf_words, _read_aiperf)
