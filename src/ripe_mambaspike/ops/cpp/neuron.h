// One step of a neuron, shared by the operators that end in one, and its parameters laid out for long loops.
#pragma once

#include <algorithm>
#include <vector>

#include "vector.h"

namespace {  // each file its own: names are short

constexpr float RESET = 0.5f;  // what a spike takes off a resonating neuron's real part

struct Shape {
    int64_t batch, steps, positions, channels;
};

// Whether the distance above the threshold makes a spike: 1 or 0, or a sigmoid of it when relaxed.
template <bool RELAXED>
static inline float fired(float distance, float sharpness) {
    if (RELAXED) return sigmoid(sharpness * distance);
    return distance >= 0.0f ? 1.0f : 0.0f;
}

struct Step {
    float real, imag, potential, spike;
};

// State before the step and drive -> state after the reset, potential before it, spike.
template <bool RESONATING, bool RELAXED>
static inline Step advance(float real, float imag, float drive, float decay, float rotation, float gain,
                           float threshold, float sharpness) {
    Step out;
    if (RESONATING) {
        float turned = decay * real - rotation * imag + gain * drive;
        out.imag = decay * imag + rotation * real;
        out.potential = 2.0f * turned;
        out.spike = fired<RELAXED>(out.potential - threshold, sharpness);
        out.real = turned - RESET * out.spike;
    } else {
        out.imag = 0.0f;
        out.potential = decay * real + gain * drive;
        out.spike = fired<RELAXED>(out.potential - threshold, sharpness);
        out.real = out.potential - threshold * out.spike;
    }
    return out;
}

// Per-channel values repeated to a row of at least `least` elements, so that few channels still make long loops.
struct Row {
    int64_t channels, length;
    explicit Row(int64_t channels, int64_t least = 64)
        : channels(channels), length(channels * ((least - 1 + channels) / channels)) {}

    // [lines, C] -> [lines, length]; `otherwise` where there is nothing.
    std::vector<float> repeated(const float* values, int64_t lines, float otherwise) const {
        std::vector<float> out(lines * length, otherwise);
        if (values != nullptr)
            for (int64_t line = 0; line < lines; ++line)
                for (int64_t i = 0; i < length; ++i) out[line * length + i] = values[line * channels + i % channels];
        return out;
    }
};

struct NeuronRow {
    std::vector<float> decay, rotation, gain, threshold, coefficient;
    NeuronRow(const Row& row, const float* decay, const float* rotation, const float* gain, const float* threshold,
              const float* coefficient)
        : decay(row.repeated(decay, 1, 0)), rotation(row.repeated(rotation, 1, 0)), gain(row.repeated(gain, 1, 0)),
          threshold(row.repeated(threshold, 1, 0)), coefficient(row.repeated(coefficient, 1, 0)) {}
};

// A block of elements of one sample goes through all its steps before the next: its state stays in the L1 cache.
struct Blocks {
    int64_t plane, length, each;  // elements of a step, of a block, blocks of a sample
    Blocks(const Shape& shape, const Row& row, int64_t wanted)
        : plane(shape.positions * shape.channels), length(row.length * std::max<int64_t>(1, wanted / row.length)),
          each((plane + length - 1) / length) {}
};

struct FireTask {
    Shape shape;
    Row row;
    NeuronRow neuron;
    std::vector<float> scale, shift;  // [T, row], or [B, T, row] where samples are at different steps
    int64_t sample_rows;              // from one sample's rows to the next: 0 or T
    float sharpness;
    FireTask(const Shape& shape, bool own_rows, const float* scale, const float* shift, const float* decay,
             const float* rotation, const float* gain, const float* threshold, const float* coefficient,
             float sharpness)
        : shape(shape), row(shape.channels), neuron(row, decay, rotation, gain, threshold, coefficient),
          scale(row.repeated(scale, shape.steps * (own_rows ? shape.batch : 1), 1)),
          shift(row.repeated(shift, shape.steps * (own_rows ? shape.batch : 1), 0)),
          sample_rows(own_rows ? shape.steps : 0), sharpness(sharpness) {}
};

// A neuron's state before the first step and after the last, [B, P, C] each; null where there is none or none is wanted.
// Spikes are bytes, or floats when relaxed. With `rows` a sample's state is in that row, and both may be the same memory.
struct State {
    const float *membrane, *imag;
    const void* spikes;
    const int64_t* rows;
    float *final_membrane, *final_imag;
    void* final_spikes;
    int64_t row(int64_t sample) const { return rows == nullptr ? sample : rows[sample]; }
};

template <typename From, typename To>
static inline void copy_or_zero(const From* __restrict from, int64_t n, To* __restrict to) {
    if (from == nullptr) {
        std::fill(to, to + n, To(0));
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);
}

// n elements of a state, from `at` on, while the steps are computed: in the final state's own memory if there is one.
template <bool RELAXED>
struct WorkingState {
    const State& state;
    int64_t at, n;
    float *real, *imag, *before;

    WorkingState(const State& state, int64_t at, int64_t n, float* scratch)  // [3 n]
        : state(state), at(at), n(n), real(open(state.membrane, state.final_membrane, scratch)),
          imag(open(state.imag, state.final_imag, scratch + n)), before(scratch + 2 * n) {
        if (RELAXED)
            copy_or_zero(part<const float>(state.spikes), n, before);
        else
            copy_or_zero(part<const uint8_t>(state.spikes), n, before);
    }

    void save() const {  // the membrane is there already
        if (state.final_spikes == nullptr) return;
        if (RELAXED)
            copy_or_zero(before, n, part<float>(state.final_spikes));
        else
            copy_or_zero(before, n, part<uint8_t>(state.final_spikes));
    }

   private:
    float* open(const float* from, float* to, float* scratch) const {
        float* out = to == nullptr ? scratch : to + at;
        if (from == nullptr || from != to) copy_or_zero(part<const float>(from), n, out);
        return out;
    }
    template <typename S, typename V>
    S* part(V* whole) const {
        return whole == nullptr ? nullptr : static_cast<S*>(whole) + at;
    }
};

}  // namespace
