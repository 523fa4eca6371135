"""An engine in a process of its own: commands come as lines of JSON, and so do answers go.

    python -m torch_engine PLAN

Commands: {"do":"add","request","prompt","answer","kv"}, {"do":"abort","request"}, {"do":"rest"} (answered when nothing
is left to do), {"do":"capture","count"} (graphs, one behind the other), {"do":"end"}. Answers: {"ready"…} once,
{"ended"…} for each request, {"rest"…}, {"captured"…}.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
from typing import Any

from torch_engine import vllm_names
from torch_engine.plan import EnginePlan


def main() -> None:
    """The engine's thread is this one; another reads commands."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(relativeCreated)7d %(levelname)s %(message)s")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between answers
    plan = EnginePlan.from_json(sys.argv[1])
    vllm_names.install(plan.reported_device)
    import torch

    from torch_engine.engine import Engine

    torch.set_num_threads(1)
    engine = Engine(plan)
    host, port = engine.address
    _say(answers, {"ready": plan.name, "host": host, "port": port})
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    try:
        _serve(engine, commands, answers)
    finally:
        engine.close()


def _read(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"do": "end"})


def _serve(engine: Any, commands: queue.Queue[dict[str, Any]], answers: Any) -> None:
    wants_rest = False
    while True:
        while not (engine.scheduler.has_work() and commands.empty()):
            if wants_rest and not engine.scheduler.has_work():
                _say(answers, {"rest": _rest(engine)})
                wants_rest = False
            command = commands.get()
            if command["do"] == "end":
                return
            wants_rest |= command["do"] == "rest"
            _heed(engine, command, answers)
            _answer_ended(engine, answers)
        engine.step()
        _answer_ended(engine, answers)


def _heed(engine: Any, command: dict[str, Any], answers: Any) -> None:
    from torch_engine.scheduler import Request

    if command["do"] == "add":
        engine.add(Request(command["request"], command["prompt"], command["answer"], command["kv"]))
    elif command["do"] == "abort":
        engine.scheduler.abort(command["request"])
    elif command["do"] == "capture":
        for _ in range(command["count"]):
            engine.runner.capture_once_more()
        _say(answers, {"captured": engine.runner.captured})


def _answer_ended(engine: Any, answers: Any) -> None:
    for request, params in engine.scheduler.ended:
        _say(
            answers,
            {
                "ended": request.request_id,
                "how": request.status.name,
                "tokens": request.output,
                "cached": request.cached_tokens,
                "kv": params,
            },
        )
    engine.scheduler.ended.clear()


def _rest(engine: Any) -> dict[str, Any]:
    names = ("layers_sent", "layers_sent_early", "pages_sent", "pages_received")
    figures = {name: engine.figure(f"kv_messenger_{name}") for name in names} if engine.messengers else {}
    figures |= {"captured": engine.runner.captured, "fetch_seconds": engine.fetch_seconds()}
    return {"held": engine.held(), "figures": figures}


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
