"""What each layer of a network reads: the events, spikes, or other values."""

import pytest
import torch
from tests.toy_network import TOY, make_small
from torch import nn

from ripe_mambaspike.account.energy import measure_activity
from ripe_mambaspike.account.run import account
from ripe_mambaspike.account.synaptic import watch_activity
from ripe_mambaspike.cli.account_tables import show_account
from ripe_mambaspike.models.synthetic import synthetic_clip

pytestmark = pytest.mark.usefixtures("toy")
X = synthetic_clip(3, 18, 18, 2, seed=3)


def operands(layers):
    return {layer.layer: (layer.binary, layer.reads_events) for layer in layers}


def test_layers_of_a_spiking_network():
    wanted = {"first": (False, True), "second": (True, False), "head": (False, False)}
    assert operands(watch_activity(make_small(TOY), X)) == wanted


def test_events_are_found_behind_a_copy_and_not_behind_a_function():
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.by_time, self.scaled = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3)

        def forward(self, x):
            steps_first = x.transpose(0, 1).contiguous().flatten(0, 1)
            return self.by_time(steps_first) + self.scaled(torch.log1p(steps_first))

    assert operands(watch_activity(Copying(), X)) == {"by_time": (False, True), "scaled": (False, False)}


def test_the_first_convolution_of_the_baseline_reads_events():
    found = operands(measure_activity(make_small("mamba-spike-pooled"), X))
    assert [name for name, (_, events) in found.items() if events] == ["encoder1.conv"]


def test_the_table_names_them(capsys):
    show_account(account(TOY, in_size=18, time_steps=3))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    shown = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in lines if line.count("│") == 6}
    assert shown == {"first": "event counts", "second": "spikes", "head": "real values"}
