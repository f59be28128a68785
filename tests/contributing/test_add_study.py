"""A study of one's own, added by following the guide, is planned like those of the catalog and shares their runs."""

import re
from pathlib import Path

from raising import raises
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.studies.plan import plan_study
from ripe_mambaspike.studies.study import load_study

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def test_a_study_of_ones_own(tmp_path):
    section = GUIDE.split("\n### Add a study\n")[1].split("\n### ")[0]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    path = tmp_path / "kappa.yaml"
    path.write_text(text)
    study = load_study(path)
    assert study == load_study(str(path))
    assert (study.name, study.conditions) == ("kappa", ("shuffled", "dropped=0.5"))
    plan = plan_study(study, out=tmp_path)
    assert [run.recipe.model.fields.get("csilif_reset") for run in plan.runs[:3]] == [0, None, 1]
    assert len(plan.runs) == 9
    whole = plan_study(load_study("components"), ["gestures-hard"], "0", out=tmp_path).runs[0]
    assert plan.runs[1].folder == whole.folder


def test_a_file_that_is_no_study(tmp_path):
    path = tmp_path / "x.yaml"
    with raises(ConfigError, field="name", path=path):
        load_study(path)
    path.write_text("[1, 2]")
    with raises(ConfigError, path=path):
        load_study(path)
    path.write_text("title: x")
    with raises(ConfigError, path=path):
        load_study(path)
