"""The trained networks that come with the package, by name: one folder each in `weights/`."""

from importlib import resources
from pathlib import Path

from ripe_mambaspike.errors import ConfigError

DEFAULTS = {"dvsgesture": "gestures-simulated", "nmnist": "nmnist-simulated"}  # by registered network


def list_pretrained() -> list[str]:
    """The names that `from_pretrained` and every command take in place of a folder."""
    return sorted(path.name for path in weights_folder().iterdir() if (path / "config.json").is_file())


def weights_folder() -> Path:
    """Where the shipped networks are."""
    return Path(str(resources.files("ripe_mambaspike"))) / "weights"


def shipped_folder(name: str | Path) -> Path | None:
    """The folder of the shipped network of this name; None for any other name."""
    return weights_folder() / str(name) if str(name) in list_pretrained() else None


def pretrained_name(name: str) -> str:
    """The shipped network for `create_model(name, pretrained=True)`: its own name, or that of a registered network."""
    known = list_pretrained()
    if (found := DEFAULTS.get(name, name)) not in known:
        raise ConfigError.expected("pretrained", f"one of {', '.join((*DEFAULTS, *known))}", repr(name))
    return found
