"""Changing the files of a saved network."""

import hashlib
import json

from safetensors.torch import load, save


def rewrite_config(folder, change):
    """Change the document of `config.json` in place."""
    path = folder / "config.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def replace_weights(folder, data):
    """Other bytes as the weights file, with the checksum that belongs to them."""
    (folder / "model.safetensors").write_bytes(data)
    rewrite_config(folder, lambda document: document["weights"].update(sha256=hashlib.sha256(data).hexdigest()))


def rewrite_tensors(folder, change):
    """Change the dictionary of tensors, with the checksum that belongs to them."""
    tensors = load((folder / "model.safetensors").read_bytes())
    change(tensors)
    replace_weights(folder, save(tensors, {"format": "pt"}))
