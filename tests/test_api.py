"""The top level of the package: every name is there, documented, and every command calls one of them."""

import inspect
import re
from pathlib import Path

import pytest

import ripe_mambaspike

ROOT = Path(__file__).parents[1]
API = (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("name", ripe_mambaspike.__all__)
def test_a_public_name_is_importable_and_documented(name):
    found = getattr(ripe_mambaspike, name)
    assert callable(found)
    assert inspect.getdoc(found)
    assert re.search(rf"`{name}[`(]", API), f"docs/api.md does not describe {name}"


def test_packages_that_are_functions_too(tmp_path):
    from ripe_mambaspike.errors import RipeError

    for function in (ripe_mambaspike.train, ripe_mambaspike.account):
        with pytest.raises(RipeError):
            function("no-such-name")
    assert ripe_mambaspike.train.__name__
