"""A run keeps the key of the store it was trained on: its number stays, however the root is prepared afterwards."""

import json
import shutil
from dataclasses import replace

import msgspec
import pytest
import yaml

from ripe_mambaspike.cli.main import main
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.data.store import current_key, store_keys
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.inference.checkpoint_data import data_settings_of, open_data_for
from ripe_mambaspike.models.labels import read_labels, save_labels
from ripe_mambaspike.train.checkpoint import last_checkpoint, save_checkpoint

SETTINGS = (
    "name=tiny", "data.time_steps=4", "data.grid=16", "schedule.batch_size=11", "schedule.epochs=2", "run.device=cpu",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}",
)  # fmt: skip
COUNTS = {"train": 11, "val": 11, "test": 22}
SAME = ("set", "partition", "split", "store", "top1", "top5", "n", "loss", "per_class", "confusion", "rates")


def home_of(root):
    return root / ".ripe" / "synthgesture"


def words(root, out, *settings):
    chosen = [f"data.root={root}", *SETTINGS, *settings]
    return ["train", "synthgesture", "--no-report", "--out", str(out), "--set", *chosen]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A root prepared in one way, and a run on it."""
    root = tmp_path_factory.mktemp("root")
    simulate_dataset("synthgesture", root, **COUNTS, size=16)
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(words(root, run)) == 0
    return root, run


@pytest.fixture(scope="module")
def twice(trained, tmp_path_factory):
    """(root, the key of then, the key of now): a copy of the root, prepared in another way since."""
    root = tmp_path_factory.mktemp("twice") / "root"
    shutil.copytree(trained[0], root)
    first = current_key(home_of(root))
    second = simulate_dataset("synthgesture", root, **COUNTS, size=20, seed=5).key
    assert first != second == current_key(home_of(root))
    return root, first, second


@pytest.fixture
def prepared_again(trained, twice, tmp_path):
    """(root, run, the key of then, the key of now), to be changed as a test likes."""
    root, run = tmp_path / "root", tmp_path / "run"
    shutil.copytree(twice[0], root)
    shutil.copytree(trained[1], run)
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["root"] = str(root)
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return root, run, *twice[1:]


def asked(ripe, *words):
    result = ripe("eval", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out), result.err


def test_a_run_stores_the_key(trained):
    root, run = trained
    key = current_key(home_of(root))
    assert json.loads((run / "result.json").read_text())["store"] == key
    assert yaml.safe_load((run / "recipe.yaml").read_text())["data"]["store"] == key
    assert last_checkpoint(run / "checkpoints").document.store == key


def test_the_accuracy_stays_when_the_root_is_prepared_again(ripe, prepared_again):
    root, run, first, second = prepared_again
    result = json.loads((run / "result.json").read_text())
    for more in ((), ("--root", root), ("--dataset", "synthgesture", "--root", root), ("--store", first)):
        found, err = asked(ripe, run, *more)
        assert {name: found[name] for name in SAME} == {name: result[name] for name in SAME}
        assert (found["trained_on_store"], err) == (first, "")
    other, err = asked(ripe, run, "--store", "current")
    assert (other["store"], other["trained_on_store"]) == (second, first)
    assert second in err
    assert first in err
    assert other["loss"] != result["loss"]
    assert asked(ripe, run, "--store", second)[0] == other


def test_a_missing_store_is_refused(ripe, refused, prepared_again):
    root, run, first, second = prepared_again
    shutil.rmtree(home_of(root) / first)
    refused(["eval", run], first, second, "ripe sim make synthgesture", "--store")
    refused(["eval", run, "--root", root], first, second)
    refused(["eval", run, "--store", first], first, second)
    refused(["predict", run, "--held-out", "1"], first, second)
    refused(["export", run, "--to", "safetensors", "--check"], first, second)
    assert not (run / "export").exists()
    labels = read_labels(run / "best")
    with pytest.raises(DataError) as caught:
        open_data_for(run / "best", labels, data_settings_of(run / "best", labels))
    assert (caught.value.field, caught.value.path) == ("store", home_of(root))
    assert asked(ripe, run, "--store", second)[0]["store"] == second


@pytest.mark.slow
def test_another_root_is_used_as_it_is_and_noted(ripe, prepared_again, tmp_path):
    _, run, first, _ = prepared_again
    other = simulate_dataset("synthgesture", tmp_path / "other", **COUNTS, size=20, seed=9)
    found, err = asked(ripe, run, "--root", tmp_path / "other")
    assert (found["store"], found["trained_on_store"]) == (other.key, first)
    assert "ripe: note: " in err
    result = ripe("eval", run, "--root", tmp_path / "other")
    assert other.key in result.out
    assert first in result.err


def test_a_network_without_a_run_stores_its_dataset(ripe, refused, prepared_again, tmp_path):
    """By its labels, where no recipe lies beside it; one that does not say it is evaluated with a warning."""
    root, run, first, second = prepared_again
    result = json.loads((run / "result.json").read_text())
    net = tmp_path / "else" / "net"
    shutil.copytree(run / "best", net)
    save_labels(replace(read_labels(net), store=first), net)
    found, err = asked(ripe, net, "--root", root)
    assert {name: found[name] for name in SAME} == {name: result[name] for name in SAME}
    assert err == ""
    save_labels(replace(read_labels(net), store=None), net)
    found, err = asked(ripe, net, "--root", root)
    assert (found["store"], found["trained_on_store"]) == (second, None)
    assert "ripe: warning: " in err
    assert second in err


def test_held_out_clips_are_those_of_the_run(ripe, prepared_again, trained):
    """The recordings that the prediction shows are of the store of then."""
    _, run, _, _ = prepared_again
    now, then = (json.loads(ripe("predict", one, "--held-out", "3", "--json").out) for one in (run, trained[1]))
    assert now["recordings"] == then["recordings"]
    assert len(now["recordings"]) == 3


def test_an_export_is_checked_on_the_store_of_the_run(ripe, prepared_again):
    root, run, first, second = prepared_again
    result = ripe("export", run, "--to", "safetensors", "--check", "--clips", "2", "--json", "--out", run / "a")
    assert result.code == 0, result.err
    assert second not in json.loads(result.out)["check"]["on"]
    for path in (root / ".ripe" / "synthgesture").glob(f"{first}"):
        shutil.rmtree(path)
    net = run.parent / "else" / "net"
    shutil.copytree(run / "best", net)
    save_labels(replace(read_labels(net), store=first), net)
    result = ripe(
        "export", net, "--to", "safetensors", "--check", "--clips", "2", "--root", root, "--json", "--out", run / "b"
    )
    assert result.code == 0, result.err
    on = json.loads(result.out)["check"]["on"]
    assert first in on
    assert second in on


# Training


def test_a_preparation_is_chosen_by_its_key(ripe, refused, prepared_again, tmp_path):
    root, run, first, second = prepared_again
    assert ripe(*words(root, tmp_path / "again", f"data.store={first}")).code == 0
    assert (tmp_path / "again" / "best" / "model.safetensors").read_bytes() == (
        run / "best" / "model.safetensors"
    ).read_bytes()
    refused(words(root, tmp_path / "none", f"data.store={'0' * 16}"), "0" * 16, first, second)
    for wrong in ("../x", "null0", "[1]", "12"):
        refused(words(root, tmp_path / "none", f"data.store={wrong}"), "data.store")
    assert not (tmp_path / "none" / "recipe.yaml").exists()
    # The recipe that a run leaves gives the same run again, not one on what is current.
    assert main(["train", str(run / "recipe.yaml"), "--no-report", "--out", str(tmp_path / "third")]) == 0
    assert json.loads((tmp_path / "third" / "result.json").read_text())["store"] == first


def test_a_key_of_digits_is_read_as_text(ripe):
    result = ripe("train", "synthgesture", "--set", "data.store=0123456789012345", "data.root=/nowhere")
    assert result.code == 2
    assert "data.store" not in result.err


@pytest.fixture
def stopped(prepared_again, monkeypatch):
    """The same run as it was one epoch earlier: its last checkpoint but one, no result."""
    root, run, first, second = prepared_again
    whole = (run / "best" / "model.safetensors").read_bytes()
    sorted((run / "checkpoints").glob("step-*"))[-1].unlink()
    (run / "result.json").unlink()
    return root, run, first, second, whole


def test_a_run_resumes_with_its_first_store(ripe, stopped):
    root, run, first, _, whole = stopped
    assert ripe(*words(root, run), "--resume", "auto").code == 0
    assert json.loads((run / "result.json").read_text())["store"] == first
    assert (run / "best" / "model.safetensors").read_bytes() == whole


def test_resuming_with_another_store_is_refused(refused, stopped):
    root, run, first, second, _ = stopped
    refused([*words(root, run, f"data.store={second}"), "--resume", "auto"], "data.store")
    shutil.rmtree(home_of(root) / first)
    refused([*words(root, run), "--resume", "auto"], first, second)
    assert not (run / "result.json").exists()


@pytest.mark.slow
def test_resuming_with_another_extra_dataset_is_refused(ripe, refused, trained, tmp_path):
    root, _ = trained
    extra, run = tmp_path / "extra", tmp_path / "run"
    key = simulate_dataset("synthgesture", extra, **COUNTS, size=16, seed=1).key
    chosen = words(root, run, f"data.extra=[synthgesture={extra}]")
    assert ripe(*chosen).code == 0
    (run / "result.json").unlink()
    assert last_checkpoint(run / "checkpoints").document.extra_stores == [key]
    other = simulate_dataset("synthgesture", extra, **COUNTS, size=16, seed=2).key
    refused([*chosen, "--resume", "auto"], key, other)


@pytest.mark.slow
def test_a_run_without_a_key_in_its_recipe_resumes_with_its_store(ripe, stopped):
    """As earlier versions left it: the recipe keeps no key, the checkpoint does."""
    root, run, first, _, whole = stopped
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    del recipe["data"]["store"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert ripe(*words(root, run), "--resume", "auto").code == 0
    assert json.loads((run / "result.json").read_text())["store"] == first
    assert (run / "best" / "model.safetensors").read_bytes() == whole


def test_a_checkpoint_of_another_store_is_refused(refused, stopped):
    """Should recipe and checkpoint disagree, nothing is computed."""
    root, run, _, second, _ = stopped
    found = last_checkpoint(run / "checkpoints")
    changed = msgspec.structs.replace(found.document, store=second)
    kept = save_checkpoint(run / "checkpoints", found._replace(document=changed))
    for path in (run / "checkpoints").glob("step-*"):
        if path != kept:
            path.unlink()
    refused([*words(root, run), "--resume", "auto"], second)


# Several seeds


def test_the_runs_of_a_group_share_one_store(ripe, refused, prepared_again, tmp_path):
    root, run, first, second = prepared_again
    out = tmp_path / "group"
    shutil.copytree(run, out / "seed-0")
    chosen = ["--out", out, "--set", f"data.root={root}", *SETTINGS]
    result = ripe("seeds", "synthgesture", "--seeds", "0", "--json", *chosen, f"data.store={first}")
    assert (result.code, json.loads(result.out)["reused"]) == (0, ["seed-0"])
    refused(["seeds", "synthgesture", "--seeds", "0-1", *chosen], out / "seed-0", "data.store")
    assert store_keys(home_of(root)) == sorted((first, second))
    assert not (out / "seed-1").exists()


# The command of the sets


@pytest.mark.slow
def test_another_preparation_gives_a_note(ripe, tmp_path):
    made = ["sim", "make", "synthgesture", "--out", tmp_path, "--train", 11, "--val", 11, "--test", 11, "--size", 16]
    first = ripe(*made, "--json", "--workers", 1)
    key = json.loads(first.out)["key"]
    assert key not in first.err
    second = ripe(*made, "--json", "--workers", 1, "--seed", 4)
    assert key in second.err
    assert json.loads(second.out)["others"] == [key]
    assert key not in ripe(*made, "--json", "--workers", 1, "--seed", 4).err


def test_the_list_of_preparations(ripe, refused, prepared_again, tmp_path):
    root, _, first, second = prepared_again
    document = json.loads(ripe("data", "list", "--root", root, "--json").out)
    assert {(one["key"], one["current"], tuple(one["others"])) for one in document["stores"]} == {
        (first, False, (second,)),
        (second, True, (first,)),
    }
    result = ripe("data", "list", "--root", root)
    assert result.code == 0
    assert first in result.out
    assert f"{second} (current)" in result.out
    (home_of(root) / first / "index.json").write_text("{}")
    document = json.loads(ripe("data", "list", "--root", root, "--json").out)
    assert [one["key"] for one in document["damaged"]] == [first]
    refused(["data", "list", "--root", tmp_path / "none"], tmp_path / "none")
    assert json.loads(ripe("data", "verify", "synthgesture", "--root", root, "--json").out)["key"] == second
    refused(["data", "verify", "synthgesture", "--root", root, "--key", first], first)
