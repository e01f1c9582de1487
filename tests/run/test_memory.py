"""The estimate of a run's memory follows from the model's shape and the config, and is near what a step takes."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.config import parse
from agentrl_core.errors import TrainingError
from agentrl_core.run.memory import Load, ModelShape, needed_on, parts, remedy, summary
from agentrl_core.run.try_step import try_step
from agentrl_testing.policy import toy_policy

CPU = torch.device("cpu")
SHAPE = ModelShape(
    weights=1_000_000, layers=4, hidden=64, intermediate=256, attention=64, keys=32, vocabulary=1000, context=512
)


def config_of(**sections):
    return parse({"model": {"path": "policy"}, "data": {"train": "x"}, **sections})


def sizes(config=None, load=None, *, learner=CPU, engine=CPU, refers=False):
    config = config or config_of()
    load = load or Load.of(config, record=100)
    return {
        f"{part.device} {part.what.split(' of ')[0]}": part.bytes
        for part in parts(config, SHAPE, load, learner=learner, engine=engine, refers=refers)
    }


def test_the_shape_is_that_of_the_model_without_its_weights(tmp_path):
    directory = toy_policy(tmp_path, num_layers=3)
    model = AutoModelForCausalLM.from_pretrained(directory)
    shape = ModelShape.read(directory)
    assert shape == ModelShape.of(model)
    assert shape.weights == sum(weight.numel() for weight in model.parameters())
    assert (shape.layers, shape.hidden, shape.attention, shape.keys) == (3, 32, 32, 16)


def test_a_weight_takes_16_bytes_in_fp32_and_18_in_bf16():
    state = ("weights", "master weights", "gradients", "optimizer state")
    wide, narrow = sizes(), sizes(config_of(model={"path": "policy", "dtype": "bfloat16"}))
    assert sum(wide.get(f"cpu {name}", 0) for name in state) == 16_000_000
    assert sum(narrow[f"cpu {name}"] for name in state) == 18_000_000
    assert narrow["cpu engine's weights"] == 2_000_000


def test_parts_are_where_learner_and_engine_are():
    found = sizes(learner=torch.device("cuda:1"), engine=None, refers=True)
    assert {name.split()[0] for name in found} == {"cpu", "cuda:1"}
    assert found["cuda:1 reference policy"] == 4_000_000
    assert [name for name in found if name.startswith("cpu")] == ["cpu libraries"]


def test_a_gpu_holds_the_whole_prefix_store_from_the_start():
    few = Load(record=10, pass_=20, running=2)
    # 2 x 4 layers x 32 numbers x 4 bytes a token: of 4 x 2 x 10 tokens, and of all 32,768
    assert sizes(load=few)["cpu engine's prefix store"] == 1024 * 80
    assert sizes(load=few, engine=torch.device("cuda:0"))["cuda:0 engine's prefix store"] == 1024 * 32768


@pytest.mark.parametrize(("offload", "moved"), [("optimizer", 8_000_000), ("all", 12_000_000)])
def test_learner_and_engine_that_take_turns_need_the_larger_of_both_halves(offload, moved):
    gpu, load = torch.device("cuda:0"), Load(record=100, pass_=200, running=64)

    def needed(engine=gpu, **rollout):
        config = config_of(trainer={"offload": offload}, rollout=rollout)
        found = list(parts(config, SHAPE, load, learner=gpu, engine=engine, refers=False))
        assert next(part.bytes for part in found if part.what == "offloaded learner") == moved
        on_gpu = {part.what.split(" of ")[0]: part.bytes for part in found if part.device == "cuda:0"}
        return on_gpu, needed_on(found, "cuda:0")

    one_gpu, total = needed()
    sampling = one_gpu["engine's keys and values"] + one_gpu["engine's prefix store"]
    fixed = one_gpu["CUDA itself"] + one_gpu["engine's weights"] + (offload == "optimizer") * one_gpu["weights"]
    assert total == fixed + max(sampling, sum(one_gpu.values()) - fixed - sampling)
    ahead, total_ahead = needed(max_head_offpolicyness=1)
    assert total_ahead == sum(ahead.values()) > total
    alone, total_alone = needed(torch.device("cuda:1"))
    assert total_alone == sum(alone.values())


def test_recomputed_activations_take_less():
    sparing = sizes(config_of(trainer={"gradient_checkpointing": True}))
    assert sparing["cpu activations"] < sizes()["cpu activations"] / 2


def test_a_pass_holds_the_longest_record_and_no_more_than_the_step():
    def load(record, joined=None, **sections):
        return Load.of(config_of(**sections), record=record, joined=joined).pass_

    assert load(100) == 8192
    assert load(20_000) == 20_000
    assert load(100, joined=1024, rollout={"tasks_per_step": 16, "group_size": 8}) == 1024
    assert load(200, joined=1024, rollout={"tasks_per_step": 16, "group_size": 8}) == 1600
    assert load(100, rollout={"tasks_per_step": 2, "group_size": 4}) == 800
    assert load(100, rollout={"tasks_per_step": 2, "group_size": 4}, trainer={"updates": 2}) == 400


def test_the_largest_parts_and_their_options_come_first():
    config = config_of()
    found = list(parts(config, SHAPE, Load.of(config, record=100), learner=CPU, engine=CPU, refers=False))
    told = summary(found, "cpu")
    assert told.startswith("cpu: about ")
    assert told.index("libraries") < told.index("activations of 8,192 tokens") < told.index("optimizer state 8 MiB")
    assert remedy(found, "cpu").startswith(
        "lower trainer.max_tokens_per_microbatch (now 8192), or set trainer.gradient"
    )


@pytest.fixture
def learner(tmp_path):
    from agentrl_core.batching import advantages
    from agentrl_core.batching.credit import TreeCredit
    from agentrl_core.losses import AggregationConfig
    from agentrl_core.losses.grpo import GRPO
    from agentrl_core.training.learner import Learner

    directory = toy_policy(tmp_path, hidden_size=64, head_dim=16)

    def make(config, filters=()):
        return Learner(
            model_dir=directory,
            loss=GRPO(),
            aggregation=AggregationConfig(),
            advantage=advantages.GRPO(),
            credit=TreeCredit(),
            filters=filters,
            config=config.trainer,
        )

    return make


def test_the_estimate_is_near_what_a_step_takes(learner):
    config = config_of(trainer={"lr": 1e-6, "max_tokens_per_microbatch": 4096})
    one = learner(config)
    load = Load(record=256, pass_=4096, running=1)
    shape = ModelShape.of(one.weights().module)
    tried = try_step(one, load, vocabulary=shape.vocabulary, max_tokens=64)
    assert 4096 - 16 < tried.tokens <= 4096  # some begin with the same token, which is computed once
    assert tried.seconds > 0
    found = parts(config, shape, load, learner=CPU, engine=None, refers=False)
    # The test's own process holds more than a run's: pytest and what earlier tests imported.
    assert sum(part.bytes for part in found) < 1.25 * tried.peak_bytes


def test_made_up_groups_that_are_filtered_out_are_an_error(learner):
    class Drops:
        reason = "all"

        def keep(self, _group, _advantages):
            return False

    config = config_of(trainer={"lr": 1e-6, "max_tokens_per_microbatch": 64})
    with pytest.raises(TrainingError, match="left nothing to train of made-up groups"):
        try_step(learner(config, filters=[Drops()]), Load(record=32, pass_=64, running=1), vocabulary=263, max_tokens=8)
