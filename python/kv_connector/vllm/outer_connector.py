"""What follows for this connector from the one around it, vLLM's MultiConnector: vLLM calls that one alone.

Used by the worker's main thread, while the engine starts and in each pass.
"""

from __future__ import annotations

from typing import Any

from kv_connector.exceptions import OptionError


def all_ranks_vote(outer: Any | None) -> bool:
    """Whether vLLM waits for all ranks to report that a request is over, instead of the number a connector gives.

    Inside MultiConnector it waits for all ranks if one of the connectors gives no number.
    """
    return outer is not None and outer.get_finished_count() is None


def refuse_unheeded_policy(own: str, around: str | None) -> None:
    """Raises OptionError if MultiConnector has another failure policy: vLLM has one for all loads, and ignores ours.

    ``around`` is None where no MultiConnector is around this one.
    """
    if around is not None and own != around and own == "recompute":
        raise OptionError(
            f"kv_load_failure_policy is {own!r} at KvMessengerConnector and {around!r} around it, expected it there:"
            " vLLM heeds the outer one for the loads of all connectors; set it at MultiConnector"
        )


def reach_in_captures(outer: Any | None, connector: Any) -> None:
    """Has vLLM call the layer hooks of ``connector``, inside ``outer``, while a CUDA graph is captured.

    vLLM calls no hook where the connector that it knows has no metadata, and MultiConnector has none in a capture: the
    graph would count no layer. Then ``connector`` is asked, and it alone is called: those beside it need metadata.
    """
    if outer is None:
        return
    has_metadata, wait, save = outer.has_connector_metadata, outer.wait_for_layer_load, outer.save_kv_layer

    def wait_for_layer_load(layer_name: str) -> None:
        (wait if has_metadata() else connector.wait_for_layer_load)(layer_name)

    def save_kv_layer(layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        (save if has_metadata() else connector.save_kv_layer)(layer_name, kv_layer, attn_metadata, **kwargs)

    outer.has_connector_metadata = lambda: has_metadata() or connector.has_connector_metadata()
    outer.wait_for_layer_load, outer.save_kv_layer = wait_for_layer_load, save_kv_layer
