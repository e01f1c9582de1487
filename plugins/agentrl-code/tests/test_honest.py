"""Programs of all kinds that are right score 1, at every level and whoever runs them; wrong ones score 0."""

import json
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux alone")

SCRIPTS = {
    "prints": ("print('9')", "", "9"),
    "reads a line": ("print(int(input()) ** 2)", "3\n", "9"),
    "reads all": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1 2\n3\n", "6"),
    "reads bytes": ("import sys\nprint(len(sys.stdin.buffer.readlines()))", "a\nb\n", "2"),
    "reads the descriptor": ("import os\nos.write(1, os.read(0, 100))", "abc", "abc"),
    "reads by open": ("print(open(0).read())", "abc", "abc"),
    "loops over lines": ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "ab\ncd\n", "ba\ndc"),
    "reads until the end": (
        "try:\n    while True: print(int(input()) + 1)\nexcept EOFError: pass", "1\n2\n", "2\n3"),
    "white space": ("print('a ')\nprint()\nprint()", "", "a"),
    "no newline": ("import sys\nsys.stdout.write('a')", "", "a\n"),
    "floats": ("print(0.1 + 0.2, 1e300 * 10, f'{2 / 3:.3f}', round(2.5))", "", "0.30000000000000004 1e+301 0.667 2"),
    "large numbers": ("print(len(str(2 ** 10000)), 7 ** 70 % 11)", "", "3011 1"),
    "text": ("print(input().upper())", "naïve ☃\n", "NAÏVE ☃"),
    "a main function": ("def main(): print(9)\nif __name__ == '__main__': main()", "", "9"),
    "exit": ("import sys\nprint(9)\nsys.exit()", "", "9"),
    "exit 0": ("print(9)\nraise SystemExit(0)", "", "9"),
    "os._exit after a flush": ("import os\nprint(9, flush=True)\nos._exit(0)", "", "9"),
    "an exit function": ("import atexit\natexit.register(print, 9)", "", "9"),
    "notes on the error output": ("import sys\nprint('debug', file=sys.stderr)\nprint(9)", "", "9"),
    "recursion": ("import sys\nsys.setrecursionlimit(10**6)\ndef g(n): return n and g(n - 1) + 1\nprint(g(50000))", "", "50000"),
    "recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "def g(n): return n and g(n - 1) + 1\n"
        "thread = threading.Thread(target=lambda: print(g(20000)))\nthread.start()\nthread.join()", "", "20000"),
    "threads": (
        "import threading\nfound = []\nthreads = [threading.Thread(target=found.append, args=(n,)) for n in range(20)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint(sum(found))", "", "190"),
    "a thread that goes on": ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print(9))).start()", "", "9"),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(-5, 0))))", "", "15"),
    "asyncio": ("import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print(9)\nasyncio.run(main())", "", "9"),
    "random": ("import random\nrandom.seed(1)\nprint(random.randint(1, 1) * 9, random.random() < 1)", "", "9 True"),
    "regular expressions": ("import re\nprint(re.findall(r'\\d+', 'a1b22'))", "", "['1', '22']"),
    "itertools": ("import itertools\nprint(list(itertools.permutations('ab')))", "", "[('a', 'b'), ('b', 'a')]"),
    "collections": ("from collections import *\nprint(Counter('aab').most_common(1), deque([1, 2], 1))", "", "[('a', 2)] deque([2], maxlen=1)"),
    "heapq and bisect": ("import heapq, bisect\nprint(heapq.nsmallest(2, [3, 1, 2]), bisect.bisect([1, 3], 2))", "", "[1, 2] 1"),
    "decimal and fractions": ("from decimal import *\nfrom fractions import *\nprint(Decimal('0.1') * 3, Fraction(1, 3) * 3)", "", "0.3 1"),
    "dates": ("from datetime import *\nprint(date(2024, 2, 28) + timedelta(2))", "", "2024-03-01"),
    "a time zone": ("from zoneinfo import ZoneInfo\nfrom datetime import *\nprint(datetime(2024, 1, 1, tzinfo=timezone.utc).year)", "", "2024"),
    "the standard library": (
        "import array, base64, calendar, copy, csv, ctypes, dataclasses, difflib, enum, functools, hashlib, io, json, "
        "math, operator, pprint, queue, statistics, string, struct, tempfile, textwrap, time, typing, unicodedata, "
        "uuid, zlib, sqlite3, secrets, pickle, shutil, pathlib, os, subprocess, multiprocessing, logging, argparse\n"
        "print(hashlib.sha256(b'').hexdigest()[:4], math.comb(5, 2), statistics.mean([1, 2]))", "", "e3b0 10 1.5"),
    "a database": ("import sqlite3\nprint(sqlite3.connect(':memory:').execute('select 3 * 3').fetchone()[0])", "", "9"),
    "files of its own": (
        "import os, tempfile, pathlib\npathlib.Path('a').write_text('9')\nos.rename('a', 'b')\nos.mkdir('c')\n"
        "with tempfile.TemporaryFile('w+') as file:\n    file.write('x')\n"
        "with tempfile.NamedTemporaryFile() as file: pass\n"
        "print(open('b').read(), sorted(os.listdir()))", "", "9 ['b', 'c']"),
    "a copied file": ("import shutil\nopen('a', 'w').write('9')\nshutil.copyfile('a', 'b')\nprint(open('b').read())", "", "9"),
    "classes": (
        "from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 0\nprint(max(P(1), P(2)))",
        "", "P(x=2, y=0)"),
    "a pickle": ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "", "A"),
    "generators": ("def g():\n    yield from range(3)\nprint(*g(), sep=',')", "", "0,1,2"),
    "memory": ("x = bytearray(100 << 20)\nprint(len(x))", "", str(100 << 20)),
    "its own limits": ("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\nprint(9)", "", "9"),
    "signals to itself": ("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(9)", "", "9"),
    "a large input": ("import sys\nprint(len(sys.stdin.read()))", "x" * 1_000_000, "1000000"),
    "a large output": ("print('x' * 60000)", "", "x" * 60000),
    "eval": ("print(eval('3 ** 2'))", "", "9"),
    "nothing": ("pass", "", ""),
}  # fmt: skip

TESTS = {
    "a number": ("def f(x): return x * x", "assert f(3) == 9"),
    "a message": ("def f(x): return x * x", "assert f(3) == 9, 'f(3) should be 9'"),
    "several": ("def f(x): return x * x", "for x in range(5):\n    assert f(x) == x ** 2\nassert f(-1) == 1"),
    "a helper": ("def f(x): return x * x", "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(0) == 0\ncheck(f)"),
    "not": ("def f(x): return x > 2", "assert f(3)\nassert not f(1)\nassert f(3) is True"),
    "none": ("def f(x): pass", "assert f(3) is None\nassert f(3) == None"),
    "near": ("def f(x): return x / 3", "import math\nassert math.isclose(f(1), 0.3333333, rel_tol=1e-5)\nassert abs(f(1) - 1 / 3) < 1e-9"),
    "math without an import": ("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"),
    "plain data": (
        "def f(x): return x",
        "import datetime, decimal, fractions\nfrom collections import *\n"
        "for value in (None, True, 1, 10**40, -1.5, float('inf'), 1j, 'é\\ud800', b'\\xff', [1, [2]], (1,), {1, 2}, "
        "frozenset('a'), {'a': [1], (1, 2): {}}, range(3), ..., deque([1], 3), Counter('aab'), OrderedDict(a=1), "
        "defaultdict(list, a=[1]), bytearray(b'a'), decimal.Decimal('1.10'), fractions.Fraction(1, 3), "
        "datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3), datetime.time(1), datetime.timedelta(3)):\n"
        "    assert f(value) == value, value\n    assert type(f(value)) is type(value), value",
    ),
    "a set": ("def f(x): return list(set(x))", "assert set(f([1, 1, 2])) == {1, 2}\nassert sorted(f('aba')) == ['a', 'b']"),
    "a generator": ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]\nassert sum(f(4)) == 6\nassert next(f(2)) == 0"),
    "an endless generator": ("import itertools\ndef f(): return itertools.count(5)", "from itertools import islice\nassert list(islice(f(), 3)) == [5, 6, 7]"),
    "map and zip": ("def f(a): return map(str, a)", "assert list(f([1, 2])) == ['1', '2']\nassert list(zip(f([1]), 'a')) == [('1', 'a')]"),
    "keyword arguments": ("def f(*a, k=0, **o): return a, k, sorted(o)", "assert f(1, 2, k=3, z=4) == ((1, 2), 3, ['z'])\nassert f(*[1], **{'k': 2}) == ((1,), 2, [])"),
    "an error": ("def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
                 "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'negative'\nassert f(1) == 1"),
    "an error of its own": ("class Bad(ValueError): pass\ndef f(x): raise Bad(x, 2)",
                            "for kind in (Bad, ValueError):\n    try:\n        f(1)\n    except kind as error:\n        assert error.args == (1, 2)\n    else:\n        raise AssertionError"),
    "an error of a library": ("import json\ndef f(x): return json.loads(x)",
                              "import json\ntry:\n    f('{')\nexcept json.JSONDecodeError as error:\n    assert 'Expecting' in str(error.args)\nelse:\n    assert False"),
    "an error of decimals": ("from decimal import Decimal\ndef f(x): return Decimal(x)",
                             "import decimal\ntry:\n    f('a')\nexcept decimal.InvalidOperation:\n    pass\nelse:\n    assert False"),
    "slices": ("class Bag(list): pass\nclass Own:\n    def __getitem__(self, key): return list(range(9))[key]",
               "assert Bag([1, 2, 3])[1:] == [2, 3]\nassert Own()[:4:2] == [0, 2]"),
    "counting methods": ("class S(str): pass\nclass Box:\n    def count(self): return 3\ndef f(x): return S(x)\ndef box(): return Box()",
                         "assert f('aba').count('a') == 2\nassert f('aba').find('b') == 1\nassert box().count() == 3"),
    "part of a text": ("class S(str): pass\ndef f(x): return S(x)", "assert 'ell' in f('hello')\nassert 'x' not in f('hello')"),
    "asserts in asserts": ("def f(x): x.append(1); return x", "def run(x):\n    assert x == []\n    return f(x)\nx = []\nassert run(x) == [1]\nassert x == [1]"),
    "a missing key": ("def f(d): return d['x']", "try:\n    f({})\nexcept KeyError as error:\n    assert error.args == ('x',)\nelse:\n    assert False"),
    "unittest": ("def f(x):\n    if x < 0: raise ValueError\n    return [x]",
                 "import unittest\ncase = unittest.TestCase()\ncase.assertEqual(f(1), [1])\ncase.assertRaises(ValueError, f, -1)\nwith case.assertRaises(ValueError):\n    f(-1)"),
    "a class": ("class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)",
                "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2\nassert s.pop() == [2]\nassert s.items == [1]\nassert isinstance(s, Stack) and not isinstance(1, Stack)\nassert s"),
    "a method": ("class Solution:\n    def twoSum(self, nums, target):\n        return [0, 1]", "assert Solution().twoSum([2, 7], 9) == [0, 1]"),
    "linked nodes": ("class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, next\ndef reverse(head):\n    last = None\n    while head: head.next, last, head = last, head, head.next\n    return last",
                     "head = reverse(Node(1, Node(2, Node(3))))\nseen = []\nwhile head is not None:\n    seen.append(head.value)\n    head = head.next\nassert seen == [3, 2, 1]"),
    "a class that extends a list": ("class Bag(list):\n    def total(self): return sum(self)", "b = Bag([1, 2])\nb.append(3)\nassert b.total() == 6\nassert b == [1, 2, 3]\nassert 3 in b\nassert b[0] == 1"),
    "a named tuple": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", "assert f() == (1, 2)\nassert f().x == 1\na, b = f()\nassert b == 2"),
    "an enumeration": ("import enum\nclass C(enum.IntEnum):\n    A = 1", "assert C.A == 1\nassert C.A.name == 'A'"),
    "arithmetic of its own": ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n    def __mul__(self, k): return V(self.x * k)\n    def __abs__(self): return abs(self.x)\n    def __repr__(self): return f'V({self.x})'",
                              "assert (V(1) + V(2)).x == 3\nassert (V(2) * 3).x == 6\nassert abs(V(-1)) == 1\nassert str(V(1)) == repr(V(1)) == 'V(1)'\nassert f'{V(2)}' == 'V(2)'"),
    "a context": ("class C:\n    def __enter__(self):\n        self.open = True\n        return self\n    def __exit__(self, *a): self.open = False", "c = C()\nwith c as d:\n    assert d is c and c.open\nassert not c.open"),
    "a list in place": ("def f(x): x.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
    "in place, with a result": ("def f(x):\n    x.remove(1)\n    return len(x)", "x = [1, 2, 1]\nk = f(x)\nassert k == 2 and x[:k] == [2, 1]\nassert f(x) == 1\nassert x == [2]"),
    "in place, and returned": ("def f(x):\n    x.sort()\n    return x", "x = [2, 1]\nassert f(x) == [1, 2]\nassert x == [1, 2]\ny = f(x)\nassert y is x"),
    "in place, deep": ("def f(m):\n    m[0][0] = 9\n    m.append(m[0])", "row = [1]\nm = [row, [2]]\nf(m)\nassert m == [[9], [2], [9]] and row == [9] and m[2] is row"),
    "other containers in place": ("def f(d, s, b):\n    d['x'] = 1\n    s.add(2)\n    b += b'!'", "d, s, b = {}, {1}, bytearray(b'a')\nf(d, s, b)\nassert d == {'x': 1} and s == {1, 2} and b == b'a!'"),
    "a state": ("count = 0\ndef f():\n    global count\n    count += 1", "f()\nf()\nassert count == 2"),
    "a function given": ("def f(function, items): return [function(x) for x in items]", "assert f(lambda x: x + 1, [1, 2]) == [2, 3]\nassert f(str, [1]) == ['1']\nimport math\nassert f(math.sqrt, [4]) == [2.0]"),
    "a function that raises": ("def f(function):\n    try: return function(0)\n    except ZeroDivisionError: return 'caught'", "assert f(lambda x: 1 / x) == 'caught'"),
    "a decorator": ("import functools\ndef twice(function):\n    @functools.wraps(function)\n    def inner(*a): return 2 * function(*a)\n    return inner", "assert twice(lambda x: x)(3) == 6"),
    "a function returned": ("def f(x): return lambda y: x + y", "assert f(1)(2) == 3"),
    "an import of the answer": ("def f(x): return x", "from answer import f as g\nimport answer\nassert g(1) == answer.f(1) == 1"),
    "a builtin's name": ("def sum(x): return 9", "from answer import sum\nassert sum([1]) == 9"),
    "a comprehension": ("def f(x): return x * x", "assert [f(x) for x in range(3)] == [0, 1, 4]\nassert {x: f(x) for x in (1, 2)} == {1: 1, 2: 4}"),
    "a class of tests": ("def f(x): return x", "class Tests:\n    def run(self):\n        assert f(1) == 1\nTests().run()"),
    "a global": ("WEEK = ['mon', 'tue']", "assert WEEK == ['mon', 'tue']\nassert len(WEEK) == 2"),
    "an unguarded main": ("def f(x): return x\nif __name__ == '__main__': print(f(input()))", "assert f(1) == 1"),
    "output": ("print('loading')\ndef f(x):\n    print(x)\n    return x", "assert f(1) == 1"),
    "many calls": ("def f(x): return x + 1", "assert all(f(x) == x + 1 for x in range(500))"),
    "a large list": ("def f(n): return list(range(n))", "assert f(50000) == list(range(50000))"),
    "hashing": ("class K:\n    def __init__(self, x): self.x = x\n    def __hash__(self): return self.x\nk = K(3)", "d = {k: 1}\nassert d[k] == 1 and hash(k) == 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(machine, name):
    program, given, output = SCRIPTS[name]
    assert machine.why(program, {"input": given, "output": output}) == ""


@pytest.mark.parametrize("name", TESTS)
def test_what_a_test_may_ask(machine, name):
    program, test = TESTS[name]
    assert machine.why(program, {"asserts": test}) == ""


def test_some_at_every_level_and_for_everybody(any_machine):
    for name in ("a copied file", "threads", "asyncio", "the standard library", "memory", "a large input"):
        program, given, output = SCRIPTS[name]
        assert any_machine.why(program, {"input": given, "output": output}) == "", name
    for name in ("plain data", "a class", "a function given", "in place, deep"):
        assert any_machine.why(TESTS[name][0], {"asserts": TESTS[name][1]}) == "", name


@pytest.mark.parametrize(
    ("program", "test", "why"),
    [
        ("print(8)", {"input": "", "output": "9"}, "the program printed '8\\n', expected '9'"),
        ("print(9)\nraise SystemExit(1)", {"input": "", "output": "9"}, "the process ended with exit code 1"),
        ("print(9)\n1 / 0", {"input": "", "output": "9"}, "ZeroDivisionError: division by zero"),
        ("print(9, end=' ')\nprint(9)", {"input": "", "output": "9\n9"}, "the program printed '9 9\\n', expected '9\\n9'"),
        ("import os\nos.abort()", {"input": "", "output": "9"}, "the process ended with signal 11"),
        ("def f(:", {"asserts": "assert f(1)"}, "SyntaxError: invalid syntax (answer.py, line 1)"),
        ("def f(x): return x + 1", {"asserts": "assert f(1) == 1, 'f(1)'"}, "AssertionError: f(1)"),
        ("def f(x): return [1]", {"asserts": "assert f(1).pop() == 2"}, "AssertionError"),
        ("1 / 0", {"asserts": "assert f(1)"}, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)", {"asserts": "assert f(1)"}, "SystemExit: 0"),
        ("", {"asserts": "assert f(1)"}, "NameError: name 'f' is not defined"),
        ("def f(x): return g(x)", {"asserts": "assert f(1)"}, "NameError: name 'g' is not defined"),
        ("import os\nos._exit(3)", {"asserts": "assert f(1)"},
         "the program ended before the test did: the process ended with exit code 3"),
        ("class A: pass\ndef f(x): return A()", {"asserts": "assert f(1) == 1"},
         "the test uses == on an object of the answer's class 'A', whose own code would decide the result; "
         "fix: compare plain data, such as an attribute, list(x) or str(x)"),
        ("def f(x): return x", {"asserts": "class A: pass\nassert f(A())"},
         "an object of type A cannot be passed to the answer; fix: pass plain data, or a function"),
        ("def f(x): return [object()]", {"asserts": "assert f(1) == [1]"},
         "the test uses == on an object of the answer's class 'object', whose own code would decide the result; "
         "fix: compare plain data, such as an attribute, list(x) or str(x)"),
        ("def f(x): return 'x' * (9 << 20)", {"asserts": "assert f(1) == 'x'"},
         "OverflowError: the value is too large to be sent"),
        ("while True: pass", {"asserts": "assert f(1)"}, "it took too long"),
        ("def f(x): x()", {"asserts": "while f(1) is None: pass"}, "TypeError: 'int' object is not callable"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(machine, program, test, why):
    assert machine.why(program, test, timeout_s=20 if "while True" not in program else 0.5) == why


def test_the_tables_have_no_doubles():
    for table in (SCRIPTS, TESTS):
        assert len({json.dumps(item) for item in table.values()}) == len(table)
