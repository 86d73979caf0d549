"""Names and values of secrets are recognized, and similar ones are not."""

import pytest

from sparkwright.trust.secret_names import is_secret, is_secret_name, url_password


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "WANDB_API_KEY", "hub_password", "DB_PASSWORD_OLD", "CLIENT_SECRET", "aws-secret-access-key",
        "apiKey", "BECOME_PASSWORD", "TOKEN", "GH_PAT", "TLS_PASSPHRASE",
    ],
)  # fmt: skip
def test_name_of_a_secret_is_recognized(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret(name, "correct horse")


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "TLS_KEY_FILE", "HF_TOKEN_PATH", "SSH_PUBLIC_KEY", "KEYBOARD",
        "cache_key", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "PAD_TOKEN", "MONKEY", "AWS_ACCESS_KEY_ID", "ollama", "PATH",
        "COMPATIBLE",
    ],
)  # fmt: skip
def test_similar_name_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)
    assert not is_secret(name, "correct horse")


@pytest.mark.parametrize(
    "value", ["", "1", "0.5", "true", "off", "{{ hub_token }}", "$TOKEN", "${TOKEN}", "HF_TOKEN", None, 7, ["a"]]
)
def test_settings_and_references_are_no_secrets(value: object) -> None:
    assert not is_secret("MY_TOKEN", value)


def test_text_between_references_is_a_secret() -> None:
    assert is_secret("MY_TOKEN", "{{ a }}hunter2{{ b }}")
    assert not is_secret("MY_TOKEN", "{{ a }}{{ b }}")


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("http://ops:Tr0ub4dor-3@proxy:3128", "Tr0ub4dor-3"),
        ("HTTPS://:p%40ss@proxy", "p%40ss"),
        ("http://ops@proxy:3128", ""),
        ("http://ops:@proxy", ""),
        ("http://ops:{{ word }}@proxy", ""),
        ("http://ops:${WORD}@proxy", ""),
        ("http://proxy:3128/a:b@c", ""),
        ("10.0.0.1:3128", ""),
    ],
)
def test_password_in_a_url_is_found(url: str, password: str) -> None:
    assert url_password(url) == password
    assert is_secret("ANY_NAME", url) == bool(password)


@pytest.mark.parametrize("value", ["hf_" + "a" * 34, "sk-" + "b" * 48, "github_pat_" + "c" * 40])
def test_token_with_a_known_prefix_is_a_secret_under_any_name(value: str) -> None:
    assert is_secret("HUB", value)
