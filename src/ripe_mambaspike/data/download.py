"""Download a dataset: all its archives are downloaded, verified and extracted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ripe_mambaspike.data.archives import archive_checksum, extract, extracted_from
from ripe_mambaspike.data.mirrors import Archive, DownloadInfo
from ripe_mambaspike.data.sets.registry import dataset_info, datasets
from ripe_mambaspike.data.transfer import MirrorError, Progress, Transfer
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import locked

DatasetProgress = Callable[[str, int, int | None], None]  # (archive, bytes done, bytes in all where known)


def download_dataset(name: str, root: Path, progress: DatasetProgress | None = None) -> DownloadInfo:
    """Download the dataset into the folder. Archives that are already there are verified and extracted as well."""
    facts = dataset_info(name).download
    if facts is None:
        known = [one.name for one in datasets().values() if one.download]
        raise DataError.expected("dataset", f"one of {', '.join(known)}, which can be downloaded", repr(name))
    try:
        _fetch(name, facts, root, progress)
    except OSError as error:
        raise DataError.expected("root", "a folder that can be used", error, path=error.filename or root) from error
    return facts


def _fetch(name: str, facts: DownloadInfo, root: Path, progress: DatasetProgress | None) -> None:
    provided = [archive for archive in facts.by_hand if (root / archive.name).is_file() or _unpacked(archive, root)]
    archives = provided or facts.archives
    if not archives:
        raise DataError.expected(
            "dataset", "a dataset that programs can download", name, path=root, hint=facts.instructions
        )
    for archive in archives:
        if _unpacked(archive, root):
            continue
        report = None if progress is None else partial(progress, archive.name)
        extract(download(archive, root, progress=report), root / archive.extract_to)


def _unpacked(archive: Archive, root: Path) -> bool:
    return extracted_from(root / archive.extract_to) == archive.name


def download(archive: Archive, folder: str | Path, *, progress: Progress | None = None) -> Path:
    """The archive in the folder, downloaded if it is not there yet. An interrupted download is resumed.

    `progress` gets the bytes done and the total; the bytes done decrease if a download has to be restarted.
    """
    folder = Path(folder)
    target = folder / archive.name
    if target.exists():
        return _present(archive, target, progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError.expected("root", "a folder to download into", error, path=folder) from error
    with locked(folder / f"{archive.name}.lock", f"another one that downloads {target}"):
        if target.exists():  # the other process may have finished just now
            return _present(archive, target, progress)
        failures = []
        for url in archive.urls:
            try:
                Transfer(archive, folder, url, progress).run()
                return target
            except MirrorError as error:
                failures.append(f"{url} {error}")
    if not failures:
        hint = f"get it by hand ({archive.checksum})"
        raise DataError.expected("archive", "a file, or a mirror that has it", "neither", path=target, hint=hint)
    raise DataError.expected("archive", _description(archive), "; ".join(failures), path=target)


def _present(archive: Archive, path: Path, progress: Progress | None) -> Path:
    found = archive_checksum(path, archive.checksum.partition(":")[0])
    size = path.stat().st_size
    if found != archive.checksum or archive.size not in (None, size):
        got = f"{found} of {size} bytes"
        raise DataError.expected(
            "archive", _description(archive), got, path=path, hint="move it away and download it again"
        )
    if progress:
        progress(size, size)
    return path


def _description(archive: Archive) -> str:
    return archive.checksum if archive.size is None else f"{archive.checksum} of {archive.size} bytes"
