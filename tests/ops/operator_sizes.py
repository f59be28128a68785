"""Of each operator, functions that make its inputs.

Small ones for every backend, because Triton's interpreter is slow, more for C++, and some that several threads share.
"""

from tests.ops.operator_cases import (
    attend_fire_inputs,
    attend_inputs,
    enter_fire_inputs,
    joined_inputs,
    leaky_fire_inputs,
    mamba_inputs,
    merge_branches_inputs,
    norm_fire_inputs,
    patch_moments_inputs,
    pooled_spikes_inputs,
    rates_inputs,
    row_norm_inputs,
    stack_branches_inputs,
    step_affine_inputs,
    step_moments_inputs,
)

POOLS = {
    "17-9-5": ((2, 3), [(17, 17, 3), (9, 9, 2), (5, 5, 4)], (5, 5)),
    "oblong": ((2, 2), [(7, 5, 3), (3, 2, 70)], (3, 2)),
    "16-8-4": ((2, 2), [(16, 16, 2), (8, 8, 3), (4, 4, 5)], (4, 4)),
    "one step": ((2, 1), [(6, 5, 2)], (4, 3)),
    "wide cells": ((2, 1), [(13, 13, 2)], (2, 2)),
    "finer grid than image": ((2, 2), [(2, 3, 3)], (5, 4)),
    "one cell": ((2, 3), [(3, 3, 1)], (1, 1)),
    "even cells of six": ((2, 2), [(6, 4, 2)], (2, 2)),
    "channels by fours": ((2, 3), [(16, 16, 8), (9, 7, 12), (4, 4, 68)], (4, 4)),
    "as many pixels as a byte counts": ((2, 1), [(30, 30, 4)], (2, 2)),
    "more pixels than a byte counts": ((2, 1), [(34, 34, 4)], (2, 2)),
}
BYTES = ("17-9-5", "oblong", "channels by fours", "as many pixels as a byte counts", "more pixels than a byte counts")
KINDS = [{"rotating": rotating, "relaxed": relaxed} for rotating in (False, True) for relaxed in (False, True)]
LEAKY = [
    {"hard": hard, "detached": detached, "surrogate": surrogate}
    for hard in (True, False) for detached in (True, False) for surrogate in ("atan", "sigmoid", "triangle")
]  # fmt: skip
# samples, steps, positions, width
JOINS = [(3, 10, 7, 24), (2, 1, 5, 32), (1, 3, 1, 8), (1, 16, 9, 32), (2, 5, 3, 192)]


def made(function, *sizes, **options):
    """Functions without arguments, each making the inputs of one size; a size may end in options."""

    def one(*given):
        *arguments, last = given
        if isinstance(last, dict):
            return lambda: function(*arguments, **options, **last)
        return lambda: function(*given, **options)

    return [one(*size) for size in sizes]


def cases(name):
    """Functions that make an operator's inputs, for every backend."""
    fired = [(1, 1, 1, 2), (1, 2, 3, 5), (1, 10, 1, 3), (2, 8, 4, 32), (2, 16, 25, 2), (1, 5, 81, 32), (1, 3, 9, 96),
             (1, 2, 2, 384), (2, 11, 33, 20)]  # fmt: skip
    attended = [
        (2, 3, 25, 16),
        (1, 2, 1, 32),
        (2, 1, 5, 16),
        (1, 2, 81, 3),
        (2, 2, 20, 2),
        (1, 2, 30, 48),
        (1, 2, 5, 192),
    ]
    counted = [(1, 1, 1, 2), (1, 3, 2, 3), (3, 2, 25, 32), (2, 2, 25, 96), (5, 1, 130, 20), (1, 2, 3, 384)]
    small = (2, 7, 5, 3)
    events = [(4, 32, 17, 12, True), (1, 16, 8, 8), (3, 20, 9, 15, False, False), (2, 96, 8, 9, True)]
    lists = {
        "norm_fire": lambda: made(
            norm_fire_inputs,
            *((small, {"normed": normed, "filtered": filtered, **kind})
              for normed in (True, False) for filtered in (True, False) for kind in KINDS),
            *((size, {"rotating": rotating}) for size in fired for rotating in (False, True)),
            ((2, 5, 5, 3), {"rotating": True, "keep": False, "sharpness": 3.0}),
            ((2, 6, 5, 3), {"keep": False}),
            ((1, 6, 4, 2), {"sharpness": 5.0}),
            ((1, 6, 4, 2), {"sharpness": 0.7, "rotating": True, "relaxed": True}),
        ),
        "attend": lambda: made(
            attend_inputs,
            *((size, {}) for size in attended),
            *(((2, 3, 9, channels), {"rate": rate}) for channels in (16, 96) for rate in (0, 1)),
            *(((2, 3, 9, channels), {"relaxed": True}) for channels in (16, 96)),
            *(((1, 3, 7, channels), {"normed": False}) for channels in (16, 80)),
        ),
        "attend_fire": lambda: made(
            attend_fire_inputs,
            *(((2, 4, 35, 20), kind) for kind in KINDS),
            *(((2, 4, 35, 20), {"rotating": r, "normed": False, "filtered": False}) for r in (False, True)),
            ((1, 3, 17, 16), {"rotating": True, "relaxed": True, "sharpness": 1.5}),
            ((1, 1, 1, 2), {"normed": False, "filtered": False}),
        ),
        "enter_fire": lambda: made(
            enter_fire_inputs, *((*event[:4], dict(zip(("rotating", "filtered"), event[4:], strict=False), relaxed=r))
                                 for r in (False, True) for event in events)
        ),
        "leaky_fire": lambda: made(
            leaky_fire_inputs,
            *(((2, 7, 15), kind) for kind in LEAKY),
            *((size, {"resumed": resumed, "hard": resumed}) for resumed in (True, False)
              for size in [(1, 1, 1), (1, 1, 70), (3, 2, 5), (2, 10, 1), (5, 4, 64), (2, 16, 50), (1, 19, 300),
                           (2, 40, 6)]),
            ((1, 6, 8), {"sharpness": 5.0}),
            ((1, 6, 8), {"sharpness": 0.7, "surrogate": "triangle", "detached": False}),
        ),
        "pooled_rates": lambda: made(
            rates_inputs,
            *((*pool, {"relaxed": relaxed}) for pool in POOLS.values() for relaxed in (False, True)),
            *((*POOLS[pool], {"rate": rate}) for pool in BYTES for rate in (0, 1)),
        ),
        "pooled_spikes": lambda: made(
            pooled_spikes_inputs,
            *((*pool, {"relaxed": relaxed}) for pool in list(POOLS.values())[:8] for relaxed in (False, True)),
            *((*pool, {"rate": rate}) for pool in list(POOLS.values())[:8] for rate in (0, 1)),
        ),
        "joined_tokens": lambda: made(joined_inputs, *JOINS),
        "mamba_inner": lambda: made(
            mamba_inputs,
            (1, 1, 2, 6, {"rank": 1}),
            (1, 2, 1, 6, {"taps": 1, "biased": False}),
            (2, 7, 2, 6, {"rank": 3, "taps": 3}),
            (1, 17, 1, 32, {"rank": 1, "biased": False}),
            (1, 4, 1, 70, {"rank": 3, "states": 16}),
            (1, 4, 1, 3, {"rank": 1, "states": 1}),
        ),
        "row_norm": lambda: made(row_norm_inputs, (1, 5), (3, 5, 7), (130, 32), (2, 33, 96), (5, 128)),
        "step_moments": lambda: made(step_moments_inputs, *counted),
        "step_affine": lambda: made(step_affine_inputs, (1, 1, 3), (3, 5, 7), (4, 4, 96), (1, 16, 130)),
        "stack_branches": lambda: made(
            stack_branches_inputs, (3, 2), (4, 4), (3, 5, {"branched": False}), (2, 1), (1, 1), (32, 17), (16, 16)
        ),
        "merge_branches": lambda: made(
            merge_branches_inputs, (7, 3, 2), (1, 2, 1), (5, 32, 2), (5, 17, 3), (7, 8, 13), (2, 5, 4, 9)
        ),
        "patch_moments": lambda: made(
            patch_moments_inputs,
            *((stride, 2, 2, *size, channels)
              for stride, channels in [(1, 3), (1, 17), (1, 32), (2, 2), (2, 17)]
              for size in [(1, 1), (1, 4), (2, 1), (2, 2), (3, 3), (5, 4)]),
        ),
    }  # fmt: skip
    return lists[name]()


def larger_cases(name):
    """More of the same for the C++ operators, which are quick."""
    sizes = [(2, 10, 25, 3), (1, 16, 81, 32), (1, 10, 289, 96), (2, 3, 25, 384), (1, 2, 4096, 5)]
    attended = [
        (1, 1, 1, 2), (2, 10, 25, 3), (1, 16, 81, 32), (1, 3, 289, 96), (2, 3, 25, 128), (1, 2, 9, 384),
        (1, 2, 4096, 5),
        # fewer positions than channels, and weights' gradients as several sums, go other ways
        *((3, 4, positions, 33) for positions in (32, 33, 34)), (6, 10, 5, 18), (1, 2, 130, 140),
    ]  # fmt: skip
    lists = {
        "norm_fire": lambda: made(norm_fire_inputs, *((size, kind) for size in sizes for kind in KINDS)),
        "attend": lambda: made(
            attend_inputs,
            *((size, {"rate": rate}) for rate in (0.3, 0, 1) for size in attended),
            ((2, 3, 25, 33), {"relaxed": True}),
            ((2, 3, 25, 33), {"normed": False}),
        ),
        "attend_fire": lambda: made(
            attend_fire_inputs,
            *((size, kind) for kind in KINDS
              for size in [(1, 1, 1, 2), (2, 10, 25, 3), (1, 6, 81, 32), (1, 3, 130, 96)]),
        ),
        "leaky_fire": lambda: made(
            leaky_fire_inputs,
            *((size, {**kind, "resumed": False})
              for size in [(2, 10, 75), (1, 16, 2592), (3, 1, 20001), (2, 40, 1000), (1, 500, 7)]
              for kind in LEAKY[::5]),
        ),
        "pooled_rates": lambda: made(
            rates_inputs,
            *((*pool, {"relaxed": relaxed}) for relaxed in (False, True) for pool in [
                ((1, 1), [(1, 1, 2)], (1, 1)),
                ((2, 3), [(17, 17, 3), (9, 9, 33), (5, 5, 2)], (5, 5)),
                ((1, 10), [(16, 12, 32), (8, 6, 64)], (4, 3)),
                ((1, 4), [(9, 7, 5)], (4, 7)),
                ((1, 3), [(3, 4, 96)], (5, 6)),
                ((1, 2), [(64, 64, 3)], (16, 16)),
            ]),
        ),
        "mamba_inner": lambda: made(
            mamba_inputs,
            (1, 1, 1, 6, 1, 4), (2, 1, 2, 16, 2, 16), (1, 7, 2, 6, 3, 4, False), (2, 7, 1, 64, 2, 16),
            (1, 33, 2, 16, 1, 16), (2, 33, 1, 100, 3, 4, False), (2, 33, 2, 100, 2, 16), (1, 130, 2, 64, 2, 16, False),
            (2, 130, 2, 100, 3, 16), (1, 9, 2, 20, 2, 16, True, 2), (2, 33, 2, 20, 2, 12, True, 7),
            (1, 40, 1, 24, 2, 64),
            step=-3.0,
        ),
        "step_moments": lambda: made(step_moments_inputs, *sizes),
        "patch_moments": lambda: made(
            patch_moments_inputs,
            *((stride, 2, 3, *size, channels)
              for stride in (1, 2) for channels in (1, 2, 3, 17)
              for size in [(1, 1), (1, 5), (2, 1), (2, 2), (3, 2), (3, 3), (5, 4), (9, 17)]),
        ),
    }  # fmt: skip
    return lists[name]() if name in lists else []


def threaded_cases(name):
    """Sizes that several threads share."""
    lists = {
        "norm_fire": lambda: made(norm_fire_inputs, *(((2, 5, 289, 32), {"rotating": r}) for r in (False, True))),
        "attend": lambda: made(attend_inputs, ((2, 5, 289, 32), {}), ((2, 5, 25, 40), {})),
        "attend_fire": lambda: made(attend_fire_inputs, ((2, 5, 289, 32), {"rotating": True, "relaxed": True})),
        "leaky_fire": lambda: made(leaky_fire_inputs, ((2, 5, 9249), {}), ((1, 5, 18000), {"hard": False})),
        "pooled_rates": lambda: made(rates_inputs, ((2, 3), [(17, 17, 3), (9, 9, 33), (5, 5, 2)], (5, 5))),
        "mamba_inner": lambda: made(mamba_inputs, (1, 130, 2, 64, 2, 16), (2, 70, 2, 100, 2, 16)),
        "step_moments": lambda: made(step_moments_inputs, (2, 3, 289, 33)),
        "patch_moments": lambda: made(patch_moments_inputs, (2, 2, 3, 9, 17, 17), (1, 2, 2, 5, 6, 3)),
    }
    return lists[name]() if name in lists else cases(name)[:1]
