"""Print the options of SGLang's argument parser as JSON; run by a Python with torch and transformers.

    .engine/0.32.0/venv/bin/python tests/engine_options/ask_sglang.py FOLDER_OF_THE_UNPACKED_WHEEL

`ServerArgs.add_cli_args` runs unchanged. Its module imports kernels, models and packages that need a GPU; these are replaced by
modules whose every name is `Anything`. No option depends on them; the choices of backends do, and are not read.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import re
import sys
import types
from collections.abc import Sequence
from typing import Any

#: modules of SGLang that are not needed to list its options
REPLACED = (
    "sglang.jit_kernel", "sglang.kernels", "sglang.srt.configs", "sglang.srt.hardware_backend", "sglang.srt.layers",
    "sglang.srt.managers", "sglang.srt.model_loader", "sglang.srt.models", "sglang.srt.multimodal",
    "sglang.srt.utils.hf_transformers", "sglang.srt.utils.hf_transformers_patches", "sglang.srt.utils.hf_transformers_utils",
)  # fmt: skip
#: classes of transformers that need torchvision
IMAGE_CLASSES = ("AutoProcessor", "AutoImageProcessor", "AutoVideoProcessor")
KINDS = {"int": "int", "human_readable_int": "size", "float": "float", "loads": "json", "json_list_type": "json"}
SWITCHES = ("StoreTrue", "StoreConst", "DeprecatedAction")
SUCCESSOR = re.compile(r"(?:[Uu]se|[Aa]lias for|in favou?r of)[ `']+--([\w-]+)(?:=(\w+))?(?![\w{-])")


class Anything(type):
    """A class that has every attribute, can be called, subscripted, and used as a decorator."""

    def __getattr__(cls, name: str) -> Any:
        return create_attribute(name)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return (
            arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else create_anything("result")
        )

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return False

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def create_anything(name: str) -> Any:
    """Return a class that has every attribute."""
    return Anything(name, (), {})


def create_attribute(name: str) -> Any:
    """Return the attribute of this name of a class or module that has every attribute. Raises AttributeError for Python's own names."""
    if name.startswith("__"):
        raise AttributeError(name)
    return create_anything(name)


class Replacements(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces REPLACED, and packages that SGLang imports and that are not installed."""

    def __init__(self) -> None:
        self.packages = {"sglang"}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if any(name == module or name.startswith(f"{module}.") for module in REPLACED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        package = name.partition(".")[0]
        if package == "sglang" or self._is_installed(name):
            return None
        if package not in self.packages and "/sglang/" not in _find_importer():
            return None
        self.packages.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "99.0"  # type: ignore[attr-defined]
        module.__getattr__ = create_attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing; names are created when they are read."""

    def _is_installed(self, name: str) -> bool:
        sys.meta_path.remove(self)
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False
        finally:
            sys.meta_path.insert(0, self)


def _find_importer() -> str:
    """Return the file with the current import statement."""
    frame: Any = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def find_option_kind(action: argparse.Action) -> str:
    """Return an option's kind as in engines/sglang/options.json."""
    class_name = type(action).__name__
    if class_name == "BooleanOptionalAction":
        return "both"
    if any(word in class_name for word in SWITCHES):
        return "switch"
    if action.nargs in ("+", "*"):
        return "list"
    return KINDS.get(getattr(action.type, "__name__", ""), "text")


def find_successor(action: argparse.Action) -> str:
    """Return the replacement that a deprecated option names, as NAME or NAME=VALUE; "" if there is none."""
    new_flag = getattr(action, "new_flag", None)
    text = f"use {new_flag}" if new_flag else action.help or ""
    if "eprecat" not in type(action).__name__ + text and not new_flag:
        return ""
    match = SUCCESSOR.search(text)
    return "" if match is None else match[1] + (f"={match[2]}" if match[2] else "")


def list_options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Return every option with its long names, the usual name first."""
    rows = []
    for action in parser._actions:
        if getattr(action, "error_message", None):  # exists only to be refused with a message
            continue
        names = [word.removeprefix("--") for word in action.option_strings if word.startswith("--")]
        names = [name for name in names if name.removeprefix("no-") == name or find_option_kind(action) != "both"]
        if names and names != ["help"]:
            rows.append({"names": names, "kind": find_option_kind(action), "instead": find_successor(action)})
    return rows


def main(arguments: Sequence[str]) -> None:
    """Print the options of the release in a folder as the last line."""
    sys.path.insert(0, arguments[0])
    sys.argv = ["sglang"]
    sys.meta_path.insert(0, Replacements())
    import transformers

    for name in IMAGE_CLASSES:
        setattr(transformers, name, create_anything(name))
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    print("\n" + json.dumps(list_options(parser)))


if __name__ == "__main__":
    main(sys.argv[1:])
