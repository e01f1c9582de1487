"""Whole runs that sample from a model server: each step's weights are published to it by disk, and sampled from."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from starlette.responses import JSONResponse
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from agentrl_core import Trainer
from agentrl_core.errors import EngineError
from agentrl_core.run.doctor import examine

SERVERS = Path(__file__).parents[1] / "engines" / "servers.py"
_spec = importlib.util.spec_from_file_location("servers", SERVERS)
servers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(servers)


class PolicyServer(servers.ModelServer):
    """Serves a real policy; its weights are what `from_pretrained` reads from a directory."""

    def read_weights(self, directory):
        return AutoModelForCausalLM.from_pretrained(directory).eval()

    @torch.no_grad()
    def logits(self, weights, ids):
        return weights(torch.tensor([ids])).logits[0, -1].double().numpy()


@pytest.fixture
def server(policy_dir):
    tokenizer = Tokenizer.from_file(str(policy_dir / "tokenizer.json"))
    server = PolicyServer(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False), str(policy_dir))
    server.salt = server._loaded = server.read_weights(policy_dir)
    yield server
    server.close()


def steps_of(summary):
    lines = (Path(summary.directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["metrics"] for event in map(json.loads, lines) if event["event"] == "step_finished"]


@pytest.mark.parametrize(("kind", "lag"), [("vllm", 0), ("sglang", 0), ("vllm", 1)])
def test_every_step_is_published_to_the_server_and_sampled_from(project, server, tmp_path, kind, lag):
    engine = {"use": kind, "url": server.url, "weights_dir": str(tmp_path / "shared")}
    summary = Trainer(
        project(name=f"{kind}-{lag}", engine=engine, rollout={"max_head_offpolicyness": lag}, trainer={"steps": 3})
    ).train()
    assert (summary.status, summary.steps, summary.version) == ("finished", 3, 3)
    loads = [
        body.get("model_path") or body["kwargs"]["weights_path"] for name, body in server.controls if name == "load"
    ]
    assert [Path(path).name for path in loads] == ["version-1", "version-2", "version-3"]
    assert {str(Path(path).parents[1]) for path in loads} == {str(tmp_path / "shared")}
    assert server.label == "3"
    # The learner holds the same weights, so it finds the same logprobs for what was sampled, and the same versions.
    for step in steps_of(summary):
        assert step.get("loss/logprob_gap_max", 0.0) < 1e-4  # of tokens of lag 0
        assert step["rollout/lag_max"] <= lag
    trained = AutoModelForCausalLM.from_pretrained(Path(summary.directory) / "checkpoints" / "step-3")
    published = server.salt.state_dict()
    assert all(torch.equal(value, published[name]) for name, value in trained.state_dict().items())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_masks_of_a_server_make_top_p_and_top_k_exact(project, server, tmp_path, kind):
    server.masks = kind == "vllm"
    engine = {"use": kind, "url": server.url, "weights_dir": str(tmp_path / "shared")}
    sampling = {"top_p": 0.9, "top_k": 20}
    summary = Trainer(project(name=kind, engine=engine, sampling=sampling, trainer={"steps": 1})).train()
    (step,) = steps_of(summary)
    assert step["loss/logprob_gap_max"] < 1e-4
    assert 0 <= step["loss/certain_share"] < 1


def test_a_server_that_takes_no_weights_stops_the_run_at_its_first_publication(project, server):
    server.development = False
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        Trainer(project(name="fixed", engine={"use": "vllm", "url": server.url})).train()


def test_a_server_that_fails_is_told_while_the_run_waits_for_it(project, server, tmp_path, capsys):
    class Late(list):
        """Faults after the canary's calls, whose repetitions only the log tells."""

        def __bool__(self):
            return len(self) > 0 and len(server.asked) > 4

    server.faults = Late([JSONResponse({"error": {"message": "the worker has died", "code": 500}}, 500)])
    engine = {"use": "vllm", "url": server.url, "weights_dir": str(tmp_path / "shared"), "patience_s": 90}
    trainer = {"steps": 1}
    summary = Trainer(project(name="fails", engine=engine, trainer=trainer, trackers=["console"])).train()
    assert summary.status == "finished"
    said = " ".join(capsys.readouterr().out.split())
    waits = "a call to a model server failed and is repeated; the run ends if no server answers for 90 s: "
    assert f"{waits}request " in said
    assert "status 500: the worker has died" in said


def test_the_doctor_lists_the_servers_or_names_the_wrong_address(project, server, tmp_path):
    def findings(**options):
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(project(engine={"use": "sglang", **options})), encoding="utf-8")
        return list(examine(path))

    (told,) = [finding.told for finding in findings(url=server.url) if finding.check == "servers"]
    assert told == f"{server.url}: SGLang 'policy', version 0, 4,096 tokens of context, ready"
    (wrong,) = [finding.told for finding in findings(url="http://127.0.0.1:9") if not finding.ok]
    assert wrong.startswith("http://127.0.0.1:9/")
    assert wrong.endswith("Is the server running?")


def test_a_list_of_servers_is_read_from_the_config(project, server, tmp_path):
    Path("servers.txt").write_text(f"{server.url}\n", encoding="utf-8")
    engine = {"use": "sglang", "servers_file": "servers.txt", "weights_dir": str(tmp_path / "shared")}
    summary = Trainer(project(name="listed", engine=engine, trainer={"steps": 1})).train()
    assert (summary.status, server.label) == ("finished", "1")
