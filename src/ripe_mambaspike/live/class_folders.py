"""The folder that recordings are saved to: FOLDER/LABEL/001.raw, as `ripe data prepare folder` takes it.

A label that a viewer sends becomes the name of a folder only as `safe_label` gives it. A recording is deleted by the
label and the name in the list; nothing else that a viewer sends becomes part of a path.
"""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.sets.folder import SPLIT_NAMES, SYSTEM_FOLDERS, find_recordings
from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.files import make_folder, remove_leftovers, sync_folder
from ripe_mambaspike.folders import atomic_folder

MAX_LABEL_LENGTH = 48
MAX_LABEL_BYTES = 120
MAX_TYPED_LENGTH = 200  # of a label as it was typed
SUFFIX = ".raw"
SAVED_NAME = re.compile(r"[0-9]{3,6}\.raw", re.ASCII)  # what is saved here, and can be deleted
DEVICE_NAMES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
RESERVED_NAMES = frozenset({*SPLIT_NAMES, *DEVICE_NAMES, *(name.casefold() for name in SYSTEM_FOLDERS)})


def safe_label(text: str) -> str:
    """The folder of a label: letters, digits, '-' and '_' of any language; anything else becomes '_'."""
    plain = unicodedata.normalize("NFC", text[:MAX_TYPED_LENGTH]).strip()
    kept = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in plain)
    kept = unicodedata.normalize("NFC", re.sub("_+", "_", kept))[:MAX_LABEL_LENGTH].strip("_-")
    if not kept or len(text) > MAX_TYPED_LENGTH or len(kept.encode("utf-8", "replace")) > MAX_LABEL_BYTES:
        raise InputError.expected("label", f"a name of 1 to {MAX_LABEL_LENGTH} letters and digits", repr(text[:60]))
    if kept.casefold() in RESERVED_NAMES:
        raise InputError.expected("label", "a name that is not reserved, as those of splits are", repr(kept))
    return kept


@dataclass(frozen=True)
class RecordedClass:
    """A class folder and the recordings in it."""

    label: str
    names: tuple[str, ...]
    num_bytes: int

    def to_dict(self) -> dict[str, Any]:
        saved = [name for name in self.names if SAVED_NAME.fullmatch(name)]
        return {"label": self.label, "count": len(self.names), "saved": saved, "bytes": self.num_bytes}


class ClassFolders:
    """The class folders below a folder, which is made if it does not exist. Links are not followed."""

    def __init__(self, root: Path, max_classes: int, max_recordings: int, max_bytes: int) -> None:
        self.root = root
        self._max_classes, self._max_recordings, self._max_bytes = max_classes, max_recordings, max_bytes
        try:
            make_folder(root)
            for folder in self._folders():  # of a server that was killed; `atomic_folder` removes its own
                remove_leftovers(folder, rf"[0-9]+\{SUFFIX}")
        except OSError as error:
            raise InputError.expected("record_to", "a folder that can be made", error, path=root) from error

    def classes(self) -> list[RecordedClass]:
        """The classes by name; a folder without a recording is none, nor is one whose name cannot be shown."""
        found = []
        try:
            for folder in self._folders():
                paths = [path for path in find_recordings(folder) if path.parent == folder]
                if paths:
                    size = sum(path.stat().st_size for path in paths)
                    found.append(RecordedClass(folder.name, tuple(path.name for path in paths), size))
        except OSError as error:
            raise DataError.expected("record_to", "a folder that can be read", error, path=self.root) from error
        return found

    def save(self, recording: Recording, label: str) -> Path:
        """Write a recording into the folder of its label, whole or not at all; its path."""
        classes = self.classes()
        label = safe_label(label)
        known = {one.label.casefold(): one.label for one in classes}
        label = known.get(label.casefold(), label)  # two that differ in case would be one folder on some systems
        names = next((one.names for one in classes if one.label == label), ())
        self._check_room(classes, label in known.values())
        numbers = [int(name.partition(".")[0]) for name in names if SAVED_NAME.fullmatch(name)]
        name = f"{max(numbers, default=0) + 1:03d}{SUFFIX}"
        folder = self.root / label
        try:
            if names:
                return write(recording, folder / name)
            if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
                raise DataError.expected("label", "a class folder", "another kind of file, or links", path=folder)
            with atomic_folder(folder) as made:  # a class folder is never empty
                write(recording, made / name)
        except OSError as error:
            raise DataError.expected("record_to", "a folder that can be written", error, path=folder) from error
        return folder / name

    def delete(self, label: str, name: str) -> None:
        """Delete a recording that was saved here; the folder of its class goes with the last one."""
        found = next((one for one in self.classes() if one.label == label), None)
        if found is None or name not in found.names or not SAVED_NAME.fullmatch(name):
            raise InputError.expected("recording", "one of the list that was saved here", f"{label}/{name}")
        folder = self.root / label
        try:
            (folder / name).unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()
            sync_folder(folder if folder.exists() else self.root)
        except OSError as error:
            raise DataError.expected("recording", "one that can be deleted", error, path=folder / name) from error

    def _folders(self) -> list[Path]:
        found = [path for path in self.root.iterdir() if path.name.isprintable() and not path.name.startswith(".")]
        return sorted(path for path in found if path.is_dir() and not path.is_symlink())

    def _check_room(self, classes: list[RecordedClass], known: bool) -> None:
        if not known and len(classes) >= self._max_classes:
            raise InputError.expected("label", f"at most {self._max_classes} classes", "one more")
        if sum(len(one.names) for one in classes) >= self._max_recordings:
            raise InputError.expected("record_to", f"at most {self._max_recordings:,} recordings", "one more")
        if sum(one.num_bytes for one in classes) >= self._max_bytes:
            raise InputError.expected("record_to", f"at most {self._max_bytes / 2**20:,.0f} MB", "more")
