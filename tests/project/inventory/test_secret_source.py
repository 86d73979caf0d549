"""A secret in the wrong place is refused with its line and the right way, and no message repeats it."""

from pathlib import Path

import pytest

from sparkwright.app.plans.plan_cache import CachedSource
from sparkwright.errors import Failed, Refused
from sparkwright.project import playbook, recipe
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.inventory import Inventory

TOP = Path(__file__).parents[3]
SECRET = "Tr0ub4dor&3-horse"

GROUPS = {
    "a value where a source stands": (
        "  secrets:\n    HF_TOKEN: SECRET\n",
        3,
        "must name a source, e.g. {env: HF_TOKEN}",
    ),
    "a source of a wrong kind": ("  secrets:\n    HF_TOKEN: {env: [SECRET]}\n", 3, "`all.secrets.HF_TOKEN.env`"),
    "a value as a key": ("  secrets:\n    HF_TOKEN: {SECRET: }\n", 3, "`all.secrets.HF_TOKEN` must name a source"),
    "a value beside a source": ("  secrets:\n    HF_TOKEN: {env: HF_TOKEN, value: SECRET}\n", 3, "must name a source"),
    "no mapping of secrets": ("  secrets: SECRET\n", 2, "`all.secrets` must name a source"),
    "a number": ("  secrets:\n    PIN: 4711471147\n", 3, "e.g. {env: PIN}"),
    "a tag": ("  secrets:\n    HF_TOKEN: !SECRET\n", 3, "Quote a value that starts with `!`"),
    "the environment": ("  env: {HF_TOKEN: SECRET}\n", 2, "`env.HF_TOKEN` looks like a secret"),
    "no mapping of the environment": ("  env: SECRET\n", 2, "`all.env`"),
    "a variable": ("  vars:\n    hub_password: SECRET\n", 3, "`vars.hub_password` looks like a secret"),
    "a variable inside another": ("  vars:\n    hub: {token: SECRET}\n", 3, "`vars.hub.token` looks like a secret"),
    "a variable in a list": ("  vars:\n    hubs: [{token: SECRET}]\n", 3, "`vars.hubs.0.token` looks like a secret"),
    "a proxy with a password": (
        "  env:\n    HTTPS_PROXY: http://ops:SECRET@proxy.lan:3128\n",
        3,
        "under `secrets:` of the host, as HTTPS_PROXY: {env: HTTPS_PROXY}",
    ),
    "a hub with a password": (
        "  env: {HF_ENDPOINT: 'https://ops:SECRET@hub.lan'}\n",
        2,
        "Remove user and password from the URL",
    ),
    "an address with a password": ("  registry_mirror: user:SECRET@mirror.lan\n", 2, "`all.registry_mirror`"),
    "the engine's key": (
        "  secrets:\n    VLLM_API_KEY: {env: KEY}\n",
        3,
        "Name its source in the recipe: `server_key:",
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_in_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, line, result = GROUPS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts/spark1.yml").write_text("{}\n")
    (tmp_path / "hosts/groups.yml").write_text("all:\n" + text.replace("SECRET", SECRET))
    with pytest.raises(Refused) as excinfo:
        Inventory.load(tmp_path)
    assert str(excinfo.value).startswith(f"hosts/groups.yml:{line}: ")
    assert result in str(excinfo.value)
    assert SECRET not in str(excinfo.value) and "4711" not in str(excinfo.value)


RECIPES = {
    "the key itself": ("server_key: SECRET\n", "must name a source, e.g. {env: SPARK_KEY}; never the secret itself"),
    "the key among the flags": ("vllm: {api-key: SECRET}\n", "`vllm.api-key`: a key in the flags"),
    "the key among the flags, spelled otherwise": ("vllm: {--api_key: [SECRET]}\n", "`server_key: {env: SPARK_KEY}`"),
    "the key in the environment": ("env: {VLLM_API_KEY: SECRET}\n", "`server_key: {env: SPARK_KEY}`"),
    "a token in the environment": ("env: {HF_TOKEN: SECRET}\n", "belongs under `secrets:` of the host"),
    "a token among the flags": ("vllm: {hf-token: SECRET}\n", "`vllm.hf-token` looks like a secret"),
    "a token inside a flag": ("vllm: {kv-config: {hub: {token: SECRET}}}\n", "`vllm.kv-config.hub.token`"),
    "a password in a label": ("labels: {db_password: SECRET}\n", "`container.labels.db_password`"),
    "a password in a URL": ("env: {HTTPS_PROXY: 'http://u:SECRET@p'}\n", "`container.env.HTTPS_PROXY`"),
    "two configuration files": (
        "server_key: {env: K}\nvllm: {config: /etc/vllm.yaml}\n",
        "reads one configuration file",
    ),
    "published twice": (
        "publish: loopback\n",
        "`container.ports` publishes 0.0.0.0:8000:8000, but `publish` is loopback",
    ),
}
RECIPE = """image: vllm/vllm-openai:v0.32.0
model: {id: a/b, dir: ~/b, mount: /b}
container:
  name: box
  ports: ["0.0.0.0:8000:8000"]
"""


@pytest.mark.parametrize("name", RECIPES)
def test_in_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, result = RECIPES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    indent = "  " if text.startswith(("env", "labels")) else ""
    (tmp_path / "recipes/r.yml").write_text(RECIPE + indent + text.replace("SECRET", SECRET))
    with pytest.raises(Refused, match=r"^recipes/r\.yml:\d+: ") as excinfo:
        recipe.load(tmp_path, "r")
    assert result in str(excinfo.value)
    assert SECRET not in str(excinfo.value)
    assert excinfo.value.exit == 5


PLAYS = {
    "a play": ("  vars: {hub_password: SECRET}\n  tasks: []\n", 2, "`vars.hub_password` looks like a secret"),
    "a task": ("  tasks:\n    - facts:\n      vars:\n        hub: {token: SECRET}\n", 5, "`vars.hub.token`"),
    "a task of a block": (
        "  tasks:\n    - block:\n        - {facts: , vars: {a_token: SECRET}}\n",
        4,
        "as a_token: {env: a_token}",
    ),
    "an included task": ("  tasks:\n    - include: part.yml\n", 2, "`vars.a_token` looks like a secret"),
    "a handler": ("  handlers:\n    - {name: x, facts: , vars: {a_token: SECRET}}\n", 3, "`vars.a_token`"),
    "an argument": ("  tasks:\n    - command: {cmd: 'https://u:SECRET@x/'}\n", 3, "into a file on the host"),
}


@pytest.mark.parametrize("name", PLAYS)
def test_in_a_playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, line, result = PLAYS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part.yml").write_text(f"- facts:\n  vars: {{a_token: {SECRET}}}\n")
    (tmp_path / "book.yml").write_text("- hosts: all\n" + text.replace("SECRET", SECRET))
    with pytest.raises(Refused) as excinfo:
        playbook.load(tmp_path / "book.yml", tmp_path)
    where = "part.yml" if "include" in text else "book.yml"
    assert str(excinfo.value).startswith(f"{where}:{line}: ")
    assert result in str(excinfo.value) and SECRET not in str(excinfo.value)


def test_what_only_names_a_secret_is_taken_in_a_playbook(tmp_path: Path) -> None:
    task = (
        "    - {bench_cells: {key: a-b-c, series: HF_TOKEN}, vars: {token: '{{ found }}', proxy: http://u@proxy:1}}\n"
    )
    (tmp_path / "book.yml").write_text(f"- hosts: all\n  tasks:\n{task}")
    assert playbook.load(tmp_path / "book.yml", tmp_path).plays


def test_what_only_sounds_like_a_secret_is_taken(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    env = "  env: {TOKENIZERS_PARALLELISM: 'false', VLLM_MAX_TOKENS: '9', TLS_KEY_FILE: /run/key, MY_TOKEN: '1'}\n"
    (tmp_path / "recipes/r.yml").write_text(RECIPE + env)
    assert recipe.load(tmp_path, "r").file.container.env["TLS_KEY_FILE"] == "/run/key"


@pytest.mark.parametrize(
    ("source", "result"),
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
    ],
)
def test_a_source_that_gives_no_key_is_said_without_what_it_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, result: str
) -> None:
    from sparkwright.errors import SparkwrightError

    monkeypatch.chdir(tmp_path)
    for name, data in {
        "empty": b"",
        "binary": b"\xd0\xff",
        "short": b"hunter2\n",
        "spaced": b"hunter2 is no header",
    }.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/r.yml").write_text(f"{RECIPE}server_key: {{{source}}}\n")
    with pytest.raises(SparkwrightError) as excinfo:
        recipe.load(tmp_path, "r").secrets()
    assert result in str(excinfo.value) and "hunter2" not in str(excinfo.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [("a\0b", "invalid file name"), ("a" * 5000, "File name too long"), ("/", "Is a directory")],
)
def test_a_file_that_cannot_be_is_told_in_a_sentence(file: str, message: str) -> None:
    with pytest.raises(Failed, match=f"cannot read the file of the secret HF_TOKEN: {message}") as excinfo:
        secret_source.read_secret("HF_TOKEN", CachedSource(None, file, None))
    assert len(str(excinfo.value)) < 300


def test_a_file_in_the_home_of_a_user_that_is_not_there_is_not_there() -> None:
    assert secret_source.read_secret("HF_TOKEN", CachedSource(None, "~nobody-of-this-name/token", None)) is None
