"""The page as a whole: what it holds, in which order, and that nothing in it comes from outside."""

import base64
import hashlib
import re

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.report import write_report

HEADINGS = [
    "Curves", "Firing rates", "Temporal filters", "Confusion", "Classes", "Samples", "Cost", "Recipe", "Log",
]  # fmt: skip
HOSTILE = "</title></pre></style><script>alert(1)</script><img src=x onerror=\"alert('2')\">&{data}\ud800\x00\u202e"


def test_everything_is_there_in_order(make_run, clips, reader):
    folder = make_run()
    path = write_report(folder, clips=clips())
    page = reader(path)
    assert path == folder / "report.html"
    assert page.text["h1"] == ["small run"]
    assert page.text["h2"] == HEADINGS
    facts = dict(zip(page.text["dt"], page.text["dd"], strict=True))
    assert facts["parameters, training"] == "123,456"
    assert facts["parameters, deployed"] == "65,432"
    assert facts["seed"] == "7"
    assert facts["commit"] == "0123456789ab"
    assert facts["time"] == "84 min"
    assert facts["epoch"] == "2 of 3"
    assert "top-5" not in facts  # of three classes it is always 100 %
    assert "3 epochs, 37.5 s in all" in page.section("log")  # the log's seconds count on
    assert "88.9 %" in page.text["header"][0]
    assert "27 test clips" in page.text["header"][0]
    assert "95 % interval 71.9 … 96.1 %" in page.text["header"][0]  # Wilson's, 24 of 27
    assert "wave → clap: 1 of 9 (11.1 %)" in page.section("confusion")
    assert "wave classified as clap (1 of 9); clap classified as drum (1 of 9)" in page.section("confusion")
    assert not [text for text in page.text["p"] if text.startswith(("No ", "There is no", "Not "))]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_network_without_spikes_has_no_spiking_part(make_run, clips, reader):
    model = create_model("event-mlp", seed=0, num_classes=3, time_steps=4, in_size=16, grid_size=4, hidden_size=8)
    cost = reader(write_report(make_run(model=model), clips=clips())).section("account")
    assert "whole network" in cost
    assert "spiking part" not in cost
    assert "real values" in cost


def test_spiking_part_of_a_network_with_spikes(make_run, clips, reader):
    assert "spiking part" in reader(write_report(make_run(), clips=clips())).section("account")


def test_the_same_run_gives_the_same_page(make_run, clips):
    folder = make_run()
    first = write_report(folder, clips=clips()).read_bytes()
    assert write_report(folder, clips=clips()).read_bytes() == first


@pytest.mark.parametrize(
    ("protocol", "picked_on", "words", "warns"),
    [
        ("validation", "val", "selected on validation clips, then tested", False),
        ("paper", "test", "best test epoch: selected on the test clips (paper protocol)", True),
        ("paper", None, "best test epoch: selected on the test clips (paper protocol)", True),
        ("paper", "last epoch", "last epoch, without selection", False),
        ("validation", "last epoch", "last epoch, without selection", False),
        ("validation", "test", "best test epoch: selected on the test clips (paper protocol)", True),
        (None, None, "how it was selected is not recorded", True),
    ],
)
def test_every_score_says_how_the_network_was_selected(make_run, result_of, reader, protocol, picked_on, words, warns):
    page = reader(write_report(make_run(result=result_of(protocol=protocol, picked_on=picked_on))))
    badges = [attributes["class"] for _, attributes in page.tags if "badge" in (attributes.get("class") or "")]
    assert badges == [f"badge{' warn' if warns else ''}"] * 4  # the bar, the headline, the matrix, the classes
    assert words in page.text["title"][0]
    for part in (page.text["header"][0], page.section("confusion"), page.section("classes")):
        assert words in part


def test_the_page_loads_nothing_from_elsewhere(make_run, clips, reader):
    page = reader(write_report(make_run(), clips=clips()))
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "data", "action", "xlink:href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/png;base64,", "data:,")), (tag, value)
    style, script = page.text["style"][0], page.text["script"][0]
    assert not re.search(r"url\(|@import|fetch|XMLHttp|http", style + script)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    for text in (style, script):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "unsafe" not in policy


def test_hostile_names_stay_text(make_run, result_of, clips, reader):
    names = [HOSTILE, "b", "c"]
    result = result_of(names)
    result |= {"name": HOSTILE, "commit": HOSTILE, "set": HOSTILE, "partition": HOSTILE, "split": HOSTILE}
    result |= {"picked_on": HOSTILE}
    safe = HOSTILE.replace("\ud800", "")
    events = [(clip, 0, HOSTILE) for clip, _, _ in clips()]
    folder = make_run(names=names, result=result, recipe=f"name: {safe}\n")
    rows = (folder / "log.csv").read_text().replace("lr", '"</table><script>alert(3)</script>"')
    (folder / "log.csv").write_text(rows)
    page = reader(write_report(folder, clips=events))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [a for tag, a in page.tags if tag == "img" and not a["src"].startswith("data:image/png;base64,")]
    assert page.text["h2"] == HEADINGS
    assert "<script>alert(1)</script>" in page.text["h1"][0]
    assert "<script>alert(1)</script>" in page.text["pre"][0]
    assert "<script>alert(1)</script>" in page.section("classes")
    assert "<script>alert(3)</script>" in page.section("log")
    assert page.charts[-1]["lines"][0]["name"].startswith("</title>")


def test_a_hostile_folder_stays_text(make_run, result_of, clips, reader):
    """A run without a name of its own is called by its folder; errors name clips and files."""
    name = "<script>alert(1)<|script><img src=x onerror=alert(2)>\u202e"
    folder = make_run(result=result_of() | {"name": None})
    folder = folder.rename(folder.parent / name)
    (folder / "best" / "model.safetensors").write_bytes(b"damaged")  # so that a sentence names the path
    page = reader(write_report(folder, clips=[(torch.zeros(9, 2, 16, 16), 1, HOSTILE), *clips(1)]))
    assert page.text["h1"] == [name.replace("\u202e", "")]
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert [tag for tag, _ in page.tags].count("img") == 0
    assert "\u202e" not in (folder / "report.html").read_text()


@pytest.mark.parametrize("asked", [0, 1, 3, 9])
def test_the_given_number_of_samples_is_evenly_chosen(make_run, clips, reader, asked):
    page = reader(write_report(make_run(), clips=clips(count=6), samples=asked))
    wanted = {0: [], 1: [0], 3: [0, 2, 4], 9: [0, 1, 2, 3, 4, 5]}[asked]
    assert page.text.get("article", []) == [text for text in page.text.get("article", []) if text.startswith("clip ")]
    assert [int(text[5]) for text in page.text.get("article", [])] == wanted
    assert ("none were given" in page.section("samples")) == (asked == 0)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with raises(InputError, path=folder) as error:
            write_report(folder)
        assert all(name in str(error.value) for name in ("recipe.yaml", "log.csv", "result.json", "best"))


def test_a_negative_number_of_samples_is_refused(make_run):
    with raises(InputError, field="samples") as error:
        write_report(make_run(), samples=-1)
    assert "-1" in str(error.value)


def test_the_baseline_has_a_report_too(make_run, clips, reader):
    from ripe_mambaspike import create_model

    model = create_model(
        "mamba-spike", seed=0, channels=(4, 5, 6), embed_dim=16, depth=1, time_steps=4, in_size=(16, 16), num_classes=3
    )
    page = reader(write_report(make_run(model=model), clips=clips()))
    assert "This network has no temporal filters." in page.section("filters")
    assert "This network has no attention map." in page.section("samples")
    assert "classifies a clip once" in page.section("samples")
    over_steps = next(chart for chart in page.charts if chart["name"] == "time step")
    assert [line["name"] for line in over_steps["lines"]] == ["layer 1", "layer 2", "layer 3"]


def test_a_clip_the_network_cannot_read_leaves_a_sentence(make_run, clips, reader):
    events = [*clips(1), (torch.zeros(9, 2, 16, 16), 1, "long clip")]
    page = reader(write_report(make_run(), clips=events))
    assert len(page.text["article"]) == 1
    (sentence,) = re.findall(r"The clip long clip could not be run: ([^<]*)", page.section("samples"))
    assert "9" in sentence  # steps
