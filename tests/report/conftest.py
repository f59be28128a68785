"""Run folders as `ripe train` leaves them: a small network, a made log, a made result."""

import csv
import json
from html.parser import HTMLParser

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.labels import Labels, save_labels
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import recalibrate

SMALL = {
    "stage_channels": (8, 12, 16),
    "embed_dims": (8, 16, 24),
    "time_steps": 4,
    "in_size": 16,
    "drop_path_rate": 0.0,
}
NAMES = ["wave", "clap", "drum"]


class Reader(HTMLParser):
    """Tags with their attributes, and the text of each element by tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[tuple[str, int]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        texts = self.text.setdefault(tag, [])
        texts.append("")
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append((tag, len(texts) - 1))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for tag, place in self.open:
            self.text[tag][place] += data

    def section(self, name: str) -> str:
        """All text of the section with this id."""
        ids = [attributes.get("id") for tag, attributes in self.tags if tag == "section"]
        return self.text["section"][ids.index(name)]

    @property
    def charts(self) -> list[dict]:
        return [json.loads(a["data-chart"]) for _, a in self.tags if a.get("data-chart")]


@pytest.fixture
def reader():
    return lambda path: Reader(path.read_text())


@pytest.fixture(scope="session")
def network():
    """A small network with filters that do something."""
    torch.manual_seed(0)
    model = create_model("dvsgesture", seed=0, num_classes=3, **SMALL).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("coefficient"):
                tensor.normal_(0.1, 0.1)
            elif name.endswith("norm.weight") and tensor.ndim == 2:
                tensor.fill_(3.0)
    recalibrate(model, [synthetic_clip(4, 16, 16, samples=4, seed=1)], run=model.front_end)
    return model


@pytest.fixture(scope="session")
def clips():
    def make(count=2, steps=4, side=16):
        events = synthetic_clip(steps, side, side, samples=count)
        return [(clip, index % 3, f"clip {index}") for index, clip in enumerate(events)]

    return make


def make_rows(epochs):
    """Made values, one dict an epoch, that move as a training does."""
    rows = []
    for epoch in range(1, epochs + 1):
        left = 0.9**epoch
        row = {"epoch": epoch, "lr": 1e-3 * (1 - epoch / (epochs + 1)), "sharpness": 2 + 2 * epoch / epochs}
        row |= {"relaxed_share": 0.5 * (1 - (epoch - 1) / epochs), "loss": 0.3 + 2 * left, "hard": 0.25 + 1.8 * left}
        row |= {"relaxed": 0.2 + 1.7 * left, "consistency": 0.5 * left, "rate": 0.1, "grad_norm": 1 + 3 * left}
        row |= {f"rate_{layer}": 0.03 * layer + 0.05 * left for layer in range(1, 7)}
        row |= {f"tdm_{layer}": 0.02 * layer * (1 - left) for layer in range(1, 7)}
        row |= {"train_top1": 1 - 0.6 * left, "val_loss": 0.5 + 1.9 * left, "val_top1": 0.95 - 0.6 * left}
        rows.append(row | {"seconds": 12.5 * epoch, "samples_per_second": 310.0, "memory_mib": 2048.0})
    return rows


def make_result(names=NAMES, protocol="validation", picked_on="val"):
    size = len(names)  # every class is taken for the next one once
    confusion = [[8 if c == r else int(c == (r + 1) % size) for c in range(size)] for r in range(size)]
    scores = [{"name": n, "n": sum(c), "correct": c[i]} for i, (n, c) in enumerate(zip(names, confusion, strict=True))]
    total, right = sum(s["n"] for s in scores), sum(s["correct"] for s in scores)
    return {
        "format": "ripe-result", "version": 1, "name": "small run", "protocol": protocol, "picked_on": picked_on,
        "epoch": 2, "set": "synthgesture", "partition": "standard", "split": "test", "top1": right / total, "top5": 1.0,
        "n": total, "loss": 0.41, "per_class": scores, "confusion": confusion, "rates": [0.1] * 6, "seed": 7,
        "parameters": {"training": 123456, "deployed": 65432}, "seconds": 5025.0, "commit": "0123456789abcdef" * 2,
    }  # fmt: skip


@pytest.fixture
def log_rows():
    return make_rows


@pytest.fixture
def result_of():
    return make_result


def write_log(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def make_run(tmp_path, network):
    """A run folder; any piece of it changed or, with None, left out."""

    def make(epochs=3, names=NAMES, rows=..., result=..., recipe="name: small run\n", model=network):
        folder = tmp_path / "run"
        folder.mkdir()
        if recipe is not None:
            (folder / "recipe.yaml").write_text(recipe)
        rows = make_rows(epochs) if rows is ... else rows
        if rows is not None:
            write_log(folder / "log.csv", rows)
        result = make_result(names) if result is ... else result
        if result is not None:
            (folder / "result.json").write_text(json.dumps(result))
        if model is not None:
            model.save_pretrained(folder / "best")
            config = model.config
            save_labels(
                Labels(tuple(names), None, None, config.time_steps, config.in_size, "time", False, 2), folder / "best"
            )
        return folder

    return make
