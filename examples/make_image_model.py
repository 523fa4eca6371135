"""Creates a tiny Qwen3-VL, which reads images: random weights, a processor, and the words of ``make_model``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from make_model import made_once, tokenizer_of, word

WORD_COUNT: Final = 512
MARKS: Final = ("<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>")
"""The tokens behind the words; one pad stands for a square of `SQUARE_PIXELS` a side."""
PATCH_PIXELS: Final = 16
MERGED_PATCHES: Final = 2
SQUARE_PIXELS: Final = PATCH_PIXELS * MERGED_PATCHES
HIDDEN_SIZE: Final = 256
SPREAD: Final = 0.2
"""Of the weights: wide, so that tokens vary with what an image shows."""
RECIPE: Final = 1
"""Increased when the code below makes a different model."""
TEMPLATE: Final = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %} {% endfor %}{% endfor %}"
)


def _config() -> Any:
    from transformers import Qwen3VLConfig

    start, image, video, end = range(WORD_COUNT, WORD_COUNT + len(MARKS))
    text = {
        "vocab_size": WORD_COUNT + len(MARKS),
        "hidden_size": HIDDEN_SIZE,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 2 * HIDDEN_SIZE,
        "max_position_embeddings": 4096,
        "initializer_range": SPREAD,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": PATCH_PIXELS,
        "spatial_merge_size": MERGED_PATCHES,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": 64,
        "initializer_range": SPREAD,
        "deepstack_visual_indexes": [0, 1],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )


def _write_weights(folder: Path) -> None:
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(20)
    model = Qwen3VLForConditionalGeneration(_config()).to(torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() >= 2:
                weight.normal_(0, SPREAD)
    model.save_pretrained(folder)


def _write_processor(folder: Path) -> None:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    words = {word(token): token for token in range(WORD_COUNT)}
    marks = {mark: WORD_COUNT + index for index, mark in enumerate(MARKS)}
    tokenizer = tokenizer_of(words | marks, additional_special_tokens=list(MARKS))
    tokenizer.chat_template = TEMPLATE
    patches = {"patch_size": PATCH_PIXELS, "merge_size": MERGED_PATCHES, "temporal_patch_size": 2}
    sizes = {"shortest_edge": SQUARE_PIXELS**2, "longest_edge": (8 * SQUARE_PIXELS) ** 2}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=sizes, **patches),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**patches),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write(folder: Path) -> None:
    _write_weights(folder)
    _write_processor(folder)


def cached_image_model(home: Path) -> Path:
    """The model's folder below ``home``; creates the model if it does not exist."""
    return made_once(home / "models" / f"tiny-qwen3-vl-{RECIPE}", _write)
