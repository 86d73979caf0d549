"""The engine of a run, and the mark for tests that need the newest release."""

import signal

import pytest

from tests.real_engine.engine import VERSION, Engine, ensure_installed
from tests.real_engine.releases.install import NEWEST, EngineMissing


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM stops the engine too
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {text}", flush=True)

    try:
        return ensure_installed(say)
    except EngineMissing as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture
def newest() -> None:
    """Skip a test that applies to the newest release only."""
    if VERSION != NEWEST:
        pytest.skip(f"only tested with {NEWEST}")
