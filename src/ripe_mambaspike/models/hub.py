"""Networks on the Hugging Face Hub, through the mixin of `huggingface_hub` (extra `hub`). Nothing is unpickled.

Only the files that `save_pretrained` writes are downloaded, and they are read as from any other folder.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.models.labels import CONFIG_FILE, LABELS_FILE

if TYPE_CHECKING:
    from ripe_mambaspike.models.base import Model

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)  # user/name

DOWNLOAD_OPTIONS = ("revision", "cache_dir", "force_download", "local_files_only", "token")


def is_hub_id(name: Any) -> bool:
    """Whether this can only be a hub id: user/name, where there is no folder "user" that the name may be missing in."""
    if not isinstance(name, str) or not HUB_ID.fullmatch(name):
        return False
    return not os.path.lexists(name.partition("/")[0])


def load_from_hub(hub_id: str, **options: Any) -> "Model":
    """The network of a hub id or of a local folder; `options` are those of the mixin, such as `revision`."""
    try:
        return _hub_class(hub_id).from_pretrained(hub_id, **options).model
    except (OSError, ValueError, TypeError, AttributeError) as error:  # of the hub, its cache, or a config of others
        raise WeightsError.expected("folder", "a folder, or a network on the hub", error, path=hub_id) from error


def push_to_hub(model: "Model", hub_id: str, **options: Any) -> str:
    """Upload the network; returns the address of the commit."""
    return _hub_class(hub_id)(model).push_to_hub(hub_id, **options)


def _hub_class(hub_id: str) -> Any:
    try:
        return _make_hub_class()
    except ImportError as error:
        hint = "a hub id needs pip install 'ripe-mambaspike[hub]'"
        raise WeightsError.expected("folder", "an existing folder", "nothing there", path=hub_id, hint=hint) from error


@cache
def _make_hub_class() -> Any:
    """The class that the mixin needs, made on first use, so that the package imports without `huggingface_hub`."""
    from huggingface_hub import ModelHubMixin, snapshot_download

    from ripe_mambaspike.models.pretrained import WEIGHTS_FILE, from_pretrained, save_pretrained

    class HubNetwork(ModelHubMixin, library_name="ripe-mambaspike", tags=["event-camera", "spiking-neural-network"]):
        """A network as the mixin wants it: something that can be saved into and loaded from a folder."""

        def __init__(self, model: "Model") -> None:
            self.model = model

        def _save_pretrained(self, save_directory: Path) -> None:
            save_pretrained(self.model, save_directory)

        @classmethod
        def _from_pretrained(cls, *, model_id: str, **options: Any) -> "HubNetwork":
            if Path(model_id).is_dir():
                return cls(from_pretrained(Path(model_id)))
            asked = {name: options[name] for name in DOWNLOAD_OPTIONS}  # the mixin adds fields of config.json
            files = [CONFIG_FILE, WEIGHTS_FILE, LABELS_FILE]
            return cls(from_pretrained(Path(snapshot_download(model_id, allow_patterns=files, **asked))))

    return HubNetwork
