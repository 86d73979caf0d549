"""Errors of registries."""

from sparkwright.host.images import registry_documents


def test_a_message_of_docker_ends_as_a_sentence() -> None:
    for text in ("dial tcp: lookup registry.example.org: no such host", "lookup registry.example.org: no such host."):
        error = registry_documents.error_from_message("org/image:v1", text)
        assert "registry.example.org: no such host. Check the host's network" in str(error)
