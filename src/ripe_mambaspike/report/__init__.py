"""The report of a training run as one HTML page: `write_report(folder)`."""

from ripe_mambaspike.report.observe import Clip
from ripe_mambaspike.report.page import write_report

__all__ = ["Clip", "write_report"]
