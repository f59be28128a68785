"""`ripe data list`: the preparations of sets that live side by side in a folder."""

import sys
from dataclasses import dataclass

from rich.markup import escape

from ripe_mambaspike.cli.data.sets import Root, Store, store_document, store_root
from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.errors import DataError


@dataclass
class ListCommand:
    """The prepared sets in a folder: several preparations of a set live side by side, one of them is current."""

    root: Root
    """Where the files of the sets are."""
    store: Store = None
    """Where the stores are; ROOT/.ripe when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.store import current_key, open_store, store_keys

        stores = store_root(self.root, self.store)
        homes = sorted(path for path in (stores.iterdir() if stores.is_dir() else ()) if store_keys(path))
        if not homes:
            raise DataError(f"{stores}: expected a prepared set, got none; run `ripe data prepare` first", path=stores)
        document, damaged = [], []
        for home in homes:
            for key in store_keys(home):
                try:
                    document.append(store_document(open_store(stores, home.name, key)))
                except DataError as error:
                    damaged.append(
                        {"set": home.name, "key": key, "current": key == current_key(home), "why": str(error)}
                    )
        if self.json:
            print_json({"stores": document, "damaged": damaged})
            return 0
        rows = [
            (
                entry["set"],
                entry["key"] + " (current)" * entry["current"],
                f"{entry['clips']:,}",
                "×".join(map(str, entry["sensor_size"])),
                escape(
                    ", ".join(
                        f"{name} {one['train']}+{one['val']}/{one['test']}" for name, one in entry["cuts"].items()
                    )
                ),
                entry["sha256"][:12],
            )
            for entry in document
        ]
        columns = ("set", "key", "clips", "sensor", "cuts (train+val/test)", "content")
        print_table(console(), f"Prepared in {escape(str(stores))}", columns, rows, left=6)
        for one in damaged:
            print(f"ripe: warning: {one['why']}", file=sys.stderr)
        return 0
