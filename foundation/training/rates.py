"""How far the learning rates are turned down over a pass: a factor in [0, 1] for (step, steps of the pass)."""

from __future__ import annotations

from collections.abc import Callable

Rate = Callable[[int, int], float]


def constant(_step: int, _total: int) -> float:
    """As configured, all the way."""
    return 1.0


def inverse_root(steps: int) -> Rate:
    """`1 / sqrt(1 + step / steps)`: it never stops to learn, whatever the length of the pass.

    Example:
        >>> [inverse_root(100)(step, 1000) for step in (0, 300)]
        [1.0, 0.5]

    Source: the decay for which the regret of online gradient descent is O(sqrt(T)) (Zinkevich, ICML 2003).
    """
    return lambda step, _total: (1 + step / steps) ** -0.5


def cooldown(share: float) -> Rate:
    """1, then linearly to 0 over the last `share` of the pass, in [0, 1]: what the newest batches held weighs no more.

    Example:
        >>> [cooldown(0.5)(step, 8) for step in (0, 4, 6, 8)]
        [1.0, 1.0, 0.5, 0.0]
    """
    return lambda step, total: min(1.0, (total - step) / (share * total)) if share else 1.0
