"""Deltas from a trainer to servers: what is published, what servers make of it, and what a crash leaves behind."""

import errno
import json
import os
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.weights.folders import content, make
from tests.weights.test_delta import folder

from agentrl_core.errors import EngineError, WeightsError
from agentrl_core.weights.delta import read_base
from agentrl_core.weights.delta_writer import DeltaWriter
from agentrl_core.weights.local_copies import LocalCopies
from agentrl_core.weights.manifest import read_manifest, write_manifest
from agentrl_core.weights.place import WeightsPlace

STEPS = [make(shapes=((256, 32), (32,)))]
for number in range(1, 12):
    STEPS.append(STEPS[-1].stepped(number))


class Trainer:
    """Publishes `STEPS[version]`, and keeps what each version must be."""

    def __init__(self, root, **options):
        self.writer = DeltaWriter(root / "trainer", **{"full_every": 4} | options)
        self.place = WeightsPlace(root / "place", deltas=self.writer)
        self.root = root

    def publish(self, *versions):
        for version in versions:
            self.place.write(version, STEPS[version])

    def whole(self, version):
        path = self.root / f"whole-{version}"
        return content(path if path.exists() else STEPS[version].whole(path, version))

    @property
    def bases(self):
        """Version -> the version that it builds on, for all that servers can see."""
        found = {version: read_base(self.place.root / f"version-{version}") for version in self.place.versions()}
        return {version: None if base is None else base.version for version, base in sorted(found.items())}


class Server:
    def __init__(self, trainer, name="server"):
        self.told = []
        self.local = trainer.root / name
        self.copies = LocalCopies(WeightsPlace(trainer.place.root), self.local, notice=self.told.append)

    def read(self, version):
        with self.copies.reading(version) as path:
            assert read_manifest(path).version == version
            return content(path)


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


def test_every_few_versions_one_is_whole_and_all_that_is_built_on_stays(trainer):
    seen = []
    for version in range(1, 10):
        trainer.publish(version)
        seen.append(trainer.bases)
    assert seen[3] == {1: None, 2: 1, 3: 2, 4: 3}
    assert seen[4] == {1: None, 2: 1, 3: 2, 4: 3, 5: None}
    assert seen[5] == {5: None, 6: 5}
    assert seen[8] == {5: None, 6: 5, 7: 6, 8: 7, 9: None}


def test_a_server_follows_step_by_step(trainer):
    server = Server(trainer)
    for version in range(1, 10):
        trainer.publish(version)
        assert server.read(version) == trainer.whole(version)
    assert server.told == []
    assert [path.name for path in server.local.glob("*/version-*")] == ["version-9"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 11), min_size=1, max_size=4, unique=True).map(sorted), st.integers(1, 6))
def test_a_server_that_joins_late_or_skips_versions_has_the_same_weights(looks, full_every):
    with folder() as root:
        trainer = Trainer(root, full_every=full_every)
        server = Server(trainer)
        for version in range(1, looks[-1] + 1):
            trainer.publish(version)
            if version in looks:
                assert server.read(version) == trainer.whole(version)


def test_many_servers_may_read_at_once_while_the_trainer_goes_on(trainer):
    trainer.publish(1, 2, 3)
    servers = [Server(trainer, f"server-{index}") for index in range(4)]
    with ThreadPoolExecutor(5) as pool:
        reads = [pool.submit(server.read, 3) for server in servers]
        pool.submit(trainer.publish, 4, 5, 6, 7).result()
        for read in reads:
            if (error := read.exception()) is None:
                assert read.result() == trainer.whole(3)
            else:  # it came too late, and takes the next version
                assert isinstance(error, WeightsError)
                assert "is not in" in str(error) or "just being removed" in str(error)
    for server in servers:
        assert server.read(7) == trainer.whole(7)


def test_a_server_that_has_other_weights_reads_the_whole_version_and_says_so(trainer):
    trainer.publish(1, 2)
    server = Server(trainer)
    server.read(2)
    (copy,) = server.local.glob("*/version-2/model.safetensors")
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    trainer.publish(3)
    assert server.read(3) == trainer.whole(3)
    assert len(server.told) == 1
    assert "digest differs" in server.told[0]
    assert "reading the whole version 1 and 2 deltas after it to get version 3" in server.told[0]


def test_a_server_that_missed_a_whole_chain_says_that_it_reads_a_whole_version(trainer):
    trainer.publish(1, 2)
    server = Server(trainer)
    server.read(2)
    trainer.publish(3, 4, 5, 6, 7)
    assert server.read(7) == trainer.whole(7)
    assert "version 2, which is here, is none that it builds on" in server.told[0]


@pytest.mark.parametrize("harm", ["cut", "changed", "missing"])
@pytest.mark.parametrize("file", ["model.safetensors.patch", "delta.json", "result.json", "manifest.json"])
def test_a_damaged_delta_is_refused_and_the_next_whole_version_is_not(trainer, file, harm):
    trainer.publish(1, 2, 3)
    server = Server(trainer)
    server.read(2)
    path = trainer.place.root / "version-3" / file
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-9] if harm == "cut" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(WeightsError, match=r"version[ -]3"):
        server.read(3)
    trainer.publish(4, 5)
    assert server.read(5) == trainer.whole(5)


PATCH = "model.safetensors.patch"


def without_width(folder):
    delta = json.loads((folder / "delta.json").read_text())
    del delta["files"]["model.safetensors"]["width"]
    (folder / "delta.json").write_text(json.dumps(delta))


def with_width_0(folder):
    delta = json.loads((folder / "delta.json").read_text())
    delta["files"]["model.safetensors"]["width"] = 0
    (folder / "delta.json").write_text(json.dumps(delta))


def deep(folder):
    (folder / "delta.json").write_text("[" * 200_000)


def huge_chunk(folder):
    (folder / PATCH).write_bytes(struct.pack("<II", 2**32 - 1, 2**32 - 1))


def empty_chunks(folder):
    (folder / PATCH).write_bytes(struct.pack("<II", 0, 0) * 3)


def bomb(folder):
    """A chunk of 4 kB that unpacks to 64 MB."""
    packed = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    (folder / PATCH).write_bytes(struct.pack("<II", 4096, len(packed)) + packed)


def link(folder):
    (folder / PATCH).unlink()
    (folder / PATCH).symlink_to("/dev/zero")


def fifo(folder):
    (folder / PATCH).unlink()
    os.mkfifo(folder / PATCH)


@pytest.mark.parametrize("harm", [without_width, with_width_0, deep, huge_chunk, empty_chunks, bomb, link, fifo])
def test_a_hostile_delta_with_a_manifest_of_its_own_is_refused(trainer, harm):
    trainer.publish(1, 2, 3)
    server = Server(trainer)
    server.read(2)
    folder = trainer.place.root / "version-3"
    harm(folder)
    write_manifest(folder, version=3)
    with pytest.raises(WeightsError, match="version 3 of the weights is refused"):
        server.read(3)
    trainer.publish(4, 5)
    assert server.read(5) == trainer.whole(5)


def test_a_delta_whose_base_is_gone_names_it(trainer):
    trainer.publish(1, 2, 3)
    shutil.rmtree(trainer.place.root / "version-2")
    with pytest.raises(
        WeightsError, match="version 3 of the weights is a delta, and version 2 of the weights is not in"
    ):
        Server(trainer).read(3)


def test_a_resumed_trainer_begins_with_a_whole_version_and_no_server_mixes_the_two(trainer, tmp_path):
    """The resumed trainer publishes other weights under numbers that servers already have."""
    trainer.publish(1, 2, 3)
    server = Server(trainer)
    server.read(3)
    again = WeightsPlace(trainer.place.root, deltas=DeltaWriter(tmp_path / "again"))
    again.write(3, STEPS[8])
    again.write(4, STEPS[9])
    assert read_base(trainer.place.root / "version-3") is None
    assert server.read(4) == content(STEPS[9].whole(tmp_path / "expected", 4))
    assert "none that it builds on" in server.told[0]


def test_a_delta_that_is_no_smaller_is_not_published_and_the_log_says_what_to_do(trainer, caplog):
    trainer.publish(1)
    noise = make(seed=9, shapes=((256, 32), (32,)))
    trainer.place.write(2, noise)
    assert trainer.bases == {1: None, 2: None}
    assert "weights.dtype: bfloat16" in caplog.text


def test_a_trainer_whose_copy_is_gone_publishes_a_whole_version(trainer, caplog):
    trainer.publish(1)
    shutil.rmtree(next((trainer.root / "trainer").glob("*/version-1")))
    trainer.publish(2)
    assert trainer.bases == {1: None, 2: None}
    assert "is published whole" in caplog.text


def test_copies_go_with_their_owners_and_the_published_versions_stay(trainer):
    trainer.publish(1, 2)
    server = Server(trainer)
    server.read(2)
    server.copies.close()
    trainer.place.close()
    assert [list((trainer.root / name).iterdir()) for name in ("server", "trainer")] == [[], []]
    assert trainer.place.versions() == [2, 1]


@pytest.mark.parametrize("options", [{"full_every": 0}, {"threads": 0}])
def test_options_that_mean_nothing_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match="at least 1"):
        DeltaWriter(tmp_path, **options)


# Crashes and full disks: every operation on files fails once, in its turn.


class Failing:
    """Makes the n-th file operation fail, as a full disk does, or a kill."""

    def __init__(self, monkeypatch, kind):
        self.left, self.kind = None, kind
        for owner, name in (
            (Path, "open"),
            (Path, "mkdir"),
            (Path, "rename"),
            (Path, "replace"),
            (Path, "write_text"),
            (shutil, "copyfile"),
            (shutil, "rmtree"),
            (os, "fsync"),
        ):
            self._wrap(monkeypatch, owner, name, getattr(owner, name))

    def _wrap(self, monkeypatch, owner, name, real):
        def call(*args, **options):
            try:
                self.tick()
            except OSError:
                if options.get("ignore_errors"):
                    return None
                raise
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    def tick(self):
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            if self.kind is OSError:
                self.left = None  # the disk has room again when the process cleans up
                raise OSError(errno.ENOSPC, "No space left on device")
            raise self.kind


class Killed(BaseException):
    """Ends everything, and every later operation too."""


@pytest.mark.parametrize("kind", [OSError, Killed])
@pytest.mark.parametrize("version", [2, 3])
def test_a_trainer_that_fails_anywhere_leaves_each_earlier_version_whole(tmp_path, monkeypatch, kind, version):
    """Version 2 is a delta, version 3 a whole one. The next trainer, or the same one, goes on."""
    failing = Failing(monkeypatch, kind)
    for count in range(1000):
        root = tmp_path / str(count)
        trainer = Trainer(root, full_every=2)
        server = Server(trainer)
        trainer.publish(*range(1, version))
        failing.left = count
        try:
            trainer.publish(version)
        except (EngineError, Killed):
            ended = False
        else:
            ended = True
        over, failing.left = failing.left is not None, None
        seen = trainer.place.versions()
        assert version - 1 in seen
        for number in seen:
            if number >= version - 1:
                assert server.read(number) == trainer.whole(number)
        following = Trainer(root, full_every=2) if kind is Killed else trainer
        following.publish(version, version + 1)
        assert server.read(version + 1) == trainer.whole(version + 1)
        assert not list(trainer.place.root.glob(".*"))
        shutil.rmtree(root)
        if over and ended:
            break
    assert count > 15


@pytest.mark.parametrize("kind", [OSError, Killed])
def test_a_server_that_fails_anywhere_never_has_half_a_version(tmp_path, monkeypatch, kind):
    failing = Failing(monkeypatch, kind)
    trainer = Trainer(tmp_path)
    trainer.publish(1, 2, 3)
    for count in range(1000):
        server = Server(trainer, f"server-{count}")
        server.read(1)
        failing.left, over, found = count, False, None
        with suppress(WeightsError, Killed), server.copies.reading(3) as path:
            over, failing.left = failing.left is not None, None
            found = content(path)
        failing.left = None
        assert found in (None, trainer.whole(3))
        assert server.read(3) == trainer.whole(3)
        if over and found is not None:
            break
    assert count > 10


def test_published_weights_are_those_of_the_module_in_the_type_that_is_asked_for(tmp_path):
    from transformers import AutoModelForCausalLM

    from agentrl_testing.policy import toy_policy

    module = AutoModelForCausalLM.from_pretrained(toy_policy(tmp_path / "toy", seed=1))
    place = WeightsPlace(tmp_path / "place", dtype="bfloat16", deltas=DeltaWriter(tmp_path / "local"))
    server = LocalCopies(WeightsPlace(place.root), tmp_path / "server", notice=print)
    for version in (1, 2):
        place.write(version, module)
        with server.reading(version) as path:
            loaded = AutoModelForCausalLM.from_pretrained(path)
        assert loaded.dtype == torch.bfloat16
        for name, value in module.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value.to(torch.bfloat16)), name
        with torch.no_grad():
            module.model.norm.weight += 0.5
    assert module.dtype == torch.float32
    tied = module.config.tie_word_embeddings
    assert ("lm_head.weight" in str(content(path))) != tied
