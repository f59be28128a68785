"""`benchmarks/few_faces.py`: every recording of a person is trained on or tested, and draws differ."""

import json

import pytest
from benchmarks import few_faces as script
from tests.data.shown import save_tree

from ripe_mambaspike.events import make_events


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    numbers = range(1, 7)
    tree = save_tree(tmp_path / "pictures", [f"Faces_easy/image_{number:04d}.png" for number in numbers], (24, 24))
    save_tree(tree, ["ant/image_0001.png"])
    monkeypatch.setattr(script, "PEOPLE", {"tried": ((1, 3), (4, 6)), "reported": ((2, 3), (5, 6))})

    def call(*words):
        where = ["--pictures", str(tree), "--out", str(tmp_path / "out"), "--counts", "1"]
        tiny = ["--set", "schedule.epochs=1", "data.grid=16", "run.device=cpu", "run.threads=1"]
        monkeypatch.setattr("sys.argv", ["script", *where, *tiny, *words])
        script.main()
        return capsys.readouterr().out

    return call


@pytest.mark.slow
def test_every_draw_is_measured_once(run, tmp_path):
    shown = run("--draws", "2")
    assert "tried-1-0: " in shown
    assert "nearest neighbor" in shown
    assert "1 of each person: " in shown
    (values,) = json.loads((tmp_path / "out" / "tried.json").read_text()).values()
    assert len(values) == 2
    splits = []
    for draw in range(2):
        data = tmp_path / "out" / "data" / f"tried-1-{draw}"
        trained, tested = (
            {path.relative_to(data / part) for path in (data / part).rglob("*.bin")} for part in ("train", "test")
        )
        assert (len(trained), len(tested), trained & tested) == (2, 4, set())
        splits.append(trained)
    assert splits[0] != splits[1]
    begun = (tmp_path / "out" / "runs" / "tried-1-0" / "result.json").stat().st_mtime_ns
    run("--draws", "1")
    assert (tmp_path / "out" / "runs" / "tried-1-0" / "result.json").stat().st_mtime_ns == begun


def test_the_nearest_neighbor_is_the_person_with_the_same_pixels():
    def events(*pixels):
        x, y = zip(*pixels, strict=True)
        return make_events(x, y, range(len(x)), [1] * len(x))

    left, right = events((1, 1), (2, 1), (2, 1), (3, 1)), events((40, 7), (41, 7), (41, 8))
    recordings = [script.Shown(0, 0, True, left), script.Shown(1, 0, True, right)]
    assert script.nearest_neighbor([*recordings, script.Shown(0, 1, False, left[1:])]) == 100
    mixed = [script.Shown(0, 1, False, right[:2]), script.Shown(1, 1, False, right[1:])]
    assert script.nearest_neighbor([*recordings, *mixed]) == 50


def test_all_recordings_are_drawn_once():
    people = [[make_events([k], [0], [0], [1]) for k in range(n)] for n in (4, 6)]
    for draw in range(3):
        found = script.drawn(people, 2, draw)
        assert sorted((one.person, one.number) for one in found) == [(p, k) for p in (0, 1) for k in range((4, 6)[p])]
        assert [sum(one.trained for one in found if one.person == p) for p in (0, 1)] == [2, 2]
        assert all(int(one.events["x"][0]) == one.number for one in found)


def test_other_pictures_are_refused(run, tmp_path, capsys):
    other = save_tree(tmp_path / "other", ["ant/image_0001.png"])
    with pytest.raises(SystemExit) as ended:
        run("--pictures", str(other))
    assert ended.value.code == 2
    assert "pictures: expected Caltech101 with the class Faces_easy" in capsys.readouterr().err
