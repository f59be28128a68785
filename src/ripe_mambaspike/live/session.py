"""Recording, labeling and training on the page: the commands of viewers, and what all viewers are shown of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.live.class_folders import ClassFolders
from ripe_mambaspike.live.messages import (
    CancelTraining,
    DeleteRecording,
    DiscardClip,
    Record,
    SaveClip,
    SessionCommand,
    StartTraining,
    StopRecord,
    encode,
)
from ripe_mambaspike.live.recorder import ClipRecorder
from ripe_mambaspike.live.training_job import TrainingJob

RECORDING_SECONDS = 0.2  # between two messages while it records
MIN_CLASSES = 2  # to train


class RecordingSession:
    """One recording at a time for all viewers, the folder it is saved to and, where it is allowed, training on it."""

    def __init__(
        self,
        folders: ClassFolders,
        recorder: ClipRecorder,
        training: TrainingJob | None,
        on_trained: Callable[[Path], Awaitable[None]],
    ) -> None:
        self.folders, self.recorder, self.training = folders, recorder, training
        self._on_trained = on_trained
        self._lock = asyncio.Lock()
        self._classes = [one.to_dict() for one in folders.classes()]
        self._classes_version = 1
        self._saved = ""
        self._encoded: dict[str, tuple[object, str]] = {}  # the last message of each kind, for all viewers

    def describe(self) -> dict[str, Any]:
        """For a new viewer."""
        return {"folder": str(self.folders.root), "training": self.training is not None, "min_classes": MIN_CLASSES}

    async def execute(self, command: SessionCommand) -> None:
        """Do what a viewer asks for."""
        async with self._lock:
            match command:
                case Record():
                    self.recorder.start(command.value)
                case StopRecord():
                    self.recorder.stop()
                case DiscardClip():
                    self.recorder.discard()
                case SaveClip():
                    await self._save(command)
                case DeleteRecording():
                    self._require_idle("delete")
                    await asyncio.to_thread(self.folders.delete, command.value.label, command.value.name)
                    await self._list("")
                case StartTraining():
                    await self._train()
                case CancelTraining():
                    if self.training is not None:
                        await self.training.cancel()

    async def close(self) -> None:
        """End the training, if there is one."""
        if self.training is not None:
            await self.training.cancel()

    def messages(self, seen: dict[str, object]) -> list[str]:
        """What has changed since a viewer got the versions in `seen`, which are updated."""
        parts: dict[str, tuple[object, Callable[[], dict[str, Any]]]] = {
            "recorder": (self._recorder_version(), self._describe_recorder),
            "classes": (self._classes_version, lambda: {"classes": self._classes, "saved": self._saved}),
        }
        if self.training is not None:
            parts["training"] = (self.training.version, self.training.progress.to_dict)
        found = []
        for kind, (version, describe) in parts.items():
            if seen.get(kind) == version:
                continue
            seen[kind] = version
            kept = self._encoded.get(kind)
            if kept is None or kept[0] != version:
                kept = self._encoded[kind] = (version, encode(kind, **describe()))
            found.append(kept[1])
        return found

    def _recorder_version(self) -> object:
        recording = self.recorder.phase == "recording"
        return self.recorder.version, int(time.monotonic() / RECORDING_SECONDS) if recording else 0

    def _describe_recorder(self) -> dict[str, Any]:
        clip = self.recorder.clip
        return {**self.recorder.status(), "clip": None if clip is None else clip.preview()}

    async def _save(self, command: SaveClip) -> None:
        clip, value = self.recorder.clip, command.value
        if clip is None:
            raise InputError.expected("clip", "one that was recorded", "none")
        if value.stop <= value.start:
            raise InputError.expected("clip", "an end after its start", f"{value.start:g} to {value.stop:g} s")
        kept = clip.between(value.start, value.stop)
        path = await asyncio.to_thread(self.folders.save, kept, value.label)
        self.recorder.discard()
        await self._list(f"{path.parent.name}/{path.name}")

    async def _list(self, saved: str) -> None:
        classes = await asyncio.to_thread(self.folders.classes)
        self._classes, self._saved = [one.to_dict() for one in classes], saved
        self._classes_version += 1

    async def _train(self) -> None:
        if self.training is None:
            raise InputError.expected("train", "a server that allows it (ripe serve --allow-training)", "another")
        self._require_idle("train")
        await self._list("")
        if len(self._classes) < MIN_CLASSES:
            raise InputError.expected("train", f"recordings of at least {MIN_CLASSES} classes", len(self._classes))
        self.training.start(self._on_trained)

    def _require_idle(self, field: str) -> None:
        if self.training is not None and self.training.active:
            raise InputError.expected(field, "no training under way", "one")
