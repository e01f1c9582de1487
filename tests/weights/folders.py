"""Whole versions of made-up weights, small enough for hundreds of examples."""

import json

import torch
from safetensors.torch import save_file

from agentrl_core.weights.manifest import write_manifest


class Weights:
    """Weights that save themselves as a model of transformers does: one file, or several with an index."""

    def __init__(self, files, more=None):
        self.files = files
        """Name of a file -> name of a tensor -> tensor."""
        self.more = {"config.json": "{}"} if more is None else more
        """Name of another file -> its text."""

    def save_pretrained(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, tensors in self.files.items():
            save_file(tensors, directory / name, metadata={"format": "pt"})
        if len(self.files) > 1:
            index = {tensor: name for name, tensors in self.files.items() for tensor in tensors}
            (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        for name, text in self.more.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)

    def named_parameters(self):
        return [item for tensors in self.files.values() for item in tensors.items()]

    def named_buffers(self):
        return []

    def stepped(self, seed, share=0.03):
        """The weights after a small step: some elements have changed in their last bit."""
        generator = torch.Generator().manual_seed(seed)

        def step(tensor):
            changed = tensor.clone().flatten().view(torch.uint8)
            picked = torch.rand(changed.shape, generator=generator) < share
            changed[picked] ^= 1
            return changed.view(tensor.dtype).reshape(tensor.shape)

        return Weights(
            {name: {key: step(tensor) for key, tensor in tensors.items()} for name, tensors in self.files.items()},
            self.more,
        )

    def whole(self, directory, version):
        self.save_pretrained(directory)
        write_manifest(directory, version=version)
        return directory


def make(seed=0, dtype=torch.bfloat16, shapes=((64, 32), (32,)), num_files=1):
    generator = torch.Generator().manual_seed(seed)
    names = ["model.safetensors"] if num_files == 1 else [f"model-{i:05}.safetensors" for i in range(num_files)]
    return Weights(
        {
            name: {
                f"{index}.{item}.weight": (torch.randn(shape, generator=generator) * 0.02).to(dtype)
                for item, shape in enumerate(shapes)
            }
            for index, name in enumerate(names)
        }
    )


def content(folder):
    """Path -> bytes of every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
