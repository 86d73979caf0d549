"""Paramiko is imported without importlib.metadata, and works."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

PROGRAM = """
import sys
from sparkwright.remote import link
with link.fast_paramiko_import():
    import paramiko
print(paramiko.__version__, paramiko.Transport._CLIENT_ID, "email.message" in sys.modules)
import importlib.metadata
print(importlib.metadata.version("cryptography"), importlib.metadata.__file__.endswith(".py"))
print(paramiko.metadata.version("invoke"), paramiko.metadata.metadata("invoke")["Name"])
"""


def said() -> list[str]:
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_version_is_the_same_and_the_rest_is_there() -> None:
    version = metadata.version("paramiko")
    assert said() == [
        f"{version} paramiko_{version} False",
        f"{metadata.version('cryptography')} True",
        f"{metadata.version('invoke')} invoke",
    ]


def test_a_version_that_no_folder_tells_is_looked_up(tmp_path: Path) -> None:
    program = (
        "import sys, types; from sparkwright.remote import link\n"
        "sys.modules['paramiko'] = types.ModuleType('paramiko'); sys.modules['paramiko'].__path__ = [sys.argv[1]]\n"
        "with link.fast_paramiko_import():\n"
        "    from importlib import metadata\n"
        "    print(metadata.version('paramiko'))\n"
        "    try: metadata.version('no-such-package')\n"
        "    except metadata.PackageNotFoundError as error: print(error.name)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "paramiko")]
    for made in ((), ("paramiko-1.0.dist-info", "paramiko-2.0.dist-info")):
        for name in made:
            (tmp_path / name).mkdir()
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.split() == [metadata.version("paramiko"), "no-such-package"], done.stderr
