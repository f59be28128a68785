"""EVT words without a header, as a Prophesee camera sends them: from standard input, or over TCP.

Bytes that start with the header of a RAW file need no address of their own: `-` and `tcp://` recognize them.
"""

from functools import partial

from ripe_mambaspike.inference.stream.cameras.pipe import open_standard_input
from ripe_mambaspike.inference.stream.cameras.tcp import open_tcp
from ripe_mambaspike.inference.stream.source_registry import SourceOptions, StreamSource, register_source


def open_evt(given: str, options: SourceOptions, encoding: str) -> StreamSource:
    """evt3://- for standard input, evt3://HOST:PORT to listen for a connection; also evt2 and evt21."""
    place = given.partition("://")[2]
    return open_standard_input(options, encoding) if place == "-" else open_tcp(f"tcp://{place}", options, encoding)


for _encoding in ("evt2", "evt21", "evt3"):
    register_source(_encoding, form=f"{_encoding}://HOST:PORT", start="listening on")(
        partial(open_evt, encoding=_encoding)
    )
