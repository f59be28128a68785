"""How the work of a scan is laid over the GPU: plain functions of the shapes, so every run is cut the same way."""

from typing import NamedTuple

from torch import Tensor

from ripe_mambaspike.errors import ConfigError

LANES = 32  # channels side by side in a warp
ENOUGH = 1000  # programs of one chunk a sequence that keep the chip busy without a second pass
WANTED = 8192  # programs when the sequences are cut
LEAST_CHUNK = 32
TILE = 16  # tokens of the longest tile
MOST_STATES = 64
SCRATCH = 2**29  # bytes for the states before every tile


class Sizes(NamedTuple):
    """B samples of L tokens, D directions, E channels, K taps, R rank of the step, N states."""

    batch: int
    length: int
    directions: int
    channels: int
    taps: int
    rank: int
    states: int

    @property
    def sequences(self) -> int:
        return self.directions * self.batch

    @property
    def width(self) -> int:
        """Of a row of proj: step, B and C."""
        return self.rank + 2 * self.states

    def blocks(self, groups: int = 1) -> int:
        """Blocks of channels, each for one program."""
        return ceil_div(self.channels, LANES * groups)


class Cut(NamedTuple):
    chunk: int  # tokens, a multiple of every tile
    chunks: int


def sizes_of(inputs: Tensor, conv: Tensor, dt_proj: Tensor, decay: Tensor) -> Sizes:
    batch, length, directions, _ = inputs.shape
    states = decay.shape[2]
    if states > MOST_STATES or states & (states - 1):
        raise ConfigError(
            f"the scan has {states} states a channel; its kernels want a power of two up to {MOST_STATES}"
        )
    return Sizes(batch, length, directions, conv.shape[1], conv.shape[2], dt_proj.shape[2], states)


def forward_tile(states: int) -> int:
    """Tokens of a tile: as many as leave a thread its 32 states."""
    return max(2, min(TILE, 32 // states))


def backward_tile(states: int) -> int:
    return max(2, min(8, 32 // states))


def cut_of(sizes: Sizes, groups: int = 1) -> Cut:
    """One chunk where the programs of all sequences are enough, else as many as make WANTED programs."""
    programs = sizes.sequences * sizes.blocks(groups)
    if programs >= ENOUGH:
        return cut_in(sizes, sizes.length)
    return cut_in(sizes, max(LEAST_CHUNK, ceil_div(sizes.length, ceil_div(WANTED, programs))))


def cut_in(sizes: Sizes, chunk: int) -> Cut:
    """Chunks of about this many tokens."""
    chunk = TILE * ceil_div(min(chunk, sizes.length), TILE)
    return Cut(chunk, ceil_div(sizes.length, chunk))


def samples_at_once(sizes: Sizes) -> int:
    """Samples whose states before every tile fit the scratch memory."""
    tiles = ceil_div(sizes.length, backward_tile(sizes.states))
    each = 4 * sizes.directions * tiles * sizes.states * sizes.channels
    return max(1, min(sizes.batch, SCRATCH // each))


def ceil_div(count: int, by: int) -> int:
    return -(-count // by)


def power_of_two(count: int) -> int:
    """The least that is not below count."""
    return 1 << (count - 1).bit_length()
