"""`ripe data`: recordings and datasets."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from ripe_mambaspike.cli.data.recordings import ConvertCommand, InfoCommand, ViewCommand
from ripe_mambaspike.cli.data.sets import DownloadCommand, ListCommand, PrepareCommand, SetsCommand, VerifyCommand


@dataclass
class DataCommand:
    """Look at recordings, convert them, and prepare datasets for training."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[InfoCommand, tyro.conf.subcommand("info")]
        | Annotated[ViewCommand, tyro.conf.subcommand("view")]
        | Annotated[ConvertCommand, tyro.conf.subcommand("convert")]
        | Annotated[SetsCommand, tyro.conf.subcommand("sets")]
        | Annotated[DownloadCommand, tyro.conf.subcommand("download")]
        | Annotated[PrepareCommand, tyro.conf.subcommand("prepare")]
        | Annotated[ListCommand, tyro.conf.subcommand("list")]
        | Annotated[VerifyCommand, tyro.conf.subcommand("verify")]
    ]

    def run(self) -> int:
        return self.command.run()
