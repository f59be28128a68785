"""The state of the disk after a power loss: the changes of a process without those that were not synced.

Two kinds of disks are simulated. One keeps the order of folder changes and loses the content of files that were not
synced (a file can exist but be empty). The other also loses all changes of folders that were not synced.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Node:
    """A file or a folder, as the process sees it and as it is on the disk."""

    synced: bytes = b""
    entries: "dict[str, Node] | None" = None  # of a folder
    kept: "dict[str, Node]" = field(default_factory=dict)  # of a folder: those that are on the disk

    @property
    def is_folder(self) -> bool:
        return self.entries is not None


def lose_power(before: Path, log: Path, copies: Path, root: Path, out: Path, *, folders_too: bool) -> None:
    """Write to `out` what a disk would hold of `root`, which was `before` when the log began."""
    top = _read(before)
    for line in log.read_text().splitlines():
        operation, first, second = ([*line.split("\t"), "", ""])[:3]
        _apply(top, operation, _below(first, root), second, root, copies)
    shutil.rmtree(out, ignore_errors=True)
    _write(top, out, folders_too)


def _below(path: str, root: Path) -> list[str]:
    return list(Path(path).parts[len(root.parts) :])


def _read(folder: Path) -> Node:
    """Everything that was there before is on the disk."""
    node = Node(entries={})
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        made = _read(path) if path.is_dir() else Node(path.read_bytes())
        node.entries[path.name] = made  # type: ignore[index]
        node.kept[path.name] = made
    return node


def _find(top: Node, parts: list[str]) -> Node | None:
    node: Node | None = top
    for part in parts:
        node = node.entries.get(part) if node is not None and node.entries is not None else None
    return node


def _apply(top: Node, operation: str, parts: list[str], second: str, root: Path, copies: Path) -> None:
    if not parts:
        if operation == "syncdir":
            top.kept = dict(top.entries or {})
        return
    holder, name = _find(top, parts[:-1]), parts[-1]
    if holder is None or holder.entries is None:
        return
    node = holder.entries.get(name)
    if operation in ("open", "truncate"):
        if node is None:
            holder.entries[name] = Node()
        elif operation == "truncate":
            node.synced = b""
    elif operation == "mkdir":
        holder.entries.setdefault(name, Node(entries={}))
    elif operation in ("unlink", "rmdir"):
        holder.entries.pop(name, None)
    elif operation == "sync" and node is not None:
        node.synced = (copies / second).read_bytes()
    elif operation == "syncdir" and node is not None:
        node.kept = dict(node.entries or {})
    elif operation in ("rename", "exchange"):
        other_parts = _below(second, root)
        other = _find(top, other_parts[:-1])
        if node is not None and other is not None and other.entries is not None:
            there = other.entries.get(other_parts[-1])
            other.entries[other_parts[-1]] = node
            if operation == "exchange" and there is not None:
                holder.entries[name] = there
            else:
                holder.entries.pop(name)


def _write(node: Node, place: Path, folders_too: bool) -> None:
    if not node.is_folder:
        place.write_bytes(node.synced)
        return
    place.mkdir(parents=True, exist_ok=True)
    for name, below in (node.kept if folders_too else node.entries or {}).items():
        _write(below, place / name, folders_too)
