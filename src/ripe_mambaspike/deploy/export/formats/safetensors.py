"""The network itself, deployed if it can be, as `from_pretrained` loads it: config.json and model.safetensors."""

from collections.abc import Callable
from pathlib import Path

from ripe_mambaspike.deploy.export.manifest import GraphFile
from ripe_mambaspike.deploy.export.registry import ExportFormat, ExportRequest, Network, register_export
from ripe_mambaspike.models.pretrained import from_pretrained, save_pretrained


@register_export("safetensors")
class SafetensorsFormat(ExportFormat):
    any_network = True
    has_manifest = False

    def write(self, request: ExportRequest) -> tuple[list[GraphFile], list[str]]:
        save_pretrained(request.model, request.folder, stored=request.stored or None)
        return [], []

    def runners(self, folder: Path) -> dict[str, Callable[[], Network]]:
        return {"network": lambda: from_pretrained(folder)}
