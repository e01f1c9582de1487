"""Answers that cheat in what they return to a test, and in what they send; what they give is data, or counts for nothing."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux alone")

EQUAL = """
class Equal:
    def __eq__(self, other): return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return hash(9)
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __radd__ = __abs__ = __sub__
    def __getattr__(self, name): return lambda *a: True
    def __bool__(self): return True
"""
VALUES = {
    "equals everything": ("def f(x): return Equal()", "assert f(3) == 9"),
    "equals everything, turned round": ("def f(x): return Equal()", "assert 9 == f(3)"),
    "is unequal to nothing": ("def f(x): return Equal()", "assert not f(3) != 9"),
    "is unequal to everything": ("def f(x): return Equal()", "assert f(3) != 8"),
    "is less": ("def f(x): return Equal()", "assert f(3) < 1"),
    "is in a tuple": ("def f(x): return Equal()", "assert f(3) in (1, 2)"),
    "is in a set": ("def f(x): return Equal()", "assert f(3) in {9}"),
    "contains everything": ("def f(x): return Equal()", "assert 9 in f(3)"),
    "is near": ("def f(x): return Equal()", "assert abs(f(3) - 9.0) < 1e-6"),
    "is near, turned round": ("def f(x): return Equal()", "assert abs(9.0 - f(3)) < 1e-6"),
    "is near by a function": ("def f(x): return Equal()", "import math\nassert math.isclose(f(3), 9.0)"),
    "begins with everything": ("def f(x): return Equal()", "assert f(3).startswith('9')"),
    "is a subset": ("def f(x): return Equal()", "assert f(3).issubset({9})"),
    "is in a list that it returns": ("def f(x): return [Equal()]", "assert f(3) == [9]"),
    "is a value of a dict": ("def f(x): return {'a': Equal()}", "assert f(3) == {'a': 9}"),
    "is a key of a dict": ("def f(x): return {Equal(): 1}", "assert f(3) == {9: 1}"),
    "equals in a handler": (
        "def f(x): return Equal()",
        "try:\n    ok = f(3) == 9\nexcept BaseException:\n    ok = True\nassert ok",
    ),
    "extends int": (
        "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\nf = I",
        "assert f(3) == 9",
    ),
    "extends str": ("class S(str):\n    def __eq__(s, o): return True\ndef f(x): return S()", "assert f(3) == '9'"),
    "extends list": ("class L(list):\n    def __eq__(s, o): return True\ndef f(x): return L()", "assert f(3) == [9]"),
    "a class called f": ("class f(Equal):\n    def __init__(self, x): pass", "assert f(3) == 9"),
    "a class that equals": (
        "class M(type):\n    __eq__ = lambda *a: True\n    __hash__ = type.__hash__\nclass f(metaclass=M):\n    def __new__(c, x): return c",
        "assert f(3) == 9",
    ),
    "objects of its own": (
        "class V:\n    def __init__(s, *a): pass\n    __eq__ = lambda *a: True",
        "assert V(1) == V(2)",
    ),
    "a nameless exception": ("def f(x): raise type('', (Exception,), {})()", "assert f(3) == 9"),
    "a nameless BaseException": ("def f(x): raise type('', (BaseException,), {})()", "assert f(3) == 9"),
    "a nameless exception of the program": ("raise type('', (Exception,), {})()", "assert f(3) == 9"),
    "an exception that loses its name": (
        "class E(Exception): pass\nE.__name__ = ''\ndef f(x): raise E",
        "assert f(3) == 9",
    ),
    "is never asked": ("", "def test():\n    assert f(3) == 9\ncheck = test"),
    "what a failed import leaves": (
        "class np: allclose = staticmethod(lambda *a: True)\ndef f(x): return 0",
        "try: import agentrl_no_such_module as np\nexcept ImportError: pass\nassert np.allclose(f(3), 9)",
    ),
    "another at each look": (
        "import sys\nlooks = iter([[99], [0]])\n"
        "sys.modules['agentrl_code.inside.program']._PLAIN[list] = lambda value: next(looks)\n"
        "class L(list): pass\ndef f(x): return L([5])",
        "r = f(3)\nassert r > [5]\nassert r < [10]",
    ),
    "counts what it likes": (
        "class S(str): count = lambda s, o: 1\ndef f(x): return S()",
        "assert f(3).count('9') == 1",
    ),
    "finds what it likes": ("class S(str): find = lambda s, o: 1\ndef f(x): return S()", "assert f(3).find('9') == 1"),
    "one object for all": (
        "class V:\n    one = None\n    def __new__(c, *a): c.one = c.one or object.__new__(c); return c.one\n    def __init__(s, *a): pass",
        "assert V(1, 2) == V(2, 4)",
    ),
    "changes its argument in an inner assert": (
        "def f(x): x.clear(); return []",
        "def run(x):\n    assert isinstance(x, list)\n    return f(x)\nx = [2, 1]\nassert run(x) == sorted(x)",
    ),
    "ends a loop": ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == x * x, [1, 2]))"),
    "ends a generator": ("def f(x): raise GeneratorExit", "assert all(f(x) == x * x for x in [1, 2])"),
    "another len": ("def f(x): return []\ndef len(x): return 9", "assert len(f(3)) == 9"),
    "another all": ("def f(x): return 0\ndef all(x): return True", "assert all(f(x) == x * x for x in [3])"),
    "another abs": ("def f(x): return 0\ndef abs(x): return 0", "assert abs(f(3) - 9) < 1"),
    "another isinstance": ("def f(x): return 0\ndef isinstance(*a): return True", "assert isinstance(f(3), str)"),
    "another math": ("def f(x): return 0\nclass math: isclose = lambda *a: True", "assert math.isclose(f(3), 9)"),
    "a changed math": (
        "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0",
        "assert math.isclose(f(3), 9)",
    ),
    "an attribute for numpy": (
        "class A:\n    __array_interface__ = {'data': (4096, 0), 'shape': (1,), 'typestr': '<i8'}\ndef f(x): return A()",
        "assert f(3) == 9",
    ),
    "changes what it was given": ("def f(x):\n    x.clear()\n    return []", "x = [2, 1]\nassert f(x) == sorted(x)"),
    "another length": ("class A:\n    def __len__(s): return True\ndef f(x): return A()", "assert len(f(3)) == 9"),
    "a text that is no text": (
        "class A:\n    def __str__(s): return 9\ndef f(x): return A()",
        "assert str(f(3)) == '9'",
    ),
    "not a number": ("def f(x): return float('nan')", "assert f(3) == 9"),
    "a generator without end": ("import itertools\ndef f(x): return itertools.repeat(9)", "assert list(f(3)) == [9]"),
    "a value without end": ("def f(x): return '9' * 10**8", "assert f(3) == '9'"),
    "another number each time": (
        "import itertools, sys\nnumbers = itertools.cycle([99, -99])\nclass I(int): pass\n"
        "def f(x):\n    server = sys._getframe(2).f_locals['self']\n"
        "    server._functions = {**server._functions, 'plain': lambda value: next(numbers)}\n    return I()",
        "x = f(3)\nassert x > 5\nassert x < 10",
    ),
    "a list in itself": ("def f(x):\n    y = []\n    y.append(y)\n    return y", "assert f(3) == [9]"),
    "a deep list": ("def f(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y", "assert f(3) == [9]"),
    "exit": ("import sys\ndef f(x): sys.exit(0)", "assert f(3) == 9"),
    "exit at once": ("import os\ndef f(x): os._exit(17)", "assert f(3) == 9"),
    "exit where an error is expected": (
        "import os\ndef f(x): os._exit(0)",
        "try:\n    f(-1)\nexcept Exception:\n    pass\nexcept BaseException:\n    pass",
    ),
    "an interrupt": ("def f(x): raise KeyboardInterrupt", "assert f(3) == 9"),
    "an assertion": ("def f(x): raise AssertionError", "assert f(3) == 9"),
    "an error that is another": (
        "class E(BaseException):\n    def __str__(s): import os; os._exit(0)\ndef f(x): raise E",
        "assert f(3) == 9",
    ),
    "a missing function": ("", "assert f(3) == 9"),
    "no function": ("f = 9", "assert f(3) == 9"),
    "asks the test's own function": (
        "def f(x, key):\n    try: return key.__globals__['want']\n    except Exception: return 0",
        "want = 9\nassert f(3, lambda x: x) == want",
    ),
}
MESSAGE = "import json, os, struct\ndef send(m):\n    m = json.dumps(m).encode()\n    os.write(3, struct.pack('!I', len(m)) + m)\n"
FRAMES = {
    "answers before it is asked": "for value in [['object', 0, 'module'], 9, 9, 9, 9]: send({'v': value})\nos._exit(17)",
    "the code of a test that passed": "send({'status': 17})\nos._exit(17)",
    "noise": "os.write(3, os.urandom(1 << 12))\nos._exit(0)",
    "half a message": "os.write(3, b'\\0\\0\\0\\xff{')\nos._exit(0)",
    "a long message": "os.write(3, b'\\xff' * 64)\nos._exit(0)",
    "a deep message": "os.write(3, struct.pack('!I', 200000) + b'[' * 200000)\nos._exit(0)",
    "no message": "send([1, 2])\nos._exit(0)",
    "no value": "send({})\nsend({'v': {}})\nos._exit(0)",
    "a number that is none": "send({'v': ['int', '0x9g']})",
    "a container of another": "send({'v': ['@', 12345]})",
    "a kind that is none": "send({'v': ['__import__', 'os']})",
    "an exception that is none": "send({'x': [['exit', 'eval', '__import__'], [], 'x']})",
    "changes to what was not sent": "send({'v': 9, 'm': [[0, [1]]]})",
    "calls what it was not given": "send({'c': 0, 'a': []})",
    "calls itself": "while True: send({'c': -1, 'a': []})",
    "a pickle": "import pickle\nsend({'v': ['pickle', pickle.dumps(9).hex()]})",
    "an empty tag": "send({'v': []})",
    "a set of what cannot be in one": "send({'v': ['set', 0, [['list', 1, []]]]})",
    "nothing, for ever": "while True: pass",
    "a closed channel": "os.close(3)",
}


@pytest.mark.parametrize("name", VALUES)
def test_what_it_returns(machine, name):
    program, test = VALUES[name]
    machine.cheat(f"{EQUAL}\n{program}", test, hangs=name == "a generator without end")


@pytest.mark.parametrize("name", FRAMES)
def test_what_it_sends(machine, name):
    machine.cheat(f"{MESSAGE}\n{FRAMES[name]}\ndef f(x): return 0", "asserts", hangs=name == "nothing, for ever")
