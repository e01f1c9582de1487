"""Request classes of a released SGLang, loaded from its wheel's sources, for the fake that checks requests with them.

SGLang cannot be imported without CUDA: its packages import kernels. Its request classes need few modules, which are
executed as they are. Of modules that import kernels, only the definitions that the classes name are executed.
"""

import ast
import gc
import importlib
import sys
from pathlib import Path
from types import ModuleType

WHOLE = ("beam_search", "lora", "managers", "multimodal", "sampling", "sampling.watermarking", "entrypoints")
"""Packages of `sglang.srt` whose own `__init__` is passed over, and whose modules are taken from the wheel."""
EXCERPTS = {
    "sglang.srt.lora.lora_registry": ("LoRARef",),
    "sglang.srt.managers.schedule_batch": (
        "ReturnHiddenStatesMode",
        "SamplingLogprobsMode",
        "BaseFinishReason",
        "FINISH_ABORT",
        "FINISH_LENGTH",
        "FINISH_MATCHED_STR",
        "FINISH_MATCHED_TOKEN",
    ),
    "sglang.srt.multimodal.mm_utils": ("has_valid_data",),
}
"""Definitions taken from modules that cannot be imported."""
TYPES = ("ImageData", "VideoData")
"""Definitions of `sglang.srt.utils.common` that the classes use."""


def load(folder):
    """Return the modules `io_struct`, `sampling_params`, `api_contract` and `schedule_batch` below `folder`.

    `folder` holds the package `sglang` of the wheel. The modules stay importable under their own names.
    """
    root = Path(folder) / "sglang"
    _package("sglang", root)
    for name in ("srt", "api", "api.v1", "srt.utils", *(f"srt.{name}" for name in WHOLE)):
        _package(f"sglang.{name}", root / name.replace(".", "/"))
    _stand_in("sglang.srt.utils.cuda_ipc_transport_utils", CudaIpcTensorTransportProxy=type("Proxy", (), {}))
    common = _excerpt(root / "srt/utils/common.py", TYPES)
    vars(sys.modules["sglang.srt.utils"]).update({name: common[name] for name in (*TYPES,)})
    for name, wanted in EXCERPTS.items():
        found = _excerpt(root.parent / (name.replace(".", "/") + ".py"), wanted)
        _stand_in(name, **{key: found[key] for key in wanted})
    # Not used in requests for tokens: images, and hidden states.
    batch = sys.modules["sglang.srt.managers.schedule_batch"]
    modality = importlib.import_module("sglang.srt.multimodal.modality")
    vars(batch).update(
        Modality=modality.Modality,
        MultimodalProcessorOutput=object,
        get_return_hidden_states_mode=lambda mode: mode,
    )
    names = ("managers.io_struct", "sampling.sampling_params", "entrypoints.api_contract", "managers.schedule_batch")
    return tuple(importlib.import_module(f"sglang.srt.{name}") for name in names)


def _package(name, folder):
    """Make a package whose modules are found in `folder`, without executing its `__init__`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: expected the sources of SGLang's wheel; see tests/servers/sglang_wheel.py")
    module = _stand_in(name)
    module.__path__ = [str(folder)]


def _stand_in(name, **contents):
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(contents)
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    return module


def _excerpt(path, wanted):
    """Execute only the definitions `wanted` of a source file."""
    tree = _parsed(path.read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if set(_defined(node)) & set(wanted)]
    missing = set(wanted) - {name for node in nodes for name in _defined(node)}
    if missing:
        raise ImportError(f"{path}: expected definitions of {', '.join(sorted(missing))}; is it another release?")
    head = "import dataclasses, msgspec, uuid\nfrom dataclasses import dataclass\nfrom typing import *\n"
    head += "from uuid import uuid4, uuid5, NAMESPACE_URL\nfrom msgspec.structs import fields\n"
    head += "def flatten_nested_list(x): return [z for y in x for z in flatten_nested_list(y)] if isinstance(x, list) "
    head += "else [x]\n"
    module = ModuleType(f"{path.stem}_excerpt")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(head, str(path), "exec"), vars(module))
    exec(compile(ast.Module(nodes, []), str(path), "exec"), vars(module))
    return vars(module)


def _parsed(source):
    """Return the syntax tree of a source.

    Garbage is not collected meanwhile: before Python 3.11.8, a finalizer that parses as well, for example because it
    formats a traceback, makes this fail with "AST constructor recursion depth mismatch" (gh-106905).
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def _defined(node):
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def fields_of(kind):
    """Return the names of the fields of a request class, a dataclass or a msgspec struct."""
    return set(getattr(kind, "__dataclass_fields__", None) or kind.__struct_fields__)
