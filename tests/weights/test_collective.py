"""Weights from the trainer's memory to servers: in a real process group, and in the words that vLLM expects."""

import asyncio
import base64
import hashlib
import io
import json
import pickle
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from torch.multiprocessing import reductions
from transformers import AutoModelForCausalLM

from agentrl_core.api.publishers import PublisherPlan, SharedTensor
from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.config.component import Component
from agentrl_core.engines.remote.proving import WeightProof
from agentrl_core.engines.remote.publishers import PUBLISHERS
from agentrl_core.errors import ConfigError, EngineError
from agentrl_core.weights import collective, ipc
from agentrl_core.weights.publishers import build_publisher
from agentrl_core.weights.tensors import buckets, checkpoint_tensors, info_of
from agentrl_sglang.engine import SGLangEngine
from agentrl_sglang.protocol import SGLang
from agentrl_testing.policy import toy_policy
from agentrl_vllm.protocol import VLLM


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("models") / "toy", seed=1)


@pytest.fixture
def module(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir)


def plan(protocol, dtype=None):
    return PublisherPlan(protocol=protocol, dtype=dtype, weights_dir=None, timeout_s=60.0)


def digests(module, dtype=None):
    return {
        name: hashlib.sha256(tensor.view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in checkpoint_tensors(module, dtype)
    }


# SGLang's routes, with workers that join a group of gloo.


@pytest.fixture(scope="module")
def two_workers():
    script = Path(__file__).with_name("sglang_worker.py")
    processes = [
        subprocess.Popen([sys.executable, script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        yield [f"http://127.0.0.1:{process.stdout.readline().strip()}" for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def told(url, path):
    with urllib.request.urlopen(url + path, timeout=60) as reply:
        return json.loads(reply.read())


@pytest.fixture
def workers(two_workers):
    for url in two_workers:
        told(url, "/forget")
    return two_workers


@pytest.fixture
def engine(workers, monkeypatch):
    """Start an engine. The workers have no model that could answer the canary; here the digests are the proof."""
    made = []

    async def no_canary(*_):
        pass

    monkeypatch.setattr(WeightProof, "expect", no_canary)

    def start(dtype=None, **options):
        publish = Component("nccl", {"backend": "gloo", **options})
        made.append(SGLangEngine(url=tuple(workers), publish=publish, publish_dtype=dtype, patience_s=1.0))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def step(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_every_worker_of_every_server_gets_each_weight_and_its_name(workers, engine, module, dtype, monkeypatch):
    monkeypatch.setattr(collective, "buckets", lambda tensors, _: buckets(tensors, 20_000))
    one = engine(dtype)
    for version in (1, 2):
        publication = asyncio.run(one.load_weights(version, ModuleWeights(module)))
        for url in workers:
            found = told(url, "/received")
            assert found["digests"] == digests(module, dtype)
            assert (found["label"], found["flushed"]) == (str(version), True)
            assert found["log"].count("/init_weights_update_group") == 1
            assert found["log"].count("/update_weights_from_distributed") > version
        assert publication.path == "nccl"
        assert publication.bytes == sum(tensor.nbytes for _, tensor in checkpoint_tensors(module, dtype))
        assert 0 < publication.stall_s <= publication.seconds
        step(module)


@pytest.mark.slow
def test_tensors_of_several_types_are_sent_one_by_one(workers, engine, module):
    module.model.norm.weight.data = module.model.norm.weight.data.to(torch.bfloat16)
    asyncio.run(engine().load_weights(1, ModuleWeights(module)))
    assert told(workers[0], "/received")["digests"] == digests(module)


@pytest.mark.slow
def test_a_restarted_server_is_taken_into_a_new_group(workers, engine, module):
    one = engine()
    asyncio.run(one.load_weights(1, ModuleWeights(module)))
    told(workers[1], "/forget")
    step(module)
    asyncio.run(one.load_weights(2, ModuleWeights(module)))
    assert [told(url, "/received")["digests"] for url in workers] == [digests(module)] * 2
    assert told(workers[0], "/received")["log"].count("/destroy_weights_update_group") == 1


@pytest.mark.slow
@pytest.mark.parametrize("route", ["init_weights_update_group", "begin_weight_update", "end_weight_update"])
def test_a_server_that_refuses_is_named_at_once(workers, engine, module, route):
    told(workers[1], f"/fail/{route}")
    with pytest.raises(EngineError, match=f"{workers[1]}/{route}: status 400: .*fails"):
        asyncio.run(engine().load_weights(1, ModuleWeights(module)))


# vLLM's words, and how it takes a stream of bytes apart.


class Receiver:
    """Keeps what it is sent, and answers as a vLLM server with some workers."""

    def __init__(self, workers=1, url="http://one"):
        self.workers, self.url, self.sent, self.label = workers, url, [], "default"

    async def send(self, commands):
        for command in commands:
            self.sent.append((command.path, command.body))
            if command.path == "/finish_weight_update":
                self.label = command.body["weight_version"]

    async def get(self, path):
        return {"/get_world_size": {"world_size": self.workers}, "/weight_info": {"weight_version": self.label}}[path]


class Captured:
    """A group in which nothing receives."""

    def __init__(self, unique_id, *, world_size, device):
        self.joined, self.sent = (unique_id, world_size), []
        MADE.append(self)

    def broadcast(self, tensor):
        self.sent.append(tensor.clone())

    def close(self):
        self.sent.clear()


MADE = []


def taken_apart(sent, info, init):
    """Unpack a broadcast as a worker of vLLM 0.32 does: a bucket ends above the size that the trainer has told."""
    found, chunk, size, rest = {}, [], 0, list(sent)

    def take():
        packed = rest.pop(0)
        assert packed.dtype == torch.uint8
        for (name, dtype, shape), piece in zip(chunk, packed.split([n for *_, n in sizes(chunk)]), strict=True):
            found[name] = piece.view(dtype).view(shape)

    def sizes(items):
        return [(name, torch.empty(shape, dtype=dtype, device="meta").nbytes) for name, dtype, shape in items]

    for name, dtype_name, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
        item = (name, getattr(torch, dtype_name), shape)
        chunk.append(item)
        size += sizes([item])[0][1]
        if size > init["packed_buffer_size_bytes"]:
            take()
            chunk, size = [], 0
    if chunk:
        take()
    assert not rest
    return found


def test_vllm_gets_the_words_and_bytes_that_it_expects(module, monkeypatch):
    MADE.clear()
    monkeypatch.setattr(collective, "NcclGroup", Captured)
    monkeypatch.setattr(collective, "unique_id", lambda: bytes(range(128)))
    monkeypatch.setattr(collective.CollectivePublisher, "prepare", prepared_on_cpu)
    publisher = build_publisher(PUBLISHERS, Component("nccl"), plan(VLLM()))
    publisher._bucket_bytes = 30_000
    servers = [Receiver(2, "http://one"), Receiver(1, "http://two")]
    for version in (1, 2):
        step(module)
        publisher.prepare(version, ModuleWeights(module))
        asyncio.run(publisher.deliver(version, str(version), servers))
    (group,) = MADE
    assert group.joined == (bytes(range(128)), 4)
    for server, first in zip(servers, (1, 3), strict=True):
        (path, body), *updates = server.sent
        assert path == "/init_weight_transfer_engine"
        init = body["init_info"]
        assert init == {
            "rank_offset": first,
            "world_size": 4,
            "packed": True,
            "packed_buffer_size_bytes": 30_000,
            "nccl_unique_id_b64": base64.b64encode(bytes(range(128))).decode(),
        }
        paths = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
        assert [path for path, _ in updates] == paths * 2
        info = updates[5][1]["update_info"]
        found = taken_apart(group.sent[len(group.sent) // 2 :], info, init)
        for name, tensor in found.items():
            assert torch.equal(tensor, module.state_dict()[name]), name
        assert sorted(found) == sorted(name for name, _ in checkpoint_tensors(module, None))


def prepared_on_cpu(self, _version, source):
    self._tensors = checkpoint_tensors(source.module, self._plan.dtype)


def handle(name, tensor):
    arguments = (torch.Tensor, tensor.shape, tensor.stride(), 0, torch.UntypedStorage, tensor.dtype, 3, b"handle", 9)
    return SharedTensor(info=info_of(name, tensor), gpu="GPU-1", arguments=arguments)


@pytest.mark.parametrize("workers", [1, 2])
def test_vllm_gets_handles_of_each_tensor_for_each_worker(module, workers):
    publisher = build_publisher(PUBLISHERS, Component("ipc"), plan(VLLM(), "bfloat16"))
    publisher._share = handle
    prepared = publisher.prepare(1, ModuleWeights(module))
    server = Receiver(workers)
    asyncio.run(publisher.deliver(1, "1", [server]))
    tensors = dict(checkpoint_tensors(module, "bfloat16"))
    assert prepared.bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert server.sent[0] == ("/init_weight_transfer_engine", {"init_info": {"packed": False}})
    info = server.sent[2][1]["update_info"]
    infos = [info] if workers == 1 else info
    assert len(infos) == workers
    for one in infos:
        handles = pickle.loads(base64.b64decode(one["ipc_handles_pickled"]))
        assert one["names"] == list(tensors)
        assert set(one["dtype_names"]) == {"bfloat16"}
        assert [found["GPU-1"][1] for found in handles] == [tensor.shape for tensor in tensors.values()]
    assert [path for path, _ in server.sent[3:]] == ["/finish_weight_update", "/reset_prefix_cache"]


def test_sglang_gets_pickles_that_name_nothing_but_what_it_allows(module):
    allowed = {
        ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
        ("torch", "Tensor"),
        ("torch", "Size"),
        ("torch", "float32"),
        ("torch", "UntypedStorage"),
        ("torch.storage", "UntypedStorage"),
    }
    opened = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, owner, name):
            assert (owner, name) in allowed
            if name == "rebuild_cuda_tensor":
                return lambda *arguments: opened.append(arguments) or arguments
            return super().find_class(owner, name)

    exports = [handle(name, tensor) for name, tensor in checkpoint_tensors(module, None)]
    (command,) = SGLang().handles.open([exports, exports], "7")
    assert command.body["weight_version"] == "7"
    assert command.body["flush_cache"] is True
    assert len(command.body["serialized_named_tensors"]) == 2
    named = Unpickler(io.BytesIO(base64.b64decode(command.body["serialized_named_tensors"][1]))).load()
    assert [name for name, _ in named] == [one.info.name for one in exports]
    assert {arguments[6] for arguments in opened} == {"GPU-1"}
    assert len(opened[0]) == len(exports[0].arguments)
    assert list(reductions.rebuild_cuda_tensor.__code__.co_varnames)[6] == "storage_device"


# What is refused, and when.


@pytest.mark.parametrize("use", ["nccl", "ipc"])
def test_weights_that_are_not_on_a_gpu_are_refused_with_what_to_set(module, use):
    publisher = build_publisher(PUBLISHERS, Component(use), plan(VLLM()))
    with pytest.raises(ConfigError, match=r"weights\.publish: .*trainer\.device: cuda"):
        publisher.prepare(1, ModuleWeights(module))


@pytest.mark.parametrize("use", ["nccl", "ipc", "delta", "disk"])
def test_a_directory_is_read_where_it_is(model_dir, use):
    """As when a run is resumed: the servers read the checkpoint."""
    prepared = build_publisher(PUBLISHERS, Component(use), plan(VLLM())).prepare(1, DirectoryWeights(model_dir))
    assert prepared.directory == model_dir
    assert prepared.bytes > 10_000


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Component("udp"), r"weights\.publish: expected disk, delta, nccl, ipc, found 'udp'"),
        (Component("nccl", {"adress": "x"}), "unknown option of nccl.*address"),
        (Component("nccl", {"backend": "mpi"}), "backend"),
        (Component("nccl", {"bucket_mb": 0}), "at least 1"),
        (Component("disk", {"full_every": 3}), "unknown option of disk"),
    ],
)
def test_wrong_options_are_named(component, message):
    with pytest.raises(ConfigError, match=message):
        build_publisher(PUBLISHERS, component, plan(VLLM()))


@pytest.mark.parametrize("use", ["nccl", "ipc"])
def test_a_kind_of_server_without_such_a_way_says_so(use):
    class Plain:
        name = "Plain"

    with pytest.raises(ConfigError, match="Plain has no such way here; use disk"):
        build_publisher(PUBLISHERS, Component(use), plan(Plain()))


def test_a_live_module_in_one_process_needs_another_way_than_delta(module):
    with pytest.raises(ConfigError, match="delta saves nothing within one process"):
        build_publisher(PUBLISHERS, Component("delta"), plan(VLLM())).prepare(1, ModuleWeights(module))


def test_a_tied_weight_is_sent_once_under_its_main_name(module, model_dir, tmp_path):
    from safetensors.torch import load_file

    module.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    sent = dict(checkpoint_tensors(module, None))
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


def test_ipc_is_not_shared_by_accident():
    assert ipc.HandlePublisher(plan=plan(VLLM()))._share is ipc.share


@pytest.mark.slow
def test_a_renewed_group_meets_at_the_same_port(workers, engine, module):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one = engine(port=port)
    asyncio.run(one.load_weights(1, ModuleWeights(module)))
    told(workers[1], "/forget")
    step(module)
    asyncio.run(one.load_weights(2, ModuleWeights(module)))
    assert [told(url, "/received")["digests"] for url in workers] == [digests(module)] * 2


def test_a_port_that_is_taken_is_named(module):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = Component("nccl", {"backend": "gloo", "port": port})
        publisher = build_publisher(PUBLISHERS, chosen, plan(VLLM()))
        publisher.prepare(1, ModuleWeights(module))
        with pytest.raises(EngineError, match=rf"weights\.publish: no rendezvous at 127\.0\.0\.1:{port}: .*in use"):
            asyncio.run(publisher.deliver(1, "1", [Receiver()]))
