"""The spiking front-end as a NIR file.

    front = export_format("nir").load(Path("front.nir"))
    stage1, stage2, stage3 = front(clips)  # as any reader of NIR would run it
    stage1, stage2, stage3 = front.restored(clips)  # with what the file carries beside the graph

NIR expresses convolutions, temporal filters and all three neurons exactly. Where it cannot express a node, the graph
has the nearest one, its metadata the exact numbers, and the export reports it. Nothing of the network is lost:
`front.network` is built from the file.
"""

import copy
import importlib
import io
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import damaged, read_file
from ripe_mambaspike.deploy.export.manifest import GraphFile, describe_file
from ripe_mambaspike.deploy.export.nir_graph import FORMAT, VERSION, check_model, front_end_graph, node_parameters, text
from ripe_mambaspike.deploy.export.nir_neurons import nir
from ripe_mambaspike.deploy.export.nir_run import Replacement, Signals, run_graph
from ripe_mambaspike.deploy.export.registry import ExportFormat, ExportRequest, register_export
from ripe_mambaspike.errors import ConfigError, InputError, RipeError, VerificationError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import MAX_SIDE, MIN_SIDE, RipeConfig
from ripe_mambaspike.models.input_checks import check_input
from ripe_mambaspike.models.observe import by_layer
from ripe_mambaspike.models.old_names import with_added_fields
from ripe_mambaspike.models.pretrained import load_weights
from ripe_mambaspike.models.registry import meta_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import HARD

MAX_TENSOR_BYTES = 512 << 20  # of all numbers in a file, unpacked
MAX_LEVELS = 8


class SpikeParity(NamedTuple):
    """A front-end's spikes compared with PyTorch's."""

    clips: int
    spikes: int  # that fired in PyTorch
    differing: int  # with the metadata in the file
    by_graph_alone: float  # share of spike positions that the NIR nodes alone get right

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


@register_export("nir")
class NirFormat(ExportFormat):
    suffix = ".nir"
    weight_formats = ("fp32",)
    packages, extra = ("nir",), "nir"

    def write(self, request: ExportRequest) -> tuple[list[GraphFile], list[str]]:
        request.progress("writing the front-end")
        path = request.folder / f"front{self.suffix}"
        missing = self.save(request.model, path, *request.grid)
        return [describe_file("front", path)], missing

    def save(self, model: Model, path: Path, height: int, width: int) -> list[str]:
        """Write the front-end of a deployed network for inputs of this size; returns what it does not express."""
        self._require_available()
        network = check_model(model)
        if not all(isinstance(side, int) and MIN_SIDE <= side <= MAX_SIDE for side in (height, width)):
            raise ConfigError.expected("grid", f"sides from {MIN_SIDE} to {MAX_SIDE} for NIR", f"{height}×{width}")
        graph, missing = front_end_graph(network, height, width)
        whole = io.BytesIO()
        nir().write(whole, graph)
        write_file(path, whole.getvalue())
        return missing

    def load(self, path: Path, *, data: bytes | None = None, trust: bool = False) -> "NirFrontEnd":
        """The front-end in a file that `save` wrote; `data` is its content where it was read before.

        `trust` changes nothing: there is no code in it.
        """
        self._require_available()
        content = io.BytesIO(read_file(path) if data is None else data)
        try:
            _check_contained(content)
            front = NirFrontEnd(nir().read(content), path)
            _ = front.network  # raises if a tensor is missing
        except RipeError:
            raise
        except Exception as error:  # a damaged file can fail anywhere in h5py and nir
            raise damaged(path, "a NIR file", error) from error
        return front

    @torch.no_grad()
    def check(self, folder: Path, model: Model, clips: Tensor) -> dict[str, Any]:
        """Compare the file's front-end with the network's, spike by spike, in float64 to avoid rounding effects."""
        path = next(folder.glob(f"*{self.suffix}"))
        front = self.load(path)
        fired = differing = right = total = 0
        reference = front.network.double()
        own = {name: tensor.double() for name, tensor in model.state_dict().items()}
        for name, tensor in reference.state_dict().items():
            if not torch.equal(tensor, own[name]):
                raise VerificationError.expected(name, f"the network's numbers in {path.name}", "others")
        for clip in clips.double().split(1):
            ours = _stage_spikes(reference, clip)
            for spikes, restored, alone in zip(ours, front.restored(clip), front(clip), strict=True):
                fired += int(spikes.sum())
                differing += int((spikes != restored).sum())
                right += int((spikes == alone).sum())
                total += spikes.numel()
        if differing:
            got = f"{differing} of {fired:,} that differ"
            raise VerificationError.expected("spikes", f"those of the network in {path.name}", got)
        return {"front-end": SpikeParity(len(clips), fired, differing, right / total)}


def _stage_spikes(model: RipeMambaSpike, clip: Tensor) -> list[Tensor]:
    return [*by_layer(model.front_end(clip, observe=("spikes",)).observed, "second_neuron.spikes").values()]


class NirFrontEnd:
    """A front-end from a file: clips [B, T, 2, H, W] → the spikes of the three stages, each [B, T, C, H', W']."""

    def __init__(self, graph: Any, path: Path) -> None:
        self.graph = graph
        self.path = path
        given = text(graph.metadata.get("format", "none")), int(graph.metadata.get("version", 0))
        if given != (FORMAT, VERSION):
            raise InputError.expected("version", f"{FORMAT} {VERSION}", f"{given[0]} {given[1]}", path=path)
        self.step = float(graph.metadata["dt"])
        self.not_expressed = [str(sentence) for sentence in json.loads(text(graph.metadata["not_expressed"]))]

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Run NIR's nodes alone, without what they cannot express."""
        self._check(x)
        return self._run(x, {})

    def restored(self, x: Tensor) -> tuple[Tensor, ...]:
        """Run with the per-step norms and the attention from the metadata: the network's own spikes."""
        self._check(x)
        return self._run(x, _replacements(copy.deepcopy(self.network).to(x.dtype)))

    @cached_property
    def network(self) -> RipeMambaSpike:
        """The whole network again, from the nodes and the metadata."""
        fields = with_added_fields(RipeConfig.architecture, json.loads(text(self.graph.metadata["config"])))
        config = RipeConfig.from_dict(fields, str(self.path))
        model = meta_model(config, name=text(self.graph.metadata["name"]))
        assert isinstance(model, RipeMambaSpike)
        tensors = {name: torch.as_tensor(values) for name, values in node_parameters(self.graph).items()}
        load_weights(model, tensors, str(self.path))
        return model.eval()

    def _check(self, x: Tensor) -> None:
        """Run in the dtype of the clips, whatever the network's."""
        wide = isinstance(x, Tensor) and x.dtype == torch.float64
        check_input(x, self.network.config.time_steps, torch.float64 if wide else torch.float32)

    @torch.no_grad()
    def _run(self, x: Tensor, replaced: Mapping[str, Replacement]) -> tuple[Tensor, ...]:
        outputs = run_graph(self.graph, x, self.step, replaced=replaced)
        return tuple(outputs[name] for name in sorted(outputs))


def _check_contained(content: io.BytesIO) -> None:
    """Raise for links out of the file, which HDF5 would follow, and for more data than a front-end has."""
    h5py: Any = importlib.import_module("h5py")
    left = MAX_TENSOR_BYTES

    def look(group: Any, level: int) -> None:
        nonlocal left
        for name in group:
            if level > MAX_LEVELS or not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{str(name)[:60]!r} leads elsewhere")
            item = group[name]
            if isinstance(item, h5py.Group):
                look(item, level + 1)
                continue
            if item.is_virtual or item.external:
                raise ValueError(f"{str(name)[:60]!r} is in another file")
            left -= item.nbytes
            if left < 0:
                raise ValueError(f"it has more than {MAX_TENSOR_BYTES:,} bytes of numbers")

    with h5py.File(content, "r") as file:
        look(file, 1)


def _replacements(model: RipeMambaSpike) -> dict[str, Replacement]:
    """The nodes for which NIR has no equivalent, each with a function that computes it."""
    found = {"entry": _norm(model.entry)}
    for level, stage in enumerate(model.stages, 1):
        for half in ("first", "second"):
            found[f"stage{level}.{half}_norm"] = _norm(getattr(stage, f"{half}_norm"))
        found[f"stage{level}.attention"] = _attention(stage.attention, f"stage{level}.first_neuron")
    return found


def _norm(norm: Any) -> Replacement:
    def step(x: Tensor, index: int, signals: Signals, state: Any) -> tuple[Tensor, Any]:
        return norm(x.unsqueeze(1), HARD, index).squeeze(1), None

    return step


def _attention(attention: Any, neuron: str) -> Replacement:
    def step(x: Tensor, index: int, signals: Signals, state: Any) -> tuple[Tensor, Any]:
        potential, spikes = (signals[f"{neuron}/{name}"].unsqueeze(1) for name in ("potential", "output"))
        (out, _), state = attention(potential, spikes, x.unsqueeze(1), state)
        return out.squeeze(1), state

    return step
