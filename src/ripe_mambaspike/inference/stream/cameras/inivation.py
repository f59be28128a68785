"""Cameras of iniVation over USB by `dv-processing`: DVXplorer, DVXplorer Mini and S, DAVIS, DVS128.

`dv-processing` buffers what the camera sends and does not say how much it dropped, so losses inside it are unknown.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.region import inside
from ripe_mambaspike.inference.stream.connected import ConnectedCamera, register_camera_list
from ripe_mambaspike.inference.stream.source_registry import (
    PacketSource,
    SourceOptions,
    Stopped,
    import_driver,
    register_source,
)

PACKAGE = "dv-processing"
WAIT_SECONDS = 0.001  # between two questions for events
BESIDE_EACH = 4  # packets of frames, IMU samples and triggers that are taken for each of events
OUTSIDE = "events that were outside the sensor"


class InivationSource(PacketSource):
    """The events of a capture of `dv-processing`, such as `dv_processing.io.camera.open` returns."""

    def __init__(self, camera: Any, sensor_size: tuple[int, int] | None = None) -> None:
        super().__init__(True, sensor_size)
        if not camera.isEventStreamAvailable():
            raise InputError.expected("source", "a camera with events", f"{camera.getCameraName()}, which has none")
        self._camera: Any | None = camera
        self.set_size(tuple(map(int, camera.getEventResolution())))  # type: ignore[arg-type]

    def close(self) -> None:
        self._camera = None  # which closes it: the driver has no call for that

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        camera = self._camera
        assert camera is not None
        beside = [
            (take, name)
            for available, take, name in (
                (camera.isFrameStreamAvailable, camera.getNextFrame, "frames"),
                (camera.isImuStreamAvailable, camera.getNextImuBatch, "IMU samples"),
                (camera.isTriggerStreamAvailable, camera.getNextTriggerBatch, "triggers"),
            )
            if available()
        ]
        try:
            while not stopped():
                found = camera.getNextEventBatch()
                for take, name in beside:  # which would fill the driver's buffers
                    self._count_other(take, name)
                if found is not None:
                    yield self._convert(found)
                elif camera.isRunning():
                    time.sleep(WAIT_SECONDS)
                else:
                    raise InputError.expected("source", "a camera that stays connected", "one that has gone")
        finally:
            del camera, beside
            self.close()

    def _convert(self, found: Any) -> Events:
        assert self.size is not None
        events, outside = convert_event_store(found, self.size)
        self.losses[OUTSIDE] += outside
        return events

    def _count_other(self, take: Any, name: str) -> None:
        for _ in range(BESIDE_EACH):
            found = take()
            if found is None:
                return
            self.other[name] += len(found) if hasattr(found, "__len__") else 1


def convert_event_store(store: Any, size: tuple[int, int]) -> tuple[Events, int]:
    """An `EventStore` (timestamp i64 in µs, x and y i16, polarity i8) as events; also how many were off the sensor."""
    found = store.numpy()
    kept = inside(found, (0, 0, *size))
    outside = len(found) - int(np.count_nonzero(kept))
    found = found[kept] if outside else found
    return pack_events(found["x"], found["y"], found["timestamp"], found["polarity"] > 0), outside


@register_source("inivation", form="inivation://[SERIAL]", start="reading the camera", always_live=True)
def open_inivation(given: str, options: SourceOptions) -> InivationSource:
    """inivation:// for the first camera, inivation://SERIAL for a certain one."""
    drivers = import_driver("dv_processing", PACKAGE)
    serial = given.partition("://")[2]
    try:
        camera = drivers.io.camera.open(serial) if serial else drivers.io.camera.open()
    except (RuntimeError, IndexError, ValueError) as error:  # IndexError where nothing is connected
        reason = "no camera is connected" if isinstance(error, IndexError) else str(error)
        hint = "ripe record --list shows what is connected"
        got = f"{given} ({reason})"
        raise InputError.expected("source", f"a camera that {PACKAGE} can open", got, hint=hint) from error
    return InivationSource(camera, options.sensor_size)


@register_camera_list(PACKAGE)
def list_inivation() -> list[ConnectedCamera]:
    """The cameras that the driver finds."""
    drivers = import_driver("dv_processing", PACKAGE)
    try:
        found = drivers.io.camera.discover()
    except RuntimeError as error:
        raise InputError.expected("source", f"devices that {PACKAGE} can list", f"none ({error})") from error
    return [
        ConnectedCamera(
            f"inivation://{one.serialNumber}", f"iniVation {one.cameraModel.name}", one.serialNumber, "USB", PACKAGE
        )
        for one in found
    ]
