"""The processes of a job: one by default, many under torchrun; the same code for both."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from foundation.parallel.failures import attempt, num_ranks
from foundation.parallel.watch import patience

TIMEOUT = timedelta(minutes=10)
CHATTY = ("torchrec", "torch.fx")
"""Libraries that warn, at every start, of what no user can change."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among its peers.

    Attributes:
        timeout: of a collective, in groups that are made beside the default one too.
    """

    rank: int
    size: int
    device: torch.device
    timeout: timedelta = TIMEOUT

    @property
    def is_first(self) -> bool:
        """True on the one rank that prints, tracks and writes shared files."""
        return self.rank == 0


@contextmanager
def joined_world(threads: int, timeout: timedelta = TIMEOUT) -> Iterator[World]:
    """Join the process group that torchrun announced, or make one of this process alone; leave it at the end.

    gloo on CPU, nccl where there is a GPU for each local rank. `threads` bounds torch's operators in this process.
    Ranks meet at MASTER_ADDR and MASTER_PORT, or, without a port, in the file that GEMCUT_MEETING_FILE names. After
    `timeout` a rank is no longer waited for. A rank that fails among others keeps the group until its process ends: who
    loses it finds the failure told, and torchrun sees that rank end first.
    """
    torch.set_num_threads(threads)
    for library in CHATTY:
        logging.getLogger(library).setLevel(logging.ERROR)
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    waits = patience(timeout).of_collectives
    backend = "nccl" if cuda else "gloo"
    if launched:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store, file = _store_of_attempt(waits), os.environ.get("GEMCUT_MEETING_FILE")
        method = None if store else f"file://{file}" if file else "env://"
        dist.init_process_group(backend, init_method=method, store=store, rank=rank, world_size=size, timeout=waits)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    is_left = True
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device, waits)
    except Exception:
        is_left = num_ranks() == 1
        raise
    finally:
        if is_left:
            dist.destroy_process_group()


def _store_of_attempt(timeout: timedelta) -> dist.Store | None:
    """The part of torchrun's store that is this attempt's; None where there is no need of one.

    torchrun keeps a store for all its restarts, in which a rank may find addresses of processes that are dead and fail
    to connect to them: pytorch/pytorch issue 135712. On several nodes nobody knows the attempt, so docs/scaling.md has
    torchrun make a new store for each.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore(f"attempt/{attempt()}", dist.TCPStore(host, port, is_master=False, timeout=timeout))
