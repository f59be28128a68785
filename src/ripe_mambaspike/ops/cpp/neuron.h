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

// A neuron's state before the first step or after the last, [B, P, C] each; null where there is none or none is wanted.
// Spikes are bytes, or floats when relaxed.
template <typename F, typename S>
struct State {
    F *membrane, *imag;
    S* spikes;
};
using GivenState = State<const float, const void>;
using FinalState = State<float, float>;  // spikes when relaxed alone: bytes are among the outputs already

static inline void copy_or_zero(const float* from, int64_t n, float* to) {
    if (from == nullptr)
        std::fill(to, to + n, 0.0f);
    else
        std::copy(from, from + n, to);
}

// n elements of a state, from `at` on, into the neuron's working memory; zeros where none is given.
template <bool RELAXED>
static inline void load_state(const GivenState& from, int64_t at, int64_t n, float* real, float* imag, float* before) {
    copy_or_zero(from.membrane == nullptr ? nullptr : from.membrane + at, n, real);
    copy_or_zero(from.imag == nullptr ? nullptr : from.imag + at, n, imag);
    if (RELAXED || from.spikes == nullptr) {
        copy_or_zero(from.spikes == nullptr ? nullptr : static_cast<const float*>(from.spikes) + at, n, before);
        return;
    }
    const uint8_t* __restrict spikes = static_cast<const uint8_t*>(from.spikes) + at;
    float* __restrict numbers = before;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) numbers[i] = to_float(spikes[i]);
}

static inline void save_state(const FinalState& to, int64_t at, int64_t n, const float* real, const float* imag,
                              const float* before) {
    if (to.membrane != nullptr) std::copy(real, real + n, to.membrane + at);
    if (to.imag != nullptr) std::copy(imag, imag + n, to.imag + at);
    if (to.spikes != nullptr) std::copy(before, before + n, to.spikes + at);
}

}  // namespace
