"""Routing replay for mixture-of-experts models: all updates of a step use the experts chosen before the step.

Where a gate is undecided, a token can change experts between two updates. That moves its log-probability far more than
the update itself does, and importance ratios and clipping react to it (arXiv 2507.18071, section 5.3; arXiv 2512.01374,
where this is R2, "vanilla" routing replay). Only the choice of experts is replayed. The weights of the chosen experts
come from the gate's current logits by the model's own formula, so the gate is trained as usual.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from agentrl_core.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

_TOPK = frozenset({torch.topk, torch.Tensor.topk})


class Routes:
    """Expert indices that a model's routers chose in one pass over a micro-batch, in the order of the router calls.

    They cover all packed tokens of the micro-batch, not only its loss tokens.
    """

    def __init__(self, replay: RoutingReplay) -> None:
        self.choices: list[Tensor] = []
        self._replay = replay

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Make forward passes inside the context use these experts. Each pass must make the same router calls."""
        with self._replay.acting(_Replaying(self)):
            yield


class RoutingReplay:
    """Recorder and replayer of the expert choices of one model.

    A router is any module that calls `topk` in its own forward, as the routers of transformers do. A trial pass finds
    them, so no list of architectures is needed. Raises `ConfigError` if the model has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.routers = _routers(model)
        if not self.routers:
            raise ConfigError(
                f"trainer.routing_replay: no module of {type(model).__name__} chooses experts by topk, so there is "
                "nothing to replay; remove the option, which is for mixture-of-experts models (Qwen3-MoE, Mixtral, "
                "OLMoE, …)"
            )
        self._mode: _Recording | _Replaying | None = None
        for router in self.routers:
            router.register_forward_pre_hook(self._enter)
            router.register_forward_hook(self._leave, always_call=True)

    @contextmanager
    def recording(self) -> Iterator[Routes]:
        """Record the choices of forward passes inside the context, and yield them."""
        routes = Routes(self)
        with self.acting(_Recording(routes)):
            yield routes

    @contextmanager
    def acting(self, mode: _Recording | _Replaying) -> Iterator[None]:
        """Activate `mode` during every call of a router."""
        self._mode = mode
        try:
            yield
        finally:
            self._mode = None

    def _enter(self, *_: object) -> None:
        if self._mode is not None:
            self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch does not type it

    def _leave(self, *_: object) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # nor this


class _Recording(TorchFunctionMode):
    """Mode that records the indices of every `topk`."""

    def __init__(self, routes: Routes) -> None:
        super().__init__()
        self._choices = routes.choices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _TOPK:
            scores: Tensor = args[0] if args else kwargs["input"]
            # int16 takes a quarter of the memory of topk's int64.
            narrow = scores.shape[-1] <= torch.iinfo(torch.int16).max
            self._choices.append(result.indices.to(torch.int16) if narrow else result.indices)
        return result


class _Replaying(TorchFunctionMode):
    """Mode in which every `topk` returns the recorded indices with the current values at those places."""

    def __init__(self, routes: Routes) -> None:
        super().__init__()
        self._choices = iter(routes.choices)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _TOPK:
            return func(*args, **kwargs)
        scores, _, dim = _topk_arguments(*args, **kwargs)
        recorded = next(self._choices, None)
        if recorded is None or recorded.shape[:-1] != scores.shape[:-1]:
            found = "none are" if recorded is None else f"{tuple(recorded.shape[:-1])} are"
            raise TrainingError(
                f"trainer.routing_replay: a router chooses experts of {tuple(scores.shape[:-1])} tokens, but {found} "
                "recorded; a micro-batch must run in the same way before the step and in it"
            )
        indices = recorded.long()
        return torch.return_types.topk((scores.gather(dim, indices), indices))


def _topk_arguments(input: Tensor, k: int, dim: int = -1, **_: object) -> tuple[Tensor, int, int]:  # noqa: A002  # torch's
    return input, k, dim


@torch.no_grad()
def _routers(model: nn.Module) -> list[nn.Module]:
    """Find the modules whose own forward calls `topk`, in the order of calls, by a pass over two tokens."""
    running: list[nn.Module] = []
    found: dict[int, nn.Module] = {}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # The innermost running module is the router; its parents only call it.
            if func in _TOPK and running:
                found.setdefault(id(running[-1]), running[-1])
            return func(*args, **(kwargs or {}))

    def enter(module: nn.Module, _arguments: object) -> None:
        running.append(module)

    def leave(*_: object) -> None:
        running.pop()

    hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in model.modules()]
    try:
        with Watch():
            model(input_ids=torch.tensor([[0, 1]], device=next(model.parameters()).device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())
