"""Sandboxes of every identity and level that this machine allows, with a victim beside them."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs
import psutil
import pytest

import agentrl_code
from agentrl_code.sandbox import Limits, Sandboxes, best_level
from agentrl_code.verdicts import run_tests

NOBODY = 65534
SOLVE = """
def f(x): return x * x
import sys
if __name__ == "__main__": print(f(int(sys.stdin.readline() or 0)))
"""
"""Right for both tests; a program that tries to break out runs it where it got what it tried."""
TESTS = {"script": {"input": "3\n", "output": "9"}, "asserts": {"asserts": "assert f(3) == 9"}}
TRACES = ("/tmp", "/var/tmp", "/dev/shm")


@attrs.frozen(kw_only=True)
class Machine:
    """Sandboxes of one identity at one level; a process and a file of the programs' own user stand for the rest."""

    sandboxes: Sandboxes
    level: str
    victim: psutil.Process
    file: Path

    def why(self, program, test, **limits):
        """Return why a program fails a test, empty where it passes."""
        given = {"timeout_s": 20, "memory_mb": 512, "file_mb": 4, "output_kb": 64, **limits}
        given = Limits(**given)
        run = run_tests(program, [test], given, level=self.level, go_on=False, sandboxes=self.sandboxes)
        (why,) = asyncio.run(run)
        return why

    def cheat(self, program, test="script", *, hangs=False, **limits):
        """Run a program that cheats, and see that it got nothing, left nothing and hurt nobody.

        It must have had the time to try, unless it `hangs` whatever the time.
        """
        if hangs:
            limits["timeout_s"] = 0.5
        program = program.replace("{pid}", str(self.victim.pid)).replace("{file}", str(self.file))
        before = self._state()
        why = self.why(f"SOLVE = {SOLVE!r}\n{program}", TESTS.get(test) or {"asserts": test}, **limits)
        assert why
        assert hangs or "it took too long" not in why
        sandboxes = psutil.Process(self.sandboxes.process_id)
        _, left = psutil.wait_procs(sandboxes.children(recursive=True), timeout=20)
        assert left == []
        assert self._state() == before

    def _state(self):
        """Return the state that no program may change: the victim, its files, System V's objects, well-known folders."""
        files = {}
        for path in (self.file.parent, *self.file.parent.iterdir()):
            stat = path.stat()
            files[path.name] = stat.st_mode, stat.st_uid, stat.st_size, stat.st_mtime_ns
        process = self.victim.status(), self.victim.nice(), Path(f"/proc/{self.victim.pid}/limits").read_text()
        user = str(self.victim.uids().real)
        objects = [
            line
            for kind in ("shm", "sem", "msg")
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
            if user in line.split()
        ]
        planted = [folder for folder in ("/tmp", "/var/tmp", "/dev/shm", "/") if Path(folder, "agentrl-cheat").exists()]
        return files, process, objects, planted


def python_of_nobody():
    """An interpreter that any user may run, and that is new enough; None where there is none."""
    probe = ("-c", "import sys; raise SystemExit(sys.version_info < (3, 11))")
    for path in (sys.executable, *map(str, Path("/usr/bin").glob("python3.1[1-9]"))):
        try:
            if subprocess.run([path, *probe], user=NOBODY, capture_output=True, cwd="/", check=False).returncode == 0:
                return path
        except PermissionError:
            continue
    return None


@pytest.fixture(scope="session")
def own_sandboxes():
    sandboxes = Sandboxes()
    yield sandboxes
    sandboxes.close()


@pytest.fixture(scope="session")
def sandboxes_of_nobody():
    """Such that nobody makes, who is no root."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    python = python_of_nobody()
    if python is None:
        pytest.skip("there is no Python of 3.11 or later that nobody can run")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(Path(agentrl_code.__file__).parent, f"{folder}/agentrl_code")
        script = f"{folder}/agentrl_code/inside/zygote.py"
        sandboxes = Sandboxes((python, "-I", "-S", "-B", "-X", "utf8", script), user=NOBODY)
        yield sandboxes
        sandboxes.close()


@pytest.fixture(scope="session")
def victim():
    """A process of the user as whom programs run, and a file of its own."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    options = {"user": user} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "own", "victim")
        file.parent.mkdir()
        file.write_text("secret")
        for path in (file, file.parent):
            os.chown(path, user, -1)
        file.chmod(0o600)
        with subprocess.Popen(["sleep", "1000"], cwd="/", **options) as process:
            try:
                yield psutil.Process(process.pid), file
            finally:
                process.kill()


def make(sandboxes, victim, level=None):
    best, why = asyncio.run(best_level(sandboxes))
    if best is None or level == best:
        pytest.skip(f"this machine has no other level: {why}")
    return Machine(sandboxes=sandboxes, level=level or best, victim=victim[0], file=victim[1])


@pytest.fixture
def machine(own_sandboxes, victim):
    return make(own_sandboxes, victim)


@pytest.fixture(params=["own", "own, confined", "nobody", "nobody, confined"])
def any_machine(request, victim):
    identity, _, level = request.param.partition(", ")
    sandboxes = "own_sandboxes" if identity == "own" else "sandboxes_of_nobody"
    return make(request.getfixturevalue(sandboxes), victim, level or None)
