"""The loop of docs/training.md, as a reader would run it."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from ripe_mambaspike import create_model, from_pretrained, fuse
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm

DOCS = Path(__file__).parents[2] / "docs" / "training.md"
SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "drop_path_rate": 0.0}


def quarters(count, seed):
    """Sparse events, most of them in the quarter of the frame that is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    rate = torch.full((count, 4, 2, 16, 16), 0.01)
    for one, label in zip(rate, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        one[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0.12
    return TensorDataset(torch.poisson(rate, generator=generator), labels)


def right(model, data):
    clips, labels = data.tensors
    return float((model.eval().predict(clips) == labels).float().mean())


@pytest.fixture
def blocks():
    section = DOCS.read_text().split("## Train in plain PyTorch")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def make():
    torch.manual_seed(0)  # of the loader's order
    return create_model("nmnist", seed=0, num_classes=4, time_steps=4, **SMALL)


def test_the_documented_loop(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {}
    exec(blocks[0], space)
    assert space["model"].config.num_classes == 4
    train, test = quarters(96, 0), quarters(64, 1)
    loader = DataLoader(train, 16, shuffle=True)
    space = {"model": make(), "epochs": 2, "train_loader": loader, "test_loader": DataLoader(test, 32)}
    exec(blocks[1], space)
    assert space["correct"] >= 0.75 * 64
    assert right(space["model"], train) >= 0.9
    loaded = from_pretrained("network")
    assert right(loaded, test) == space["correct"] / 64
    assert right(fuse(loaded, quiet=True), test) == space["correct"] / 64

    lagging = make().train()  # the same training, its statistics left as they come
    optimizer = torch.optim.AdamW(lagging.parameters(), lr=1e-2)
    for _ in range(2):
        for clips, labels in loader:
            loss = F.cross_entropy(lagging.run(clips, ForwardMode(warm_up=False)).logits.mean(1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert torch.equal(lagging.head.weight, space["model"].head.weight)
    assert right(lagging, train) <= right(space["model"], train) - 0.2


def test_update_bn_measures_them_too():
    model = create_model("nmnist", seed=0, num_classes=4, time_steps=4, **SMALL)
    data = quarters(48, 0)
    loader = DataLoader(data, 16)
    update_bn(loader, model)
    batches = torch.stack([clips.mean((0, 3, 4)) for clips, _ in loader])
    torch.testing.assert_close(model.entry.running_mean, batches.mean(0))
    norms = [module for module in model.modules() if isinstance(module, BatchNorm | TimeBatchNorm)]
    assert all(norm.num_batches_tracked == 3 and norm.momentum == 0.1 for norm in norms)
    assert all(bool(norm.running_mean.any()) for norm in norms)


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_few_batches_leave_nothing_of_the_start(batches):
    """With weights that stand still, evaluation sees what training saw."""
    clips = quarters(16, 0).tensors[0]
    apart = {}
    for warm_up in (True, False):
        model = make().train()
        with torch.no_grad():
            for _ in range(batches):
                expected = model.run(clips, ForwardMode(warm_up=warm_up)).logits
            apart[warm_up] = float((model.eval()(clips) - expected).abs().mean())
    assert apart[True] < 0.2 * apart[False]
