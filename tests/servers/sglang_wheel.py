"""Fetch the released wheel of SGLang, whose request classes the fake checks with (39 MB; nothing of it is installed).

`python tests/servers/sglang_wheel.py FOLDER`. Standard library only.
"""

# ruff: noqa: T201
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "0.5.23"
PLATFORM = ("--only-binary=:all:", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64")
"""The wheel's build; its Python sources are read on any machine."""


def sources(folder):
    """Return the folder that holds the package `sglang`; download it if it is not complete."""
    unpacked, complete = folder / "sources", folder / f"complete-{VERSION}"
    if not complete.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", *PLATFORM]
        subprocess.run([*pip, "-d", str(folder), f"sglang=={VERSION}"], check=True)
        (wheel,) = folder.glob("sglang-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        wheel.unlink()
        complete.touch()
    return unpacked


if __name__ == "__main__":
    print(sources(Path(sys.argv[1])))
