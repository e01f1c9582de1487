"""Each reward function and option gives the same result as the released file, run side by side."""

import dataclasses
import itertools
import logging
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import pytest
import torch

from agentrl_areal.api import ModelResponse
from agentrl_areal.api.cli_args import GenerationHyperparameters
from agentrl_areal.utils import dynamic_import, stats_tracker
from agentrl_areal.utils.data import concat_padded_tensors


@pytest.fixture(scope="session")
def their_gconfig(released):
    given = {name: getattr(dataclasses, name) for name in ("dataclass", "field", "asdict", "fields")}
    given |= {
        "dataclass_missing": dataclasses.MISSING,
        "Any": Any,
        "ClassVar": ClassVar,
        "logger": logging.getLogger("a"),
    }
    return released.pick("api/cli_args.py", "GenerationHyperparameters", **given).GenerationHyperparameters


CHANGES = [
    {},
    {"n_samples": 4, "max_new_tokens": 64, "temperature": 0.5},
    {"stop": ["END"], "frequency_penalty": 0.1, "top_p": 0.9, "max_tokens": 100},
    {"min_new_tokens": 3, "greedy": True, "top_k": 5, "stop_token_ids": [3], "ignore_eos": True},
    {"skip_special_tokens": False, "lora_name": "mine"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_options_of_a_call_have_areals_names_defaults_and_arguments_for_openai(their_gconfig, changes):
    ours, theirs = GenerationHyperparameters(**changes), their_gconfig(**changes)
    assert attrs.asdict(ours) == dataclasses.asdict(theirs)
    for api, left_out in itertools.product(
        ("completions", "responses", "openai-agents"), (None, ["n_samples", "stop"])
    ):
        assert ours.to_openai_args_dict(left_out, api) == theirs.to_openai_args_dict(left_out, api)
    for name in ("completions_args", "responses_args", "agents_model_settings"):
        method = f"to_openai_{name}_dict"
        assert getattr(ours, method)(["stop"]) == getattr(theirs, method)(["stop"])
    with pytest.raises(ValueError, match="Unsupported API format: chat"):
        ours.to_openai_args_dict(api_format="chat")


def test_options_that_are_left_out_are_told_as_far_as_they_were_set(caplog):
    GenerationHyperparameters(top_k=5, temperature=0.3, n_samples=2).to_openai_args_dict(["n_samples"])
    told = {record.getMessage().partition(" ")[0] for record in caplog.records}
    assert told == {"top_k", "n_samples"}


@pytest.mark.parametrize(("eos", "pad"), [(7, 0), (7, 7), (7, None)])
def test_a_copy_stops_at_the_same_tokens(their_gconfig, eos, pad):
    tokenizer = SimpleNamespace(eos_token_id=eos, pad_token_id=pad)
    options = {"stop_token_ids": [3], "temperature": 0.5}
    ours, theirs = GenerationHyperparameters(**options), their_gconfig(**options)
    found = ours.new_with_stop_and_pad_token_ids(tokenizer)
    assert type(found) is GenerationHyperparameters
    assert {*found.stop_token_ids} == {*theirs.new_with_stop_and_pad_token_ids(tokenizer).stop_token_ids} - {None}
    assert (found.temperature, ours.stop_token_ids) == (0.5, [3])
    assert attrs.asdict(found.new(n_samples=3)) == attrs.asdict(found) | {"n_samples": 3}


def test_a_reply_without_its_end_is_the_same(released):
    given = {
        "dataclass": dataclasses.dataclass,
        "field": dataclasses.field,
        "Literal": dict,
        "Optional": dict,
        "np": SimpleNamespace(ndarray=int),
    }
    given |= {"PreTrainedTokenizerFast": int, "ImageObject": int}
    theirs = released.pick("api/io_struct.py", "ModelResponse", **given).ModelResponse
    tokenizer = SimpleNamespace(eos_token_id=7, pad_token_id=0)
    for tokens in itertools.chain.from_iterable(itertools.product((0, 1, 7), repeat=count) for count in range(4)):
        for reason in ("stop", "length"):
            asked = {"output_tokens": list(tokens), "stop_reason": reason, "tokenizer": tokenizer}
            assert _kept(ModelResponse(**asked)) == _kept(theirs(**asked)), asked
            assert ModelResponse(**asked).end_with_stop == theirs(**asked).end_with_stop


def _kept(response):
    try:
        return response.output_tokens_without_stop
    except ValueError:
        return "refused"


def rows(*shapes, extra=()):
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(1, 9, shape, generator=generator),
            "attention_mask": torch.ones(shape, dtype=torch.bool),
            "rewards": torch.rand(shape[0], generator=generator),
            "names": [str(shape)] * shape[0],
            "source": shape,
            **dict(extra),
        }
        for shape in shapes
    ]


@pytest.mark.parametrize("shapes", [[], [(1, 3)], [(1, 3), (2, 5)], [(2, 4), (1, 1), (1, 4)]])
@pytest.mark.parametrize("pad_value", [0.0, 5.0])
def test_dicts_of_tensors_are_put_together_alike(released, shapes, pad_value):
    names = ("concat_padded_tensors", "_pad_cat_dim0", "is_multi_modal_key", "get_batch_size")
    theirs = released.pick("utils/data.py", *names, torch=torch, F=torch.nn.functional, Any=Any).concat_padded_tensors
    found, expected = concat_padded_tensors(rows(*shapes), pad_value), theirs(rows(*shapes), pad_value)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name
    if shapes:
        with pytest.raises(ValueError, match="has different keys"):
            concat_padded_tensors([*rows(*shapes), {"input_ids": torch.ones(1, 1)}])


@pytest.fixture
def their_trackers(released):
    classes = ("ReduceType", "DistributedStatsTracker")
    given = {
        "Enum": Enum,
        "auto": auto,
        "Lock": threading.Lock,
        "defaultdict": defaultdict,
        "torch": torch,
        "time": time,
    }
    given |= {"contextmanager": contextmanager, "current_platform": SimpleNamespace(is_initialized=lambda: False)}
    return released.pick("utils/stats_tracker.py", *classes, **given)


def told_numbers(module):
    """Give a tracker a bit of everything, and return what it exports."""
    tracker = module.DistributedStatsTracker("rollout")
    tracker.scalar(reward=1, turns=2.5)
    with tracker.scope("math"):
        tracker.scalar(reward=0.5)
        with tracker.disable_scope():
            tracker.scalar(plain=3)
    tracker.scalar(reward=torch.tensor(2.0))
    tracker.scope_func_wrapper("inner/")(tracker.scalar)(reward=4.0)
    masks = [torch.tensor([[True, False], [True, True]]), torch.tensor([[False, False], [True, False]])]
    values = [torch.tensor([[1.0, 9.0], [2.0, 3.0]]), torch.tensor([[9.0, 9.0], [-4.0, 9.0]])]
    for mask, value in zip(masks, values, strict=True):
        tracker.denominator(tokens=mask, none=torch.zeros(2, dtype=torch.bool))
        tracker.stat("tokens", loss=value)
        tracker.stat("none", nothing=torch.ones(2))
        for kind in ("AVG", "SUM", "MIN", "MAX"):
            tracker.stat("tokens", getattr(module.ReduceType, kind), **{kind: value})
    return tracker


def test_numbers_of_workflows_come_to_the_same(their_trackers):
    ours, theirs = told_numbers(stats_tracker), told_numbers(their_trackers)
    kept = ours.export(reset=False)
    assert kept == pytest.approx(theirs.export(reset=False))
    assert kept["rollout/reward"] == 1.5
    assert kept["rollout/reward__count"] == 2
    assert ours.export() == kept
    assert ours.export() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tracker, kinds: tracker.denominator(a=torch.ones(2)),
        lambda tracker, kinds: tracker.denominator(a=torch.ones(0, dtype=torch.bool)),
        lambda tracker, kinds: tracker.stat("none", a=torch.ones(2)),
        lambda tracker, kinds: tracker.stat("tokens", a=torch.ones(2, dtype=torch.int64)),
        lambda tracker, kinds: tracker.stat("tokens", a=torch.ones(2), reduce_type=kinds.SCALAR),
    ],
)
def test_what_no_number_can_be_made_of_is_refused_alike(their_trackers, wrong):
    for module in (stats_tracker, their_trackers):
        tracker = module.DistributedStatsTracker()
        tracker.denominator(tokens=torch.ones(2, dtype=torch.bool))
        with pytest.raises(ValueError):
            wrong(tracker, module.ReduceType)


def test_dotted_names_are_imported_alike(released):
    theirs = released.pick("utils/dynamic_import.py", "import_from_string", importlib=__import__("importlib"), Any=Any)
    for name in ("json.dumps", "os.path.join", "json", "", ".dumps", "json.nothing", "no_such_module.x", None, "json."):
        outcomes = []
        for module in (dynamic_import, theirs):
            try:
                outcomes.append(module.import_from_string(name))
            except (ValueError, ImportError, AttributeError) as error:
                outcomes.append(type(error) if name else ValueError)
        assert outcomes[0] == outcomes[1] or {*outcomes} <= {ValueError, AttributeError, ModuleNotFoundError}, name


def test_names_of_areals_own_modules_are_those_here():
    from agentrl_areal.reward.gsm8k import gsm8k_reward_fn

    assert dynamic_import.import_from_string("areal.reward.gsm8k.gsm8k_reward_fn") is gsm8k_reward_fn
