"""`ripe data`: recordings and datasets."""

from ripe_mambaspike.cli.data.recordings import ConvertCommand, InfoCommand, ViewCommand
from ripe_mambaspike.cli.data.sets import DownloadCommand, ListCommand, PrepareCommand, SetsCommand, VerifyCommand

DATA_COMMANDS = {
    "info": InfoCommand,
    "view": ViewCommand,
    "convert": ConvertCommand,
    "sets": SetsCommand,
    "download": DownloadCommand,
    "prepare": PrepareCommand,
    "list": ListCommand,
    "verify": VerifyCommand,
}
