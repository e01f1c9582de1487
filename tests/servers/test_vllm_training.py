"""The quickstart trains to its bar through a real vLLM that the run launches; nothing of it is left afterwards."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_quickstart_learns_through_vllm(launch_section, tmp_path):
    engine = {"use": "vllm", "launch": launch_section(context_length=512, args=["--max-num-seqs", "64"])}
    overrides = [
        f"output_dir={tmp_path}",
        f"engine={json.dumps(engine)}",
        "model.size=0.8M",  # vLLM's attention on the CPU knows no heads of fewer than 32 dimensions
        "eval.every=0",
    ]
    command = [sys.executable, "-m", "agentrl_core", "run", str(ROOT / "cookbook/quickstart/config.yaml")]
    subprocess.run([*command, "--name", "vllm", *overrides], check=True, cwd=tmp_path)
    folder = tmp_path / "vllm"
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [event["metrics"] for event in events if event["event"] == "step_finished"]
    rewards = [metrics["reward/mean"] for metrics in steps]
    assert sum(rewards[-3:]) / 3 >= 0.975  # the quickstart's own bar, at which it stops
    assert len(steps) < 40
    # fp32 on both sides: the weights of each step arrived
    assert max(metrics.get("loss/logprob_gap_max", 0.0) for metrics in steps) < 1e-4
    log = (folder / "logs" / "server-0.log").read_text(encoding="utf-8", errors="replace")
    assert log.count('POST /collective_rpc HTTP/1.1" 200 OK') == len(steps)
    listed = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
    assert str(folder / "model") not in listed
