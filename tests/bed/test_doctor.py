"""`doctor` on a real Debian over ssh: groups of a login, logind, locales; and one thing that it mends."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed.conftest import Lab

pytestmark = pytest.mark.bed

AS_IT_WAS = (
    "sudo usermod -aG docker ops; sudo loginctl disable-linger ops; sudo rm -f /etc/default/locale; "
    "sudo rm -f /etc/systemd/logind.conf.d/99-test.conf; sudo chmod 660 /var/run/docker.sock"
)


@pytest.fixture
def spark(lab: Lab) -> Iterator[Lab]:
    lab.on("spark1", AS_IT_WAS)
    yield lab
    lab.on("spark1", AS_IT_WAS)


def asked(lab: Lab, *words: str) -> dict[str, Any]:
    result = lab.run("doctor", "--host", "spark1", "--json", *words)
    answer = json.loads(result.out.splitlines()[-1])
    assert answer["exit"] == result.code
    return {**answer, "by": {finding["check"]: finding for finding in answer["findings"]}}


def test_a_user_outside_the_docker_group_is_put_into_it_when_agreed(spark: Lab) -> None:
    spark.on("spark1", "sudo gpasswd -d ops docker")
    before = asked(spark)
    assert before["exit"] == 1
    assert before["by"]["docker"]["verdict"] == "bad"
    assert before["by"]["docker"]["fix"] == "sudo usermod -aG docker ops"

    refused = spark.run("doctor", "--host", "spark1", "--fix")
    assert "spark1: sudo usermod -aG docker ops" in refused.out
    assert "stdin is not a terminal; pass --yes." in refused.err
    assert "ops" not in spark.on("spark1", "getent group docker").rpartition(":")[2]

    mended = asked(spark, "--fix", "--yes")
    assert "docker group" in mended["fixed"]
    assert mended["by"]["docker"]["verdict"] == "ok", mended["by"]["docker"]
    assert "ops" in spark.on("spark1", "getent group docker").rpartition(":")[2]


def test_what_a_logout_takes_away_is_told_until_the_user_lingers(spark: Lab) -> None:
    found = asked(spark)["by"]["logout"]
    assert found["verdict"] == "warning"
    assert "RemoveIPC=yes by default" in found["evidence"]
    drop_in = "/etc/systemd/logind.conf.d/99-test.conf"
    spark.on(
        "spark1", f"sudo mkdir -p /etc/systemd/logind.conf.d; printf '[Login]\\nRemoveIPC=no\\n' | sudo tee {drop_in}"
    )
    assert f"RemoveIPC=no in {drop_in}" in asked(spark)["by"]["logout"]["evidence"]
    mended = asked(spark, "--fix", "--yes")
    assert "linger" in mended["fixed"], mended["not_fixed"]
    assert mended["by"]["logout"]["verdict"] == "ok"
    assert spark.on("spark1", "loginctl show-user ops -p Linger --value") == "yes"


def test_a_locale_that_is_not_installed_is_told(spark: Lab) -> None:
    spark.on("spark1", "echo LANG=de_DE.UTF-8 | sudo tee /etc/default/locale")
    found = asked(spark)["by"]["locale"]
    assert found["verdict"] == "warning"
    assert "de_DE.UTF-8" in found["evidence"]
    spark.on("spark1", "echo LANG=C.UTF-8 | sudo tee /etc/default/locale")
    assert asked(spark)["by"]["locale"]["verdict"] == "ok"


def test_an_unreachable_host_is_told_beside_the_others(spark: Lab) -> None:
    (spark.root / "hosts/gone.yml").write_text("address: 127.0.0.1\nport: 1\n")
    result = spark.run("doctor", "--host", "spark1,gone", "--json")
    rows = {item["host"]: item for item in map(json.loads, result.out.splitlines())}
    assert "unreachable" in rows["gone"]["error"]
    assert rows["spark1"]["findings"]
    assert result.code in (1, 3)
