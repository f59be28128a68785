"""`ripe data`: recordings and sets of them."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from ripe_mambaspike.cli.data.recordings import Convert, Info, View
from ripe_mambaspike.cli.data.sets import Download, Prepare, Sets, Verify
from ripe_mambaspike.cli.data.stores import List

COMMANDS = {
    "info": Info,
    "view": View,
    "convert": Convert,
    "sets": Sets,
    "download": Download,
    "prepare": Prepare,
    "list": List,
    "verify": Verify,
}


@dataclass
class Data:
    """Look at recordings, convert them, and make sets of them ready for training."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[View, tyro.conf.subcommand("view")]
        | Annotated[Convert, tyro.conf.subcommand("convert")]
        | Annotated[Sets, tyro.conf.subcommand("sets")]
        | Annotated[Download, tyro.conf.subcommand("download")]
        | Annotated[Prepare, tyro.conf.subcommand("prepare")]
        | Annotated[List, tyro.conf.subcommand("list")]
        | Annotated[Verify, tyro.conf.subcommand("verify")]
    ]

    def run(self) -> int:
        return self.command.run()
