"""TRL's own trainer writes into a real vLLM server, which then serves what a plain server of the checkpoint serves."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from beneath import site_packages
from faults import STEP_LIMIT_SECONDS, Gate
from kv_connector.exceptions import WeightsError
from kv_connector.weights.checkpoint import Checkpoint
from kv_connector.weights.trl import KvMessengerWeightTransfer
from make_model import Shape, TiedLlama, TinyLatentModel, TinyModel, cached_model
from prompts import cache_home, random_prompt
from server_process import MODEL_NAME, Server, complete, free_port, metric_sum, start_all, wait_until, words_of
from servers import ENGINE_ENVIRONMENT, EngineOptions, engine
from train import Asked
from warm_starts import WarmServer
from workload import ANSWER_TOKENS

BACKEND: Final = ("--weight-transfer-config", json.dumps({"backend": "kv_messenger"}))
PROMPTS: Final = tuple(random_prompt(length, seed) for seed, length in enumerate((3, 130, 300), start=4200))
SAME_SHARE: Final = 1e-3
TRAIN_LIMIT_SECONDS: Final = 900
WRITE_BYTES: Final = 4 << 20
THIRD: Final = 3
"""Writes of the held update that leave."""


@dataclass(frozen=True)
class LatentExperts(TinyLatentModel):
    """A DeepSeek-V2 with experts in all layers but the first, which transformers fuses."""

    family: ClassVar[str] = "deepseek-experts"

    def config(self) -> Any:
        config = super().config()
        config.first_k_dense_replace = 1
        config.n_routed_experts = 4
        config.n_shared_experts = 1
        config.num_experts_per_tok = 2
        config.moe_intermediate_size = self.hidden_size
        config.n_group = config.topk_group = 1
        return config


@dataclass(frozen=True)
class Case:
    shape: Shape
    tp_size: int = 1
    lora: bool = False
    dtype: str = "float32"
    """Of the servers; vLLM's experts on a CPU have no float32. The trainer's is always that."""


CASES: Final = {
    "llama-tied": Case(TiedLlama()),
    "llama-tied-tp2": Case(TiedLlama(), tp_size=2),
    "llama-tp2": Case(TinyModel(), tp_size=2),
    "llama-lora": Case(TinyModel(), lora=True),
}
LATENT_EXPERTS: Final = Case(LatentExperts(), dtype="bfloat16")


def checksums(server: Server) -> dict[str, str]:
    """Of all parameters that the server's ranks hold, by name and rank."""
    return dict(server.post("/weight_checker", {"action": "checksum"})["checksums"])


def answers(server: Server) -> list[list[str]]:
    return [words_of(complete(server, prompt, ANSWER_TOKENS)) for prompt in PROMPTS]


def prompt_logprobs(server: Server) -> list[float]:
    """Of each prompt's tokens: all weights have a part in them, also those that vLLM packs on a CPU.

    Packed weights are not in the checksums. No prefix cache is read for these.
    """
    body = {"model": MODEL_NAME, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    found: list[float] = []
    for prompt in PROMPTS:
        choice = server.post("/v1/completions", {**body, "prompt": prompt})["choices"][0]
        of_tokens = [token for token in choice["prompt_logprobs"] if token]
        found += [float(entry["logprob"]) for token in of_tokens for entry in token.values()]
    return found


@dataclass(frozen=True)
class Served:
    """What of a server's weights can be seen from outside."""

    sums: dict[str, str]
    words: list[list[str]]
    logprobs: list[float]

    @classmethod
    def by(cls, server: Server) -> Served:
        return cls(checksums(server), answers(server), prompt_logprobs(server))

    def distance(self, other: Served) -> float:
        return max(abs(one - two) for one, two in zip(self.logprobs, other.logprobs, strict=True))

    def is_like(self, other: Served, trained: float) -> bool:
        """Whether both serve the same weights, where training has moved some log-probability by ``trained``.

        Two servers of the same weights may differ in the last digits only.
        """
        distance = self.distance(other)
        print(f"log-probabilities differ by {distance:.2g}, by training {trained:.2g}")
        return (self.sums, self.words) == (other.sums, other.words) and distance < SAME_SHARE * trained


def options(case: Case, model: Path, **more: str) -> EngineOptions:
    """TRL asks for the model by its path."""
    names = ("--served-model-name", MODEL_NAME, str(model))
    return EngineOptions(
        model,
        tp_size=case.tp_size,
        dtype=case.dtype,
        prefix_caching=True,
        environment={"VLLM_SERVER_DEV_MODE": "1", **more},
        arguments=(*BACKEND, *names),
    )


@contextmanager
def started(name: str, options: EngineOptions, folder: Path) -> Iterator[Server]:
    server = engine(name, options, folder, kind=WarmServer)
    with ExitStack() as stack:
        stack.callback(server.stop)
        start_all([server], print)
        yield server


@contextmanager
def plain(name: str, case: Case, model: Path, folder: Path) -> Iterator[Server]:
    """A server of a checkpoint, which takes no weights from anywhere."""
    with started(name, dataclasses.replace(options(case, model), arguments=()), folder) as server:
        yield server


def training(asked: Asked, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    packages = site_packages("trl")
    assert packages is not None
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("train.py")), json.dumps(dataclasses.asdict(asked))],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                **ENGINE_ENVIRONMENT,
                "PYTHONPATH": str(packages),
                "OMP_NUM_THREADS": "1",
                **environment,
            },
        )


def trained(asked: Asked, log: Path) -> Path:
    process = training(asked, log)
    try:
        assert process.wait(TRAIN_LIMIT_SECONDS) == 0, log.read_text(encoding="utf-8", errors="replace")[-4000:]
    finally:
        process.kill()
        process.wait()
    return Path(asked.out)


@pytest.mark.parametrize("name", CASES)
def test_three_steps_serve_what_a_plain_server_of_the_checkpoint_serves(
    name: str, run_folder: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    model = cached_model(cache_home(), case.shape)
    with started(f"trl-{name}", options(case, model), run_folder) as server:
        before = Served.by(server)
        asked = Asked(str(model), (server.url,), str(tmp_path / "trained"), lora=case.lora)
        checkpoint = trained(asked, run_folder / f"trl-{name}-trainer.log")
        after = Served.by(server)
    assert before.sums.keys() == after.sums.keys()
    changed = sum(before.sums[key] != after.sums[key] for key in after.sums)
    print(f"{name}: {changed} of {len(after.sums)} checksums changed by training")
    with plain(f"trl-{name}-plain", case, checkpoint, run_folder) as server:
        assert Served.by(server).is_like(after, before.distance(after))


def test_a_trainer_that_is_killed_in_mid_update_leaves_the_last_whole_version(run_folder: Path, tmp_path: Path) -> None:
    case = CASES["llama-tied"]
    model = cached_model(cache_home(), case.shape)
    port = free_port()
    with started("trl-killed", options(case, model, KV_MESSENGER_WEIGHTS_METRICS_PORT=str(port)), run_folder) as server:
        page = Page(port)
        before = Served.by(server)
        asked = Asked(str(model), (server.url,), str(tmp_path / "trained"))
        gate = Gate(tmp_path / "gate")
        with gate.closed(after=writes_of(model) + THIRD):
            killed = training(
                asked, run_folder / "trl-killed-trainer.log", KV_MESSENGER_JVM_OPTIONS=",".join(gate.jvm_options)
            )
            try:
                wait_until(lambda: page.metric("kv_messenger_weights_version") > 0, STEP_LIMIT_SECONDS, "an update")
                wait_until(lambda: page.metric("kv_messenger_windows_open") == 1, STEP_LIMIT_SECONDS, "a held update")
                assert answers(server) == before.words
            finally:
                os.killpg(killed.pid, 9)
                killed.wait()
        wait_until(lambda: page.metric("kv_messenger_windows_open") == 0, STEP_LIMIT_SECONDS, "the loss of the trainer")
        assert Served.by(server) == before
        assert not json.loads(server.get("/is_paused"))["is_paused"]
        checkpoint = trained(asked, run_folder / "trl-after-killed-trainer.log")
        after = Served.by(server)
        assert_what_does_not_fit_is_refused(server.url, checkpoint)
        assert Served.by(server) == after
    with plain("trl-after-killed-plain", case, checkpoint, run_folder) as server:
        assert Served.by(server).is_like(after, before.distance(after))
        with pytest.raises(WeightsError, match="weight transfer backend None, expected 'kv_messenger': start it with"):
            KvMessengerWeightTransfer([server.url]).init_weight_transfer()


def test_a_model_that_vllm_cannot_load_again_on_a_cpu_is_refused(run_folder: Path) -> None:
    model = cached_model(cache_home(), LATENT_EXPERTS.shape)
    with started("trl-latent-experts", options(LATENT_EXPERTS, model), run_folder) as server:
        before = Served.by(server)
        transfer = KvMessengerWeightTransfer([server.url])
        transfer.init_weight_transfer()
        with pytest.raises(WeightsError, match=r"this server computes (latent attention|fused experts) on a CPU"):
            transfer.send_weights(tensors_of(model))
        after = Served.by(server)
        # words in bfloat16 change as soon as a prompt is in the prefix cache, without any update too
        assert (after.sums, after.logprobs) == (before.sums, before.logprobs)


def assert_what_does_not_fit_is_refused(url: str, checkpoint: Path) -> None:
    """Each by one sentence, and nothing is loaded."""
    trained = list(tensors_of(checkpoint))
    for given, words, more in (
        (trained[1:], f"tensor {trained[0][0]} is missing, and of shape", {}),
        (
            [(name, each.bfloat16()) for name, each in trained],
            "the tensors' types or order are not those of earlier",
            {},
        ),
        (trained, "version is 1, expected one above", {"first_version": 1}),
    ):
        transfer = KvMessengerWeightTransfer([url], **more)
        transfer.init_weight_transfer()
        with pytest.raises(WeightsError, match=words):
            transfer.send_weights(iter(given))


def tensors_of(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    """As TRL's trainer has them: in the model's order, and a tied head not twice."""
    from transformers import AutoModelForCausalLM

    for name, parameter in AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").named_parameters():
        yield name, parameter.detach()


@dataclass(frozen=True)
class Page:
    """The metrics of a server's messenger of weights."""

    port: int

    def metric(self, name: str) -> float:
        """0 before the first sender, when there is no messenger."""
        server = Server("page", [], self.port, Path())
        try:
            return metric_sum(server.get("/metrics"), name, {})
        except OSError:
            return 0.0


def writes_of(model: Path) -> int:
    """How many writes an update of this model is."""
    length_bytes = int(Checkpoint(model).manifest.length_bytes)
    return -(-length_bytes // WRITE_BYTES)
