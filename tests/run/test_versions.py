"""Steps behind policy versions."""

import pytest

from agentrl_core.api.stores import StepRow
from agentrl_core.run.versions import step_of_version


def row(step, version, *, voided=False):
    return StepRow(run_id="run", step=step, version=version, groups=(), records=(), metrics={}, voided=voided)


@pytest.mark.parametrize(("version", "step"), [(0, 0), (1, 1), (2, 2), (3, 1), (4, 2), (5, None), (9, None)])
def test_a_version_leads_to_its_step_also_after_a_resumption(version, step):
    """The run made steps 1 and 2, went back to step 1 (version 3), and made step 2 again (version 4)."""
    assert step_of_version(version, [row(1, 1), row(2, 2, voided=True), row(2, 4)]) == step
