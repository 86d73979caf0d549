"""Exits of the sandbox's SGLang: refusals of its parser, too little memory, a missing file; each as our reader reports it."""

from pathlib import Path

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.sglang import image
from sparkwright.measure import http_probe
from sparkwright.sandbox.docker import images
from sparkwright.sandbox.docker.images import PrintedOutput
from tests.engines.sglang.pretend import FakeSglang, serving, wait_for_exit
from tests.remote.sshd import free_port

LOG = engine.get_engine("sglang").log
IMAGE = "lmsysorg/sglang"


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")


@pytest.mark.parametrize(
    ("flags", "fault", "code", "sentence"),
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
def test_an_end_is_read_as_what_it_is(
    tmp_path: Path, flags: tuple[str, ...], fault: str, code: int, sentence: str
) -> None:
    value = FakeSglang(fault=fault)
    assert wait_for_exit(value.server(tmp_path, *flags)) == code
    assert sentence in str(read_log(value.log, LOG).failure.value)


def test_its_image_tells_its_version_and_its_options() -> None:
    def printed(*words: str) -> str:
        output = images.REPOSITORIES[IMAGE].program([images.NVIDIA_ENTRYPOINT, *words], "0.5.23")
        assert isinstance(output, PrintedOutput)
        return output.text

    assert image.parse_version(printed(*image.ASK_VERSION)) == "0.5.23"
    options = image.parse_options(printed(*image.ASK_OPTIONS))
    assert {name: options.get(name) for name in image.reference_shapes()} == image.reference_shapes()


@pytest.mark.parametrize(("host", "reached"), [((), False), (("--host", "0.0.0.0"), True)])
def test_without_a_host_it_is_out_of_reach_behind_its_published_port(
    tmp_path: Path, host: tuple[str, ...], reached: bool
) -> None:
    """It listens on its container's own loopback unless --host says otherwise."""
    port = free_port()
    with serving(FakeSglang(), tmp_path, "--sleep-on-idle", *host, published=port):
        assert (http_probe.send_request(f"http://127.0.0.1:{port}", "/health").status == 200) == reached
