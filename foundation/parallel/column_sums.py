"""AdaGrad sums of a table that is cut by columns, for other cuts than it was saved with."""

from __future__ import annotations

from torch import Tensor


def recut(sums: Tensor, num_rows: int, num_parts: int) -> Tensor:
    """The sums for `num_parts` parts of equal width.

    A part's sum is of the means, over its columns, of squared gradients. Of a whole row it is the mean of its parts'; a
    part that comes of a larger one begins with that one's, as nothing more is known of its columns.

    Args:
        sums: [k * num_rows], part after part.
        num_rows: of the table.
        num_parts: wanted. Where it does not divide k, nor k it, every part begins with the whole row's.

    Returns:
        [num_parts * num_rows].

    Example:
        >>> import torch
        >>> two_parts = torch.tensor([1.0, 2.0, 3.0, 6.0])
        >>> recut(two_parts, 2, 1).tolist(), recut(two_parts, 2, 4).tolist()
        ([2.0, 4.0], [1.0, 2.0, 1.0, 2.0, 3.0, 6.0, 3.0, 6.0])
        >>> recut(two_parts, 2, 3).tolist()
        [2.0, 4.0, 2.0, 4.0, 2.0, 4.0]
    """
    parts = sums.unflatten(0, (-1, num_rows))
    if len(parts) % num_parts == 0:
        return parts.unflatten(0, (num_parts, -1)).mean(1).flatten()
    if num_parts % len(parts):
        parts = parts.mean(0, keepdim=True)
    return parts.repeat_interleave(num_parts // len(parts), dim=0).flatten()
