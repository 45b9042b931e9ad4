"""The processes of a job: one by default, many under torchrun; the same code for both."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

CHATTY = ("torchrec", "torch.fx")
"""Libraries that warn, at every start, of what no user can change."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True on the one rank that prints, tracks and writes shared files."""
        return self.rank == 0


@contextmanager
def joined_world(threads: int) -> Iterator[World]:
    """Join the process group that torchrun announced, or make one of this process alone; leave it at the end.

    gloo on CPU, nccl where there is a GPU for each local rank. `threads` bounds torch's operators in this process.
    Ranks meet at MASTER_ADDR and MASTER_PORT, or, without a port, in the file that GEMCUT_MEETING_FILE names.
    """
    torch.set_num_threads(threads)
    for library in CHATTY:
        logging.getLogger(library).setLevel(logging.ERROR)
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    meeting_file = os.environ.get("GEMCUT_MEETING_FILE")
    if launched:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=f"file://{meeting_file}" if meeting_file else "env://",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
    else:
        dist.init_process_group("nccl" if cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
