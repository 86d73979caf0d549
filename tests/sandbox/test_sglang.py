"""The simulated SGLang: its failed starts as the log reader reports them, its image, and its address."""

from pathlib import Path

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.sglang import image
from sparkwright.sandbox.docker import images
from sparkwright.sandbox.vllm.command_line import PrintedOutput
from tests.engines.sglang.pretend import FakeSglang, wait_for_exit

LOG = engine.get_engine("sglang").log
IMAGE = "lmsysorg/sglang"


@pytest.fixture(autouse=True)
def is_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")


@pytest.mark.parametrize(
    ("flags", "fault", "code", "reason"),
    [
        (("--max-model-len", "8192"), "", 2, "unknown argument: --max-model-len 8192."),
        (("--chunked-prefill-size", "lots"), "", 2, "argument --chunked-prefill-size: invalid int value: 'lots'."),
        (("--kv-cache-dtype", "q8_0"), "", 2, "argument --kv-cache-dtype: invalid choice: 'q8_0'"),
        (("--max-r", "8", "--max-lo", "8"), "", 2, "ambiguous option: --max-lo could match"),
        (("--context-length", "256Ki"), "", 1, "User-specified context_length (262144) is greater"),
        (("--mem-fraction-static", "0.03"), "", 0, "mem-fraction-static 0.03 is too low for the weights."),
        ((), "oom", 0, "is too low for the weights."),
        ((), "crash-loop", 0, "an illegal memory access was encountered"),
    ],
)
def test_the_log_reader_reports_the_reason_of_a_failed_start(
    tmp_path: Path, flags: tuple[str, ...], fault: str, code: int, reason: str
) -> None:
    sglang = FakeSglang(fault=fault)
    assert wait_for_exit(sglang.server(tmp_path, *flags)) == code
    assert reason in str(read_log(sglang.log, LOG).failure.value)


def test_the_image_prints_the_version_and_the_options() -> None:
    def run(*words: str) -> str:
        output = images.REPOSITORIES[IMAGE].resolve_program([images.NVIDIA_ENTRYPOINT, *words], "0.5.23")
        assert isinstance(output, PrintedOutput)
        return output.text

    assert image.parse_version(run(*image.VERSION_COMMAND)) == "0.5.23"
    options = image.parse_options(run(*image.HELP_COMMAND))
    assert {name: options.get(name) for name in image.reference_shapes()} == image.reference_shapes()
