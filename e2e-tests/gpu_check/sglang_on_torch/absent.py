"""Modules that SGLang imports and a generating server never uses: placeholders, in every process of SGLang.

A packed SGLang has a `sitecustomize.py` that imports this module, so processes that SGLang starts have them too. Any
name of a placeholder can be imported, and any class of it can be made; it does nothing. Stateless but for the finder.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT = (
    "IPython",
    "anthropic",
    "blobfile",
    "datasets",
    "gguf",
    "jsonschema",
    "llguidance",
    "mistral_common",
    "openai_harmony",
    "outlines",
    "outlines_core",
    "sentencepiece",
    "soundfile",
    "torch_memory_saver",
    "xgrammar",
)
"""Large, or compiled for another Python; looked for only where the machine has none."""
MORE = "GPU_CHECK_ABSENT"
"""The environment variable with further ones, which imports.py has found missing on this machine."""


def absent() -> set[str]:
    return {*ABSENT, *filter(None, os.environ.get(MORE, "").split(","))}


class AnyClass(type):
    """The type of a placeholder's classes: each of their attributes is such a class, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return any_class(name)

    def __getitem__(cls, _item: object) -> Any:
        return cls


def any_class(name: str) -> Any:
    """Fields of pydantic's models may be of this type, and then take anything."""
    schema = classmethod(lambda *_asked: {"type": "any"})
    return AnyClass(name, (), {"__init__": lambda *_given, **_named: None, "__get_pydantic_core_schema__": schema})


class Placeholder(ModuleType):
    """A module, and a package, that has all names but those of Python's own protocols."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = any_class(name)
        setattr(self, name, made)
        return made


class Absent:
    """A finder behind all others, and the loader of what it finds."""

    @staticmethod
    def find_spec(fullname: str, _path: Any = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """A spec for the modules that are absent; None for all others."""
        if fullname.partition(".")[0] not in absent():
            return None
        return ModuleSpec(fullname, Absent, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return Placeholder(spec.name)

    @staticmethod
    def exec_module(_module: ModuleType) -> None:
        """There is nothing to run."""


_LOADER: Any = Absent


def install() -> None:
    """Once; what asks whether a module is there by its spec is answered as if it were not."""
    finders: list[Any] = sys.meta_path
    if Absent in finders:
        return
    finders.append(Absent)
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        spec = found(name, package)
        return None if spec is not None and getattr(spec, "loader", None) is _LOADER else spec

    importlib.util.find_spec = find_spec
