// The gradient of a step of DS-MPA with fewer positions than channels: the values V [P, C] and the weight of every
// position for every other, E = phi(Q) phi(K)' [P, P], in place of matrices [C, C].
#pragma once

#include "attend_backward.h"

namespace {  // each file its own: names are short

// out [P, tall] = a b' of two matrices [P, wide].
void pairs_of(const Desk& desk, int64_t positions, int64_t channels, int64_t wide, const float* a, const float* b,
              float* out) {
    transpose(b, positions, channels, wide, desk.columns, desk.tall);
    multiply<float>(positions, desk.tall, channels, {a, wide, 1}, desk.columns, desk.tall, out, desk.tall, false);
}

// phi(K), k, phi(Q), E, the centred values and numerators E V.
template <typename X>
void few_forward(const Task<X>& task, const Desk& desk, int64_t now, int64_t before) {
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    widen(task.potential + now, positions, channels, desk.input, wide);
    product(wide, positions, channels, {desk.input, wide, 1}, task.key_turned, desk.keys, false);
    std::fill(desk.key_sum, desk.key_sum + wide, 0.0f);
    key_features(desk, desk.keys, positions, channels, wide);
    product(wide, positions, channels, {desk.input, wide, 1}, task.query_turned, desk.queries, false);
    query_features(desk, positions, channels, wide);
    read_spikes(task, before, positions, desk.mean, desk.spikes);
    product(wide, positions, channels, {desk.spikes, wide, 1}, task.value_turned, desk.values, false);
    pairs_of(desk, positions, channels, wide, desk.queries, desk.keys, desk.pairs);
    product(wide, positions, positions, {desk.pairs, desk.tall, 1}, desk.values, desk.numerator, false);
}

// All gradients of the step.
template <typename X>
void few_back(const Task<X>& task, const Desk& desk, int64_t t, int64_t now, int64_t before) {
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions, tall = desk.tall;
    float *to_query = desk.weights, *to_key = to_query + channels * wide, *to_value = to_key + channels * wide;
    const bool add = desk.summed > 0;
    few_forward(task, desk, now, before);
    block_back(task, desk, t, now, positions);
    pairs_of(desk, positions, channels, wide, desk.numerator, desk.values, desk.to_pairs);

    std::fill(desk.to_key_sum, desk.to_key_sum + wide, 0.0f);
    product(wide, positions, positions, {desk.to_pairs, tall, 1}, desk.keys, desk.product, false);
    queries_through(desk, positions, channels, wide);
    product(wide, positions, channels, {desk.product, wide, 1}, task.query, desk.to_potential, false);
    product(wide, channels, positions, {desk.product, 1, wide}, desk.input, to_query, add);

    product(wide, positions, positions, {desk.to_pairs, 1, tall}, desk.queries, desk.product, false);
    keys_through(desk, desk.keys, positions, channels, wide);
    product(wide, positions, channels, {desk.product, wide, 1}, task.key, desk.to_potential, true);
    product(wide, channels, positions, {desk.product, 1, wide}, desk.input, to_key, add);
    narrow(desk.to_potential, positions, channels, wide, task.to_potential + now);

    product(wide, positions, positions, {desk.pairs, 1, tall}, desk.numerator, desk.to_values, false);
    product(wide, positions, channels, {desk.to_values, wide, 1}, task.value, desk.product, false);
    narrow(desk.product, positions, channels, wide, task.to_spikes + before);
    for (int64_t r = 0; r < positions; ++r)  // dW_V sees the spikes themselves
#pragma omp simd
        for (int64_t c = 0; c < wide; ++c) desk.spikes[r * wide + c] += desk.mean[c];
    product(wide, channels, positions, {desk.to_values, 1, wide}, desk.spikes, to_value, add);
}

}  // namespace
