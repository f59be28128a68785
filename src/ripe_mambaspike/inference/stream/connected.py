"""Which cameras are connected, as each driver says."""

from collections.abc import Callable
from typing import NamedTuple

from ripe_mambaspike.errors import InputError


class ConnectedCamera(NamedTuple):
    """A camera and the address to open it with (`--source`). `problem` is why it cannot be opened, where known."""

    source: str
    name: str
    serial: str | None
    connection: str
    driver: str
    problem: str | None = None


class CameraList(NamedTuple):
    """All cameras, and the drivers that could not be asked, with the reason."""

    cameras: list[ConnectedCamera]
    problems: dict[str, str]
    drivers: int  # that were asked


_LISTS: dict[str, Callable[[], list[ConnectedCamera]]] = {}  # by driver


def register_camera_list(
    driver: str,
) -> Callable[[Callable[[], list[ConnectedCamera]]], Callable[[], list[ConnectedCamera]]]:
    """Register the function that lists the cameras of a driver; it raises InputError where it cannot."""

    def register(lister: Callable[[], list[ConnectedCamera]]) -> Callable[[], list[ConnectedCamera]]:
        _LISTS[driver] = lister
        return lister

    return register


def list_cameras() -> CameraList:
    """The cameras that are connected. A camera that two drivers know is in the list twice."""
    import ripe_mambaspike.inference.stream.cameras  # noqa: F401  (registers them)

    cameras: list[ConnectedCamera] = []
    problems: dict[str, str] = {}
    for driver, lister in _LISTS.items():
        try:
            cameras += lister()
        except InputError as error:
            problems[driver] = str(error).removeprefix("source: ")
    return CameraList(cameras, problems, len(_LISTS))
