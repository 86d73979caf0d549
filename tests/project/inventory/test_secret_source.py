"""A secret in the wrong place is refused with its line and the remedy, and no message repeats it."""

from pathlib import Path

import pytest

from sparkwright.app.plans.plan_cache import CachedSource
from sparkwright.errors import Refused
from sparkwright.project import playbook
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.inventory import Inventory
from tests.project.recipes import load_text

SECRET = "Tr0ub4dor&3-horse"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: keys of the group `all`, with the line and the message of the refusal
GROUPS = {
    "value instead of a source": ("  secrets:\n    HF_TOKEN: SECRET\n", 3, "must name a source, e.g. {env: HF_TOKEN}"),
    "source of a wrong type": ("  secrets:\n    HF_TOKEN: {env: [SECRET]}\n", 3, "`all.secrets.HF_TOKEN.env`"),
    "value as a key": ("  secrets:\n    HF_TOKEN: {SECRET: }\n", 3, "`all.secrets.HF_TOKEN` must name a source"),
    "value next to a source": ("  secrets:\n    HF_TOKEN: {env: HF_TOKEN, value: SECRET}\n", 3, "must name a source"),
    "secrets as text": ("  secrets: SECRET\n", 2, "`all.secrets` must name a source"),
    "number": ("  secrets:\n    PIN: 4711471147\n", 3, "e.g. {env: PIN}"),
    "YAML tag": ("  secrets:\n    HF_TOKEN: !SECRET\n", 3, "Quote a value that starts with `!`"),
    "environment": ("  env: {HF_TOKEN: SECRET}\n", 2, "`env.HF_TOKEN` looks like a secret"),
    "environment as text": ("  env: SECRET\n", 2, "`all.env`"),
    "variable": ("  vars:\n    hub_password: SECRET\n", 3, "`vars.hub_password` looks like a secret"),
    "nested variable": ("  vars:\n    hub: {token: SECRET}\n", 3, "`vars.hub.token` looks like a secret"),
    "variable in a list": ("  vars:\n    hubs: [{token: SECRET}]\n", 3, "`token` of item 1 of `vars.hubs` looks like a secret"),
    "proxy with a password": ("  env:\n    HTTPS_PROXY: http://ops:SECRET@proxy.lan:3128\n", 3,
                              "under the host's `secrets:`, as HTTPS_PROXY: {env: HTTPS_PROXY}"),
    "hub with a password": ("  env: {HF_ENDPOINT: 'https://ops:SECRET@hub.lan'}\n", 2, "Remove user and password from the URL"),
    "mirror with a password": ("  registry_mirror: user:SECRET@mirror.lan\n", 2, "`all.registry_mirror`"),
    "server key": ("  secrets:\n    VLLM_API_KEY: {env: KEY}\n", 3, "Name its source in the recipe: `server_key:"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "message"), GROUPS.values(), ids=GROUPS)
def test_secret_in_a_group_is_refused(project: Path, text: str, line: int, message: str) -> None:
    (project / "hosts").mkdir()
    (project / "hosts/spark1.yml").write_text("{}\n")
    (project / "hosts/groups.yml").write_text("all:\n" + text.replace("SECRET", SECRET))
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert str(excinfo.value).startswith(f"hosts/groups.yml:{line}: ")
    assert message in str(excinfo.value)
    assert SECRET not in str(excinfo.value) and "4711" not in str(excinfo.value)


#: the last lines of a recipe, with the message of the refusal
RECIPES = {
    "server key": ("server_key: SECRET\n", "must name a source, e.g. {env: SPARK_KEY}; never the secret itself"),
    "flag": ("vllm: {api-key: SECRET}\n", "`vllm.api-key`: a key in the flags"),
    "flag in another spelling": ("vllm: {--api_key: [SECRET]}\n", "`server_key: {env: SPARK_KEY}`"),
    "key in the environment": ("  env: {VLLM_API_KEY: SECRET}\n", "`server_key: {env: SPARK_KEY}`"),
    "token in the environment": ("  env: {HF_TOKEN: SECRET}\n", "belongs under the host's `secrets:`"),
    "token flag": ("vllm: {hf-token: SECRET}\n", "`vllm.hf-token` looks like a secret"),
    "token in a flag": ("vllm: {kv-config: {hub: {token: SECRET}}}\n", "`vllm.kv-config.hub.token`"),
    "label": ("  labels: {db_password: SECRET}\n", "`container.labels.db_password`"),
    "URL": ("  env: {HTTPS_PROXY: 'http://u:SECRET@p'}\n", "`container.env.HTTPS_PROXY`"),
    "two configuration files": ("server_key: {env: K}\nvllm: {config: /etc/vllm.yaml}\n", "reads one configuration file"),
    "published twice": ("publish: loopback\n", "`container.ports` publishes 0.0.0.0:8000:8000, but `publish` is loopback"),
}  # fmt: skip
RECIPE = """image: vllm/vllm-openai:v0.32.0
model: {id: a/b, dir: ~/b, mount: /b}
container:
  name: box
  ports: ["0.0.0.0:8000:8000"]
"""


@pytest.mark.parametrize(("text", "message"), RECIPES.values(), ids=RECIPES)
def test_secret_in_a_recipe_is_refused(project: Path, text: str, message: str) -> None:
    with pytest.raises(Refused, match=r"^recipes/one\.yml:\d+: ") as excinfo:
        load_text(project, RECIPE + text.replace("SECRET", SECRET))
    assert message in str(excinfo.value)
    assert SECRET not in str(excinfo.value)
    assert excinfo.value.exit == 5


#: a play, with the line and the message of the refusal
PLAYS = {
    "play": ("  vars: {hub_password: SECRET}\n  tasks: []\n", 2, "`vars.hub_password` looks like a secret"),
    "task": ("  tasks:\n    - facts:\n      vars:\n        hub: {token: SECRET}\n", 5, "`vars.hub.token`"),
    "task of a block": ("  tasks:\n    - block:\n        - {facts: , vars: {a_token: SECRET}}\n", 4, "as a_token: {env: a_token}"),
    "included task": ("  tasks:\n    - include: part.yml\n", 2, "`vars.a_token` looks like a secret"),
    "handler": ("  handlers:\n    - {name: x, facts: , vars: {a_token: SECRET}}\n", 3, "`vars.a_token`"),
    "argument": ("  tasks:\n    - command: {cmd: 'https://u:SECRET@x/'}\n", 3, "into a file on the host"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "message"), PLAYS.values(), ids=PLAYS)
def test_secret_in_a_playbook_is_refused(project: Path, text: str, line: int, message: str) -> None:
    (project / "part.yml").write_text(f"- facts:\n  vars: {{a_token: {SECRET}}}\n")
    (project / "book.yml").write_text("- hosts: all\n" + text.replace("SECRET", SECRET))
    with pytest.raises(Refused) as excinfo:
        playbook.load(project / "book.yml", project)
    file = "part.yml" if "include" in text else "book.yml"
    assert str(excinfo.value).startswith(f"{file}:{line}: ")
    assert message in str(excinfo.value) and SECRET not in str(excinfo.value)


def test_names_of_secrets_in_a_playbook_are_accepted(tmp_path: Path) -> None:
    variables = "{token: '{{ found }}', proxy: http://u@proxy:1}"
    task = f"    - {{bench_cells: {{key: a-b-c, series: HF_TOKEN}}, vars: {variables}}}\n"
    (tmp_path / "book.yml").write_text(f"- hosts: all\n  tasks:\n{task}")
    assert playbook.load(tmp_path / "book.yml", tmp_path).plays


def test_variables_that_only_resemble_secrets_are_accepted(tmp_path: Path) -> None:
    env = "  env: {TOKENIZERS_PARALLELISM: 'false', VLLM_MAX_TOKENS: '9', TLS_KEY_FILE: /run/key, MY_TOKEN: '1'}\n"
    assert load_text(tmp_path, RECIPE + env).file.container.env["TLS_KEY_FILE"] == "/run/key"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("env: NOT_SET_HERE", "`server_key`: the environment variable NOT_SET_HERE provides no key."),
        ("env: hf_hunter2hunter2hunter2", "`server_key`: the environment variable of that name provides no key."),
        ("file: empty", "`server_key`: the file empty provides no key."),
        ("file: missing", "`server_key`: the file missing provides no key."),
        ("file: binary", "not a UTF-8 text file"),
        ("file: short", "16 to 512"),
        ("file: /dev/zero", "is larger than 64 KiB"),
        ("file: spaced", "16 to 512"),
        ("command: [no-such-program]", "cannot run the command for the secret server_key: No such file"),
        ('command: ["false"]', "server_key exited with 1: it printed no error message."),
    ],
)
def test_source_without_a_key_is_refused_without_its_content(project: Path, source: str, message: str) -> None:
    files = {"empty": b"", "binary": b"\xd0\xff", "short": b"hunter2\n", "spaced": b"hunter2 is no header"}
    for name, data in files.items():
        (project / name).write_bytes(data)
    loaded_recipe = load_text(project, f"{RECIPE}server_key: {{{source}}}\n")
    with pytest.raises(Refused) as excinfo:
        loaded_recipe.secrets()
    assert message in str(excinfo.value) and "hunter2" not in str(excinfo.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [("a\0b", "invalid file name"), ("a" * 5000, "File name too long"), ("/", "Is a directory")],
)
def test_unreadable_file_of_a_secret_is_reported(file: str, message: str) -> None:
    with pytest.raises(Refused, match=f"cannot read the file of the secret HF_TOKEN: {message}") as excinfo:
        secret_source.read_secret("HF_TOKEN", CachedSource(None, file, None))
    assert len(str(excinfo.value)) < 300


def test_file_in_the_home_of_an_unknown_user_is_missing() -> None:
    assert secret_source.read_secret("HF_TOKEN", CachedSource(None, "~nobody-of-this-name/token", None)) is None
