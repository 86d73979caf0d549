"""The `bench.*` commands, which run experiments and read their results."""

from __future__ import annotations

from typing import Any

from sparkwright.cli.framework.command import Command, Option, build_command, command

COMMON_OPTIONS: tuple[Option, ...] = (
    ("host", "", "the host to measure, where the measurement also runs"),
    ("name", "", "the experiment's name: results/NAME (default: COMMAND-HOST, or COMMAND-ADDRESS with --url)"),
    ("again", False, "start over, even if the last experiment of this name is unfinished"),
    ("seed", 1, "random seed for lengths, order and arrivals (default 1)"),
    ("json", False, "events as JSON lines; with --url, the results instead"),
    ("wait", False, "wait for the host's lock"),
)
URL_OPTIONS: tuple[Option, ...] = (
    ("url", "", "instead of a host: any OpenAI-compatible base URL, measured from here"),
    ("model", "", "with --url: the served model to measure (default: the first that the server lists)"),
)
REPEAT_OPTION: Option = (
    "repeat",
    1,
    "number of times to measure each load; with two arms, number of A B B A rounds (default 1)",
)
RECIPE_OPTION: Option = ("recipe", "", "with --flag: vary a flag of this recipe instead of the host's")
ARM_OPTIONS: tuple[Option, ...] = (
    ("a", "", "recipe of the first arm"),
    ("b", "", "recipe of the second arm"),
    (
        "flag",
        "",
        "instead of two recipes, vary a flag of the host's recipe: chunked-prefill (on, off), NAME or NAME=VALUE (without, with)",
    ),
    ("values", "", "with --flag NAME: two values to compare: 2,4"),
    RECIPE_OPTION,
)
TEMPERATURE_OPTION: Option = (
    "temperature",
    "",
    "sampling temperature: 0.7, or 0,0.7 to run each load at both (default 0: greedy)",
)
RATE_OPTION: Option = ("rate", "", "instead of --concurrency: arrivals per second, Poisson distributed: 0.5,1,2")
SERVE_OPTIONS: tuple[Option, ...] = (
    (
        "concurrency",
        "",
        "numbers of concurrent requests: 1,2,4,8, or 1..8 (default: 1..8 for serve, 1,8 for ab, 8 for sweep)",
    ),
    RATE_OPTION,
    (
        "requests",
        0,
        "number of requests at each concurrency (default: 4 for each concurrent one, at least 16) or rate (32)",
    ),
    ("dataset", "", "a file of prompts: ShareGPT's JSON, or JSON lines with `prompt` (default: ShareGPT's lengths)"),
    ("prompt-tokens", 0, "tokens of every prompt, instead of ShareGPT's lengths; not with --dataset"),
    ("output-tokens", 0, "tokens of every answer (default: ShareGPT's lengths, or those in the dataset)"),
)
LONG_TOKENS_OPTION: Option = (
    "long-tokens",
    0,
    "tokens of the long prompt (default: 4 steps of the largest budget, at least 4096, at most what fits)",
)
LOADS_OPTION: Option = (
    "loads",
    "",
    "loads to send: smoke, serve, hol1, hol2, itl, mixed, depth (default: serve, hol1, and for ab also hol2, itl)",
)
SMOKE_OPTIONS: tuple[Option, ...] = (
    ("prompt-tokens", 0, "tokens of a prompt (default 2048)"),
    ("output-tokens", 0, "tokens of an answer (default 128)"),
    ("spark-arena", False, "also print the result as rows of llama-benchy's table (pp2048, tg128)"),
)
AXIS_OPTIONS: tuple[Option, ...] = (
    (
        "flag",
        (),
        "a flag of the host's recipe, or a key inside one that takes JSON (speculative-config.num_speculative_tokens)",
    ),
    ("values", (), "the flag's values: 1,2,3; `unset` leaves the flag out. Pass --flag and --values twice for a grid"),
    ("max-num-batched-tokens", "", "short for --flag max-num-batched-tokens --values: 256,512,1024,2048,4096"),
)
MIXED_OPTIONS: tuple[Option, ...] = (
    ("concurrency", "", "number of concurrent requests (default 8)"),
    ("rate", "", "instead of --concurrency: arrivals per second, Poisson distributed: 0.5"),
    ("requests", 0, "number of requests, a fifth of them long (default: 20 long, 80 short)"),
)
DEPTH_OPTIONS: tuple[Option, ...] = (
    ("depth", 0, "tokens of the longest prompt (default: as many as fit the server's context)"),
    ("streams", 0, "number of concurrent prompts of each length (default 1)"),
    ("output-tokens", 0, "tokens of every answer (default 128)"),
)

FRESH_START_NOTE = "Each arm starts a new server. The previous server is restored at the end."

#: each command with its options, in addition to COMMON_OPTIONS, and its help
COMMANDS: tuple[tuple[str, tuple[Option, ...], str], ...] = (
    (
        "smoke",
        (*URL_OPTIONS, REPEAT_OPTION, TEMPERATURE_OPTION, *SMOKE_OPTIONS),
        "Measure one stream: prefill and decode rate, TTFT.",
    ),
    (
        "serve",
        (*URL_OPTIONS, REPEAT_OPTION, TEMPERATURE_OPTION, *SERVE_OPTIONS),
        "Measure throughput and latency under load.\n\nMeasures at each concurrency or arrival rate.",
    ),
    (
        "ab",
        (*ARM_OPTIONS, REPEAT_OPTION, LOADS_OPTION, TEMPERATURE_OPTION, *SERVE_OPTIONS, LONG_TOKENS_OPTION),
        f"Compare two recipes of one image, or one flag on and off.\n\nThe arms run in the order A B B A. {FRESH_START_NOTE}",
    ),
    (
        "sweep",
        (
            *AXIS_OPTIONS,
            RECIPE_OPTION,
            REPEAT_OPTION,
            LOADS_OPTION,
            TEMPERATURE_OPTION,
            *SERVE_OPTIONS,
            LONG_TOKENS_OPTION,
        ),
        f"Measure several values of a flag, or of two in a grid.\n\n{FRESH_START_NOTE}",
    ),
    (
        "hol",
        (*URL_OPTIONS, *ARM_OPTIONS, REPEAT_OPTION, TEMPERATURE_OPTION, LONG_TOKENS_OPTION),
        "Measure head-of-line blocking by long prompts.",
    ),
    (
        "itl",
        (
            *URL_OPTIONS,
            *ARM_OPTIONS,
            REPEAT_OPTION,
            TEMPERATURE_OPTION,
            LONG_TOKENS_OPTION,
            ("output-tokens", 0, "tokens of the stream (default 512)"),
        ),
        "Measure inter-token latency during long prompts.",
    ),
    (
        "mixed",
        (*URL_OPTIONS, *ARM_OPTIONS, REPEAT_OPTION, TEMPERATURE_OPTION, LONG_TOKENS_OPTION, *MIXED_OPTIONS),
        "Measure long and short prompts in one queue.",
    ),
    (
        "context",
        (REPEAT_OPTION, *DEPTH_OPTIONS),
        "Measure speed and memory by context length.\n\n"
        "Prompts double in length up to the server's context. A guard stops the server before the host runs out of memory.",
    ),
)


def _build_command(name: str, options: tuple[Option, ...], doc: str) -> Command:
    def body(**arguments: Any) -> int:
        from sparkwright.app import experiments

        return experiments.run(name, arguments)

    return build_command(body, name, doc, (*COMMON_OPTIONS, *options))


@command(
    positional=["first", "second"],
    help={
        "first": "results: a file, or the name of an experiment; also the output of `vllm bench serve`",
        "second": "the results to compare with",
        "json": "the differences as JSON",
    },
)
def compare(first: str, second: str, json: bool = False) -> None:
    """Compare two results, figure by figure.

    Prints each figure of each load that both contain, and the ratio.
    """
    from sparkwright.app import experiments

    experiments.compare(first, second, json=json)


@command(
    name="import",
    positional=["file"],
    help={
        "file": "the JSON that `vllm bench serve --save-result` wrote, or its printed text",
        "name": "name of the results (default: the file's)",
        "json": "the results as they were imported",
    },
)
def import_results(file: str, name: str = "", json: bool = False) -> None:
    """Import results of `vllm bench serve`."""
    from sparkwright.app import experiments

    experiments.import_results(file, name, json=json)


@command(
    positional=["results"],
    help={
        "results": "a results file, the folder of one, or the name of an experiment",
        "json": "the results themselves",
    },
)
def report(results: str, json: bool = False) -> None:
    """Print an experiment's tables, and rebuild its HTML report.

    Also writes results.json and results.csv again. For any other file, such as the output of `vllm bench serve`, it only prints
    the tables.
    """
    from sparkwright.app import experiments

    experiments.report(results, json=json)


@command(name="list", help={"json": "one JSON object per experiment"})
def list_experiments(json: bool = False) -> None:
    """List the experiments of this project."""
    from sparkwright.app import experiments

    experiments.list_experiments(json=json)


TASKS = {"bench": [*(_build_command(*row) for row in COMMANDS), compare, import_results, report, list_experiments]}
