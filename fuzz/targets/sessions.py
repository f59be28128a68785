"""Labels, and commands that record, save and delete: nothing but recordings in folders of their labels is written."""

import asyncio
import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

from fuzz.mutate import mutate_json
from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.live.class_folders import MAX_LABEL_LENGTH, SAVED_NAME, ClassFolders, safe_label
from ripe_mambaspike.live.messages import SessionCommand, read_command
from ripe_mambaspike.live.recorder import ClipRecorder
from ripe_mambaspike.live.session import RecordingSession

SENSOR = (16, 12)
MAX_COMMANDS = 16  # of one case
LABELS = (b"wave", b"../../etc/passwd", b"left hand", "拍手".encode(), b".hidden", b"train", b"a\x00b", b"CON")
WORDS = (b"/", b"..", b"\\", b"\x00", b"\n", b"~", b"%2e%2e", "\u202e".encode(), "é".encode(), b"\xed\xa0\x80")


def make(name: str) -> Target:
    if name == "label":
        return Target(name, "others", LABELS, _label, WORDS, allowed=(RipeError,))
    saved = {"do": "save", "value": {"label": "wave", "start": 0, "stop": 1}}
    deleted = {"do": "delete", "value": {"label": "wave", "name": "001.raw"}}
    sequences = [
        [{"do": "record"}, {"do": "stop"}, saved],
        [{"do": "record", "value": 0.5}, {"do": "stop"}, saved, deleted],
        [{"do": "record"}, {"do": "stop"}, {"do": "discard"}, {"do": "record"}, {"do": "stop"}, saved, {"do": "train"}],
    ]
    seeds = [b"\n".join(json.dumps(one).encode() for one in sequence) for sequence in sequences]
    return Target(name, "others", seeds, _session, (*LABELS, *WORDS), change=_change)


def _label(case: bytes, folder: Path) -> None:
    label = safe_label(case.decode("utf-8", "surrogateescape"))
    if safe_label(label) != label or len(label) > MAX_LABEL_LENGTH or Path(label).name != label or label[0] in ".-":
        raise WrongAnswer(f"{label!r} is not the name of a folder")


def _change(case: bytes, random: Random) -> bytes:
    """One of the commands with another value."""
    lines = case.split(b"\n")
    place = random.randrange(len(lines))
    with suppress(ValueError):
        lines[place] = mutate_json(lines[place], random)
    return b"\n".join(lines)


def _session(case: bytes, folder: Path) -> None:
    """The commands of a case, one a line, with events between them; then every file that is there is looked at."""
    home = folder / "session"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    (home / "001.raw").write_bytes(b"beside the folder")
    root = home / "mine"
    asyncio.run(_execute(case.split(b"\n")[:MAX_COMMANDS], root))
    if sorted(path.name for path in home.iterdir()) != ["001.raw", "mine"]:
        raise WrongAnswer(f"files beside the folder: {sorted(home.iterdir())}")
    for path in root.rglob("*"):
        *above, name = path.relative_to(root).parts
        if path.is_dir():
            if above or safe_label(name) != name or not any(path.iterdir()):
                raise WrongAnswer(f"{path} is not the folder of a label with a recording")
        elif len(above) != 1 or not SAVED_NAME.fullmatch(name) or not len(read(path)):
            raise WrongAnswer(f"{path} is not a recording of a label")


async def _execute(lines: list[bytes], root: Path) -> None:
    recorder = ClipRecorder(1000, 60, dict)
    session = RecordingSession(ClassFolders(root, 4, 8, 1 << 20), recorder, None, _nothing)
    events = make_events([1, 2, 15, 3], [0, 11, 5, 6], [10, 20, 20_000, 90_000], [0, 1, 1, 0])
    for line in lines:
        with suppress(RipeError):
            command = read_command(line.decode("utf-8", "replace"))
            if isinstance(command, SessionCommand):
                await session.execute(command)
        recorder.add(events, SENSOR)
        for message in session.messages({}):
            json.loads(message)


async def _nothing(run: Path) -> None:
    """No training is allowed, so there is no network to serve."""
