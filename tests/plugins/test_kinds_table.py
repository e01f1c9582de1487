"""The table of kinds in cookbook/architecture.md says what `KINDS` says."""

import pytest
from tests.plugins.kinds_table import BUILT_IN, NAMED_BY, PAGE, table, written

from agentrl_core.plugins.kinds import KINDS
from agentrl_core.plugins.references import resolve


def test_the_table_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert written(page) == page, "run `python -m tests.plugins.kinds_table`"


def test_every_kind_has_its_line():
    assert set(BUILT_IN) == set(KINDS)
    assert set(NAMED_BY) == {kind.name for kind in KINDS.values() if not kind.option}


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.protocol], ids=lambda kind: kind.name)
def test_the_protocol_of_a_kind_has_its_method(kind):
    protocol = resolve(kind.protocol).value
    assert not kind.method or callable(getattr(protocol, kind.method))
