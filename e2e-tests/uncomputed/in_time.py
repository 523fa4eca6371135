"""Whether a prefiller's layers were handed over one by one while their pass went on, by its log. Pure."""

from __future__ import annotations

from kv_connector.cli.timelines import ChunkTimes, prefills


def judged_in_time(log: str) -> None:
    """Some layers were handed to the transfer engine before the last one of their pass was complete.

    That they have left by the pass's end too is a matter of the machine's speed: staged, each is copied and sent first.
    """
    chunks = [chunk for each in prefills(log).values() for chunk in each.computed() if chunk.layers]
    early, count = sum(map(early_layers, chunks)), sum(len(chunk.layers) for chunk in chunks)
    print(f"{early} of {count} layers were handed over before the last one of their pass was complete")
    assert early, f"none of {count} layers was handed over before the last one of its pass was complete"


def early_layers(chunk: ChunkTimes) -> int:
    """A layer that is handed over before it is complete is an earlier chunk's, with whose last page this one begins."""
    end = max(layer.readable_ns for layer in chunk.layers)
    return sum(layer.readable_ns <= layer.submitted_ns < end for layer in chunk.layers)
