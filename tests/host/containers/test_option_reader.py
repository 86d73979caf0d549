"""Options of containers that other programs created through Docker's API."""

from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host.containers import inspection, option_reader


def make_container(**config: Any) -> dict[str, Any]:
    """Return the inspect data of a container with this `Config`."""
    return {
        "Id": "ab" * 32,
        "Name": "/x",
        "Image": "sha256:1d",
        "State": {"Status": "running", "Running": True},
        "Config": config,
        "HostConfig": {"RestartPolicy": {"Name": "no"}},
    }


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["CMD-SHELL", "test -e /ready"], "test -e /ready"),
        (["CMD-SHELL", "true", "ignored"], "true"),
        (["CMD-SHELL"], ""),
        (["CMD"], ""),
        (["CMD", "test", "-e", "/a b"], "test -e '/a b'"),
        (["NONE"], "NONE"),
    ],
)
def test_a_health_check_is_read_as_a_shell_command(words: list[str], command: str) -> None:
    container = inspection.validate_container(make_container(Healthcheck={"Test": words}))
    assert option_reader.read_options(container, {})["healthcheck"] == {"test": command}


@pytest.mark.parametrize("key", ["Interval", "Timeout", "StartPeriod", "Retries"])
def test_a_health_check_with_a_text_instead_of_a_number_is_refused(key: str) -> None:
    with pytest.raises(Failed, match=key):
        inspection.validate_container(make_container(Healthcheck={"Test": ["CMD", "true"], key: "9s"}))
