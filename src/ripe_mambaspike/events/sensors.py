"""The likely sensor size of a recording that does not store it."""

SIZES = (
    (34, 34),  # N-MNIST
    (128, 128),  # DVS128
    (240, 180),  # DAVIS240, N-Caltech101
    (304, 240),  # ATIS
    (320, 240),  # DVXplorer Lite
    (320, 320),  # GenX320
    (346, 260),  # DAVIS346
    (640, 480),  # DVXplorer, Gen3, Gen4 VGA
    (1280, 720),  # Gen4, IMX636
)


def likely_size(right: int, bottom: int, sizes: tuple[tuple[int, int], ...] = SIZES) -> tuple[int, int]:
    """The smallest known sensor that contains the pixel (right, bottom); else just large enough for it."""
    fits = [size for size in sizes if right < size[0] and bottom < size[1]]
    return fits[0] if fits else (right + 1, bottom + 1)
