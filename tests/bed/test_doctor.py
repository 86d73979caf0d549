"""`doctor` on a real Debian over ssh: groups of a login, logind, locales; and a fix."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed.conftest import BedProject

RESTORE_COMMAND = (
    "sudo usermod -aG docker ops; sudo loginctl disable-linger ops; sudo rm -f /etc/default/locale; "
    "sudo rm -f /etc/systemd/logind.conf.d/99-test.conf; sudo chmod 660 /var/run/docker.sock"
)


@pytest.fixture
def spark(lab: BedProject) -> Iterator[BedProject]:
    lab.on("spark1", RESTORE_COMMAND)
    yield lab
    lab.on("spark1", RESTORE_COMMAND)


def run_doctor(lab: BedProject, *words: str) -> dict[str, Any]:
    result = lab.run("doctor", "--host", "spark1", "--json", *words)
    answer = result.recap
    assert answer["exit"] == result.code
    return {**answer, "by_check": {finding["check"]: finding for finding in answer["findings"]}}


def test_fix_adds_the_user_to_the_docker_group_if_confirmed(spark: BedProject) -> None:
    spark.on("spark1", "sudo gpasswd -d ops docker")
    before = run_doctor(spark)
    assert before["exit"] == 1
    assert before["by_check"]["docker"]["verdict"] == "bad"
    assert before["by_check"]["docker"]["fix"] == "sudo usermod -aG docker ops"

    refused = spark.run("doctor", "--host", "spark1", "--fix")
    assert "spark1: sudo usermod -aG docker ops" in refused.out
    assert "stdin is not a terminal; pass --yes." in refused.err
    assert "ops" not in spark.on("spark1", "getent group docker").rpartition(":")[2]

    fixed = run_doctor(spark, "--fix", "--yes")
    assert "docker group" in fixed["fixed"]
    assert fixed["by_check"]["docker"]["verdict"] == "ok", fixed["by_check"]["docker"]
    assert "ops" in spark.on("spark1", "getent group docker").rpartition(":")[2]


def test_warning_about_logout_until_lingering_is_enabled(spark: BedProject) -> None:
    finding = run_doctor(spark)["by_check"]["logout"]
    assert finding["verdict"] == "warning"
    assert "RemoveIPC=yes by default" in finding["evidence"]
    drop_in = "/etc/systemd/logind.conf.d/99-test.conf"
    spark.on(
        "spark1", f"sudo mkdir -p /etc/systemd/logind.conf.d; printf '[Login]\\nRemoveIPC=no\\n' | sudo tee {drop_in}"
    )
    assert f"RemoveIPC=no in {drop_in}" in run_doctor(spark)["by_check"]["logout"]["evidence"]
    fixed = run_doctor(spark, "--fix", "--yes")
    assert "linger" in fixed["fixed"], fixed["not_fixed"]
    assert fixed["by_check"]["logout"]["verdict"] == "ok"
    assert spark.on("spark1", "loginctl show-user ops -p Linger --value") == "yes"


def test_missing_locale_is_a_warning(spark: BedProject) -> None:
    spark.on("spark1", "echo LANG=de_DE.UTF-8 | sudo tee /etc/default/locale")
    finding = run_doctor(spark)["by_check"]["locale"]
    assert finding["verdict"] == "warning"
    assert "de_DE.UTF-8" in finding["evidence"]
    spark.on("spark1", "echo LANG=C.UTF-8 | sudo tee /etc/default/locale")
    assert run_doctor(spark)["by_check"]["locale"]["verdict"] == "ok"


def test_unreachable_host_is_reported_with_the_others(spark: BedProject) -> None:
    (spark.root / "hosts/gone.yml").write_text("address: 127.0.0.1\nport: 1\n")
    result = spark.run("doctor", "--host", "spark1,gone", "--json")
    rows = {row["host"]: row for row in result.events}
    assert "unreachable" in rows["gone"]["error"]
    assert rows["spark1"]["findings"]
    assert result.code in (1, 3)
