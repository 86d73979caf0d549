"""Secrets are masked in texts about other people's containers, and in events."""

import base64
import json
import shlex
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.protocol.events import decode, encode, event
from sparkwright.trust import secret_patterns
from sparkwright.trust.redact import MASK, Redactor

KEY = "Zq7-kX9_wT4mB2nV8pL5"
#: in the forms of public compose files, docker commands, units, Kubernetes manifests and scripts for model servers, with an invented key
EXAMPLES = {
    "docker run -e": f"docker run -d --gpus all -e HF_TOKEN={KEY} -p 8000:8000 vllm/vllm-openai:latest --model a/b",
    "docker run --env": f'docker run --env "HUGGING_FACE_HUB_TOKEN={KEY}" --ipc=host vllm/vllm-openai --model a/b',
    "docker run quoted": f"docker run -e 'OPENAI_API_KEY={KEY}' ghcr.io/open-webui/open-webui:main",
    "vllm --api-key": f"vllm serve a/b --host 0.0.0.0 --api-key {KEY} --max-model-len 32768",
    "vllm --api-key=": f"python -m vllm.entrypoints.openai.api_server --model a/b --api-key={KEY}",
    "vllm with two keys": f"vllm serve a/b --api-key first-{KEY} second-{KEY} --port 8000",
    "shell -c": f'bash -c "vllm serve a/b --api-key {KEY} --port 8000"',
    "shell in JSON": json.dumps(["bash", "-c", f"exec vllm serve a/b --api-key '{KEY}' 2>&1 | tee /log"]),
    "JSON in a shell": f"""docker run img --config '{{"auth": {{"api_key": "{KEY}"}}, "port": 1}}'""",
    "JSON in JSON": json.dumps({"args": json.dumps({"master_key": KEY, "a": 1})}),
    "sglang": f"python3 -m sglang.launch_server --model-path a/b --api-key {KEY} --tp 1",
    "llama-server": f"llama-server -m /models/x.gguf --api-key {KEY} -ngl 99",
    "litellm": f"LITELLM_MASTER_KEY={KEY} litellm --config /app/config.yaml --port 4000",
    "export": f'export WANDB_API_KEY="{KEY}"; export NCCL_DEBUG=INFO; python train.py',
    "compose": f"services:\n  a:\n    environment:\n      - NGC_API_KEY={KEY}\n      - A=1\n",
    "compose mapping": f"environment:\n  VLLM_API_KEY: {KEY}\n  A: 1\n",
    "compose command": f"command:\n  - --model\n  - a/b\n  - --api-key\n  - {KEY}\n  - --port\n",
    "Kubernetes": f"env:\n- name: HF_TOKEN\n  value: {KEY}\n- name: A\n  value: b\n",
    "Kubernetes in JSON": json.dumps({"env": [{"name": "API_KEY", "value": KEY}]}),
    "systemd": f"Environment=VLLM_API_KEY={KEY}\nExecStart=/usr/bin/vllm serve a/b --port 8000\n",
    "systemd quoted": f'Environment="OPENAI_API_KEY={KEY}" "A=b"\n',
    "curl bearer": f'curl -fsS -H "Authorization: Bearer {KEY}" http://127.0.0.1:8000/v1/models || exit 1',
    "bearer in a log": f"request with Bearer {KEY} was rejected",
    "curl key": f"curl -H 'x-api-key: {KEY}' http://localhost:8000/health",
    "curl login": f"curl -u admin:{KEY} http://localhost:9090/-/healthy",
    "curl login with spaces": f"curl -u 'admin of all:{KEY} {KEY}' http://localhost:9090/",
    "curl double quotes": f'curl --proxy-user "admin:{KEY} {KEY}" http://localhost:9090/',
    "curl login in one word": f"curl --user='admin:{KEY} {KEY}' -uadmin:{KEY} http://localhost:9090/",
    "curl quoted word": f'curl "--user=admin:{KEY} {KEY}" http://localhost:9090/',
    "curl in JSON": json.dumps(["curl", "-u", f"admin:{KEY} {KEY}", "http://x/"]),
    "curl in shell in JSON": json.dumps(["sh", "-c", f'curl -u "admin:{KEY} {KEY}" http://x/']),
    "curl in YAML": f"test:\n  - curl\n  - -u\n  - 'admin:{KEY} {KEY}'\n  - http://x/\n",
    "curl passphrase": f"curl --pass '{KEY} {KEY}' --cert c.pem",
    "wget password": f"wget --user me --password '{KEY} {KEY}'",
    "wget --http-password=": f"wget --http-user=me --http-password={KEY} http://x/",
    "mysql": f"mysqladmin ping -h db -u root -p{KEY}",
    "wget": f"wget --header='Authorization: Basic {KEY}=' -qO- http://127.0.0.1/",
    "URL": f"postgresql://litellm:{KEY}@db:5432/litellm",
    "URL in a command": f"app --database-url redis://:{KEY}@redis:6379/0 --workers 4",
    "query": f"http://host/v1/models?api_key={KEY}&limit=1",
    "git clone": f"git clone https://{KEY}@github.com/x/y.git",
    "log of vLLM": f"non-default args: {{'model': 'a/b', 'api_key': ['{KEY}'], 'port': 8000}}",
    "Python error": f"ValueError: invalid headers {{'Authorization': 'Bearer {KEY}'}}",
    "redis": f"redis-server --requirepass {KEY} --appendonly yes",
    "sshpass": f"sshpass -p {KEY} ssh ops@spark1",
    "docker login": f"docker login -u me -p {KEY} nvcr.io",
    "grafana": f"GF_SECURITY_ADMIN_PASSWORD={KEY} /run.sh",
    "label of traefik": f"traefik.http.middlewares.auth.basicauth.users=ops:{KEY}",
    "cloudflared": f"tunnel --no-autoupdate run --token {KEY}",
    "here-document": f"cat > .env <<EOF\nSECRET_KEY={KEY}\nDEBUG=0\nEOF",
    "Dockerfile": f"ENV HF_TOKEN={KEY} A=b\n",
    "ini": f"[remote]\npassword = {KEY}\nuser = me\n",
}
#: texts without a secret
PLAIN = (
    'docker run --user "$(id -u):$(id -g)" -u 0:0 -u ${UID}:${GID} img; git push -u origin main; sort -u a',
    "docker run --gpus all --user 1000:1000 -p 8000:8000 -e HF_HOME=/models -v ~/m:/m:ro vllm/vllm-openai --model a/b",
    "vllm serve a/b --max-model-len 32768 --tokenizer-mode auto --max-num-batched-tokens 8192 --served-model-name token-model",
    "prompt tokens: 12, generation tokens: 40, KV cache usage: 3.1 %, Prefix cache hit rate: 0.0 %",
    "API_KEY=$API_KEY vllm serve a/b --api-key ${VLLM_API_KEY} --ssl-keyfile /certs/key.pem",
    "http://127.0.0.1:8000/v1/models https://user@host/x sha256:" + "a" * 64,
    "{'pad_token': '<pad>', 'eos_token_id': 2, 'use_cache': True, 'max_tokens': None}",
    "the request has no key; Bearer authentication is required (401 Unauthorized)",
)


@pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES)
def test_only_the_key_is_masked(text: str) -> None:
    masked = secret_patterns.mask_text(text)
    assert KEY not in masked and MASK in masked, masked
    words = {word for word in text.replace(KEY, " ").split() if word.isalpha()} - {"Bearer", "Basic", "second"}
    assert all(word in masked for word in words), masked


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert secret_patterns.mask_text(text) == text


COMMANDS = {
    name: text for name, text in EXAMPLES.items() if text.startswith(("docker ", "vllm ", "bash ", "llama", "python"))
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_key_is_masked_in_the_words_of_a_command(command: str) -> None:
    words = shlex.split(command)
    masked = secret_patterns.mask_words(words)
    assert KEY not in json.dumps(masked) and len(masked) == len(words)


def test_masked_json_is_valid() -> None:
    for text in (item for item in EXAMPLES.values() if item.startswith(("{", '["'))):
        json.loads(secret_patterns.mask_text(text))


ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
SECRETS = st.builds(
    lambda first, rest: f"{first}Q7{rest}",
    st.sampled_from(["", "pw-", "k_"]),
    st.text(ALPHABET + "-_.+/=~!%^", min_size=10, max_size=40),
)
NAMES = st.sampled_from(
    ["HF_TOKEN", "api_key", "apiKey", "DB_PASSWORD", "x-api-key", "client-secret", "AWS_SECRET_ACCESS_KEY", "MYSQL_PASS", "auth.token",
     "REDIS_AUTH"]
)  # fmt: skip
FORMS: tuple[Callable[[str, str], Any], ...] = (
    lambda name, key: {name: key},
    lambda name, key: [f"{name}={key}"],
    lambda name, key: ["run", f"--{name}", key, "--port", "1"],
    lambda name, key: ["run", f"--{name}={key}"],
    lambda name, key: {"Config": {"Env": ["A=b", f"{name}={key}"], "Labels": {name: key}}},
    lambda name, key: ["sh", "-c", f"serve --{name} {shlex.quote(key)} && true"],
    lambda name, key: ["sh", "-c", f"{name.replace('-', '_').replace('.', '_')}={shlex.quote(key)} serve"],
    lambda name, key: json.dumps({"a": [{name: key}]}),
    lambda name, key: json.dumps(json.dumps({"a": {name: key}})),
    lambda name, key: yaml.safe_dump({"env": {name: key}}),
    lambda name, key: [{"name": name, "value": key}],
    lambda name, key: {"Test": ["CMD-SHELL", f"curl -H 'Authorization: Bearer {key}' http://x/"]},
    lambda name, key: ["curl", "-u", f"me:{key} {key}", "http://x/"],
    lambda name, key: ["curl", f"--user=me:{key} {key}"],
    lambda name, key: ["sh", "-c", "curl -u " + shlex.quote(f"me too:{key} {key}") + " http://x/"],
    lambda name, key: json.dumps(["sh", "-c", f"wget --password {shlex.quote(f'{key} {key}')}"]),
    lambda name, key: {"Log": [{"Output": f"{name}: {key}\nok"}]},
)


@given(SECRETS, NAMES, st.sampled_from(FORMS))
def test_secret_in_any_form_is_masked(key: str, name: str, form: Callable[[str, str], Any]) -> None:
    text = form(name, key)
    masked = secret_patterns.mask_value(text)
    assert key not in json.dumps(masked, ensure_ascii=False), (text, masked)
    assert key not in secret_patterns.mask_text(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))


@given(st.text(max_size=300))
def test_any_text_is_masked_without_an_error(text: str) -> None:
    secret_patterns.mask_text(text)
    secret_patterns.mask_value({"a": [text], text: text})


EVENT_SECRETS = (
    "hf_0123456789abcdef",
    "pässwört'\"\\ mit/+?>~~~ leer",
    "日本語の秘密のことば",
    "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n",
)

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": json.dumps,
    "JSON without escapes": lambda secret: json.dumps({"key": secret}, ensure_ascii=False),
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret)),
    "repr": repr,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "shell": shlex.quote,
    "URL": lambda secret: urllib.parse.quote(secret, safe=""),
    "HTML form": urllib.parse.quote_plus,
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "basic authentication": lambda secret: base64.b64encode(f"user:{secret}".encode()).decode(),
    "URL-safe base64": lambda secret: base64.urlsafe_b64encode(f"ab{secret}yz".encode()).decode(),
}


@pytest.mark.parametrize("encode_secret", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("secret", EVENT_SECRETS, ids=["token", "quotes", "no ASCII", "lines"])
def test_secret_in_any_encoding_is_redacted(secret: str, encode_secret: Callable[[str], str]) -> None:
    encoded = encode_secret(secret)
    text = Redactor([secret]).redact_text(f"before {encoded} after")
    assert text.startswith("before ") and text.endswith(" after")
    assert MASK in text and encoded not in text


@pytest.mark.parametrize("encode_secret", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("secret", EVENT_SECRETS, ids=["token", "quotes", "no ASCII", "lines"])
def test_event_with_a_secret_stays_valid(secret: str, encode_secret: Callable[[str], str]) -> None:
    encoded = encode_secret(secret)
    value = event("task_finished", task="t1", status="ok", msg=f"got {encoded}", data={encoded: [encoded, 7]})
    message = decode(encode(value, Redactor([secret])))
    assert [message[key] for key in ("event", "task", "status")] == ["task_finished", "t1", "ok"]
    assert message["time"] == value["time"]
    assert encoded not in json.dumps(message, ensure_ascii=False)
    assert message["msg"].startswith("got ") and next(iter(message["data"].values()))[1] == 7


def test_single_line_of_a_secret_is_redacted() -> None:
    assert Redactor([EVENT_SECRETS[3]]).redact_text("log: abcdefgh") == f"log: {MASK}"


@pytest.mark.parametrize("secret", ["ok", "task_finished", "status", "event", "t1", "1", '"', ":", "true"])
def test_secret_that_is_a_common_word_leaves_events_valid(secret: str) -> None:
    value = event("task_finished", task="t1", status="ok", module="facts", exit=1, msg="ok", changed=True)
    message = decode(encode(value, Redactor([secret])))
    keys = ("event", "task", "status", "module", "exit", "time")
    assert [message[key] for key in keys] == [value[key] for key in keys]


def test_event_without_secrets_is_unchanged() -> None:
    value = event("note", task="", text="a • b")
    assert encode(value, Redactor()) == encode(value) == encode(value, Redactor([""]))


def test_password_of_a_url_is_redacted() -> None:
    url = "http://ops:Tr0ub%40dor-3@proxy:3128"
    login = base64.b64encode(b"ops:Tr0ub@dor-3").decode()
    result = Redactor([url]).redact_text(f"a Tr0ub%40dor-3 b Tr0ub@dor-3 c {login} d {url} e ops proxy")
    assert "dor-3" not in result and login not in result and result.endswith("d •••• e ops proxy")
