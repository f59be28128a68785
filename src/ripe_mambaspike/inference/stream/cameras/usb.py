"""Cameras over USB by `neuromorphic-drivers`: Prophesee EVK3 HD and EVK4, DVXplorer, DAVIS346.

The driver reads USB packets into a ring of its own. If that is full, because we read too slowly, whole USB packets are
dropped: the driver counts them, and marks the first event after a gap. Both are in `losses`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import LIMITS, Events, pack_events
from ripe_mambaspike.inference.stream.connected import ConnectedCamera, register_camera_list
from ripe_mambaspike.inference.stream.source_registry import (
    POLL_SECONDS,
    PacketSource,
    SourceOptions,
    Stopped,
    import_driver,
    register_source,
)

PACKAGE = "neuromorphic-drivers"
DROPPED, OVERFLOWS = "USB packets dropped by the driver", "gaps in the events that the driver marked"
BAD_TIMES = "events whose time was out of range"
LIST_HINT = "ripe record --list shows what is connected"
BESIDE = {"imu_events": "IMU samples", "trigger_events": "triggers", "frames": "frames"}


class UsbSource(PacketSource):
    """The events of a device that `neuromorphic_drivers.open` returned, with a timeout of its iterator."""

    def __init__(self, device: Any, sensor_size: tuple[int, int] | None = None) -> None:
        super().__init__(True, sensor_size)
        self._device = device
        properties = device.properties()
        self.set_size((int(properties.width), int(properties.height)))

    def close(self) -> None:
        self._device.close()

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        try:
            while not stopped():
                try:
                    status, packet = next(self._device)
                except StopIteration:
                    return
                except RuntimeError as error:  # which is all that the driver raises
                    raise InputError.expected("source", "a camera that stays connected", f"none ({error})") from error
                if status.ring is not None:
                    self.losses[DROPPED] = int(status.ring.dropped_packets)  # since it was opened
                if packet is not None:
                    yield self._convert(packet)
        finally:
            self.close()

    def _convert(self, packet: Any) -> Events:
        overflows = packet.polarity_events_overflow_indices
        self.losses[OVERFLOWS] += 0 if overflows is None else len(overflows)
        for field, name in BESIDE.items():
            found = getattr(packet, field, None)
            self.other[name] += 0 if found is None else len(found)
        events, bad = convert_driver_events(packet.polarity_events)
        self.losses[BAD_TIMES] += bad
        return events


def convert_driver_events(found: NDArray[Any] | None) -> tuple[Events, int]:
    """The driver's events (t u64 in µs, x u16, y u16, on bool) as ours; also how many had an impossible time."""
    if found is None:
        return pack_events([], [], [], []), 0
    kept = found["t"] <= np.uint64(LIMITS["t"][1])
    if not kept.all():
        found, bad = found[kept], len(found) - int(np.count_nonzero(kept))
    else:
        bad = 0
    return pack_events(found["x"], found["y"], found["t"].astype(np.int64), found["on"]), bad


@register_source("usb", form="usb://[SERIAL]", start="reading the camera", always_live=True)
def open_usb(given: str, options: SourceOptions) -> UsbSource:
    """usb:// for the first camera, usb://SERIAL for a certain one."""
    drivers = import_driver("neuromorphic_drivers", PACKAGE)
    serial = given.partition("://")[2] or None
    try:
        device = drivers.open(serial=serial, iterator_timeout=POLL_SECONDS)
    except RuntimeError as error:
        got = f"{given} ({error})"
        raise InputError.expected("source", f"a camera that {PACKAGE} can open", got, hint=LIST_HINT) from error
    return UsbSource(device, options.sensor_size)


@register_camera_list(PACKAGE)
def list_usb() -> list[ConnectedCamera]:
    """The cameras that the driver finds."""
    drivers = import_driver("neuromorphic_drivers", PACKAGE)
    try:
        found = drivers.list_devices()
    except RuntimeError as error:
        raise InputError.expected("source", f"devices that {PACKAGE} can list", f"none ({error})") from error
    return [
        ConnectedCamera(
            f"usb://{one.serial or ''}", one.name.value, one.serial, one.connection.value, PACKAGE, one.error
        )
        for one in found
    ]
