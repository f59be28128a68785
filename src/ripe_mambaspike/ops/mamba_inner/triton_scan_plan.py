"""How the work of a scan is split over the GPU: functions of the shapes alone, so that runs are reproducible."""

from typing import NamedTuple

from torch import Tensor

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.ops.triton_launch import ceil_div

LANES = 32  # channels per warp
MIN_BACKWARD_PROGRAMS = 1000  # programs of one chunk a sequence that keep the chip busy without a second pass
CHUNKED_PROGRAMS = 8192  # programs if sequences are split into chunks
MIN_CHUNK = 32
MIN_LANES = 8  # channels per warp in the forward pass, if more would leave the GPU idle
BUSY_PROGRAMS = 1000  # programs of the forward pass that fill the chip; of short chunks twice as many
MIN_FORWARD_PROGRAMS = 500  # programs of whole sequences that are faster than two passes
STATES_PER_THREAD = 32  # over all tokens of a tile
RESIDENT_PROGRAMS = 1056  # that run at once with twice as many: 8 on each of 132 multiprocessors
TILE = 16  # tokens of the longest tile
MAX_STATES = 64
SCRATCH_BYTES = 2**29  # for the states before every tile


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

    def blocks(self, groups: int = 1, lanes: int = LANES) -> int:
        """Blocks of channels, each for one program."""
        return ceil_div(self.channels, lanes * groups)


class ChunkPlan(NamedTuple):
    chunk: int  # tokens, a multiple of every tile
    chunks: int


def supports_states(states: int) -> bool:
    """Whether the kernels can hold so many states a channel: a power of two up to MAX_STATES."""
    return states <= MAX_STATES and not states & (states - 1)


def sizes_of(inputs: Tensor, conv: Tensor, dt_proj: Tensor, decay: Tensor) -> Sizes:
    batch, length, directions, _ = inputs.shape
    states = decay.shape[2]
    if not supports_states(states):
        raise ConfigError.expected("states", f"a power of two up to {MAX_STATES}", states)
    return Sizes(batch, length, directions, conv.shape[1], conv.shape[2], dt_proj.shape[2], states)


def forward_lanes(sizes: Sizes) -> int:
    """Channels per program: fewer if the programs, of whole sequences or of chunks, would not fill the GPU."""
    wanted, parts = BUSY_PROGRAMS, 1
    if sizes.sequences * sizes.blocks(lanes=MIN_LANES) < MIN_FORWARD_PROGRAMS:
        wanted, parts = 2 * BUSY_PROGRAMS, ceil_div(sizes.length, MIN_CHUNK)
    lanes = LANES
    while lanes > MIN_LANES and sizes.sequences * sizes.blocks(lanes=lanes) * parts < wanted:
        lanes //= 2
    return lanes


def forward_held(sizes: Sizes, plan: ChunkPlan) -> int:
    """States per thread of the forward pass: more if few programs have to hide memory latency."""
    programs = sizes.sequences * sizes.blocks(lanes=forward_lanes(sizes)) * plan.chunks
    return 2 * STATES_PER_THREAD if programs <= RESIDENT_PROGRAMS else STATES_PER_THREAD


def forward_tile(states: int, lanes: int = LANES, held: int = STATES_PER_THREAD) -> int:
    """Tokens per tile: as many as a thread has room for."""
    return max(2, min(TILE, held * LANES // (states * lanes)))


def backward_tile(states: int) -> int:
    return max(2, min(8, 32 // states))


def cut_of(sizes: Sizes, groups: int | None = None) -> ChunkPlan:
    """One chunk if whole sequences fill the GPU, else enough chunks for CHUNKED_PROGRAMS programs.

    groups: channels per thread in the backward pass; None for the forward pass.
    """
    if groups is None:
        blocks, enough = sizes.blocks(lanes=forward_lanes(sizes)), MIN_FORWARD_PROGRAMS
    else:
        blocks, enough = sizes.blocks(groups), MIN_BACKWARD_PROGRAMS
    programs = sizes.sequences * blocks
    if programs >= enough:
        return cut_in(sizes, sizes.length)
    return cut_in(sizes, max(MIN_CHUNK, ceil_div(sizes.length, ceil_div(CHUNKED_PROGRAMS, programs))))


def cut_in(sizes: Sizes, chunk: int) -> ChunkPlan:
    """Chunks of about this many tokens."""
    chunk = TILE * ceil_div(min(chunk, sizes.length), TILE)
    return ChunkPlan(chunk, ceil_div(sizes.length, chunk))


def samples_at_once(sizes: Sizes) -> int:
    """Samples whose states before every tile fit the scratch memory."""
    tiles = ceil_div(sizes.length, backward_tile(sizes.states))
    each = 4 * sizes.directions * tiles * sizes.states * sizes.channels
    return max(1, min(sizes.batch, SCRATCH_BYTES // each))
