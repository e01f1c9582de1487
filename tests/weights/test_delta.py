"""Deltas give back every byte, find every wrong one, and are small where few weights change."""

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.weights.folders import Weights, content, make

from agentrl_core.weights.delta import DELTA, RESULT, apply_delta, copy_whole, is_chained, read_base, write_delta
from agentrl_core.weights.manifest import read_manifest, write_manifest

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool]
SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=4)


@contextmanager
def folder():
    """hypothesis runs all examples within one test, so within one `tmp_path`."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def applied(root, before, after, threads=1):
    """The folder that a delta between two versions makes of the first, and the second as the trainer has it."""
    base, new = before.whole(root / "base", 1), after.whole(root / "new", 2)
    write_delta(base, new, root / "delta", version=2, base_version=1, threads=threads)
    apply_delta(root / "delta", base, root / "made")
    return root / "made", new


@st.composite
def models(draw):
    shapes = draw(SHAPES)
    return Weights(
        {
            name: {
                f"t{index}": torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(index)).to(
                    draw(st.sampled_from(DTYPES))
                )
                for index, shape in enumerate(shapes)
            }
            for name in draw(st.sets(st.sampled_from(["model.safetensors", "b.safetensors"]), min_size=1))
        },
        draw(st.dictionaries(st.sampled_from(["config.json", "x/y.txt", "merges.txt"]), st.text("ab", max_size=3))),
    )


@settings(max_examples=60, deadline=None)
@given(models(), models())
def test_any_version_is_made_of_any_other_one(before, after):
    """Also if tensors, files or whole shards came, went, or have another type or shape."""
    with folder() as root:
        made, new = applied(root, before, after)
        assert content(made) == content(new)
        assert read_manifest(made) == read_manifest(new)


@settings(max_examples=40, deadline=None)
@given(models(), st.integers(0, 9), st.floats(0, 1), st.sampled_from([1, 3]))
def test_a_step_is_given_back_exactly(before, seed, share, threads):
    with folder() as root:
        made, new = applied(root, before, before.stepped(seed, share), threads)
        assert content(made) == content(new)


def test_files_of_many_chunks_are_given_back_by_any_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl_core.weights.delta._CHUNK_BYTES", 1 << 12)
    before = make(shapes=((101, 64), (33,), (1, 64)), num_files=3)
    for threads in (1, 2, 5):
        made, new = applied(tmp_path / str(threads), before, before.stepped(1), threads)
        assert content(made) == content(new)
    patches = [content(tmp_path / str(threads) / "delta") for threads in (1, 2, 5)]
    assert patches[0] == patches[1] == patches[2]


def test_a_small_step_of_bfloat16_weights_takes_a_tenth_of_the_bytes(tmp_path):
    """An Adam step at the learning rate 1e-6, which moves each float32 weight by at most that."""
    generator = torch.Generator().manual_seed(1)
    masters = torch.randn(1024, 512, generator=generator) * 0.02
    stepped = masters - 1e-6 * torch.randn(masters.shape, generator=generator).clamp(-1, 1)
    sizes = {}
    for dtype in (torch.bfloat16, torch.float32):
        root = tmp_path / str(dtype)
        before, after = (Weights({"model.safetensors": {"w": weight.to(dtype)}}) for weight in (masters, stepped))
        _, new = applied(root, before, after)
        name = "model.safetensors"
        sizes[dtype] = (root / "delta" / f"{name}.patch").stat().st_size / (new / name).stat().st_size
    assert sizes[torch.bfloat16] < 0.05
    assert sizes[torch.float32] > 0.3


def test_what_is_the_same_is_not_sent_again(tmp_path):
    before = make()
    before.more = {"tokenizer.json": "t" * 10_000, "config.json": "{}"}
    applied(tmp_path, before, before.stepped(1))
    assert sorted(content(tmp_path / "delta")) == [DELTA, "manifest.json", "model.safetensors.patch", RESULT]


def test_every_flipped_bit_of_a_delta_is_found(tmp_path):
    """By the manifest of the delta, which is verified before it is applied."""
    before = make(shapes=((8, 8),))
    applied(tmp_path, before, before.stepped(1))
    for name, data in content(tmp_path / "delta").items():
        for place in range(0, len(data), 7):
            path = tmp_path / "delta" / name
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(ValueError, match="damaged"):
                read_manifest(tmp_path / "delta")
            path.write_bytes(data)
    read_manifest(tmp_path / "delta")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_wrong_base_or_patch_never_makes_a_version(data):
    """The digest of the result is the last check, should a disk have changed a byte after the others."""
    before = make(shapes=((16, 16), (3,)))
    with folder() as root:
        applied(root, before, before.stepped(1))
        shutil.rmtree(root / "made")
        name = data.draw(st.sampled_from(["delta/model.safetensors.patch", "base/model.safetensors"]))
        path = root / name
        changed = bytearray(path.read_bytes())
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"digest differs|damaged|longer"):
            apply_delta(root / "delta", root / "base", root / "made")


@pytest.mark.parametrize("cut", [1, 5, 9, 40])
def test_a_patch_that_was_cut_off_makes_no_version(tmp_path, cut):
    before = make()
    applied(tmp_path, before, before.stepped(1))
    path = tmp_path / "delta" / "model.safetensors.patch"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"digest differs|damaged"):
        apply_delta(tmp_path / "delta", tmp_path / "base", tmp_path / "again")


def test_a_delta_to_other_weights_is_refused(tmp_path):
    before = make()
    applied(tmp_path, before, before.stepped(1))
    other = before.stepped(5).whole(tmp_path / "other", 1)
    with pytest.raises(ValueError, match=r"is no delta to the weights in .*other"):
        apply_delta(tmp_path / "delta", other, tmp_path / "again")


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_nothing_is_written_outside_of_the_folder(tmp_path, name):
    before = make()
    base = before.whole(tmp_path / "base", 1)
    manifest = json.loads((base / "manifest.json").read_text())
    assert name not in manifest["files"]
    applied(tmp_path / "x", before, before.stepped(1))
    delta = tmp_path / "x/delta"
    (tmp_path / "outside").write_text("x")
    hostile = before.stepped(1).whole(tmp_path / "hostile", 2)
    _list_file(hostile, name)
    shutil.copy(hostile / "manifest.json", delta / RESULT)
    with pytest.raises(ValueError, match="not in its folder"):
        apply_delta(delta, tmp_path / "x/base", tmp_path / "y/made")
    with pytest.raises(ValueError, match="not in its folder"):
        copy_whole(hostile, tmp_path / "z/made")


def _list_file(folder, name):
    """Rewrite a manifest so that it names one more file, with a right digest of its own content."""
    from agentrl_core.weights.manifest import _digest_of

    content = json.loads((folder / "manifest.json").read_text())
    del content["blake2b"]
    content["files"] = {name: {"bytes": 1, "blake2b": "0"}} | content["files"]
    (folder / "manifest.json").write_text(json.dumps(content | {"blake2b": _digest_of(content)}))


BASE_OF_NO_VERSION = '{"format": 1, "base": {"version": "x"}, "files": {}}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', BASE_OF_NO_VERSION])
def test_a_delta_that_does_not_say_what_it_is_is_damaged(tmp_path, text):
    (tmp_path / DELTA).write_text(text)
    with pytest.raises(ValueError, match="damaged"):
        read_base(tmp_path)


def test_a_delta_of_a_later_format_asks_for_an_update(tmp_path):
    (tmp_path / DELTA).write_text('{"format": 2}')
    with pytest.raises(ValueError, match="update agentrl-core"):
        read_base(tmp_path)


def test_a_version_without_deltas_is_no_part_of_a_chain(tmp_path):
    write_manifest(make().whole(tmp_path / "v", 1), version=1)
    assert not is_chained(tmp_path / "v")
    assert read_base(tmp_path / "v") is None
