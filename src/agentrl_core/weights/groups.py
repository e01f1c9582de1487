"""Process groups in which the trainer, as rank 0, broadcasts tensors to the workers of model servers.

They exist beside a process group of the trainer's own. They have been run with gloo, and not with NCCL, for which two
GPUs are needed.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Broadcasts(Protocol):
    """Group in which this process sends."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor to all others; returns once it has been sent."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Rendezvous:
    """Store at which the members of a process group of torch find each other; listens on one address only."""

    def __init__(self, address: str, port: int, timeout_s: float) -> None:
        import torch.distributed

        dist: Any = torch.distributed  # its names are imported, and not exported explicitly
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Without a socket of ours, the store would listen on all addresses of the machine.
            listening.bind((address, port))
            listening.listen()
            self.port: int = listening.getsockname()[1]
            self.store: Any = dist.TCPStore(
                host_name=address,
                port=self.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
                master_listen_fd=listening.detach(),
                use_libuv=False,  # which takes no socket
            )
        except BaseException:
            listening.close()
            raise


class TorchGroup:
    """Process group of torch, which its other members make with torch's own `_new_process_group_helper`.

    torch offers no public function for a group that is neither the process's default one nor a part of it; servers use
    this private one, and its names in the store must be the same on both sides.
    """

    def __init__(self, rendezvous: Rendezvous, *, name: str, backend: str, world_size: int, timeout_s: float) -> None:
        """Join; blocks until all members have."""
        import torch.distributed

        dist: Any = torch.distributed
        c10d: Any = dist.distributed_c10d
        timeout = timedelta(seconds=timeout_s)
        made: Any = c10d._new_process_group_helper(  # noqa: SLF001
            world_size,
            0,
            [],
            c10d.Backend(backend),
            dist.PrefixStore(name, rendezvous.store),
            group_name=name,
            timeout=timeout,
        )
        self._group: Any = made[0]
        self._world = c10d._world  # noqa: SLF001
        self._world.pg_group_ranks[self._group] = {rank: rank for rank in range(world_size)}

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor to all others."""
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor], options).wait()
        if tensor.is_cuda:
            import torch

            torch.cuda.current_stream(tensor.device).synchronize()

    def close(self) -> None:
        """Leave the group."""
        import torch.distributed as dist

        if self._group is not None:
            group, self._group = self._group, None
            dist.destroy_process_group(group)


class NcclGroup:
    """Communicator of NCCL without a process group of torch, which its other members join by the group's unique id.

    vLLM's workers send one number right after they have joined, and wait for the same from all others.
    """

    def __init__(self, unique_id: bytes, *, world_size: int, device: torch.device) -> None:
        """Join; blocks until all members have."""
        import torch
        from torch.cuda import nccl

        self._device = device
        with torch.cuda.device(device):
            self._communicator: Any = nccl.init_rank(world_size, unique_id, 0)  # type: ignore[no-untyped-call]
            warm = torch.zeros(1, device=device)
            nccl.all_reduce([warm], comms=[self._communicator])  # type: ignore[no-untyped-call]
            torch.cuda.current_stream(device).synchronize()

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor to all others."""
        import torch
        from torch.cuda import nccl

        with torch.cuda.device(self._device):
            nccl.broadcast([tensor], root=0, comms=[self._communicator])
            torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Drop the communicator; torch frees it with the process."""
        self._communicator = None


def unique_id() -> bytes:
    """Return a new id of an NCCL group."""
    from torch.cuda import nccl

    made: bytes = nccl.unique_id()  # type: ignore[no-untyped-call]
    return made
