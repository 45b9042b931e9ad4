"""A model in training: score a batch first, then learn from it; and all the state that a resumed run needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foundation.config import ParallelConfig
from foundation.model.embedding import LookedUp, Lookup, TableModel
from foundation.model.inputs import RequestTensors
from foundation.parallel.clip import clip_together
from foundation.parallel.sharding import TableOptimizer, shard
from foundation.parallel.shards import local_part, local_shards
from foundation.parallel.world import World


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Rates of the two optimizers, AdamW for the dense part and row-wise AdaGrad for the tables; precision, averaging.

    Attributes:
        matmul: matrix products of the model are in this type; all else is float32.
        average_steps: scores are those of dense parameters averaged over about so many steps; None: of the newest.
        accumulate: batches whose dense gradients are averaged for one step of the dense part; tables learn from each.
        table_optimizer: `adagrad` is row-wise AdaGrad.
        parallel: how the model is spread over ranks.
        plans: folder that keeps TorchRec's plans from start to start.
    """

    dense_learning_rate: float
    table_learning_rate: float
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    matmul: torch.dtype = torch.float32
    average_steps: int | None = None
    accumulate: int = 1
    table_optimizer: Literal["adagrad", "sgd"] = "adagrad"
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    plans: Path | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch whose ids are on their way to the ranks that hold their rows.

    Attributes:
        batch: on the world's device.
        read: with the histories that the model looks up.
    """

    batch: RequestTensors
    read: RequestTensors
    lookup: Lookup


CLIPPED_APART = ".auxiliary."
"""In the names of parameters of heads that only help to train: their gradient must not change the step of the others,
by way of the clipped norm either."""


class Trainer:
    """Owns a sharded model and its optimizers."""

    def __init__(self, model: TableModel, world: World, config: TrainerConfig) -> None:
        self.world = world
        self.config = config
        optimizer = TableOptimizer(config.table_learning_rate, config.table_optimizer)
        self.sharded = shard(
            model, world, config.parallel, optimizer=optimizer, matmul=config.matmul, plans=config.plans
        )
        self.model = self.sharded.parallel
        named = [(name, p) for name, p in self.model.named_parameters() if ".collection." not in name]
        self.dense = [parameter for _, parameter in named]
        self._clipped = tuple(
            [parameter for name, parameter in named if (CLIPPED_APART in f".{name}") == apart]
            for apart in (False, True)
        )
        # What is sharded and what is not do not meet in one fused kernel.
        kinds = [[p for p in self.dense if (local_part(p) is not p) == cut] for cut in (False, True)]
        self.dense_optimizer = torch.optim.AdamW(
            [{"params": parameters} for parameters in kinds if parameters],
            lr=config.dense_learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        averages = config.average_steps is not None
        self._average = [parameter.detach().clone() for parameter in self.dense] if averages else []
        self._num_averaged = torch.tensor(0.0)
        self._num_accumulated = 0

    @property
    def is_between_steps(self) -> bool:
        """Whether all that was learned is in the parameters: only then is there something to save."""
        return self._num_accumulated == 0

    @property
    def averages(self) -> bool:
        """Whether scores come from averaged parameters, by a forward pass of their own."""
        return self.config.average_steps is not None

    def prepare(self, batch: RequestTensors) -> Prepared:
        """Send a batch's ids out; it may be learned from later, with other steps in between.

        Of all ranks together, in the same order.
        """
        read = self.sharded.model.read(batch)
        return Prepared(batch, read, self.sharded.model.embedding.start(read))

    def step(self, batch: Prepared, loss_of: Callable[[Any], Tensor], *, scored: bool = True) -> tuple[Any, Tensor]:
        """Score a batch, then learn from it; the dense part with every `accumulate`-th one.

        Args:
            batch: what `prepare` made.
            loss_of: the outputs of the newest parameters → scalar loss.
            scored: whether the scores are wanted; those of averaged parameters are not made otherwise.

        Returns:
            (what `score` would have said before, or where not wanted the outputs that were learned from; the loss,
            detached), on the device.
        """
        inputs = self._looked_up(batch)
        scores = self._score(inputs) if scored and self.averages else None
        outputs = self._outputs(inputs)
        loss = loss_of(outputs)
        if self.is_between_steps:
            self.dense_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.sharded.average_copies is not None:
            self.sharded.average_copies()
        self._num_accumulated += 1
        if self._num_accumulated == self.config.accumulate:
            self.step_dense()
        return outputs if scores is None else scores, loss.detach()

    def step_dense(self) -> None:
        """Let the dense part learn what has been accumulated; nothing where there is nothing."""
        if self.is_between_steps:
            return
        for gradient in (p.grad for p in self.dense if p.grad is not None and self._num_accumulated > 1):
            gradient.div_(self._num_accumulated)
        for parameters in self._clipped:
            clip_together(parameters, self.config.gradient_clip, self.sharded.meshes)
        self.dense_optimizer.step()
        self._num_accumulated = 0
        if self.averages:
            self._take_into_average()

    def slow_down(self, factor: float) -> None:
        """Multiply both configured learning rates by `factor`, in [0, 1], from the next step on."""
        for group in self.dense_optimizer.param_groups:
            group["lr"] = self.config.dense_learning_rate * factor
        rate = self.config.table_learning_rate * self.sharded.table_rate_scale * factor
        for group in self.model.fused_optimizer.param_groups:
            group["lr"] = rate  # pyright: ignore[reportIndexIssue]
        # The fused kernels read their rate when their optimizer "steps"; the update itself is part of the backward.
        self.model.fused_optimizer.step()

    def rescale_table_sums(self, saved_copies: int) -> None:
        """Have AdaGrad sums that were saved of so many copies of the tables mean here what they meant there.

        With M copies a sum grows about M times faster, and a step is by `sum / M`: see `TableOptimizer.scale`.
        """
        ratio = self.sharded.meshes.num_table_copies / saved_copies
        if ratio == 1 or self.config.table_optimizer != "adagrad":
            return
        with torch.no_grad():
            for state in self.model.fused_optimizer.state_dict()["state"].values():
                for place in local_shards(state):
                    place.tensor.mul_(ratio)

    def score(self, batch: RequestTensors) -> Any:
        """The model's outputs for a batch, by the averaged parameters where there are some; nothing is learned.

        The model is in the mode of evaluation for that long, and then in the one that it was in.
        """
        with torch.no_grad():
            return self._score(self._looked_up(self.prepare(batch)))

    def _looked_up(self, batch: Prepared) -> LookedUp:
        return LookedUp(batch.batch, batch.read, self.sharded.model.embedding(batch.lookup))

    def _score(self, inputs: LookedUp) -> Any:
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            self._swap()
            outputs = self._outputs(inputs)
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
            mine, others = local_part(parameter), local_part(other)
            if mine is parameter:
                parameter.data, other.data = other.data, parameter.data
            else:  # `fully_shard` gathers from the memory that it knows
                kept = mine.clone()
                mine.copy_(others)
                others.copy_(kept)

    def _outputs(self, inputs: LookedUp) -> Any:
        low = self.config.matmul != torch.float32
        with torch.autocast(self.world.device.type, dtype=self.config.matmul, enabled=low):
            return self.model(inputs)

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
