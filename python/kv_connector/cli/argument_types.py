"""Types of the command's arguments: what each takes, and one sentence for what it does not take."""

from __future__ import annotations

import argparse
import math

from kv_connector.configuration.option_values import shown


def numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) <= len(str(NUMBER_MAX)) for word in words):
        raise argparse.ArgumentTypeError(
            f"is {shown(text)}, expected numbers with commas between them, such as 20,128,1500"
        )
    return tuple(map(int, words))


NUMBER_MAX = 1_000_000
"""Eleven days in seconds; a socket refuses a limit of some hundred years."""


def number(text: str) -> float:
    """A number from 0 to NUMBER_MAX; none that no clock reaches, such as nan."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"is {shown(text)}, expected a number from 0 to {NUMBER_MAX}")
    return value
