"""Weights into real vLLM on a CUDA that computes nothing: every byte that a rank holds afterwards is the new model's.

Loads copy, and copies are real there. A plain server of the second checkpoint says what a rank is to hold, derived
tensors with it; and nothing may have moved, since graphs that were captured read where the tensors were.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import STEP_LIMIT_SECONDS, Gate
from make_model import Shape, TiedLlama
from server_process import complete, start_all, wait_until, words_of
from weights_bed import SEND_LIMIT_SECONDS, Served, held_sender

from uncomputed.held_weights import BUFFER, BYTE, LEFT_OUT, PARAMETER, SWAPPED
from uncomputed.pair import Engines
from uncomputed.weight_servers import (
    Experts,
    LatentExperts,
    checkpoint,
    experts_in,
    held_by,
    server,
    serving,
)

Held = list[dict[str, list[str]]]
"""By rank and name: the kind, the digest, the device and the place of each tensor."""
UPDATES = 2
"""The second model, then the first one again."""
PROMPT, ANSWER_TOKENS = "w5 w6 w7", 4
LATENT = "TRITON_MLA"
APART = "--enable-expert-parallel"
"""Each rank has some of the experts, whole."""
TRAINER = Path(__file__).with_name("trainer.py")


@dataclass(frozen=True)
class Case:
    """`ranks`: the tensor-parallel ones; `trainer`: whether a model of transformers is sent, as TRL does it."""

    shape: Shape
    ranks: int = 1
    attention: str = "TRITON_ATTN"
    transport: str = "shm"
    arguments: tuple[str, ...] = ()
    trainer: bool = False
    derived: tuple[str, ...] = ()
    """Ends of names of tensors that layers make of parameters; others are made of no weights."""

    def models(self, folder: Path) -> tuple[Path, Path]:
        first, second = (checkpoint(dataclasses.replace(self.shape, seed=seed), folder) for seed in (20, 21))
        return first, second

    @property
    def has_experts(self) -> bool:
        return isinstance(self.shape, (Experts, LatentExperts))


SMALL = LatentExperts()
LARGE = LatentExperts(query_rank=128, expert_count=6, expert_size=96, shared_count=2)
"""Queries come of a latent vector too, as in the large DeepSeek-V2; with two ranks an expert's rows are 48."""
MANY = Experts(expert_count=8, expert_size=96, each_nth=2)
"""Small experts, in each second layer."""


def latent(shape: LatentExperts, ranks: int = 1, transport: str = "shm", *, trainer: bool = False) -> Case:
    return Case(shape, ranks, LATENT, transport, trainer=trainer, derived=(".W_UV", ".W_UK_T"))


CASES = {
    "latent-experts-ranks-2": latent(LARGE, 2, "tcp"),
    "latent-experts": latent(SMALL),
    "latent-experts-of-a-trainer": latent(LARGE, trainer=True),
    "experts": Case(Experts(), transport="tcp"),
    "experts-ranks-2": Case(MANY, 2),
    "experts-apart": Case(MANY, 2, arguments=(APART,)),
    "experts-of-a-trainer-ranks-2": Case(MANY, 2, transport="tcp", trainer=True),
    "tied": Case(TiedLlama()),
    "tied-ranks-2": Case(TiedLlama(), 2, transport="tcp"),
}
ORDINARY = ("latent-experts-ranks-2", "0.32")
"""The one that `make test` runs."""
RELEASES = {"0.32": "engines", "0.33": "other_engines"}


def of_all(cases: dict[str, Case]) -> list[Any]:
    return [
        pytest.param(
            case, release, id=f"{name}-{release}", marks=[pytest.mark.at_length] * ((name, release) != ORDINARY)
        )
        for name, case in cases.items()
        for release in RELEASES
    ]


@contextmanager
def started(case: Case, release: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Served, Held]]:
    """A server of the first model, and what a plain server of the second one holds."""
    engines: Engines = request.getfixturevalue(RELEASES[release])
    models = case.models(folder)
    variables = {"KV_MESSENGER_TRANSPORTS": case.transport}
    changed: dict[str, Any] = {"ranks": case.ranks, "attention": case.attention, "arguments": case.arguments}
    served = serving("takes", models, folder, engines, environment=variables, **changed)
    plain = server("plain", models[1], folder, engines, **changed)
    try:
        start_all([served.server, plain], print)
        wanted = held_by(plain)
        plain.stop()
        yield served, wanted
    finally:
        plain.stop()
        served.server.stop()


@pytest.mark.parametrize(("case", "release"), of_all(CASES))
def test_ranks_hold_what_those_of_a_plain_server_hold(
    case: Case, release: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_MESSENGER_TRANSPORTS", case.transport)
    with started(case, release, tmp_path, request) as (served, wanted):
        before = held_by(served.server)
        assert len(before) == case.ranks
        judged_apart(before, wanted, case)
        answered(served)
        for update, model in trained(served) if case.trainer else sent(served):
            update()
            held = held_by(served.server)
            judged(held, wanted if model == served.new else before, before)
            judged_by_checkpoint(held, model, case)
            answered(served)
        assert served.ended("applied") == UPDATES
        print(f"{[len(rank) for rank in before]} tensors, by rank")


def sent(served: Served) -> Iterator[tuple[Callable[[], None], Path]]:
    """The second checkpoint's folder, then the first one's."""
    for folder in (served.new, served.old):
        yield lambda folder=folder: succeeded(served.send(folder)), folder  # type: ignore[misc]


def trained(served: Served) -> Iterator[tuple[Callable[[], None], Path]]:
    """One trainer sends the second model, then the first one: tensors as transformers has them, each alone."""
    command = [sys.executable, str(TRAINER), served.server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        for folder in (served.new, served.old):
            yield lambda folder=folder: send(trainer, folder), folder  # type: ignore[misc]
        assert trainer.stdin is not None
        trainer.stdin.close()
        assert trainer.wait(SEND_LIMIT_SECONDS) == 0


def send(trainer: subprocess.Popen[str], folder: Path) -> None:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write(f"{folder}\n")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "served\n", f"the trainer did not send {folder}"


@pytest.mark.at_length
@pytest.mark.parametrize("release", RELEASES)
def test_what_is_loaded_wrong_is_found(
    release: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison's own test: what one rank of two loads has a fault, and the other rank holds the new model."""
    monkeypatch.setenv("KV_MESSENGER_TRANSPORTS", "shm")
    case = latent(LARGE, 2)
    with started(case, release, tmp_path, request) as (served, wanted):
        before = held_by(served.server)
        for fault, found in WRONG.items():
            spoiled(served, fault, rank=1)
            succeeded(served.send(served.new))
            held = held_by(served.server)
            assert differences(held[:1], wanted[:1]) == [], fault
            assert sorted({name.partition(" ")[0] for name in differences(held, wanted)}) == found, fault
            with pytest.raises(AssertionError, match="differ from a plain server's"):
                judged(held, wanted, before)
            spoiled(served, "", rank=1)
            succeeded(served.send(served.old))
            judged(held_by(served.server), before, before)


WRONG = {
    BYTE: ["model.norm.weight"],
    LEFT_OUT: ["model.norm.weight"],
    SWAPPED: [
        f"model.layers.{layer}.mlp.experts.routed_experts.{name}{expert}"
        for layer in (1, 2)
        for name in ("w13_weight", "w2_weight")
        for expert in ("", ".0", ".1")
    ],
}
"""Names that differ, by fault."""


@pytest.mark.at_length
@pytest.mark.parametrize("release", RELEASES)
def test_a_sender_that_dies_leaves_every_byte(
    release: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_MESSENGER_TRANSPORTS", "shm")
    with started(latent(SMALL, 2), release, tmp_path, request) as (served, wanted):
        before = held_by(served.server)
        with held_sender(served, Gate(tmp_path / "gate")) as sender:
            assert held_by(served.server) == before
            sender.kill()
            wait_until(lambda: served.ended("sender_lost") == 1, STEP_LIMIT_SECONDS, "the loss of the sender")
        assert held_by(served.server) == before
        answered(served)
        succeeded(served.send(served.new))
        judged(held_by(served.server), wanted, before)


def judged(held: Held, wanted: Held, before: Held) -> None:
    """Every rank holds what is wanted, and where it was; buffers, which no checkpoint has, are as they were."""
    found = differences(held, wanted)
    assert not found, f"{len(found)} tensors differ from a plain server's: {found[:8]}"
    for rank, tensors in enumerate(held):
        old = before[rank]
        moved = [name for name, tensor in tensors.items() if on_device(tensor) and tensor[3] != old[name][3]]
        assert not moved, f"rank {rank} has tensors elsewhere than before, where graphs read them: {moved[:8]}"
        other = [name for name, tensor in tensors.items() if tensor[0] == BUFFER and tensor != old[name]]
        assert not other, f"rank {rank} has buffers that are not as they were: {other[:8]}"


def judged_by_checkpoint(held: Held, folder: Path, case: Case) -> None:
    """Without any server: all experts are there, each in its place, or its part of a rank."""
    for rank, tensors in enumerate(held):
        wanted = experts_in(folder, rank, case.ranks, apart=APART in case.arguments)
        assert bool(wanted) == case.has_experts
        wrong = [name for name, digest in wanted.items() if tensors[name][1] != digest]
        assert not wrong, f"rank {rank} has {len(wrong)} experts that are not the checkpoint's: {wrong[:8]}"
        kept = {name for name in tensors if name.rpartition(".")[0].endswith(("w13_weight", "w2_weight"))}
        assert kept == wanted.keys()


def on_device(tensor: list[str]) -> bool:
    """What layers keep in the host's memory may be made anew."""
    return tensor[2].startswith("cuda")


def differences(held: Held, wanted: Held) -> list[str]:
    """Tensors of which one side has none, or another kind, other bytes or another device; buffers' bytes apart."""
    found = [] if len(held) == len(wanted) else [f"{len(held)} ranks, not {len(wanted)}"]
    for rank, (ours, theirs) in enumerate(zip(held, wanted, strict=False)):
        names = sorted(ours.keys() | theirs.keys())
        found += [f"{name} of rank {rank}" for name in names if compared(ours.get(name)) != compared(theirs.get(name))]
    return found


def compared(tensor: list[str] | None) -> list[str]:
    if tensor is None:
        return []
    kind, digest, device, _ = tensor
    return [kind, device] if kind == BUFFER else [kind, digest, device]


def judged_apart(first: Held, second: Held, case: Case) -> None:
    """Each parameter differs between the models, and all that is made of some: what is left out would be seen."""
    for rank, (ours, theirs) in enumerate(zip(first, second, strict=True)):
        made = [name for name in ours if name.endswith(case.derived or "\n")]
        assert len(made) == len(case.derived) * case.shape.layer_count
        of_model = made + [name for name, (kind, *_) in ours.items() if kind == PARAMETER]
        same = [name for name in of_model if ours[name][1] == theirs[name][1]]
        assert not same, f"rank {rank} holds the same of both models: {same[:8]}"


def spoiled(served: Served, fault: str, rank: int) -> None:
    answer = served.server.post("/collective_rpc", {"method": "spoil", "args": [fault, str(rank)]})
    assert answer.get("results", [])[rank] == fault, answer


def answered(served: Served) -> None:
    """The engine goes on; its tokens are made up."""
    words = words_of(complete(served.server, PROMPT, ANSWER_TOKENS))
    assert words == ["w5"] * ANSWER_TOKENS


def succeeded(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stderr
