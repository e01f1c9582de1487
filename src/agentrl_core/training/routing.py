"""Routing replay: a mixture-of-experts model keeps, in every update of a step, the experts that it took before it.

Tokens change experts between two updates where a gate is undecided, which moves their log-probs far more than the
update itself did, and importance ratios and clipping then answer to that (arXiv 2507.18071, section 5.3, and
2512.01374, where this is R2, "vanilla" replay). Only the choice is replayed: the gate's weights for the chosen
experts come from its present logits, by the model's own formula, so the gate is trained as before.
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
    """What the routers of a model chose in one pass over a micro-batch: indices, in the order of their calls.

    They stand for the packed tokens of that micro-batch, loss tokens or not.
    """

    def __init__(self, replay: RoutingReplay) -> None:
        self.choices: list[Tensor] = []
        self._replay = replay

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Let the forward passes inside take the same experts, in the same order of calls."""
        with self._replay.acting(_Replaying(self)):
            yield


class RoutingReplay:
    """Records and replays what the routers of one model choose.

    A router is any module that calls `topk` in its forward, as those of transformers do, whatever their formula is;
    asking the model itself is the test that needs no list of them. Raises `ConfigError` where none does.
    """

    def __init__(self, model: nn.Module) -> None:
        self.routers = _routers(model)
        if not self.routers:
            raise ConfigError(
                f"trainer.routing_replay: no module of {type(model).__name__} chooses experts by topk, so there is "
                "nothing to replay; leave it out, it is for mixture-of-experts models (Qwen3-MoE, Mixtral, OLMoE, …)"
            )
        self._mode: _Recording | _Replaying | None = None
        for router in self.routers:
            router.register_forward_pre_hook(self._enter)
            router.register_forward_hook(self._leave, always_call=True)

    @contextmanager
    def recording(self) -> Iterator[Routes]:
        """Give what the forward passes inside choose."""
        routes = Routes(self)
        with self.acting(_Recording(routes)):
            yield routes

    @contextmanager
    def acting(self, mode: _Recording | _Replaying) -> Iterator[None]:
        """Put `mode` around every call of a router."""
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
    """Keeps the indices of every `topk`."""

    def __init__(self, routes: Routes) -> None:
        super().__init__()
        self._choices = routes.choices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _TOPK:
            scores: Tensor = args[0] if args else kwargs["input"]
            narrow = scores.shape[-1] <= torch.iinfo(torch.int16).max  # a quarter of the memory
            self._choices.append(result.indices.to(torch.int16) if narrow else result.indices)
        return result


class _Replaying(TorchFunctionMode):
    """Lets every `topk` take the recorded indices, with the values that stand there now."""

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
                f"trainer.routing_replay: experts are asked for of {tuple(scores.shape[:-1])} tokens, but {found} "
                "recorded; the passes of a micro-batch before and in the step must be the same"
            )
        indices = recorded.long()
        return torch.return_types.topk((scores.gather(dim, indices), indices))


def _topk_arguments(input: Tensor, k: int, dim: int = -1, **_: object) -> tuple[Tensor, int, int]:  # noqa: A002  # torch's
    return input, k, dim


@torch.no_grad()
def _routers(model: nn.Module) -> list[nn.Module]:
    """Find the modules in whose own forward `topk` is called, by a pass over two tokens; in the order of calls."""
    running: list[nn.Module] = []
    found: dict[int, nn.Module] = {}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
