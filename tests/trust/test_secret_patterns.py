"""Display of other people's containers shows no secret: neither in commands found in the wild, nor planted ones."""

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
#: in the forms of public compose files, docker lines, units, Kubernetes manifests and scripts around model servers; the keys are made up
WILD = {
    "docker run, a variable": f"docker run -d --gpus all -e HF_TOKEN={KEY} -p 8000:8000 vllm/vllm-openai:latest --model a/b",
    "docker run, --env": f'docker run --env "HUGGING_FACE_HUB_TOKEN={KEY}" --ipc=host vllm/vllm-openai --model a/b',
    "docker run, quoted": f"docker run -e 'OPENAI_API_KEY={KEY}' ghcr.io/open-webui/open-webui:main",
    "vllm, --api-key": f"vllm serve a/b --host 0.0.0.0 --api-key {KEY} --max-model-len 32768",
    "vllm, =": f"python -m vllm.entrypoints.openai.api_server --model a/b --api-key={KEY}",
    "vllm, several keys": f"vllm serve a/b --api-key first-{KEY} second-{KEY} --port 8000",
    "a shell's -c": f'bash -c "vllm serve a/b --api-key {KEY} --port 8000"',
    "a shell in JSON": json.dumps(["bash", "-c", f"exec vllm serve a/b --api-key '{KEY}' 2>&1 | tee /log"]),
    "JSON in a shell": f"""docker run img --config '{{"auth": {{"api_key": "{KEY}"}}, "port": 1}}'""",
    "JSON in JSON": json.dumps({"args": json.dumps({"master_key": KEY, "a": 1})}),
    "sglang": f"python3 -m sglang.launch_server --model-path a/b --api-key {KEY} --tp 1",
    "llama-server": f"llama-server -m /models/x.gguf --api-key {KEY} -ngl 99",
    "litellm": f"LITELLM_MASTER_KEY={KEY} litellm --config /app/config.yaml --port 4000",
    "export": f'export WANDB_API_KEY="{KEY}"; export NCCL_DEBUG=INFO; python train.py',
    "compose": f"services:\n  a:\n    environment:\n      - NGC_API_KEY={KEY}\n      - A=1\n",
    "compose, a mapping": f"environment:\n  VLLM_API_KEY: {KEY}\n  A: 1\n",
    "compose, a command": f"command:\n  - --model\n  - a/b\n  - --api-key\n  - {KEY}\n  - --port\n",
    "Kubernetes": f"env:\n- name: HF_TOKEN\n  value: {KEY}\n- name: A\n  value: b\n",
    "Kubernetes in JSON": json.dumps({"env": [{"name": "API_KEY", "value": KEY}]}),
    "systemd": f"Environment=VLLM_API_KEY={KEY}\nExecStart=/usr/bin/vllm serve a/b --port 8000\n",
    "systemd, quoted": f'Environment="OPENAI_API_KEY={KEY}" "A=b"\n',
    "curl, a bearer": f'curl -fsS -H "Authorization: Bearer {KEY}" http://127.0.0.1:8000/v1/models || exit 1',
    "curl, a key": f"curl -H 'x-api-key: {KEY}' http://localhost:8000/health",
    "curl, a login": f"curl -u admin:{KEY} http://localhost:9090/-/healthy",
    "curl, a login with spaces": f"curl -u 'admin of all:{KEY} {KEY}' http://localhost:9090/",
    "curl, double quotes": f'curl --proxy-user "admin:{KEY} {KEY}" http://localhost:9090/',
    "curl, a login in one word": f"curl --user='admin:{KEY} {KEY}' -uadmin:{KEY} http://localhost:9090/",
    "curl, the word in quotes": f'curl "--user=admin:{KEY} {KEY}" http://localhost:9090/',
    "curl in JSON": json.dumps(["curl", "-u", f"admin:{KEY} {KEY}", "http://x/"]),
    "curl in a shell in JSON": json.dumps(["sh", "-c", f'curl -u "admin:{KEY} {KEY}" http://x/']),
    "curl in YAML": f"test:\n  - curl\n  - -u\n  - 'admin:{KEY} {KEY}'\n  - http://x/\n",
    "curl, a passphrase": f"curl --pass '{KEY} {KEY}' --cert c.pem",
    "wget, a password": f"wget --user me --password '{KEY} {KEY}'",
    "wget, =": f"wget --http-user=me --http-password={KEY} http://x/",
    "mysql": f"mysqladmin ping -h db -u root -p{KEY}",
    "wget": f"wget --header='Authorization: Basic {KEY}=' -qO- http://127.0.0.1/",
    "a URL": f"postgresql://litellm:{KEY}@db:5432/litellm",
    "a URL in a command": f"app --database-url redis://:{KEY}@redis:6379/0 --workers 4",
    "a query": f"http://host/v1/models?api_key={KEY}&limit=1",
    "a git clone": f"git clone https://{KEY}@github.com/x/y.git",
    "a log of vLLM": f"non-default args: {{'model': 'a/b', 'api_key': ['{KEY}'], 'port': 8000}}",
    "a Python error": f"ValueError: invalid headers {{'Authorization': 'Bearer {KEY}'}}",
    "redis": f"redis-server --requirepass {KEY} --appendonly yes",
    "sshpass": f"sshpass -p {KEY} ssh ops@spark1",
    "docker login": f"docker login -u me -p {KEY} nvcr.io",
    "grafana": f"GF_SECURITY_ADMIN_PASSWORD={KEY} /run.sh",
    "a label of traefik": f"traefik.http.middlewares.auth.basicauth.users=ops:{KEY}",
    "cloudflared": f"tunnel --no-autoupdate run --token {KEY}",
    "a here-document": f"cat > .env <<EOF\nSECRET_KEY={KEY}\nDEBUG=0\nEOF",
    "a Dockerfile": f"ENV HF_TOKEN={KEY} A=b\n",
    "ini": f"[remote]\npassword = {KEY}\nuser = me\n",
}
#: nothing of these is hidden
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


@pytest.mark.parametrize("name", WILD)
def test_a_key_in_the_wild_is_hidden_and_the_rest_stays(name: str) -> None:
    masked = secret_patterns.mask_text(WILD[name])
    assert KEY not in masked and MASK in masked, masked
    kept = [
        word
        for word in WILD[name].replace(KEY, " ").split()
        if word.isalpha() and word not in ("Bearer", "Basic", "second")
    ]
    assert all(word in masked for word in kept), masked


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert secret_patterns.mask_text(text) == text


@pytest.mark.parametrize(
    "name", [name for name, text in WILD.items() if text.startswith(("docker ", "vllm ", "bash ", "llama", "python"))]
)
def test_the_words_of_a_command_hide_as_its_text_does(name: str) -> None:
    words = shlex.split(WILD[name])
    masked = secret_patterns.mask_words(words)
    assert KEY not in json.dumps(masked) and len(masked) == len(words)


def test_json_stays_json() -> None:
    for text in (item for item in WILD.values() if item.startswith(("{", '["'))):
        json.loads(secret_patterns.mask_text(text))


ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
SECRETS = st.builds(
    lambda first, rest: f"{first}Q7{rest}",
    st.sampled_from(["", "pw-", "k_"]),
    st.text(ALPHABET + "-_.+/=~!%^", min_size=10, max_size=40),
)
NAMES = st.sampled_from(
    [
        "HF_TOKEN", "api_key", "apiKey", "DB_PASSWORD", "x-api-key", "client-secret", "AWS_SECRET_ACCESS_KEY",
        "MYSQL_PASS", "auth.token", "REDIS_AUTH",
    ]
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
def test_a_planted_secret_of_any_form_is_hidden(key: str, name: str, form: Callable[[str, str], Any]) -> None:
    text = form(name, key)
    masked = secret_patterns.mask_value(text)
    assert key not in json.dumps(masked, ensure_ascii=False), (text, masked)
    assert key not in secret_patterns.mask_text(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))


@given(st.text(max_size=300))
def test_any_text_is_shown_without_an_error(text: str) -> None:
    secret_patterns.mask_text(text)
    secret_patterns.mask_value({"a": [text], text: text})


# A secret is not in the output in any encoding; the text around it is unchanged.


EVENT_SECRETS = (
    "hf_0123456789abcdef",
    "pässwört'\"\\ mit/+?>~~~ leer",
    "日本語の秘密のことば",
    "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n",
)

SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON with its letters": lambda secret: json.dumps({"key": secret}, ensure_ascii=False),
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret)),
    "repr": repr,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "shell": shlex.quote,
    "URL": lambda secret: urllib.parse.quote(secret, safe=""),
    "form": urllib.parse.quote_plus,
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "basic authentication": lambda secret: base64.b64encode(f"user:{secret}".encode()).decode(),
    "base64 of a URL": lambda secret: base64.urlsafe_b64encode(f"ab{secret}yz".encode()).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", EVENT_SECRETS, ids=["token", "quotes", "no ASCII", "lines"])
def test_every_spelling_becomes_dots(secret: str, spelling: str) -> None:
    written = SPELLINGS[spelling](secret)
    text = Redactor([secret]).redact_text(f"before {written} after")
    assert text.startswith("before ") and text.endswith(" after")
    assert MASK in text and written not in text


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", EVENT_SECRETS, ids=["token", "quotes", "no ASCII", "lines"])
def test_an_event_with_it_is_still_that_event(secret: str, spelling: str) -> None:
    written = SPELLINGS[spelling](secret)
    value = event("task_finished", task="t1", status="ok", msg=f"got {written}", data={written: [written, 7]})
    message = decode(encode(value, Redactor([secret])))
    assert (message["event"], message["task"], message["status"], message["time"]) == (
        "task_finished",
        "t1",
        "ok",
        value["time"],
    )
    assert written not in json.dumps(message, ensure_ascii=False)
    assert message["msg"].startswith("got ") and next(iter(message["data"].values()))[1] == 7


def test_a_line_of_a_secret_of_several_is_hidden_too() -> None:
    assert Redactor([EVENT_SECRETS[3]]).redact_text("log: abcdefgh") == f"log: {MASK}"


@pytest.mark.parametrize("secret", ["ok", "task_finished", "status", "event", "t1", "1", '"', ":", "true"])
def test_a_secret_that_is_a_common_word_leaves_every_event_readable(secret: str) -> None:
    value = event("task_finished", task="t1", status="ok", module="facts", exit=1, msg="ok", changed=True)
    message = decode(encode(value, Redactor([secret])))
    assert {key: message[key] for key in ("event", "task", "status", "module", "exit", "time")} == {
        key: value[key] for key in ("event", "task", "status", "module", "exit", "time")
    }


def test_without_secrets_nothing_changes() -> None:
    value = event("note", task="", text="a • b")
    assert encode(value, Redactor()) == encode(value) == encode(value, Redactor([""]))


def test_the_password_of_a_url_is_hidden_by_itself() -> None:
    hidden = Redactor(["http://ops:Tr0ub%40dor-3@proxy:3128"])
    login = base64.b64encode(b"ops:Tr0ub@dor-3").decode()
    result = hidden.redact_text(
        f"a Tr0ub%40dor-3 b Tr0ub@dor-3 c {login} d http://ops:Tr0ub%40dor-3@proxy:3128 e ops proxy"
    )
    assert "dor-3" not in result and login not in result and result.endswith("d •••• e ops proxy")
