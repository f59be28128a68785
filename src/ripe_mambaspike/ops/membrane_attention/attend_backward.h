// What the two ways through the gradient of DS-MPA share: the step's inputs, a thread's memory, and the parts that take
// one position after another.
//
// A changes only with how a value differs from the others: with the mean spikes taken off first (S - mean, and their
// values' mean mu off A), what would cancel in the gradients of queries and keys is never added.
#pragma once

#include <algorithm>
#include <vector>

#include "neuron.h"
#include "products.h"
#include "scratch.h"

namespace {  // each file its own: names are short

constexpr int64_t ROWS = 8 * TALL;  // positions in a block, where they are many
constexpr float EPSILON = 1e-5f;

template <typename X>
struct Task {
    Shape shape;
    const X *potential, *features, *grad_out, *grad_attention;  // the last two may be null
    const X* nothing;  // [C] zeros in their place
    const void* spikes;
    bool bytes;
    const float *scale, *shift, *gain;
    X *to_potential, *to_spikes, *to_features;
    int64_t wide;
    const float *query, *key, *value;                          // [out, wide]
    const float *query_turned, *key_turned, *value_turned;     // [in, wide]
};

// What a thread works in, a block of positions at a time; few positions are one block.
struct Desk {
    Scratch scratch;
    int64_t block, tall;  // positions in a block; the row length of matrices [.., P], where positions are few
    int64_t summed;       // positions whose share the weights already hold
    float *keys, *to_potential;                                           // [P, wide]
    float *input, *spikes, *queries, *numerator, *product;                // [block, wide]
    float *gathered, *mixed, *turned, *to_mixed, *to_gathered, *weights;  // [C, wide], the last three times
    float *values, *to_values, *columns, *pairs, *to_pairs;               // [P, wide] twice, [C, tall], [P, tall] twice
    float *key_sum, *to_key_sum, *mean, *mean_value, *gain, *scale, *shift, *normalizer;  // [wide], the last [block]

    void open(int64_t positions, int64_t channels, int64_t wide, bool few) {
        const int64_t matrix = channels * wide, whole = positions * wide;
        block = few ? positions : ROWS, tall = padded(positions), summed = 0;
        const int64_t own = few ? 2 * whole + (channels + 2 * positions) * tall : 5 * matrix;
        scratch.open(4 * (2 * whole + 5 * block * wide + 3 * matrix + own + 7 * wide + block), 21);
        for (float** piece : {&keys, &to_potential}) *piece = scratch.take<float>(whole);
        for (float** piece : {&input, &spikes, &queries, &numerator, &product})
            *piece = scratch.take<float>(block * wide);
        weights = scratch.take<float>(3 * matrix);
        for (float** piece : {&key_sum, &to_key_sum, &mean, &mean_value, &gain, &scale, &shift})
            *piece = scratch.take<float>(wide);
        normalizer = scratch.take<float>(block);
        if (few) {
            for (float** piece : {&values, &to_values}) *piece = scratch.take<float>(whole);
            columns = scratch.take<float>(channels * tall);
            for (float** piece : {&pairs, &to_pairs}) *piece = scratch.take<float>(positions * tall);
        } else {
            for (float** piece : {&gathered, &mixed, &turned, &to_mixed, &to_gathered})
                *piece = scratch.take<float>(matrix);
        }
    }
};

// One position: dX, dA and what follows from them. The centred numerator becomes its own gradient; returns that of the
// normalizer with mu taken off A.
template <typename X>
float modulated_back(const Task<X>& task, int64_t t, int64_t at, float inverse, float* __restrict numerator,
                     const Desk& desk) {
    const float missing = EPSILON * inverse, *__restrict mean_value = desk.mean_value;
    const int64_t channels = task.shape.channels;
    const float *__restrict scale = task.scale + t * channels, *__restrict shift = task.shift + t * channels;
    const float* __restrict gain = task.gain;
    const X* __restrict features = task.features + at;
    X* __restrict to_features = task.to_features + at;
    const X* __restrict out = task.grad_out == nullptr ? task.nothing : task.grad_out + at;
    const X* __restrict attention = task.grad_attention == nullptr ? task.nothing : task.grad_attention + at;
    float *__restrict to_gain = desk.gain, *__restrict to_scale = desk.scale, *__restrict to_shift = desk.shift;
    float to_normaliser = 0.0f;
#pragma omp simd reduction(+ : to_normaliser)
    for (int64_t c = 0; c < channels; ++c) {
        const float given = to_float(features[c]), normed = scale[c] * given + shift[c];
        const float centred = numerator[c] * inverse, weight = centred + mean_value[c] * (1.0f - missing);
        const float arriving = to_float(out[c]);
        const float to_normed = arriving * (1.0f + gain[c] * weight);
        const float to_attention = gain[c] * normed * arriving + to_float(attention[c]);
        to_gain[c] += weight * normed * arriving;
        to_scale[c] += to_normed * given;
        to_shift[c] += to_normed;
        store(to_features[c], to_normed * scale[c]);
        numerator[c] = to_attention * inverse;
        to_normaliser += numerator[c] * (mean_value[c] * missing - centred);
    }
    return to_normaliser;
}

template <typename X>
void read_spikes(const Task<X>& task, int64_t at, int64_t rows, const float* __restrict mean, float* out) {
    if (task.bytes)
        widen(static_cast<const uint8_t*>(task.spikes) + at, rows, task.shape.channels, out, task.wide);
    else
        widen(static_cast<const X*>(task.spikes) + at, rows, task.shape.channels, out, task.wide);
    for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
        for (int64_t c = 0; c < task.wide; ++c) out[r * task.wide + c] -= mean[c];
}

// The mean spikes of a step and their value mu.
template <typename X>
void mean_of(const Task<X>& task, const Desk& desk, int64_t before) {
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    float *__restrict sum = desk.to_key_sum, *__restrict mean = desk.mean;
    std::fill(sum, sum + wide, 0.0f);
    std::fill(mean, mean + wide, 0.0f);
    for (int64_t p = 0; p < positions; p += desk.block) {
        const int64_t rows = std::min(desk.block, positions - p);
        read_spikes(task, before + p * channels, rows, mean, desk.spikes);
        for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
            for (int64_t c = 0; c < wide; ++c) sum[c] += desk.spikes[r * wide + c];
    }
    for (int64_t c = 0; c < wide; ++c) mean[c] = sum[c] / static_cast<float>(positions);
    product(wide, 1, channels, {mean, wide, 1}, task.value_turned, desk.mean_value, false);
}

// phi of a block of keys in place; their sum is added to k.
void key_features(const Desk& desk, float* keys, int64_t rows, int64_t channels, int64_t wide) {
    float* __restrict sum = desk.key_sum;
    for (int64_t r = 0; r < rows; ++r) {
        float* __restrict line = keys + r * wide;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) line[c] = positive_feature(line[c]), sum[c] += line[c];
    }
}

// phi of a block of queries in place, and one over their normalisers.
void query_features(const Desk& desk, int64_t rows, int64_t channels, int64_t wide) {
    const float* __restrict key_sum = desk.key_sum;
    for (int64_t r = 0; r < rows; ++r) {
        float *__restrict line = desk.queries + r * wide, total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < channels; ++c) {
            line[c] = positive_feature(line[c]);
            total += line[c] * key_sum[c];
        }
        desk.normalizer[r] = 1.0f / (total + EPSILON);
    }
}

// The numerators of a block to their gradients, the inverse normalisers to the normalisers' gradients.
template <typename X>
void block_back(const Task<X>& task, const Desk& desk, int64_t t, int64_t at, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r)
        desk.normalizer[r] = modulated_back(task, t, at + r * task.shape.channels, desk.normalizer[r],
                                            desk.numerator + r * task.wide, desk);
}

// The slope of phi, from phi: e^z up to 1, then 1.
inline float slope(float phi) { return phi > 1.0f ? 1.0f : phi; }

// In `product`, the queries' gradient through numerators to that of Q; the normalisers' share of dk is added to it.
void queries_through(const Desk& desk, int64_t rows, int64_t channels, int64_t wide) {
    float *__restrict key_sum = desk.key_sum, *__restrict to_key_sum = desk.to_key_sum;
    for (int64_t r = 0; r < rows; ++r) {
        float *__restrict line = desk.product + r * wide, *__restrict phi = desk.queries + r * wide;
        const float each = desk.normalizer[r];
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
            to_key_sum[c] += phi[c] * each;
            line[c] = (line[c] + each * key_sum[c]) * slope(phi[c]);
        }
    }
}

// In `product`, the keys' gradient through numerators to that of K.
void keys_through(const Desk& desk, const float* keys, int64_t rows, int64_t channels, int64_t wide) {
    const float* __restrict to_key_sum = desk.to_key_sum;
    for (int64_t r = 0; r < rows; ++r) {
        float* __restrict line = desk.product + r * wide;
        const float* __restrict phi = keys + r * wide;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) line[c] = (line[c] + to_key_sum[c]) * slope(phi[c]);
    }
}

}  // namespace
