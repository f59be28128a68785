"""All targets by name. A module is imported when one of its targets is used."""

import importlib

from fuzz.target import Target

READERS = (
    "atis", "aedat2", "aedat3", "aedat4", "dat", "evt2", "evt21", "evt3", "hdf5", "npy", "npz", "text", "any-format",
    "dat-bare", "evt3-bare",
)  # fmt: skip
OTHERS = {
    "labels": "models", "model-folder": "models", "export-folder": "exports", "torch-export": "exports",
    "checkpoint": "runs", "resume": "runs", "recipe": "runs", "store": "stores", "archive": "stores",
    "label-table": "stores",
    "packet": "streams", "pipe": "streams", "evt-stream": "streams", "dv-stream": "streams",
    "message": "streams", "upload": "requests", "label": "sessions", "session": "sessions",
}  # fmt: skip
GROUPS = ("readers", "others")


def target_names(group: str | None = None) -> dict[str, str]:
    """Name → group."""
    named = {**dict.fromkeys(READERS, "readers"), **dict.fromkeys(OTHERS, "others")}
    return {name: of for name, of in named.items() if group in (None, of)}


def find_target(name: str) -> Target:
    module = importlib.import_module(f"fuzz.targets.{OTHERS.get(name, 'readers')}")
    found: Target = module.make(name)
    return found
