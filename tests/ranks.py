"""Helper that runs a function in a group of torch.distributed processes on this machine."""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing

WITHIN_S = 300


def on_ranks(count, function, *arguments):
    """Call `function(*arguments)` in `count` processes that form a gloo group; returns what each returned, by rank.

    Processes import what they call: the function is at the top of a module of `tests`, named from there.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = multiprocessing.start_processes(
            _rank, (count, folder, function, arguments), nprocs=count, join=False, start_method="spawn"
        )
        end = time.monotonic() + WITHIN_S
        # waits for one more to end, and raises what one has raised
        while not started.join(timeout=max(end - time.monotonic(), 0)):
            if time.monotonic() > end:
                for process in started.processes:
                    process.kill()
                raise TimeoutError(f"the ranks took more than {WITHIN_S} s")
        return [torch.load(Path(folder, f"result-{rank}"), weights_only=False) for rank in range(count)]


def _rank(rank, count, folder, function, arguments):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    try:
        torch.save(function(*arguments), Path(folder, f"result-{rank}"))
    finally:
        distributed.destroy_process_group()
