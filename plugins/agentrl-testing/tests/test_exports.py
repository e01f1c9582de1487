"""The kit's public names."""

import importlib

import pytest

import agentrl_testing as kit


@pytest.mark.parametrize("name", kit.__all__)
def test_every_public_name_is_found_in_its_module(name):
    found = getattr(kit, name)
    assert found is getattr(importlib.import_module(found.__module__), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        kit.Nothing  # noqa: B018
