"""The `foundation` section of the project file: the model and its training."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, SerializerFunctionWrapHandler, model_serializer, model_validator

from foundation.data.schema import Duration, Section

RECIPE_SIZES: dict[str, dict[str, Any]] = {
    "gem": {},
    "fast": {"encoder_events": 32, "cross_rank": 64, "hidden": 128},
    "dcnv2": {},
    "din": {"encoder_events": 50},
}
"""What a recipe sets where the project file says nothing; all else is the field's own default."""

RECIPE_READS: dict[str, frozenset[str]] = {
    "dcnv2": frozenset({"recipe", "width", "cross_layers", "cross_rank", "hidden"}),
    "din": frozenset({"recipe", "width", "encoder_events", "hidden"}),
}
"""The fields that make a difference to a recipe; all of them where it is not named here."""

OF_LAYERS = frozenset({"window", "compute_skip", "rotary", "cls_tokens", "pooling", "personalisation", "interleaving"})
"""The fields that say more of `interleaved_layers`."""

OF_SEQUENCE = OF_LAYERS | {"encoder_events", "histories", "interleaved_layers", "heads", "activation", "scale"}
"""The fields that say more of `sequence`."""


class ModelConfig(Section):
    """The foundation model: a recipe, and sizes and parts that differ from it."""

    recipe: Literal["gem", "fast", "dcnv2", "din"] = Field(
        default="gem",
        description="Architecture and its sizes, as the table below says: `gem`, the same but smaller (`fast`), or one "
        "to compare with (`dcnv2` without history, `din`).",
    )
    width: int = Field(default=16, ge=4, le=1024, multiple_of=4, description="Width of every embedding and token.")
    encoder_events: int = Field(
        default=64, ge=1, le=16384, description="Newest events of a history that are read, beside matches."
    )
    histories: Literal["separate", "merged"] = Field(
        default="separate",
        description="Each log read by itself, or the events of all logs together, in order of time.",
    )
    interleaved_layers: int = Field(
        default=0,
        ge=0,
        le=32,
        description="Layers in which sequences and request tokens learn from each other; with 0, candidates look at "
        "events as they are.",
    )
    window: int | None = Field(
        default=None, ge=1, description="Events attend to neighbours at most so many places away; to all if absent."
    )
    compute_skip: bool = Field(
        default=False,
        description="Every second layer reuses the sequence summary of the one before.",
    )
    rotary: Literal["none", "position", "log_age"] = Field(
        default="none", description="Queries and keys of the encoder are turned by an event's place or log age."
    )
    cls_tokens: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Learned tokens before every history, whose encoding sums it up too; "
        "with `interleaved_layers` of 2 or more, since a layer reads them as the one before left them.",
    )
    pooling: Literal["seeds", "hierarchical"] = Field(
        default="seeds", description="A few seeds sum a history up, or many whose answers a Kronecker map makes fewer."
    )
    personalisation: Literal["attention", "vector", "matrix"] = Field(
        default="attention",
        description="How request tokens change events: attention of events over them, a factor a unit, or a matrix.",
    )
    heads: int = Field(default=2, ge=1, le=64, description="Attention heads.")
    activation: Literal["identity", "relu", "relu2", "silu", "gelu", "hardswish"] = Field(
        default="silu", description="In place of a softmax in attention over histories."
    )
    scale: Literal["outside", "inside"] = Field(
        default="outside",
        description="Attention is divided by how many it can look at, `encoder_events` (where events are personalised, "
        "the few summary tokens), after the activation or before it.",
    )
    interaction_layers: int = Field(default=1, ge=1, le=32, description="Wukong layers.")
    interaction_tokens: int = Field(default=8, ge=1, le=256, description="Tokens out of a factorisation machine block.")
    cross_layers: int = Field(default=2, ge=0, le=32, description="Cross layers over all inputs.")
    cross_rank: int | None = Field(
        default=None, ge=1, le=16384, description="Rank of a cross layer's matrix; a whole one if null."
    )
    hidden: int = Field(default=256, ge=4, le=16384, description="Width of hidden layers.")
    sequence: bool = Field(default=True, description="Attend to histories; without, only match signals look at them.")
    interleaving: bool = Field(
        default=True,
        description="Request tokens personalise the sequence, layer by layer; without, they only take from it.",
    )
    match: bool = Field(default=True, description="Signals of how often and how lately a candidate is in the history.")
    gates: bool = Field(default=True, description="Each surface turns units of the trunk up and down.")
    experts: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Shared experts in the trunk's first layer, beside one a surface; a plain layer if 0.",
    )
    checkpoint_activations: bool = Field(
        default=False, description="Compute activations again in the backward pass instead of keeping them."
    )

    @property
    def unread(self) -> frozenset[str]:
        """Fields that make no difference: to the recipe, or as they say more of what the model does not have."""
        every = frozenset(type(self).model_fields)
        unread = every - RECIPE_READS.get(self.recipe, every)
        unread |= frozenset() if self.sequence else OF_SEQUENCE
        unread |= frozenset() if self.interleaved_layers else OF_LAYERS
        unread |= frozenset() if self.interleaving else {"personalisation"}
        return unread | (frozenset() if self.cross_layers else {"cross_rank"})

    @model_validator(mode="wrap")
    @classmethod
    def _sizes_of_the_recipe(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Fill in the recipe's sizes; they do not count as fields that the file sets."""
        if not isinstance(given, dict):
            return read(given)
        named: dict[str, Any] = given
        sizes = RECIPE_SIZES.get(str(named.get("recipe", "gem")), {})
        config = read(sizes | named)
        config.model_fields_set.difference_update(sizes.keys() - named.keys())
        return config

    @model_serializer(mode="wrap")
    def _what_is_read(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the fields that make no difference: a file that has them would be refused."""
        unread = self.unread
        return {name: value for name, value in write(self).items() if name not in unread}


class TrainingConfig(Section):
    """One pass over the log in time order."""

    batch_requests: int = Field(
        default=128, ge=1, le=2**31 - 1, description="Requests a step, over all ranks together."
    )
    dense_learning_rate: float = Field(default=2e-3, gt=0, description="AdamW, for everything but the tables.")
    table_learning_rate: float = Field(default=0.1, gt=0, description="Of the tables' optimizer.")
    table_optimizer: Literal["adagrad", "sgd"] = Field(
        default="adagrad", description="`adagrad` has one sum of squares a row (row-wise AdaGrad)."
    )
    decay_steps: int | None = Field(
        default=300,
        ge=1,
        description="Both learning rates fall as 1 / sqrt(1 + step / decay_steps); they stay if null.",
    )
    average_steps: int | None = Field(
        default=30,
        ge=1,
        description="Scores are those of dense parameters averaged over about so many steps; of the newest if null.",
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Batches whose gradients make one step of the dense part; tables learn from each batch at once.",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    gradient_clip: float = Field(default=1.0, gt=0, description="Largest norm of the dense gradient.")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="Of matrix products in the model: `bfloat16` by autocast, where the device is fast at it; "
        "parameters, tables, optimizers and the loss stay float32.",
    )
    weighting: Literal["fixed", "uncertainty"] = Field(
        default="fixed",
        description="How losses of objectives are added: by their `weight`, or by that and learned uncertainty.",
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Seed of the initial parameters.")
    threads: int = Field(default=1, ge=1, le=1024, description="Threads of one process for torch's operators.")
    checkpoint_every: Annotated[int, Field(ge=1, le=2**31 - 1)] | Duration = Field(
        default=500, description="Steps between checkpoints, or the time between them, such as `60s`."
    )
    checkpoint_async: bool = Field(default=True, description="Write checkpoints while training goes on.")
    failures_every: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="Mean time between failures, such as `8h`: checkpoints are then as far apart as loses the least "
        "time (Young and Daly), whatever `checkpoint_every` is.",
    )
    timeout: Duration = Field(
        default=timedelta(minutes=10),
        gt=timedelta(0),
        description="How long a rank waits for the others before it gives them up, names who is missing, and ends.",
    )
    keep_checkpoints: int = Field(default=2, ge=1, le=2**31 - 1, description="Newest checkpoints that are kept.")


class TablePlacement(Section):
    """Where a table is."""

    kind: Literal["row_wise", "table_wise", "column_wise"] = Field(
        description="Cut by rows over all ranks of a sharding group, whole on one of them, or cut by columns. Columns "
        "that are apart each have a learning rate of their own."
    )
    ranks: tuple[int, ...] | None = Field(
        default=None,
        description="Places in the sharding group: one of a whole table, one for each part of a table cut by columns. "
        "The planner chooses if absent; of a table cut by rows it is always all.",
    )

    @model_validator(mode="after")
    def _ranks_fit_the_kind(self) -> Self:
        ranks = self.ranks
        if self.kind == "row_wise" and ranks is not None:
            raise ValueError("a table cut by rows is on all ranks of a sharding group: leave `ranks` out")
        if self.kind == "table_wise" and ranks is not None and len(ranks) != 1:
            raise ValueError(f"`ranks` of a whole table is one rank, such as [0], not {list(ranks)}")
        if self.kind == "column_wise" and (ranks is None or len(ranks) < 2):
            raise ValueError("a table cut by columns needs the `ranks` of its parts, at least two, such as [0, 1]")
        if ranks is not None and min(ranks, default=0) < 0:
            raise ValueError(f"`ranks` are places in a sharding group, from 0 on, not {list(ranks)}")
        return self


class ParallelConfig(Section):
    """How training is spread over ranks; with one rank it makes no difference."""

    sharding_group: int | None = Field(
        default=None,
        ge=1,
        description="Ranks that share one copy of the tables (2D parallel): there is a copy for each such group, and "
        "groups average theirs after each step. All ranks if null, or where there are fewer.",
    )
    dense_shard: int = Field(
        default=1,
        ge=1,
        description="Ranks that share one copy of the dense part's large blocks (HSDP); each rank has its own if 1. "
        "All ranks where there are fewer.",
    )
    tables: dict[str, TablePlacement] = Field(
        default_factory=dict, description="Where tables are, in place of what TorchRec's planner would choose."
    )
    overlap: bool = Field(
        default=True, description="Send the next batch's ids while this one is learned; it changes nothing else."
    )


class FoundationConfig(Section):
    """The one large model that learns from every surface and objective."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
