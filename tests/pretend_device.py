"""A pretend accelerator: tensors that say they are on another device, compute on the CPU, and refuse to be mixed.

On a GPU, an operation on tensors of two devices is an error. Here it is one too: everything else works, with the very
numbers of the CPU, so that a whole learner step can run, also where it reads values to decide what to do next. The
device type is torch's `lazy`, which has no kernels of its own, and autograd runs it on the calling thread.
"""

from __future__ import annotations

import contextlib
import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy", 0)
_MOVES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
"""Operations that may read a tensor of one device and write one of the other."""


class MixedDevicesError(RuntimeError):
    """An operation that a GPU would refuse, because one of its tensors is in main memory."""


class Placed(torch.Tensor):
    """Tensor on the pretend device; `values` are its numbers, in main memory."""

    is_cuda = True  # the ways that only a GPU takes are taken

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
            requires_grad=values.requires_grad,
        )

    def __init__(self, values):
        self.values = values

    def __repr__(self, **_):
        return f"Placed({self.values})"

    def tolist(self):
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


class PretendDevice(TorchDispatchMode):
    """Mode in which tensors can be made on the pretend device and moved to it."""

    def __enter__(self):
        self._before = torch._C._only_lift_cpu_tensors()
        # Else `torch.tensor(…, device=…)` writes to the device itself, past this mode; fake tensors do the same.
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(self._before)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


@pytest.fixture
def pretend_device(monkeypatch):
    """Return the device, and a function that makes the context for work on a device; make torch accept it.

    The mode slows down everything, so work on the CPU is better done outside of it.
    """
    # `torch.optim` deletes its own name of this module.
    optimizer = importlib.import_module("torch.optim.optimizer")
    supported = optimizer._get_fused_kernels_supported_devices()
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [*supported, DEVICE.type])
    # `Module.to` then keeps tied weights tied, as it does on the way to a GPU.
    monkeypatch.setattr("torch.__future__._swap_module_params_on_conversion", True)
    return DEVICE


def working_on(device):
    """Return the context in which a device can be used."""
    return PretendDevice() if device == DEVICE else contextlib.nullcontext()


def _computed(func, args, kwargs):
    tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    here = any(isinstance(tensor, Placed) for tensor in tensors)
    if here and func not in _MOVES:
        for tensor in tensors:
            # As on a GPU, a single number may be in main memory.
            if not isinstance(tensor, Placed) and tensor.ndim:
                raise MixedDevicesError(f"{func} got a tensor of main memory {list(tensor.shape)} beside placed ones")
    device = kwargs.get("device")
    to_here = here if device is None else torch.device(device).type == DEVICE.type
    if device is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    outcome = _run(func, *tree_map(_values, (args, kwargs)))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if not to_here:
        return outcome
    outcome = tree_map(lambda item: Placed(item) if isinstance(item, torch.Tensor) else item, outcome)
    return return_and_correct_aliasing(func, args, kwargs, outcome) if here else outcome


def _run(func, args, kwargs):
    if func is torch.ops.aten.mm.dtype:  # a product that only CUDA sums in a wider type
        return torch.mm(args[0].to(args[2]), args[1].to(args[2]))
    return func(*args, **kwargs)


def _values(item):
    return item.values if isinstance(item, Placed) else item
