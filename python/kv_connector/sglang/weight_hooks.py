"""Hooks of two of SGLang's routes of weights: they answer where this package is named, and pass all else by.

SGLang loads its plug-ins before it knows how a server is started, so both are there in every scheduler. Used by the
scheduler's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kv_connector.sglang import weight_changes

if TYPE_CHECKING:
    from kv_connector.sglang.weights import LandedWeights

logger = logging.getLogger("sglang.srt.kv_messenger")
ANNOUNCES = f"{weight_changes.UPDATER}.init_weights_update_group"
LOADS = f"{weight_changes.UPDATER}.update_weights_from_tensor"


class SchedulersWeights:
    """The weights of this process's scheduler, from the first question about them on."""

    def __init__(self) -> None:
        self._landed: LandedWeights | None = None

    def answer(self, original: Callable[..., Any], updater: Any, request: Any, *args: Any, **named: Any) -> Any:
        """Wraps the route by which a group of trainers is announced; it waits for no request."""
        from kv_connector.weights.routes import BACKEND

        if request.backend != BACKEND or self._is_lacking():
            return original(updater, request, *args, **named)
        from sglang.srt.managers.io_struct import InitWeightsUpdateGroupReqOutput
        from sglang.srt.runtime_context import get_model

        from kv_connector.sglang import weights

        if not weights.takes_weights(get_model()):
            return InitWeightsUpdateGroupReqOutput(success=False, message=weights.missing_loader())
        self._landed = self._landed or weights.LandedWeights(updater)
        success, message = self._landed.answer(request.group_name)
        return InitWeightsUpdateGroupReqOutput(success=success, message=message)

    def load(self, original: Callable[..., Any], updater: Any, request: Any, *args: Any, **named: Any) -> Any:
        """Wraps the route that loads, and waits until no request is under way."""
        from kv_connector.weights.routes import SGLANG_LOADER

        if request.load_format != SGLANG_LOADER or self._is_lacking():
            return original(updater, request, *args, **named)
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqOutput

        success, message = False, "no sender is connected"
        if self._landed is not None:
            success, message = self._landed.load(request)
        return UpdateWeightsFromTensorReqOutput(success=success, message=message)

    @staticmethod
    def _is_lacking() -> bool:
        """Whether this SGLang is another one than weights were made for: its own route refuses them then."""
        from kv_connector.sglang import sglang_api

        lack = sglang_api.lack_for_weights()
        if lack:
            logger.error("weights from outside are left to SGLang: %s", lack)
        return bool(lack)


WEIGHTS = SchedulersWeights()
"""Those of this process's scheduler."""
