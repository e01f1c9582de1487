"""Conformance suites cannot be weakened without saying why."""

import pytest

from agentrl_testing.base import ConformanceSuite


class ExampleSuite(ConformanceSuite):
    def test_first(self):
        assert True

    def test_second(self):
        assert True


def test_own_tests_and_fixtures_may_be_added():
    class Fine(ExampleSuite):
        helper = 1

        def test_third(self):
            assert True

    assert Fine.helper == 1


def test_an_override_without_a_reason_is_refused():
    with pytest.raises(TypeError, match=r"Weak replaces standard tests of its suite: test_first\. Give"):

        class Weak(ExampleSuite):
            def test_first(self):
                assert True


def test_removing_a_test_is_refused():
    with pytest.raises(TypeError, match="test_first, test_second"):

        class Weak(ExampleSuite):
            test_first = None
            test_second = None


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.xfail,
        pytest.mark.xfail(reason=""),
        pytest.mark.xfail(reason="why", run=False),
        pytest.mark.skip(reason="why"),
        pytest.mark.skipif(True, reason="why"),
    ],
)
def test_marks_other_than_xfail_with_a_reason_are_refused(mark):
    @mark
    def override(self):
        assert True

    with pytest.raises(TypeError, match="test_first"):
        type("Weak", (ExampleSuite,), {"test_first": override})


def test_an_override_with_xfail_and_a_reason_is_accepted():
    class Open(ExampleSuite):
        @pytest.mark.xfail(reason="not deterministic")
        def test_first(self):
            super().test_first()

    class Further(Open):
        pass

    assert issubclass(Further, ExampleSuite)


def test_an_override_in_a_mixin_is_refused():
    class Mixin:
        def test_first(self):
            assert True

    with pytest.raises(TypeError, match="test_first"):
        type("Weak", (Mixin, ExampleSuite), {})


def test_marking_the_suites_own_function_is_refused():
    with pytest.raises(TypeError, match="test_first"):
        type("Weak", (ExampleSuite,), {"test_first": ExampleSuite.test_first})
