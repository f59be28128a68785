# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""One step of any neuron and its gradient, for kernels that keep the neuron's state in registers.

Everything is float32. Products that are summed are written as `fma`: left to the compiler, two kernels might round
the same step differently, and a potential at its threshold would fire in one and not in the other.
"""

import triton
import triton.language as tl

from ripe_mambaspike.ops.neurons import CSILIF_RESET

RESET = tl.constexpr(CSILIF_RESET)  # subtracted from the resonating neuron's state by a spike


@triton.jit
def fire_step(
    x, real, imag, decay, rotation, gain, threshold, sharpness, RESONATING: tl.constexpr, RELAXED: tl.constexpr
):
    """(spike, potential before reset, real, imag after reset); without RESONATING imag and rotation are not read."""
    if RESONATING:
        turned = tl.fma(-rotation, imag, gain * x)
        imag = tl.fma(decay, imag, rotation * real)
        real = tl.fma(decay, real, turned)
        potential = 2.0 * real
    else:
        real = tl.fma(decay, real, gain * x)
        potential = real
    distance = potential - threshold
    if RELAXED:
        spike = tl.sigmoid(sharpness * distance)
    else:
        spike = tl.where(distance >= 0, 1.0, 0.0)
    if RESONATING:
        real = real - RESET * spike
    else:
        real = real - threshold * spike
    return spike, potential, real, imag


@triton.jit
def initial(pointer, offsets, mask):
    """A part of the state before the first step, float32 in the shape of `offsets`; zeros if there is none."""
    if pointer is not None:
        state = tl.load(pointer + offsets, mask=mask, other=0).to(tl.float32)
    else:
        state = tl.zeros(offsets.shape, tl.float32)
    return state


@triton.jit
def store_final(pointer, offsets, state, mask):
    """Store the same part after the last step in the layout `initial` reads, if requested."""
    if pointer is not None:
        tl.store(pointer + offsets, state, mask=mask)


@triton.jit
def as_stored(spike, pointer, RELAXED: tl.constexpr):
    """Spikes in their stored dtype; hard ones (0.0 or 1.0) become bytes by bit operations, faster than a conversion."""
    if RELAXED:
        stored = spike.to(pointer.dtype.element_ty)
    else:
        stored = (spike.to(tl.int32, bitcast=True) >> 29).to(tl.uint8)
    return stored


@triton.jit
def fire_slope(spike, distance, sharpness, RELAXED: tl.constexpr):
    """The spike's derivative by distance = potential − threshold: the sigmoid's own, or the ATan surrogate's."""
    if RELAXED:
        slope = sharpness * spike * (1.0 - spike)
    else:
        angle = 1.5707963267948966 * sharpness * distance
        root = tl.rsqrt(1.0 + angle * angle)  # used twice: cheaper than a division
        slope = 0.5 * sharpness * (root * root)
    return slope


@triton.jit
def fire_step_gradient(
    spike, potential, grad_spike, grad_potential, grad_real, grad_imag, decay, rotation, threshold, sharpness,
    RESONATING: tl.constexpr, RELAXED: tl.constexpr,
):  # fmt: skip
    """(grad_charged, grad_threshold, grad_real, grad_imag): back through the step that gave spike and potential.

    In: the gradients of the step's outputs; grad_real and grad_imag are those of the state after reset. Out: the
    gradient of the real state before firing, from which the caller computes grad_x = gain·grad_charged and
    grad_decay = real·grad_charged + imag·(grad_imag in); that of the threshold, and those of the state before the step.
    """
    slope = fire_slope(spike, potential - threshold, sharpness, RELAXED)
    if RESONATING:
        through = (grad_spike - RESET * grad_real) * slope
        grad_charged = grad_real + 2.0 * (grad_potential + through)
        grad_threshold = -through
        grad_real = decay * grad_charged + rotation * grad_imag
        grad_imag = decay * grad_imag - rotation * grad_charged
    else:
        through = (grad_spike - threshold * grad_real) * slope
        grad_charged = grad_real + grad_potential + through
        grad_threshold = -through - spike * grad_real
        grad_real = decay * grad_charged
    return grad_charged, grad_threshold, grad_real, grad_imag
