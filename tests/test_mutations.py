"""The table of mutations fits the source, and its runner tells what is caught from what is not."""

import os
import re
import subprocess
import sys
from collections import Counter

import attrs
import pytest
from tests.mutations.mutation import ROOT, Mutation, StaleError
from tests.mutations.table import TABLE

SAMPLE = Mutation(
    file="sample.py", breaks="sign", old="2 * number", new="-2 * number", tests=("test_sample.py::test_double",)
)
RUN = """
import sys
from pathlib import Path
from tests.mutations.run import run
from tests.test_mutations import SAMPLE, STATES

folder = Path(sys.argv[1])
print("codes", [run(one, root=folder, source=folder / "src", processes=2) for one in (STATES, [SAMPLE])])
"""
STATES = [
    SAMPLE,
    attrs.evolve(SAMPLE, breaks="factor", new="3 * number"),
    attrs.evolve(SAMPLE, breaks="syntax", new="2 *"),
]


def test_every_mutation_fits_the_source():
    for entry in TABLE:
        entry.mutated(ROOT / "src")
    assert [name for name, count in Counter(entry.name for entry in TABLE).items() if count > 1] == []


def test_the_tests_that_must_notice_exist():
    for selection in {selection for entry in TABLE for selection in entry.tests}:
        path, _, name = selection.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"(def|class) {name.partition('[')[0]}\(", text), selection


@pytest.mark.parametrize("text", ["3 * number", "2 * number + 2 * number"])
def test_a_text_that_does_not_stand_there_once_is_told(tmp_path, text):
    (tmp_path / "sample.py").write_text(f"def double(number):\n    return {text}\n", encoding="utf-8")
    with pytest.raises(StaleError, match=rf"sample: sign: the old text stands {text.count('2')} times .*\n2 \* number"):
        SAMPLE.mutated(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a mutation is run in a fork")
def test_a_run_tells_what_is_caught_from_what_is_not(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/sample.py").write_text("def double(number):\n    return 2 * number\n", encoding="utf-8")
    (tmp_path / "test_sample.py").write_text(
        "def test_double():\n    from sample import double\n\n    assert double(3) > 0\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    rows = dict(re.findall(r"^sample +(\w+) +[\d.]+ s  (.*)$", done.stdout, re.MULTILINE))
    assert rows == {
        "sign": "test_sample.py::test_double",
        "factor": "SURVIVED",
        "syntax": "THE MUTATED MODULE WAS NEVER RUN",
    }, done.stdout + done.stderr
    assert "1 of 3 caught" in done.stdout
    assert "codes [1, 0]" in done.stdout
