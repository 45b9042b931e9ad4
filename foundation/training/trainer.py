"""A model in training: score a batch first, then learn from it; and all the state that a resumed run needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from foundation.model.inputs import RequestTensors
from foundation.parallel.sharding import shard
from foundation.parallel.world import World


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Rates of the two optimizers, AdamW for the dense part and row-wise AdaGrad for the tables; precision, averaging.

    Attributes:
        matmul: matrix products of the model are in this type; all else is float32.
        average_steps: scores are those of dense parameters averaged over about so many steps; None: of the newest.
    """

    dense_learning_rate: float
    table_learning_rate: float
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    matmul: torch.dtype = torch.float32
    average_steps: int | None = None


CLIPPED_APART = ".auxiliary."
"""In the names of parameters of heads that only help to train: their gradient must not change the step of the others,
by way of the clipped norm either."""


class Trainer:
    """Owns a sharded model and its optimizers."""

    def __init__(self, model: nn.Module, world: World, config: TrainerConfig) -> None:
        self.world = world
        self.config = config
        self.model: DistributedModelParallel = shard(model, world, table_learning_rate=config.table_learning_rate)
        named = [(name, p) for name, p in self.model.named_parameters() if ".collection." not in name]
        self.dense = [parameter for _, parameter in named]
        self._clipped = tuple(
            [parameter for name, parameter in named if (CLIPPED_APART in f".{name}") == apart]
            for apart in (False, True)
        )
        self.dense_optimizer = torch.optim.AdamW(
            self.dense, lr=config.dense_learning_rate, weight_decay=config.weight_decay, fused=True
        )
        averages = config.average_steps is not None
        self._average = [parameter.detach().clone() for parameter in self.dense] if averages else []
        self._num_averaged = torch.tensor(0.0)

    @property
    def averages(self) -> bool:
        """Whether scores come from averaged parameters, by a forward pass of their own."""
        return self.config.average_steps is not None

    def step(
        self, batch: RequestTensors, loss_of: Callable[[Any], Tensor], *, scored: bool = True
    ) -> tuple[Any, Tensor]:
        """Score `batch`, then learn from it.

        Args:
            batch: on the world's device.
            loss_of: the outputs of the newest parameters → scalar loss.
            scored: whether the scores are wanted; those of averaged parameters are not made otherwise.

        Returns:
            (what `score` would have said before, or where not wanted the outputs that were learned from; the loss,
            detached), on the device.
        """
        scores = self.score(batch) if scored and self.averages else None
        outputs = self._outputs(batch)
        loss = loss_of(outputs)
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for parameters in self._clipped:
            nn.utils.clip_grad_norm_(parameters, self.config.gradient_clip)
        self.dense_optimizer.step()
        if self.averages:
            self._take_into_average()
        return outputs if scores is None else scores, loss.detach()

    def slow_down(self, factor: float) -> None:
        """Multiply both configured learning rates by `factor`, in [0, 1], from the next step on."""
        for group in self.dense_optimizer.param_groups:
            group["lr"] = self.config.dense_learning_rate * factor
        for group in self.model.fused_optimizer.param_groups:
            group["lr"] = self.config.table_learning_rate * factor  # pyright: ignore[reportIndexIssue]
        # The fused kernels read their rate when their optimizer "steps"; the update itself is part of the backward.
        self.model.fused_optimizer.step()

    def score(self, batch: RequestTensors) -> Any:
        """The model's outputs for a batch, by the averaged parameters where there are some; nothing is learned.

        The model is in the mode of evaluation for that long, and then in the one that it was in.
        """
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            self._swap()
            outputs = self._outputs(batch)
            self._swap()
        self.model.train(was_training)
        return outputs

    def _take_into_average(self) -> None:
        """All steps weigh the same until there are `average_steps` of them, then each 1 / `average_steps`.

        Source: averaging of iterates (Polyak and Juditsky, 1992), with a horizon so that it follows a drift. The tables
        are not averaged: a step changes few of their rows, and AdaGrad has their rates fall by itself.
        """
        self._num_averaged += 1
        share = 1 / min(float(self._num_averaged), self.config.average_steps or 1)
        with torch.no_grad():
            for average, parameter in zip(self._average, self.dense, strict=True):
                average.lerp_(parameter, share)

    def _swap(self) -> None:
        """Newest for averaged parameters, and back."""
        for parameter, other in zip(self.dense, self._average, strict=False):
            parameter.data, other.data = other.data, parameter.data

    def _outputs(self, batch: RequestTensors) -> Any:
        low = self.config.matmul != torch.float32
        with torch.autocast(self.world.device.type, dtype=self.config.matmul, enabled=low):
            return self.model(batch)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor a resumed run needs, by a flat name; loading into them in place restores the trainer."""
        named = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for parameter, state in self.model.fused_optimizer.state_dict()["state"].items():
            named |= {f"table_optimizer.{parameter}.{name}": value for name, value in state.items()}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for parameter in self.dense:
            for name, value in self._dense_state(parameter).items():
                named[f"dense_optimizer.{names[id(parameter)]}.{name}"] = value
        if self.averages:
            named |= {f"average.{names[id(p)]}": average for p, average in zip(self.dense, self._average, strict=True)}
            named["average_steps"] = self._num_averaged
        return named

    def _dense_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """AdamW's state, made before its first step if need be, so that a load finds somewhere to go."""
        state = self.dense_optimizer.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state
