"""The folder of `ripe predict --save`: a new one, with a name of its own for each picture."""

from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.cli.output import printable
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.files import make_folder

MAX_STEM_BYTES = 200  # file systems allow 255


class PictureNames:
    """Names of pictures in a folder, in lower and upper case alike, since some file systems do not tell these apart."""

    def __init__(self, folder: Path, given: Sequence[Path]) -> None:
        self.folder, self._above = folder, [path for path in given if path.is_dir()]
        self._used: set[str] = set()
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                got = "one with files" if folder.is_dir() else "a file"
                raise InputError.expected("save", "a new or an empty folder", got, path=folder)
        except OSError as error:
            raise InputError.expected("save", "a folder that can be written", error, path=folder) from error

    def next(self, recording: Path) -> Path:
        """The path of a recording's picture; `clap/1.raw` of a folder becomes `clap_1.raw.png`."""
        above = next((folder for folder in self._above if recording.is_relative_to(folder)), None)
        parts = recording.relative_to(above).parts if above is not None else (recording.name,)
        text = printable(Path("_".join(parts))).replace("/", "_")
        stem = text.encode()[:MAX_STEM_BYTES].decode(errors="ignore").lstrip(".") or "recording"
        name, count = stem, 1
        while name.casefold() in self._used:
            count += 1
            name = f"{stem}-{count}"
        self._used.add(name.casefold())
        try:
            make_folder(self.folder)
        except OSError as error:
            raise InputError.expected("save", "a folder that can be written", error, path=self.folder) from error
        return self.folder / f"{name}.png"
