"""Speculative decoding with a draft that has KV of its own. Pure.

The draft's layers lie in the same pages as the model's and are transferred with them. A drafter runs after each forward
pass over the same tokens, and then once for each further token that it proposes; the KV that it writes for a prompt is
correct after the first of these runs. EAGLE's layers compute a token's KV from the token that follows it, which for
the prompt's last token is the first token of the answer. The decoder computes the last token again, and its drafter
then runs with the token that was sampled there, so that this KV is correct too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv_connector.exceptions import OptionError
from kv_connector.naming.model_fingerprint import fingerprint
from kv_connector.vllm.kv_groups import KvGroup

_WITHOUT_KV = ("ngram", "ngram_gpu", "suffix")
"""Methods of speculative decoding that need no KV of their own."""
_MODULES = "mtp"
"""vLLM's name for multi-token prediction in all model families: the model's own checkpoint contains the draft."""
_SERVED = ("draft_model", "eagle", "eagle3", _MODULES)
"""Methods with KV for which tests show that a decoder's acceptance rate is that of a single engine."""


def refuse_unserved_method(speculative_config: Any) -> None:
    """Raises OptionError if the method of speculative decoding is not supported."""
    method = _method(speculative_config)
    if method and method not in _WITHOUT_KV + _SERVED:
        raise OptionError(
            f"the method in --speculative-config is {method!r}, expected one of {', '.join(_WITHOUT_KV + _SERVED)}:"
            " take another, or start both engines without --speculative-config"
        )


def refuse_unserved_layers(vllm_config: Any, groups: Sequence[KvGroup]) -> None:
    """Raises OptionError if the layers of a draft are not kept as the model's are."""
    draft = draft_with_kv(vllm_config)
    if draft is None:
        return
    remedy = "take a method without KV (ngram, suffix), or start both engines without --speculative-config"
    if len(groups) > 1 or groups[0].kind != "full" or groups[0].latent:
        kinds = ", ".join(f"{'latent' if group.latent else group.kind} in group {i}" for i, group in enumerate(groups))
        raise OptionError(
            f"--speculative-config names a draft with KV and the model's layers are of kinds {kinds}, expected full"
            f" attention in one KV cache group, drafts included: {remedy}"
        )
    modules = draft.hf_config.n_predict if _method(vllm_config.speculative_config) == _MODULES else 1
    if modules != 1:
        raise OptionError(
            f"the model has {modules} modules for multi-token prediction, expected 1: vLLM computes a prompt's KV of"
            f" the first one only, {remedy}"
        )
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise OptionError(
            f"pipeline_parallel_size is {stages} and --speculative-config names a draft with KV, expected 1: {remedy}"
        )


def named_with(model: str, speculative_config: Any, *, model_id: str) -> str:
    """The model's fingerprint, extended by that of a draft whose KV lies in the same pages."""
    draft = _with_kv(speculative_config)
    if draft is None:
        return model
    draft_name = fingerprint(draft.model, draft.hf_text_config, _method(speculative_config), model_id=model_id)
    return f"{model} with --speculative-config {draft_name}"


def _method(speculative_config: Any) -> str:
    return str(getattr(speculative_config, "method", None) or "")


def draft_with_kv(vllm_config: Any) -> Any:
    """vLLM's ``ModelConfig`` of a draft that has KV; None if there is none."""
    return _with_kv(getattr(vllm_config, "speculative_config", None))


def _with_kv(speculative_config: Any) -> Any:
    return speculative_config.draft_model_config if _method(speculative_config) in _SERVED else None
