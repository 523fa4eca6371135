"""Makes the backend's name known in any process that imports SGLang, also in one that does not load SGLang's plugins.

Python runs `kv-connector.pth`, which imports this module, when it starts. Launchers that parse SGLang's arguments
themselves, and SGLang's own tokenizer workers, load no plugins, and without the name they end. This module imports
nothing of `kv_connector` and starts nothing: it waits for two modules of SGLang, and every other import passes it by.
"""

from __future__ import annotations

import enum
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

BACKEND_NAME = "kv_messenger"
"""The value of ``--disaggregation-transfer-backend``."""
CHOICES = "sglang.srt.arg_groups.choices"
BACKENDS = "sglang.srt.disaggregation.utils"
_MEMBER = "KV_MESSENGER"


def add_choice(choices: Any) -> None:
    """Adds the value of the option to SGLang's choices. A second call does nothing."""
    if BACKEND_NAME not in choices.DISAGG_TRANSFER_BACKEND_CHOICES:
        choices.add_disagg_transfer_backend_choices([BACKEND_NAME])


def backends_with_this(utils: Any) -> Any:
    """SGLang's enum of backends with a member for this one: a new enum, or the one there is if that has it."""
    if hasattr(utils.TransferBackend, _MEMBER):
        return utils.TransferBackend
    members = {member.name: member.value for member in utils.TransferBackend} | {_MEMBER: BACKEND_NAME}
    return enum.Enum("TransferBackend", members, module=utils.__name__)


def add_backend(utils: Any) -> None:
    """Adds the member to SGLang's enum before another module has taken the enum from ``utils``.

    SGLang's look-up of classes refuses this backend with the reason, until the plugin has wrapped the look-up.
    """
    utils.TransferBackend = backends_with_this(utils)
    original = utils.get_kv_class

    def get_kv_class(transfer_backend: Any, class_type: Any) -> Any:
        if transfer_backend.value == BACKEND_NAME and class_type.value != "kvargs":
            raise RuntimeError(reason_without_plugin())
        return original(transfer_backend, class_type)

    utils.get_kv_class = get_kv_class


def reason_without_plugin() -> str:
    """Why SGLang knows the backend's name and has none of its classes."""
    named = os.environ.get("SGLANG_PLUGINS", "")
    if named:
        return (
            f"SGLANG_PLUGINS is {named!r}, expected a list that contains {BACKEND_NAME!r}: without its plugin"
            f" --disaggregation-transfer-backend {BACKEND_NAME} cannot work; add the name, or leave the variable out"
        )
    return (
        f"--disaggregation-transfer-backend is {BACKEND_NAME}, and this process has not loaded SGLang's plugins:"
        " call sglang.srt.plugins.load_plugins() before the engine starts"
    )


class Door:
    """A finder that finds what Python's own would find, and adds the backend to two of those modules. Stateless."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of either module; None for all others, which other finders are asked for."""
        if fullname not in (CHOICES, BACKENDS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)  # type: ignore[assignment]
        return spec


class Loader:
    """Python's own loader of a module, which adds the backend before another module can read what it has loaded."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        """As the original does."""
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module. Where SGLang has changed, the module stays as it is, and one line says so."""
        self._original.exec_module(module)
        try:
            (add_choice if module.__name__ == CHOICES else add_backend)(module)
        except Exception as fault:
            sys.stderr.write(f"{BACKEND_NAME} is not known to SGLang in this process: {fault!r}\n")


def open_door() -> None:
    """Puts the finder before Python's own, once."""
    finders: list[Any] = sys.meta_path
    if Door not in finders:
        finders.insert(0, Door)


open_door()
