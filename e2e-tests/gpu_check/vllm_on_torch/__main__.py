"""A vLLM in a process of its own: commands come as lines of JSON, and so do answers go.

    python -m gpu_check.vllm_on_torch PLAN

Commands: {"do":"add","request","prompt","answer","kv"}, {"do":"rest"} (answered when nothing is left to do),
{"do":"sleep","level"}, {"do":"wake"}, {"do":"free"} (these three answered with the device's free bytes),
{"do":"forget"} (empties the prefix cache), {"do":"end"}. Answers: {"ready"…} once, {"ended"…} for each request,
{"rest"…}, {"slept"}, {"woken"}, {"free"}.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from gpu_check.vllm_on_torch.made_up_weights import make_up
from gpu_check.vllm_on_torch.plan import ALONE, BOTH, EAGER, VllmPlan
from gpu_check.vllm_on_torch.question_api import QuestionApi

STEP_SECONDS = 0.002
"""Between two steps of an engine that computes nothing: what a transfer has finished is taken by steps."""
REST_SECONDS = 60.0
"""How long what is held after the last answer may take to be given back."""
MEMORY_SHARE = 0.05
"""Of the device's: vLLM does not start when less is free."""
FIGURES = ("layers_sent", "layers_sent_early", "pages_sent", "pages_received", "fetches_failed", "fetches_refuted")


def main(kind: type[Engine] | None = None) -> None:
    """By default the engine is an Engine."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between answers
    plan = VllmPlan.from_json(sys.argv[1])
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_USE_V2_MODEL_RUNNER=str(int(plan.runner == 2)),
        VLLM_NO_USAGE_STATS="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        HF_HUB_OFFLINE="1",
    )
    if plan.layout:
        os.environ["VLLM_KV_CACHE_LAYOUT"] = plan.layout
    if plan.graphs == "FULL_AND_PIECEWISE" and not plan.compile:
        os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    questions = QuestionApi(commands) if plan.role == BOTH else None
    if questions:
        plan.options["engine_api_url"] = questions.url
    engine = (kind or Engine)(plan)
    _say(answers, {"ready": plan.name, **engine.described()})
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    _serve(engine, commands, answers, questions)
    engine.close()


class Engine:
    """vLLM's engine, stepped by the thread that makes it."""

    def __init__(self, plan: VllmPlan) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.plan = plan
        if plan.made_up_weights:
            make_up()
        self.replays, self.preemptions = self.counted()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**self.arguments()), enable_multiprocessing=False)

    def counted(self) -> tuple[Replays, Preemptions]:
        """From now on."""
        return Replays(), Preemptions()

    def arguments(self) -> dict[str, Any]:
        """Of vLLM."""
        plan = self.plan
        compilation: dict[str, Any] = {"mode": 0, "cudagraph_mode": plan.graphs, "custom_ops": ["none"]}
        compilation["cudagraph_capture_sizes"] = [1, 2, 4, 8, 16, 64, *([plan.chunk_tokens] * plan.prefill_graphs)]
        if plan.compile:
            fusions = {"fuse_norm_quant": False, "fuse_act_quant": False}  # they look for operators that are not here
            compilation |= {"mode": 3, "backend": plan.compile, "pass_config": fusions}
        return {
            "model": plan.model,
            "skip_tokenizer_init": True,
            "dtype": plan.dtype,
            "kv_cache_dtype": plan.kv_dtype,
            "max_model_len": plan.context_tokens,
            "max_num_seqs": 16,
            "max_num_batched_tokens": plan.chunk_tokens,
            "block_size": plan.block_tokens,
            "gpu_memory_utilization": MEMORY_SHARE,
            "kv_cache_memory_bytes": plan.kv_bytes,
            "enable_prefix_caching": plan.prefix_caching,
            "enforce_eager": plan.graphs == EAGER,
            "attention_config": {"backend": plan.attention},
            "compilation_config": {"mode": 0, "custom_ops": ["none"]} if plan.graphs == EAGER else compilation,
            "kv_transfer_config": None if plan.role == ALONE else connectors(plan),
            "disable_log_stats": True,
            **({"enable_sleep_mode": True} if plan.sleeps else {}),
            **({"load_format": "dummy"} if plan.made_up_weights else {}),
        }

    def versions(self) -> dict[str, Any]:
        from importlib.metadata import version

        import torch
        import vllm

        return {"versions": f"vLLM {vllm.__version__}, torch {torch.__version__}, Triton {version('triton')}"}

    def described(self) -> dict[str, Any]:
        if (worker := self._worker()) is None:
            return self.versions()
        opened = worker._messenger.opened
        return self.versions() | {"host": opened.control_host, "port": opened.control_port}

    def add(self, request: str, prompt: list[int], answer: int, kv: Any) -> None:
        """Without a connector the answer also has its margins."""
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=answer,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logprobs=2 if self.has_margins() else None,
            extra_args={"kv_transfer_params": kv} if kv else None,
        )
        self._engine.add_request(request, {"prompt_token_ids": prompt}, params)

    def has_margins(self) -> bool:
        """Whether answers have those of their tokens."""
        return self.plan.role == ALONE or self.plan.margins

    def abort(self, request: str) -> None:
        self._engine.abort_request([request])

    def step(self) -> list[dict[str, Any]]:
        """What ended in it."""
        return [_ended(output) for output in self._engine.step() if output.finished]

    def sleep(self, level: int) -> None:
        self._engine.sleep(level)

    def wake(self) -> None:
        self._engine.wake_up()

    def forget(self) -> None:
        """Nothing may run."""
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache: blocks are still held")

    @staticmethod
    def free_bytes() -> int:
        """Of the device's memory."""
        import torch

        return int(torch.cuda.mem_get_info()[0])

    @property
    def is_busy(self) -> bool:
        return bool(self._engine.has_unfinished_requests())

    def held(self) -> dict[str, int]:
        """What is not given back although nothing runs: vLLM's blocks, and what the connector holds."""
        held = self.held_blocks()
        if (worker := self._worker()) is not None:
            held |= worker.held()
            held |= {name: count for name, count in worker._messenger.leak_check().held.items() if count}
        return held

    def held_blocks(self) -> dict[str, int]:
        pool = self._core.scheduler.kv_cache_manager.block_pool
        missing = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        return {"blocks": missing} if missing else {}

    def figures(self) -> dict[str, Any]:
        if (worker := self._worker()) is None:
            return {}
        stats = worker._messenger.stats()
        named = {name: stats.counters.get(f"kv_messenger_{name}", 0.0) for name in FIGURES}
        compared = dict(stats.reasons.get("kv_messenger_last_tokens_compared", {}))
        counts = {"replays": self.replays.count, "preemptions": self.preemptions.count}
        return named | {"compared": compared, **counts}

    @property
    def _core(self) -> Any:
        return self._engine.engine_core.engine_core

    def _worker(self) -> Any:
        """The connector's half that has the messenger."""
        if self.plan.role == ALONE:
            return None
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def connectors(plan: VllmPlan) -> dict[str, Any]:
    """Of the engine, as vLLM's kv_transfer_config."""
    ours = {
        "kv_connector": "KvMessengerConnector",
        "kv_connector_module_path": "kv_connector.vllm.connector",
        "kv_role": plan.role,
        "kv_connector_extra_config": plan.options,
        **({"kv_load_failure_policy": "recompute"} if plan.role == BOTH else {}),  # else nothing is pulled
    }
    if not plan.beside:
        return ours
    both = [ours, plan.beside] if plan.asks_ours_first else [plan.beside, ours]
    shared = {"kv_connector": "MultiConnector", "kv_role": plan.role}
    return {**shared, "kv_connector_extra_config": {"connectors": both}}


class Replays:
    """Counts those of all graphs of this process, from now on."""

    def __init__(self) -> None:
        import torch

        self.count = 0
        replay = torch.cuda.CUDAGraph.replay

        def counted(graph: Any) -> None:
            self.count += 1
            replay(graph)

        torch.cuda.CUDAGraph.replay = counted


class Preemptions:
    """Counts those of this process's scheduler, from now on."""

    def __init__(self) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        self.count = 0
        preempt = Scheduler._preempt_request

        def counted(scheduler: Any, *given: Any, **named: Any) -> Any:
            self.count += 1
            return preempt(scheduler, *given, **named)

        Scheduler._preempt_request = counted


def _ended(output: Any) -> dict[str, Any]:
    (answered,) = output.outputs
    return {
        "ended": output.request_id,
        "tokens": list(answered.token_ids),
        "how": answered.finish_reason,
        "cached": output.num_cached_tokens,
        "kv": output.kv_transfer_params,
        "margins": [_margin(each) for each in answered.logprobs or []],
    }


def _margin(choices: Any) -> float:
    """By how much the likeliest token's log-probability is above the next one's."""
    first, second = sorted((each.logprob for each in choices.values()), reverse=True)[:2]
    return float(first - second)


def _read(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"do": "end"})


def _serve(engine: Engine, commands: queue.Queue[dict[str, Any]], answers: Any, questions: QuestionApi | None) -> None:
    """Steps also when nothing runs: that is how what a transfer has finished is taken."""
    wants_rest, asked_at = False, 0.0
    while True:
        if wants_rest and not engine.is_busy:
            held = engine.held()
            if not held or time.monotonic() - asked_at > REST_SECONDS:
                _say(answers, {"rest": {"held": held, "figures": engine.figures()}})
                wants_rest = False
        for command in _taken(commands, 0.0 if engine.is_busy else STEP_SECONDS):
            match command["do"]:
                case "end":
                    return
                case "add":
                    engine.add(command["request"], command["prompt"], command["answer"], command["kv"])
                case "abort":
                    engine.abort(command["request"])
                case "rest":
                    wants_rest, asked_at = True, time.monotonic()
                case "forget":
                    engine.forget()
                case of_memory:
                    _say(answers, {_moved(engine, of_memory, command): engine.free_bytes()})
        _say_ended(engine.step(), answers, questions)


def _moved(engine: Engine, what: str, command: dict[str, Any]) -> str:
    """Memory goes or comes back, or stays for "free"; the name of the answer."""
    match what:
        case "sleep":
            engine.sleep(command["level"])
            return "slept"
        case "wake":
            engine.wake()
            return "woken"
        case _:
            assert what == "free", command
            return what


def _say_ended(steps: list[dict[str, Any]], answers: Any, questions: QuestionApi | None) -> None:
    """A question's end goes to the messenger that has asked it."""
    for ended in steps:
        if questions is None or not questions.on_ended(ended["ended"]):
            _say(answers, ended)


def _taken(commands: queue.Queue[dict[str, Any]], limit_seconds: float) -> Iterator[dict[str, Any]]:
    try:
        yield commands.get(block=limit_seconds > 0, timeout=limit_seconds)
        while True:
            yield commands.get_nowait()
    except queue.Empty:
        return


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
