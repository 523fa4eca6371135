"""What a pull takes off the first token of a large model's prompt, and what pulls cost the engine that is asked."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_check.large_model import BLOCK_TOKENS, answered, ms_since, plan, prompt
from gpu_check.vllm_checks import ANSWER_LIMIT_SECONDS, Compared, VllmProcess
from gpu_check.vllm_on_torch.plan import BOTH

HISTORIES = (1500, 6000, 24000)
NEW_TOKENS = 300
ROUNDS = 3
"""Behind one that is not counted, whose first pull is computed as well."""
ANSWER_TOKENS = 24
NEAR_TIE = 0.25
PAGES_SHARE = 0.5
"""By default a tenth of the blocks may be offered, here 13,000 tokens."""
DECODING, DECODED_TOKENS = 8, 300
"""Requests of the engine that is pulled from, and the answer of each."""
PULLS, PULLED_TOKENS, PULLS_A_SECOND = 110, 1000, 20


class Pulls:
    """Each method is a check."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._models = TemporaryDirectory(prefix="gpu-check-models-")

    def all(self) -> dict[str, Callable[[], str]]:
        return {
            "8 billion weights, pulls always, cuda": self.always,
            "8 billion weights, pulls where they are worth it, cuda": self.where_worth_it,
        }

    def always(self) -> str:
        return self._pulls("always", HISTORIES, gaps)

    def where_worth_it(self) -> str:
        """With the default of the option, where a prompt of a few hundred tokens may well be computed instead."""
        return self._pulls("auto", HISTORIES[1:])

    def _pulls(self, option: str, histories: Sequence[int], *more: Callable[[VllmProcess, VllmProcess], str]) -> str:
        seen = Compared(near_tie=NEAR_TIE)
        with self._engines(option) as (source, asker):
            shown = [conversation(source, asker, history, seen) for history in histories]
            shown += [measure(source, asker) for measure in more]
            held = {**source.rest()["held"], **asker.rest()["held"]}
        if seen.wrong or held:
            raise AssertionError(f"wrong answers: {seen.wrong}; held at rest: {held}; {shown}")
        return f"{'; '.join(shown)}; {seen}"

    @contextmanager
    def _engines(self, option: str) -> Iterator[tuple[VllmProcess, VllmProcess]]:
        """The one that is pulled from, and the one that pulls."""
        folder = Path(self._models.name)
        made = plan(f"large-pulls-{option}", folder, "cuda", role=BOTH, prefix_caching=True, margins=True)
        made.options.update(pulls=option, pull_pages_share=PAGES_SHARE)
        with ExitStack() as entered:
            sides = [
                entered.enter_context(
                    VllmProcess(replace(made, name=f"{made.name}-{side}"), self._logs / made.name / f"{side}.log")
                )
                for side in ("source", "asker")
            ]
            for side in sides:
                side.ready()
            yield sides[0], sides[1]


def conversation(source: VllmProcess, asker: VllmProcess, history: int, seen: Compared) -> str:
    """Its next message, at an engine that has nothing of it: as long a prompt computed, then this one pulled."""
    computed, pulled, cached, came = [], [], [], 0
    for each in range(ROUNDS + 1):
        name, begun = f"{history}x{each}", prompt(history, 4 * each)
        _, first = answered(source, f"begun-{name}", begun, ANSWER_TOKENS)
        whole = [*begun, *first["tokens"], *prompt(NEW_TOKENS, 4 * each + 1)]
        computed.append(answered(asker, f"unseen-{name}", prompt(len(whole), 4 * each + 2))[0])
        took_ms, ended = answered(asker, f"pulled-{name}", whole, kv=named(source))
        pulled.append(took_ms)
        came = ended["cached"] or 0
        took_ms, right = answered(source, f"right-{name}", whole, ANSWER_TOKENS)
        seen.add(f"prompt {name}", answered(asker, f"again-{name}", whole, ANSWER_TOKENS)[1]["tokens"], right)
        more = [*whole, *right["tokens"], *prompt(NEW_TOKENS, 4 * each + 3)]
        cached.append(answered(source, f"cached-{name}", more)[0])
    if came < history // BLOCK_TOKENS * BLOCK_TOKENS:
        raise AssertionError(f"{came} of {history} tokens came from the other engine")
    one, two, three = (statistics.median(times[1:]) for times in (computed, pulled, cached))
    return (
        f"{history} + {NEW_TOKENS} tokens: computed {one:.1f} ms, pulled {two:.1f} = {two / one:.2f}"
        f" ({came} tokens came), at an engine that has them {three:.1f}"
    )


def gaps(source: VllmProcess, asker: VllmProcess) -> str:
    """Milliseconds of a token at the source: beside nothing, beside pulls, and beside the same prompts without one."""
    histories = [prompt(PULLED_TOKENS, 5000 + index) for index in range(PULLS)]
    for index, history in enumerate(histories):
        answered(source, f"known{index}", history)
    nothing = gap(source, "nothing", lambda: None)
    pulls = gap(source, "pulls", partial(steadily, asker, "pulls", histories, named(source)))
    cached = [answered(asker, f"came{index}", one)[1]["cached"] or 0 for index, one in enumerate(histories)]
    own = gap(source, "own", partial(steadily, asker, "own", histories, None))
    return (
        f"a token of {DECODING} requests at the source: {nothing:.2f} ms, beside {PULLS_A_SECOND} requests a second at"
        f" the asker from its own cache {own:.2f}, pulled {pulls:.2f} = {pulls / own:.2f}"
        f" ({sum(each >= PULLED_TOKENS - BLOCK_TOKENS for each in cached)} of {PULLS} had come)"
    )


def gap(source: VllmProcess, name: str, beside: Callable[[], None]) -> float:
    thread = threading.Thread(target=beside)
    thread.start()
    began = time.perf_counter()
    decoding = [
        source.add(f"decodes{name}{index}", prompt(64, 9000 + index), DECODED_TOKENS) for index in range(DECODING)
    ]
    for each in decoding:
        each.result(ANSWER_LIMIT_SECONDS)
    took_ms = ms_since(began)
    thread.join()
    return took_ms / DECODED_TOKENS


def steadily(asker: VllmProcess, name: str, prompts: Sequence[Sequence[int]], kv: Any) -> None:
    """So many a second, whatever becomes of them: the pauses between them are the rate."""
    began, asked = time.perf_counter(), []
    for index, each in enumerate(prompts):
        time.sleep(max(0.0, began + index / PULLS_A_SECOND - time.perf_counter()))
        asked.append(asker.add(f"{name}{index}", each, 1, kv))
    for future in asked:
        future.result(ANSWER_LIMIT_SECONDS)


def named(engine: VllmProcess) -> dict[str, Any]:
    """What a request has that may pull from the engine."""
    host, port = engine.where()
    return {"remote_kv_source": {"remote_host": host, "remote_port": port}}
