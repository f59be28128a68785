"""Fuse a saved network and save the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ripe_mambaspike.deploy.fuse.convert import fuse, fuse_with_report
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import find_checkpoint
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.ripe import RipeMambaSpike

FUSED = "fused"  # folder name, beside the trained network


@dataclass(frozen=True)
class FusedCheckpoint:
    """A network that was fused, verified and saved."""

    checkpoint: Path
    out: Path
    parameters_before: int
    parameters: int
    agreement: str  # of the two forms, layer by layer in float64

    def to_dict(self) -> dict[str, Any]:
        return {
            "checkpoint": str(self.checkpoint),
            "fused": str(self.out),
            "parameters": {"training": self.parameters_before, "deployed": self.parameters},
            "agreement": self.agreement,
        }


def fuse_checkpoint(checkpoint: str | Path, out: Path | None = None) -> FusedCheckpoint:
    """Fuse the network of a run or of a folder, verify it, and save it in `out`, by default fused/ beside it."""
    folder = find_checkpoint(Path(checkpoint))
    out = out or folder.parent / FUSED
    model = _with_branches(from_pretrained(folder))
    fused, agreement = fuse_with_report(model, quiet=True)
    fused.save_pretrained(out)
    return FusedCheckpoint(folder, out, model.parameter_count(), fused.parameter_count(), str(agreement))


def load_fused(checkpoint: str | Path) -> Model:
    """The network of a run or of a folder in its deployed form; one that is fused already as it is."""
    model = _with_branches(from_pretrained(find_checkpoint(Path(checkpoint))))
    return fuse(model, quiet=True) if model.config.form == "training" else model


def _with_branches(model: Model) -> RipeMambaSpike:
    """The network, if there is something in it to fuse or to have been fused."""
    if not isinstance(model, RipeMambaSpike):
        raise ConfigError.expected(
            "model", "a network with branches to fuse", f"'{model.name}', which has nothing to fuse"
        )
    return model
