"""When a subject is warm: a rule, told in numbers and tested."""

from __future__ import annotations

from collections.abc import Callable

LEAST_WARM, MOST_WARM = 2, 6
"""Rounds of a warm-up."""
GAIN = 0.05
"""A round that beats the fastest before it by more than this shows that the subject is still getting warm."""


def warm(step: Callable[[], tuple[float, float]], budget_s: float) -> tuple[int, float]:
    """Run rounds that are not timed until two in a row gain nothing, and no longer.

    It ends behind at least LEAST_WARM rounds when neither of the last two was more than 5 % faster than the
    fastest before it, when the rounds have taken `budget_s` in all, or behind MOST_WARM of them. A round
    that a busy machine slows counts as one without gain, so a busy machine prolongs nothing.

    Args:
        step: runs a round; seconds of its call, and with its check and preparation.

    Returns:
        Rounds run, and the seconds that the fastest of them took in all.
    """
    fastest, least, spent, idle, rounds = float("inf"), float("inf"), 0.0, 0, 0
    while rounds < MOST_WARM and idle < 2 and (rounds < LEAST_WARM or spent < budget_s):
        called, took = step()
        idle = 0 if called < fastest * (1 - GAIN) else idle + 1
        fastest, least = min(fastest, called), min(least, took)
        spent, rounds = spent + took, rounds + 1
    return rounds, least
