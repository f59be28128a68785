"""Threads that wait for each other sleep soon, unless a user has chosen otherwise."""

import os
import subprocess
import sys

import pytest

from ripe_mambaspike.cli.openmp import WAIT_VARIABLES, limit_openmp_spin


def test_values_of_the_user_are_kept():
    for name in WAIT_VARIABLES:
        chosen = {name: "7"}
        limit_openmp_spin(chosen)
        assert chosen == {name: "7"}
    nothing = {}
    limit_openmp_spin(nothing)
    assert nothing == {"GOMP_SPINCOUNT": "1000"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch brings another OpenMP library there")
@pytest.mark.parametrize(("given", "turns"), [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_the_command_sets_it_before_the_library_is_loaded(given, turns):
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_VARIABLES}
    result = subprocess.run(
        [sys.executable, "-m", "ripe_mambaspike", "models"],
        env={**environment, **given, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert f"GOMP_SPINCOUNT = '{turns}'" in result
