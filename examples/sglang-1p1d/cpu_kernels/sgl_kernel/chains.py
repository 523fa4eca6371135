"""SGLang's kernels of speculative decoding on a CPU, in torch, for drafts that are chains: one guess a step.

Names and parameters are those of the real package. A tree (more guesses a step) is refused.
"""

from __future__ import annotations

import ctypes

import torch

QLEN_ONLY = 1
"""SGLang's `TreeMaskMode` on a CPU: what a guess may attend to among the guesses of its request."""


def assign_draft_cache_locs_contiguous_cpu(  # noqa: PLR0913, PLR0917, the real kernel's signature
    request_rows: torch.Tensor,
    request_to_token: torch.Tensor,
    first_tokens: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
    guesses_per_step: int,
    steps: int,
) -> None:
    """The slots of each request's next tokens, one request behind the other."""
    count = guesses_per_step * steps
    assign_extend_cache_locs_cpu(request_rows, request_to_token, first_tokens, first_tokens + count, slots, row_length)


def assign_extend_cache_locs_cpu(  # noqa: PLR0913, PLR0917, the real kernel's signature
    request_rows: torch.Tensor,
    request_to_token: torch.Tensor,
    first_tokens: torch.Tensor,
    end_tokens: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
) -> None:
    """The slots of each request's tokens from a first to an end, one request behind the other."""
    taken = 0
    ranges = zip(request_rows.tolist(), first_tokens.tolist(), end_tokens.tolist(), strict=True)
    for row, first, end in ranges:
        slots[taken : taken + end - first] = request_to_token[row, first:end].to(slots.dtype)
        taken += end - first


def copy_all_layer_kv_cache_cpu(
    addresses: torch.Tensor, row_bytes: torch.Tensor, to_slots: torch.Tensor, from_slots: torch.Tensor
) -> None:
    """Rows of every buffer; all are read before one is written."""
    slots = list(zip(to_slots.tolist(), from_slots.tolist(), strict=True))
    for address, length in zip(addresses.tolist(), row_bytes.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * length, length) for _, source in slots]
        for (target, _), row in zip(slots, rows, strict=True):
            ctypes.memmove(address + target * length, row, length)


def fill_bonus_tokens_cpu(
    accepted: torch.Tensor, accepted_counts: torch.Tensor, last: torch.Tensor, per_request: int
) -> None:
    """The last accepted token of each request."""
    rows = torch.arange(len(accepted_counts)) * per_request
    last.copy_(accepted.flatten()[rows + accepted_counts - 1])


def fill_accept_out_cache_loc_cpu(
    accepted_index: torch.Tensor, slots: torch.Tensor, accepted_slots: torch.Tensor
) -> None:
    """The slots of what was accepted, without gaps."""
    kept = slots[accepted_index[accepted_index > -1].long()]
    accepted_slots[: len(kept)] = kept


def build_tree_kernel_efficient_cpu(  # noqa: PLR0913, PLR0917, the real kernel's signature
    _parents: torch.Tensor,
    _chosen: torch.Tensor,
    first_tokens: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    index: torch.Tensor,
    next_token: torch.Tensor,
    _next_sibling: torch.Tensor,
    guesses_per_step: int,
    _steps: int,
    count: int,
    mask_mode: int,
) -> None:
    """A chain: each guess behind the one before; `_next_sibling` is -1 already."""
    if guesses_per_step != 1 or int(mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"a draft of {guesses_per_step} guesses a step: only chains, of 1, are in torch")
    requests, places = len(first_tokens), torch.arange(count)
    positions.copy_((first_tokens[:, None] + places).flatten())
    index.copy_(torch.arange(requests * count).view(requests, count))
    next_token[:, :-1] = places[1:]
    mask.copy_(torch.ones(count, count).tril().bool().expand(requests, -1, -1).flatten())


def verify_tree_greedy_cpu(  # noqa: PLR0913, PLR0917, the real kernel's signature
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Guesses are accepted up to the first that the model does not choose itself; its own choice follows them."""
    if (retrive_next_sibling != -1).any():
        raise NotImplementedError("a draft that is a tree: only chains are in torch")
    count = candidates.shape[1]
    for request, (guessed, chosen) in enumerate(zip(candidates.tolist(), target_predict.tolist(), strict=True)):
        right = 0
        while right + 1 < min(count, accept_index.shape[1]) and guessed[right + 1] == chosen[right]:
            right += 1
        places = retrive_index[request, : right + 1]
        accept_index[request, : right + 1] = places.to(accept_index.dtype)
        predicts[places] = target_predict[request, : right + 1].to(predicts.dtype)
        accept_token_num[request] = right
