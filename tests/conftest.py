"""Selection and order of the tests.

Four workers run most of them, because most tests wait for something. One more worker runs the tests that share the Docker Engine,
and one those that share the simulated Sparks. `make test` leaves the slow ones out (SLOW, CI_ONLY), `make test-ci` runs some of
these too (CI_PARTS), `make test-all` runs all. No failed test is run again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

#: tests that share the simulated Sparks: one at a time
BED = ("tests/bed/",)
#: tests that share this machine's Docker Engine: one at a time
DOCKER = (
    "tests/cluster/",
    "tests/registry/",
    "tests/doctor/test_diagnose_docker.py",
    "tests/escape/",
    "tests/gateway/test_container.py",
    "tests/guard/test_start_guard.py",
    "tests/guard/test_service.py",
    "tests/project/importing/test_container.py",
    "tests/modules/test_engine_of_log.py",
    "tests/host/test_gpu_processes.py",
    "tests/host/containers/test_container_files.py",
    "tests/modules/proof/test_inspect_server.py",
    "tests/host/containers/test_log_reader.py",
    "tests/host/containers/test_replacement.py",
    "tests/host/containers/test_server_key.py",
    "tests/modules/server/test_stop.py",
    "tests/project/test_docker_options.py",
    "tests/project/test_docker_spellings.py",
    "tests/real_llama/test_container.py",
    "tests/real_llama/test_described.py",
    "tests/real_llama/test_interim.py",
    "tests/real_llama/test_turns.py",
)
#: long files whose tests have their own sandboxes: their tests are distributed individually, other files as a whole
ONE_BY_ONE = ("tests/e2e/test_deploy.py", "tests/e2e/test_faults.py", "tests/e2e/test_restart.py")
#: left out by `make test`, because they take half of the time, but run by CI: deploys through each interface, waits for deadlines
CI_ONLY = (
    "tests/e2e/test_deploy.py::test_a_restart_keeps_the_container_and_verifies_it",
    "tests/e2e/test_deploy.py::test_plan_shows_each_changed_field_and_deploy_applies_them",
    "tests/e2e/test_json.py",
    "tests/engines/log/test_reader.py::test_chunk_boundaries_change_nothing",
    "tests/engines/log/test_reader.py::test_memory_does_not_grow_with_the_log",
    "tests/fuzz/test_commands.py",
    "tests/fuzz/test_patterns.py",
    "tests/gateway/test_clients.py",
    "tests/gateway/test_progress.py",
    "tests/runner/cluster/test_meeting_at_barriers.py",
    "tests/runner/test_become.py",
    "tests/sandbox/vllm/test_adapters.py",
    "tests/transport/test_every_client.py",
)
#: left out by `make test`: a real engine, registry, sshd, browser or cron, a deploy for each test, many hosts
SLOW = (
    *BED,
    *DOCKER,
    "tests/api/test_fleet.py",
    "tests/cli/test_system_errors.py",
    "tests/e2e/",
    "tests/faults/",
    "tests/fleet/test_hundred_hosts.py",
    "tests/fleet/test_looking.py",
    "tests/fleet/test_rolling.py",
    "tests/fuzz/test_ssh_commands.py",
    "tests/html/test_experiment_page.py",
    "tests/app/test_catalogue.py",
    "tests/project/importing/test_running.py",
    "tests/measure/",
    "tests/mcp_server/test_server.py",
    "tests/host/models/test_transfer_process.py",
    "tests/modules/test_real_cron.py",
    "tests/modules/proof/test_probes.py",
    "tests/modules/proof/test_smoke_test.py",
    "tests/host/models/test_transfer.py",
    "tests/remote/",
    "tests/runner/cluster/",
    "tests/tools/",
)
#: files of these folders that `make test` runs nevertheless
NOT_SLOW = (
    "tests/e2e/test_deploy.py",
    "tests/remote/test_local.py",
    "tests/remote/ssh/test_ssh_config.py",
)
#: slow tests that `make test-ci` and CI run: the most important ones of each real part. docs/testing.md lists the others with reasons;
#: tests/docs/test_pages.py compares the two
CI_PARTS = (
    *CI_ONLY,
    # the API, MCP and the command line
    "tests/api/test_fleet.py::test_a_deploy_streams_events_and_returns_a_typed_result",
    "tests/api/test_fleet.py::test_an_unreachable_host_is_a_row_or_a_typed_error",
    "tests/api/test_fleet.py::test_mistakes_raise_exceptions_that_name_them",
    "tests/cli/test_system_errors.py::test_full_disk_is_named_by_each_command",
    "tests/cli/test_system_errors.py::test_output_on_a_full_disk_is_an_error",
    "tests/cli/test_system_errors.py::test_init_on_a_full_disk_leaves_no_files_and_can_be_repeated",
    "tests/mcp_server/test_server.py::test_a_planned_change_is_applied_once",
    "tests/mcp_server/test_server.py::test_by_default_only_read_tools_exist",
    "tests/mcp_server/test_server.py::test_every_read_tool_returns_data_without_secrets",
    "tests/mcp_server/test_server.py::test_standard_output_contains_only_the_protocol",
    # probes of a simulated server
    "tests/modules/proof/test_probes.py::test_each_probe_is_named_once",
    "tests/modules/proof/test_probes.py::test_messages_and_responses_apis_are_probed",
    "tests/modules/proof/test_probes.py::test_missing_answer_is_inconclusive",
    "tests/modules/proof/test_probes.py::test_null_content_names_the_parser_flag",
    "tests/modules/proof/test_probes.py::test_server_with_the_right_parsers_passes_all_probes",
    # simulated Sparks: ssh, systemd and a Docker Engine in each, a registry
    "tests/bed/test_cluster.py::test_cluster_is_verified_healed_and_restored_together",
    "tests/bed/test_deploy.py::test_deploy_on_a_bare_host_is_verified_and_idempotent",
    "tests/bed/test_deploy.py::test_failed_change_restores_the_previous_server",
    "tests/bed/test_deploy.py::test_dropped_connection_does_not_stop_a_deploy",
    "tests/bed/test_health.py::test_hanging_server_is_restarted_by_the_timer",
    "tests/bed/test_host_settings.py::test_host_settings_are_previewed_made_and_undone",
    # this machine's Docker Engine, with a registry, HAProxy, the real llama-server; two engines as a cluster
    "tests/cluster/test_deploy.py::test_both_ranks_are_verified_and_a_second_deploy_changes_nothing",
    "tests/doctor/test_diagnose_docker.py",
    "tests/escape/test_escapes.py::test_gateway_cannot_escape",
    "tests/escape/test_escapes.py::test_server_cannot_escape_during_start_verification_restart_and_pruning[0777]",
    "tests/gateway/test_container.py",
    "tests/guard/test_start_guard.py",
    "tests/project/importing/test_container.py",
    "tests/host/containers/test_container_files.py",
    "tests/host/containers/test_replacement.py",
    "tests/host/containers/test_server_key.py",
    "tests/modules/proof/test_inspect_server.py",
    "tests/modules/server/test_stop.py",
    "tests/project/test_docker_spellings.py::test_recipe_accepts_or_refuses_spelling",
    "tests/real_llama/test_container.py::test_engines_replace_each_other_on_one_port",
    "tests/registry/test_docker_image.py",
    "tests/registry/test_lock_image.py",
    "tests/registry/test_send_image.py",
    # sshd on loopback, cron, a browser
    "tests/html/test_experiment_page.py",
    "tests/modules/test_real_cron.py::test_cron_runs_the_check_and_an_uninstall_leaves_nothing",
    "tests/remote/test_first_host.py::test_init_asks_three_questions_and_finds_the_model_on_disk",
    "tests/remote/test_first_host.py::test_unreachable_host_is_a_row_and_exit_code_3",
    "tests/remote/test_runtime.py::test_archive_is_reproducible",
    "tests/remote/test_runtime.py::test_changed_file_of_the_same_size_is_replaced",
    "tests/remote/test_runtime.py::test_every_module_imports_from_the_runtime_alone",
    "tests/remote/test_runtime.py::test_incomplete_archive_leaves_nothing",
    "tests/remote/test_runtime.py::test_runtime_has_no_packages_of_the_laptop",
    "tests/remote/test_secret_of_a_deploy.py::test_server_key_is_only_in_its_file",
    "tests/remote/ssh/test_ssh_link.py",
    # deploys on the sandbox
    "tests/e2e/test_faults.py::test_a_fault_fails_the_deploy_with_its_reason_and_the_old_server_serves[slow]",
    "tests/e2e/test_faults.py::test_a_first_deploy_that_fails_leaves_no_crash_loop",
    "tests/e2e/test_gateway.py::test_a_gateway_is_verified_before_it_gets_its_restart_policy",
    "tests/e2e/test_gateway.py::test_a_rollback_restores_the_previous_configuration_without_cutting_a_stream",
    "tests/fleet/test_rolling.py",
    "tests/tools/test_benchmarks.py",
    "tests/tools/test_earlier_copies.py",
    "tests/tools/test_lazy_imports.py",
    "tests/tools/test_stale_quotes.py",
)
#: the longest of the quick files, which are started first
LONG = (
    "tests/engines/log/test_reader.py", "tests/modules/model/test_hf_model.py", "tests/host/models/test_peer.py",
    "tests/real_llama/", "tests/runner/test_request.py",
)  # fmt: skip
#: run the whole fault matrix, several of its cells at a time
EVERY_FAULT = os.environ.get("SPARKWRIGHT_FAULTS") == "all"


def pytest_configure() -> None:
    """Restore the handler of Ctrl-C, which a shell ignores for background jobs, and which the commands under test inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("COLUMNS", "LINES"):  # pytest imports readline, which exports them outside of os.environ
        os.environ.pop(name, None)
        os.unsetenv(name)
    # compiling the package again in a thousand processes takes a third of the time
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without selected tests: this saves half of a worker's start."""
    if collection_path.suffix != ".py":
        return None
    options, name = config.option.markexpr, collection_path.relative_to(config.rootpath).as_posix()
    left_out = is_slow(name) and "not slow" in options and not ("ci" in options and is_in_ci(name))
    return True if left_out else None


def is_slow(nodeid: str) -> bool:
    """Return True if `make test` leaves this file or test out."""
    return nodeid.startswith(CI_ONLY) or (nodeid.startswith(SLOW) and not nodeid.startswith(NOT_SLOW))


def is_in_ci(nodeid: str) -> bool:
    """Return True if CI runs this slow test, or any test of this slow file."""
    return any(nodeid.startswith(part) or part.startswith(f"{nodeid}::") for part in CI_PARTS)


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_slow(item.nodeid):
        item.add_marker(pytest.mark.slow)
        if is_in_ci(item.nodeid):
            item.add_marker(pytest.mark.ci)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the whole fault matrix unless `make test-faults` asks for it, and put the longest tests first."""
    left_out = [] if EVERY_FAULT else [item for item in items if item.get_closest_marker("whole")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]
    groups = Counter(worker_group(item.nodeid) for item in items)
    items.sort(key=lambda item: (start_order(item), -groups[worker_group(item.nodeid)]))


def start_order(item: pytest.Item) -> int:
    """Return a test's position in the order of starts: the simulated Sparks first, short files last."""
    order = (BED, DOCKER, (*SLOW, *CI_ONLY, *LONG))
    return next((n for n, paths in enumerate(order) if item.nodeid.startswith(paths)), len(order))


def worker_group(nodeid: str) -> str:
    """Return the group of tests that one worker runs in order. (xdist's groups by mark have no effect under pytest 9.)"""
    for name, folders in (("bed", BED), ("docker", DOCKER)):
        if nodeid.startswith(folders):
            return name
    one_by_one = ("tests/faults/", *ONE_BY_ONE) if EVERY_FAULT else ONE_BY_ONE
    return nodeid if nodeid.startswith(one_by_one) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # it sorts by number of tests, which would put the bed last

    class Grouped(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(nodeid)

    return Grouped(config, log)
