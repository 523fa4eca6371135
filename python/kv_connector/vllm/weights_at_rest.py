"""vLLM's engine core at rest while weights are loaded: no token is computed of KV of one version by weights of another.

By vLLM's routes an engine is paused, updated, emptied of old KV and resumed by a call each, and a client that dies
between two of them leaves an engine that answers no request, or that goes on with KV of the weights before. Here all
of it is one call, which the engine core ends by itself. Its sessions of updates are kept here too, since a worker's
exception shifts later answers of an engine with several ranks: no call gets to a worker that would raise.

The connectors of the KV cache hear that the engine comes to rest, so that no other engine waits for what this one does
not begin, and it rests soon.

A load names the weights, by what has landed. The version that a client gives with the end of its update names none:
the update may have been refused, and the engine have lost the weights of that version. It comes in the call that ends
the update (``finished_updates``); from an HTTP process that is not patched so, in a call of its own that sets a
version, one for each end.

Used by the engine core's thread only. What is loaded, and whether, the workers decide (``weights``).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from kv_connector.vllm import WEIGHTS_BACKEND
from kv_connector.vllm.asked_pauses import AskedPause
from kv_connector.vllm.finished_updates import FINISH as FINISHED
from kv_connector.vllm.finished_updates import finish_and_name, names_itself, version_given
from kv_connector.vllm.own_connectors import WEIGHTS_SESSION, own_connectors
from kv_connector.vllm.preempted_requests import admit_preempted
from kv_connector.vllm.weight_changes import LOADED_AT_REST
from kv_connector.weights.routes import CONTINUE, FINISH, STATUS_METHOD

logger = logging.getLogger("vllm.kv_messenger")
_PATCHED = "_kv_messenger_loads_weights_at_rest"
_NEEDED = ("collective_rpc", "pause_scheduler", "set_weight_version")
_MODES = {CONTINUE: "keep", FINISH: "wait"}
"""vLLM's modes of a pause: requests under way are frozen and computed again afterwards, or end first."""

_NAMES_NOTHING = "/finish_weight_update names no weights, since a load has named them: %r is not taken for a version"
_HELD = "KV of the weights before is held, as by a transfer under way: send again when it has ended"
_ASLEEP = (
    "this server sleeps, and may have no memory for weights: wake it up first (POST /wake_up, with tags=weights if its"
    " KV is to stay away), then send again"
)
_DRAFT = "start_draft_weight_update"
_NO_DRAFT = (
    "KV Messenger writes weights of the model and not of its draft, expected no /start_draft_weight_update: nothing has"
    " been changed; leave it out, and start the server again for another draft"
)
_SHUTDOWN = "shutdown_weight_transfer_engine"
_WAITED_FOR = f"; or send with --under-way {FINISH}, which waits for that"

Call = Callable[..., Any]


def load_at_rest(core_class: Any) -> None:
    """Patches the engine core's class once; raises AttributeError if this vLLM has another one."""
    if _PATCHED in vars(core_class):
        return
    for name in _NEEDED:
        getattr(core_class, name)
    call, name = core_class.collective_rpc, core_class.set_weight_version

    @functools.wraps(call)
    def collective_rpc(core: Any, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None) -> Any:
        if method in (_DRAFT, _SHUTDOWN) and _takes_ours(core):
            return _answer_for_workers(method)
        session = _session_of(core, call) if WeightsSession.answers(method) else None
        if session is not None:
            return _ANSWERED[method](session, args or (), kwargs or {})
        if names_itself(method, kwargs):
            return finish_and_name(call, core, timeout, args, kwargs)
        return call(core, method, timeout, args, kwargs)

    @functools.wraps(name)
    def set_weight_version(core: Any, weight_version: str) -> None:
        session: WeightsSession | None = getattr(core, WEIGHTS_SESSION, None)
        if session is None or session.lets_name(weight_version):
            name(core, weight_version)

    setattr(core_class, _PATCHED, True)
    core_class.collective_rpc, core_class.set_weight_version = collective_rpc, set_weight_version


def _takes_ours(core: Any) -> bool:
    config = getattr(core.vllm_config, "weight_transfer_config", None)
    return getattr(config, "backend", "") == WEIGHTS_BACKEND


def _answer_for_workers(method: object) -> list[Any]:
    """What would raise in each worker is answered without them: raises RuntimeError for a draft's weights.

    vLLM raises in a worker for an engine that takes no draft, and where one is shut down amid an update. Ours has
    nothing to shut down.
    """
    if method == _DRAFT:
        raise RuntimeError(_NO_DRAFT)
    return []


def _session_of(core: Any, call: Call) -> WeightsSession | None:
    """None where another backend takes the weights, or several engines would have to rest together."""
    if not _takes_ours(core) or core.vllm_config.parallel_config.data_parallel_size > 1:
        return None
    session: WeightsSession | None = getattr(core, WEIGHTS_SESSION, None)
    if session is None:
        session = WeightsSession(core, functools.partial(call, core))
        setattr(core, WEIGHTS_SESSION, session)
    return session


class WeightsSession:
    """The updates of one engine core, in place of the session that vLLM's workers keep."""

    def __init__(self, core: Any, call: Call) -> None:
        """``call`` calls a method of all workers."""
        self._core = core
        self._call = call
        self._is_open = False
        self._rests = False
        """Whether an update waits for the engine to rest."""
        self._versions_due = 0
        """How many clients have ended an update and may set its version by a call that comes yet."""
        self._admits_no_more: Callable[[], None] = lambda: None
        """Ends what has requests that are preempted run on."""

    @staticmethod
    def answers(method: object) -> bool:
        """Whether a call of the workers' method is one of these."""
        return isinstance(method, str) and method in _ANSWERED

    def start(self, _args: Sequence[Any] = (), _kwargs: Mapping[str, Any] | None = None) -> Any:
        """Opens an update. One that its sender has left open is gone on with: nothing of it was kept."""
        if self._is_open:
            return []
        answers = self._call("start_weight_update")
        self._is_open = True
        return answers

    def finish(self, _args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Ends the update; nothing if none is open, or one is still to be loaded."""
        if not names_itself(FINISHED, kwargs):
            self._versions_due += 1
        elif (version := version_given(FINISHED, kwargs)) is not None:
            logger.warning(_NAMES_NOTHING, version)
        return [] if self._rests else self._finish()

    @property
    def names_nothing(self) -> bool:
        """Whether the next version that is set is that of a client's end of an update."""
        return self._versions_due > 0

    def lets_name(self, version: str) -> bool:
        """Whether the engine is given this version, which is logged if it is not."""
        if self.names_nothing:
            self._versions_due -= 1
            logger.warning(
                f"{_NAMES_NOTHING}. Where it was meant by /update_weight_version, send that once more", version
            )
            return False
        return True

    def _name(self, version: str, name: str) -> None:
        """Names what was loaded; the versions of clients that have ended an update may still come."""
        due, self._versions_due = self._versions_due, 0
        for connector in own_connectors(self._core):
            connector.on_weights_called(LOADED_AT_REST, (version, name), {}, None)
        self._core.set_weight_version(version)
        self._versions_due = due

    def _finish(self) -> Any:
        if not self._is_open:
            return []
        self._is_open = False
        return self._call("finish_weight_update")

    def update(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Has the workers load the update while the engine rests. Returns their answers, or a future of them."""
        given = kwargs.get("update_info", args[0] if args else None)
        info = dict(given) if isinstance(given, Mapping) else {}
        self.start()
        if self._rests:
            return self._load(info, "another update waits for this engine to rest: send again when it has ended")
        mode = _MODES.get(str(info.pop("under_way", CONTINUE)))
        if mode is None:
            return self._load(info, f"under_way is none of {', '.join(_MODES)}: name one of them")
        return self._load(info, _ASLEEP) if self._sleeps else self._load_at_rest(info, mode)

    @property
    def _sleeps(self) -> bool:
        return "weights" in getattr(self._core.model_executor, "sleeping_tags", ())

    def status(self, _args: Sequence[Any] = (), _kwargs: Mapping[str, Any] | None = None) -> Any:
        """What the first rank knows: it has the messenger."""
        return self._core.model_executor.collective_rpc(status_of_weights)[:1]

    def _load_at_rest(self, info: dict[str, Any], mode: str) -> Any:
        """The engine's prefix cache is empty when it rests, and its requests have no KV."""
        scheduler = self._core.scheduler
        before = scheduler.pause_state
        if before.name == "PAUSED_ALL":
            mode = "keep"  # requests that were frozen stay so
        self._rests = True
        finishes = mode == _MODES[FINISH]
        for connector in own_connectors(self._core):
            connector.on_coming_to_rest(finishes)
        if finishes:
            self._admits_no_more = admit_preempted(scheduler)
        try:
            resting = self._core.pause_scheduler(mode, True)
        except Exception as held:
            return self._end_rest(info, before, AskedPause(scheduler), held)
        asked = AskedPause(scheduler)
        if resting is None:
            return self._end_rest(info, before, asked, None)
        answers: Future[Any] = Future()

        def rested(ended: Future[Any]) -> None:
            try:
                answers.set_result(self._end_rest(info, before, asked, ended.exception()))
            except Exception as fault:
                answers.set_exception(fault)

        resting.add_done_callback(rested)
        return answers

    def _end_rest(self, info: Mapping[str, Any], before: Any, asked: AskedPause, held: BaseException | None) -> Any:
        """Loads, and has the engine go on as it was ``before``, or as its user has ``asked`` for since."""
        self._admits_no_more()
        self._admits_no_more = lambda: None
        refusal = ""
        if held is not None:
            may_wait = before.name != "PAUSED_ALL" and self._core.scheduler.pause_state.name == "PAUSED_ALL"
            refusal = f"{_HELD}{_WAITED_FOR if may_wait else ''} ({held})"
        elif self._sleeps:
            refusal = _ASLEEP
        try:
            return self._load(info, refusal)
        finally:
            self._rests = False
            for connector in own_connectors(self._core):
                connector.on_going_on()
            asked.end(before)
            self._wake()

    def _load(self, info: Mapping[str, Any], refusal: str) -> Any:
        handed_on = {**info, "at_rest": True, "refusal": refusal}
        try:
            answers = self._call("update_weights", kwargs={"update_info": handed_on})
        except BaseException as fault:
            self._is_open = False  # as the workers' is
            for connector in own_connectors(self._core):
                connector.on_weights_called("update_weights", (), {}, fault)
            raise
        update_id, version, name = self._core.model_executor.collective_rpc(loaded_update)[0]
        if version and update_id == info.get("update_id"):
            self._name(str(version), name)
            self._finish()  # vLLM's workers forget here what adapters keep of the weights before
        return answers

    def _wake(self) -> None:
        """The core has no work when it rests, and blocks for its next input although requests go on now."""
        inputs = getattr(self._core, "input_queue", None)
        if inputs is not None:
            from vllm.v1.engine import EngineCoreRequestType

            inputs.put_nowait((EngineCoreRequestType.WAKEUP, None))


_ANSWERED: Mapping[str, Callable[[WeightsSession, Sequence[Any], Mapping[str, Any]], Any]] = {
    "start_weight_update": WeightsSession.start,
    "update_weights": WeightsSession.update,
    "finish_weight_update": WeightsSession.finish,
    STATUS_METHOD: WeightsSession.status,
}


def status_of_weights(worker: Any) -> dict[str, object]:
    """Run by each worker."""
    status: dict[str, object] = worker.weight_transfer_engine.status()
    return status


def loaded_update(worker: Any) -> tuple[int, int, str]:
    """Run by each worker: the id, the version and the name of the last update; zeros where it was refused."""
    loaded: tuple[int, int, str] = worker.weight_transfer_engine.loaded
    return loaded
