"""Download a whole dataset: all archives are downloaded, verified and extracted."""

from collections.abc import Callable
from pathlib import Path

from ripe_mambaspike.data.archives import extract, extracted_from
from ripe_mambaspike.data.download import download
from ripe_mambaspike.data.mirrors import Archive, DownloadInfo
from ripe_mambaspike.data.sets.registry import dataset_info, datasets
from ripe_mambaspike.errors import DataError

Progress = Callable[[str, int, int | None], None]  # (archive, bytes done, bytes in all where known)


def download_dataset(name: str, root: Path, progress: Progress | None = None) -> DownloadInfo:
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


def _fetch(name: str, facts: DownloadInfo, root: Path, progress: Progress | None) -> None:
    provided = [archive for archive in facts.by_hand if (root / archive.name).is_file() or _unpacked(archive, root)]
    archives = provided or facts.archives
    if not archives:
        raise DataError.expected(
            "dataset", "a dataset that programs can download", name, path=root, hint=facts.instructions
        )
    for archive in archives:
        if _unpacked(archive, root):
            continue

        def report(done: int, total: int | None, archive_name: str = archive.name) -> None:
            if progress is not None:
                progress(archive_name, done, total)

        extract(download(archive, root, progress=report), root / archive.extract_to)


def _unpacked(archive: Archive, root: Path) -> bool:
    return extracted_from(root / archive.extract_to) == archive.name
