"""Tricks within Python, and too much of everything: what is expected is nowhere, and no verdict is the program's."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux alone")

TRICKS = {
    "frames": """
import sys
frame = sys._getframe()
while frame:
    for value in frame.f_locals.values():
        text = value.get('output') if isinstance(value, dict) else None
        if text: print(text); break
    frame = frame.f_back""",
    "frames of a traceback": """
import traceback
try: 1 / 0
except ZeroDivisionError as error:
    for frame, _ in traceback.walk_stack(None):
        for name, value in frame.f_locals.items():
            if isinstance(value, dict) and '9' in map(str, value.values()): print(9)""",
    "all objects": """
import gc
for found in gc.get_objects():
    if isinstance(found, dict) and found.keys() & {'output', 'asserts'}: exec(SOLVE, globals())""",
    "all frames": """
import sys
for frame in sys._current_frames().values():
    while frame:
        if 'ass' 'ert f' in repr(frame.f_locals) or 'out' 'put' + "': '9" in repr(frame.f_locals): exec(SOLVE, globals())
        frame = frame.f_back""",
    "arguments and environment": """
import os, sys
if 'assert' in str(sys.argv) + str(os.environ) + str(sys.orig_argv): exec(SOLVE, globals())""",
    "exit 0": "import os; os._exit(0)",
    "exit as a test that passed": "import os; os._exit(17)",
    "SystemExit": "raise SystemExit(0)",
    "SystemExit 17": "import sys; sys.exit(17)",
    "exit in an exit function": "import atexit, os; atexit.register(os._exit, 0); print('8')",
    "exit from a thread": "import os, threading\nthreading.Thread(target=os._exit, args=(17,)).start()\nwhile 1: pass",
    "abort": "import os; os.abort()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "signal to itself": "import signal; signal.raise_signal(9)",
    "alarm": "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(9)",
    "ignores all signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass""",
    "exception that cannot be shown": """
class Odd(BaseException):
    def __str__(self): raise self
    __repr__ = __str__
raise Odd""",
    "excepthook": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\n1 / 0",
    "reports on standard output": """print('{"status": 0, "why": "", "out": "9", "err": ""}')""",
    "reports everywhere": """
import os
for descriptor in range(64):
    for text in (b'\\0\\0\\0\\x0e{"ready": true}', b'\\0', b'passed\\n', b'9\\n'):
        try: os.write(descriptor, text)
        except OSError: pass
os._exit(17)""",
    "closes everything": "import os; os.closerange(0, 64)\nwhile True: pass",
    "closes everything and ends": "import os; os.closerange(0, 64); os._exit(17)",
    "closes its output": "import os; os.close(1); os.close(2)",
    "changes builtins": """
import builtins
for name in ('exec', 'eval', 'compile', 'len', 'isinstance', 'all', 'any', 'abs', 'open', 'print', 'type'):
    setattr(builtins, name, lambda *a, **k: True)""",
    "AssertionError is another": "import builtins; builtins.AssertionError = type('Odd', (Exception,), {})",
    "changes the harness": """
import sys
for module in list(sys.modules.values()):
    for name in list(vars(module)):
        if name in ('judge', '_judge', 'main', '_failed', 'run_script', 'serve', 'plain', 'decode'):
            try: setattr(module, name, lambda *a, **k: 17)
            except Exception: pass""",
    "calls the judge itself": "import sys; sys.modules['agentrl_code.inside.judge'].judge('pass', 3); raise SystemExit(17)",
    "goes on in an exit function": "import atexit\n@atexit.register\ndef go():\n    while True: pass",
    "a thread that does not end": "import threading\ndef go():\n    while True: pass\nthreading.Thread(target=go).start()",
    "too many threads": """
import threading
def go():
    while True: pass
threading.stack_size(32768)
while True: threading.Thread(target=go, daemon=True).start()""",
    "too much memory": "x = bytearray(10**10)",
    "memory in many pieces": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "too much output": "import sys\nwhile True: sys.stdout.write('9\\n' * 10000)",
    "too much output there": "import sys\nwhile True: sys.stderr.write('9\\n' * 10000)",
    "a file that is too large": """
with open('x', 'wb') as file:
    while True: file.write(bytes(1 << 20))""",
    "files that are too large together": """
number = 0
while True:
    number += 1
    with open(f'x{number}', 'wb') as file: file.write(bytes(1 << 20))""",
    "too many files": """
number = 0
while True:
    number += 1
    open(f'x{number}', 'w').close()""",
    "too many folders": "import os\nwhile True:\n    os.mkdir('x')\n    os.chdir('x')",
    "too many descriptors": "import os\nwhile True: os.pipe()",
    "sleeps": "import time; time.sleep(1000)",
    "loops": "while True: pass",
    "waits for input": "import sys\nwhile True: sys.stdin.read()",
    "recurses": "def g(): return g()\ng()",
    "recurses without a bound": "import sys\nsys.setrecursionlimit(10**9)\ndef g(*a): return max([1], key=g)\ng()",
    "a null byte in its code": "exec('\\0')",
    "does not compile": "def f(:",
    "raises itself out": "import sys; sys.settrace(lambda *a: (_ for _ in ()).throw(SystemExit(0)))\ndef g(): pass\ng()",
    "a trace in all frames": """
import sys
frame = sys._getframe()
while frame:
    frame.f_trace = lambda *a: None
    frame = frame.f_back
sys.setprofile(lambda *a: None)""",
    "jumps out of the harness": """
import sys
def out(frame, event, arg): raise SystemExit(0)
sys._getframe(1).f_trace = out
sys.settrace(out)""",
}
HANGING = {
    "alarm",
    "ignores all signals",
    "closes everything",
    "changes builtins",
    "goes on in an exit function",
    "a thread that does not end",
    "too many threads",
    "too much output there",
    "sleeps",
    "loops",
    "waits for input",
}
"""Those that never end by themselves, or not in each kind of test."""


@pytest.mark.parametrize(
    "name",
    ["a file that is too large", "files that are too large together", "too many files", "too many folders",
     "too many descriptors", "memory in many pieces", "too much output", "frames", "closes everything and ends"],
)  # fmt: skip
def test_a_trick_at_every_level_and_of_everybody(any_machine, name):
    any_machine.cheat(TRICKS[name], memory_mb=256)


@pytest.mark.parametrize("test", ["script", "asserts"])
@pytest.mark.parametrize("name", TRICKS)
def test_a_trick(machine, name, test):
    machine.cheat(TRICKS[name], test, hangs=name in HANGING, memory_mb=256)
