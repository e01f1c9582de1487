"""The quickstart trains to its bar through two SGLang servers behind the real sglang-router."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core.models import tiny

QUICKSTART = Path(__file__).parents[2] / "cookbook" / "quickstart"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_quickstart_learns_through_sglang_behind_its_router(serve_fake, serve_router, tmp_path):
    (tmp_path / "weights").mkdir()
    # Servers of a model of the same shape: the engine has them load the policy's weights before the first step.
    demos = [json.loads(line) for line in (QUICKSTART / "demos.jsonl").read_text("utf-8").splitlines()]
    tiny.build(tmp_path / "model", seed=1, conversations=demos, vocab_size=400, context_length=512)
    fakes = [serve_fake(tmp_path / "model") for _ in range(2)]
    router = serve_router([fake.url for fake in fakes])
    engine = {"use": "sglang", "url": router.url, "weights_dir": str(tmp_path / "weights")}
    command = [sys.executable, "-m", "agentrl_core", "run", str(QUICKSTART / "config.yaml"), "--name", "sglang"]
    overrides = [f"output_dir={tmp_path}", f"engine={json.dumps(engine)}", "eval.every=0"]
    subprocess.run([*command, *overrides], check=True, cwd=tmp_path)
    events = [json.loads(line) for line in (tmp_path / "sglang" / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [event["metrics"] for event in events if event["event"] == "step_finished"]
    rewards = [metrics["reward/mean"] for metrics in steps]
    assert sum(rewards[-3:]) / 3 >= 0.975  # the quickstart's own bar, at which it stops
    assert len(steps) < 40
    # fp32 on both sides: the weights of each step arrived, and nothing was sampled from older ones unnoticed
    assert max(metrics.get("loss/logprob_gap_max", 0.0) for metrics in steps) < 1e-4
    assert all(metrics["weights/canary_gap"] < 1e-4 for metrics in steps)
    for fake in fakes:
        assert fake.count('POST /update_weights_from_disk HTTP/1.1" 200 OK') >= len(steps)
        assert fake.count('POST /generate HTTP/1.1" 200 OK') > 10 * len(steps)
        assert fake.count("400 Bad Request") == fake.count("500 Internal") == 0
    assert not list((tmp_path / "weights").iterdir())
