"""Advice of the doctor: silent for what fits, one sentence for each default that is wrong for the model."""

import attrs
import numpy as np
import pytest
from safetensors.numpy import save_file

from agentrl_core.config import parse
from agentrl_core.run.advice import Setting, advice, num_parameters

SETTING = Setting(
    parameters=134_515_008, reply_tokens=16, pretrained=True, on_cpu=True, cores=1, free_bytes=100 * 2**30
)
SERVER = {"engine": {"use": "vllm", "url": "http://localhost:8000"}}


def told(setting=SETTING, **sections):
    return list(advice(parse({"model": {"path": "m"}, **sections}), setting))


def test_a_config_that_fits_gets_no_advice():
    assert told() == []
    assert told(attrs.evolve(SETTING, on_cpu=False), model={"path": "m", "dtype": "bfloat16"}) == []


def test_a_tiny_policy_gets_no_advice_on_speed():
    tiny = Setting(parameters=300_000, reply_tokens=1024, pretrained=False, on_cpu=True, cores=8, free_bytes=10**9)
    assert told(tiny, trainer={"lr": 5e-4}) == []


@pytest.mark.parametrize(
    ("sections", "setting", "words"),
    [
        # 128 replies of 1,024 tokens at 7e9 / 134.5e6 = 52 tokens/s are 42 minutes, and 32 of them at once 630 s
        ({}, {"reply_tokens": 1024}, ["max_tokens is not set, so it is 1,024", "about 42 minutes", "(52 tokens/s)"]),
        ({}, {"reply_tokens": 1024}, ["take about 630 s", "longer than rollout.timeout_s (300)"]),
        ({"sampling": {"max_tokens": 512}}, {"reply_tokens": 512}, ["sampling.max_tokens is 512", "21 minutes"]),
        ({}, {"cores": 4}, ["one of 4 cores", "trainer.threads: 4", "threads: 4}"]),
        ({"trainer": {"lr": 4e-4}}, {}, ["trainer.lr is 0.0004", "destroys a pretrained model"]),
        ({}, {"free_bytes": 2**30}, ["4 checkpoints of 1.5 GiB", "1.0 GiB that are free"]),
        ({"model": {"path": "m", "dtype": "bfloat16"}}, {"free_bytes": 2**30}, ["4 checkpoints of 1.8 GiB"]),
        ({}, {"on_cpu": False}, ["model.dtype is float32", "bfloat16"]),
        (SERVER, {}, ["max_concurrent_rollouts is 32 of 128 episodes", "model server"]),
    ],
)
def test_a_default_that_is_wrong_for_the_model_is_told(sections, setting, words):
    found = told(attrs.evolve(SETTING, **setting), **sections)
    assert any(all(word in text for word in words) for text in found), found


def test_threads_of_the_engine_count_for_its_speed():
    engine = {"engine": {"use": "embedded", "threads": 4}}
    assert told(attrs.evolve(SETTING, reply_tokens=200), **engine) == []
    assert len(told(attrs.evolve(SETTING, reply_tokens=300))) == 1


@pytest.mark.parametrize(("evaluated", "count"), [(1.0, 1), (0.7, 0), (0.0, 0)])
def test_evaluations_at_another_temperature_are_told(evaluated, count):
    sections = {"sampling": {"temperature": 0.7}, "eval": {"temperature": evaluated}}
    assert len(told(data={"train": "t.jsonl", "eval": "e.jsonl"}, **sections)) == count
    assert told(data={"train": "t.jsonl"}, **sections) == []


def test_parameters_are_counted_from_the_files_headers(tmp_path):
    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float16)}, tmp_path / "model-1.safetensors")
    save_file({"c": np.zeros((), np.float32)}, tmp_path / "model-2.safetensors", metadata={"format": "pt"})
    assert num_parameters(tmp_path) == 3 * 5 + 7 + 1
    (tmp_path / "empty").mkdir()
    assert num_parameters(tmp_path / "empty") == 0
