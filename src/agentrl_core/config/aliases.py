"""Translation of AReaL's and AgentCPM's option names into ours, wherever ours are accepted.

AReaL and AgentCPM's AgentRL (another project with our name; "AgentRL" below) are other RL trainers. Names whose values
need more than a new name are in `foreign_hints.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from agentrl_core.api.token_level import ALL_TOKENS
from agentrl_core.config import gconfig
from agentrl_core.config.nodes import Assignment, Node, Problem, describe
from agentrl_core.config.schema import SHORTHAND

Path: TypeAlias = tuple[str, ...]

RENAMED: Mapping[Path, Path] = {
    # AReaL
    ("rollout", "openai"): ("rollout", "agent"),
    ("scheduler", "type"): ("launcher", "use"),
    ("gconfig", "n_samples"): ("rollout", "group_size"),
    ("gconfig", "max_new_tokens"): ("sampling", "max_tokens"),
    ("gconfig", "min_new_tokens"): ("sampling", "min_tokens"),
    ("gconfig", "temperature"): ("sampling", "temperature"),
    ("gconfig", "stop"): ("sampling", "stop"),
    ("gconfig", "stop_token_ids"): ("sampling", "stop_token_ids"),
    ("gconfig", "ignore_eos"): ("sampling", "ignore_eos"),
    ("gconfig", "max_tokens"): ("engine", "context_length"),
    ("gconfig", "top_p"): ("sampling", "top_p"),
    ("gconfig", "top_k"): ("sampling", "top_k"),
    ("eval_gconfig", "temperature"): ("eval", "temperature"),
    ("eval_gconfig", "top_p"): ("eval", "top_p"),
    ("eval_gconfig", "top_k"): ("eval", "top_k"),
    ("workflow_kwargs",): ("workflow",),
    ("actor", "eps_clip"): ("loss", "clip"),
    ("actor", "c_clip"): ("loss", "dual_clip"),
    ("actor", "sapo_tau_pos"): ("loss", "tau_positive"),
    ("actor", "sapo_tau_neg"): ("loss", "tau_negative"),
    ("actor", "prox_logp_method"): ("loss", "proximal"),
    # AgentCPM's AgentRL
    ("num_generations",): ("rollout", "group_size"),
    ("model_name_or_path",): ("model", "path"),
    ("learning_rate",): ("trainer", "lr"),
    ("save_steps",): ("trainer", "save_steps"),
    ("max_steps",): ("trainer", "steps"),
    ("warmup_steps",): ("trainer", "warmup_steps"),
    ("max_new_tokens",): ("sampling", "max_tokens"),
    ("train_file",): ("data", "train"),
    ("adv_scaling",): ("advantage", "scale"),
    ("epsilon",): ("loss", "clip"),
    ("epsilon_higher",): ("loss", "clip_higher"),
    ("strict_in_bound",): ("loss", "strict_in_bound"),
    ("importance_weight_cap_ratio",): ("loss", "importance_weight_cap_ratio"),
    ("out_of_date_decay",): ("loss", "out_of_date_decay"),
}
"""Options, or whole sections, whose values stay the same under our name."""

FOREIGN_SECTIONS = frozenset({"actor", "eval_gconfig", "gconfig", "scheduler", "workflow_kwargs"})
"""Sections that exist only in other trainers, so that every option in them is an alias."""

AGGREGATION_FLAGS = ("token_level_loss", "skip_length_normalization")
"""AgentRL's two flags that together select the aggregation of token losses (`loss.aggregation`)."""

_LOSSES = {"grpo": "grpo", "minirl": "minirl", "gspo": "gspo", "crossentropy": "cross_entropy"}


class NativeSpelling:
    """Translator of assignments to our names: first those of the config file, then those of the command line."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._flags: dict[str, Node] = {}

    def translate(self, source: Iterable[Assignment]) -> Iterator[Assignment]:
        """Yield the assignments of one source under our names.

        An option that one source gives two different values, under its own name and under an alias, is a problem,
        because neither value is the later one.
        """
        given: dict[Path, Assignment] = {}
        for assignment in self._native(source):
            earlier = given.get(assignment.path, assignment)
            if earlier.spelled != assignment.spelled and earlier.node.plain() != assignment.node.plain():
                self._problems.append(_contradiction(earlier, assignment))
            given[assignment.path] = assignment
            yield assignment

    def _native(self, source: Iterable[Assignment]) -> Iterator[Assignment]:
        flags = []
        for assignment in source:
            match assignment.path:
                case ("loss_calculater",):
                    yield _rename(assignment, ("loss", "use"), _loss_name(assignment.node.value))
                case ("db_connection_string",):
                    yield from self._store(assignment)
                case (name,) if name in AGGREGATION_FLAGS:
                    flags.append(assignment)
                case (name,) if name in FOREIGN_SECTIONS and assignment.node.value in ({}, None):
                    continue
                case ("gconfig" | "eval_gconfig", _):
                    yield from self._gconfig(assignment)
                case ("workflow_kwargs", *_):
                    # AReaL's agents are chosen on the command line, with the arguments of the file
                    place = attrs.evolve(assignment.node.place, stays=True)
                    node = attrs.evolve(assignment.node, place=place)
                    yield Assignment(_renamed(assignment.path), node, assignment.spelled)
                case ("loss",) | ("loss", "use"):
                    yield _expand(_rename(assignment, assignment.path, _loss_name(assignment.node.value)))
                case path:
                    yield _expand(_rename(assignment, _renamed(path)))
        if flags:
            yield from self._aggregation(flags)

    def _gconfig(self, assignment: Assignment) -> Iterator[Assignment]:
        section, name = assignment.path
        value = assignment.node.value
        if section == "eval_gconfig" and name == "greedy" and value is True:
            yield _rename(assignment, ("eval", "temperature"), 0.0)
        elif name == "top_k" and isinstance(value, int) and (value == -1 or value >= ALL_TOKENS):
            yield _rename(assignment, _renamed(assignment.path), 0)
        elif rule := gconfig.rule(section, name):
            if problem := rule.problem(value):
                self._problem(assignment, problem)
        elif value is not None:  # AReaL writes null for a default
            yield _rename(assignment, _renamed(assignment.path))

    def _store(self, assignment: Assignment) -> Iterator[Assignment]:
        address = assignment.node.value
        if isinstance(address, str) and address.startswith("sqlite:///"):
            yield _rename(assignment, ("store", "use"), "sqlite")
            yield _rename(assignment, ("store", "path"), address.removeprefix("sqlite:///"))
        elif isinstance(address, str) and re.match(r"mongodb(\+srv)?://", address):
            yield _rename(assignment, ("store", "use"), "mongo")
            yield _rename(assignment, ("store", "url"), address)
        else:
            # Do not show the address: it may contain a password.
            self._problem(assignment, "expected sqlite:///FILE or mongodb://HOST/DATABASE")

    def _aggregation(self, flags: list[Assignment]) -> Iterator[Assignment]:
        """Combine the two flags; one may come from the file and the other from the command line."""
        for flag in flags:
            if not isinstance(flag.node.value, bool):
                self._problem(flag, f"expected true or false, found {describe(flag.node.plain())}")
                return
            self._flags[flag.path[0]] = flag.node
        values = {name: node.value for name, node in self._flags.items()}
        if values.get("token_level_loss", True):  # AgentRL's default
            aggregation = "token_mean"
        elif values.get("skip_length_normalization", False):
            aggregation = "seq_mean_token_sum"
        else:
            aggregation = "seq_mean_token_mean"
        yield _rename(flags[-1], ("loss", "aggregation"), aggregation)

    def _problem(self, assignment: Assignment, text: str) -> None:
        self._problems.append(Problem(assignment.node.place, f"{assignment.spelled}: {text}"))


def _renamed(path: Path) -> Path:
    for old, new in RENAMED.items():
        if path[: len(old)] == old:
            return new + path[len(old) :]
    return path


def _rename(assignment: Assignment, path: Path, value: Any = ...) -> Assignment:
    node = assignment.node if value is ... else Node(value, assignment.node.place)
    return Assignment(path, node, assignment.spelled)


def _expand(assignment: Assignment) -> Assignment:
    """Expand `loss: minirl` to `loss: {use: minirl}`."""
    path, node = assignment.path, assignment.node
    if len(path) == 1 and path[0] in SHORTHAND and isinstance(node.value, str):
        native = (*path, SHORTHAND[path[0]])
        spelled = ".".join(native) if assignment.spelled == path[0] else assignment.spelled
        return Assignment(native, node, spelled)
    return assignment


def _loss_name(value: Any) -> Any:
    """Return our name of a loss that AgentRL writes: in capitals, and cross entropy without the underscore."""
    return _LOSSES.get(value.lower(), value) if isinstance(value, str) else value


def _contradiction(first: Assignment, second: Assignment) -> Problem:
    key = ".".join(second.path)
    return Problem(
        second.node.place,
        f"{second.spelled} sets {key} to {describe(second.node.plain())}, but {first.spelled} "
        f"({first.node.place.text}) sets it to {describe(first.node.plain())}; keep one of them",
    )
