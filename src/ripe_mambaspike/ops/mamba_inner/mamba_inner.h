// Where the tensors of the Mamba operators lie, and what their two passes both compute.
//
// inputs [B, L, D, 2E], u [D, B, L, E], proj [D, B, L, R + 2N] (step, B, C). Direction 1 visits the tokens from the
// last to the first: `visit` counts tokens in a direction's own order, `place` is where the token lies.
#pragma once

#include <algorithm>
#include <memory>

#include "lanes.h"

namespace {

struct Sizes {
    int64_t batch, length, directions, channels, taps, rank, states;

    int64_t blocks() const { return (channels + LANES - 1) / LANES; }
    int64_t proj_width() const { return rank + 2 * states; }
    int64_t place(int64_t visit, int64_t direction) const { return direction ? length - 1 - visit : visit; }
    // Offsets of a token's row in [B, L, D, width] and in [D, B, L, width].
    int64_t mixed(int64_t b, int64_t place, int64_t direction, int64_t width) const {
        return ((b * length + place) * directions + direction) * width;
    }
    int64_t apart(int64_t b, int64_t place, int64_t direction, int64_t width) const {
        return ((direction * batch + b) * length + place) * width;
    }
    int lanes(int64_t block) const { return int(std::min<int64_t>(LANES, channels - block * LANES)); }
};

// What the scan of one block of channels needs of the weights.
struct Block {
    int64_t first;  // channel
    int count;
    Lanes dt_bias, skip;
    std::unique_ptr<Lanes[]> dt_proj, decay;

    void take(const Sizes& size, int64_t direction, int64_t block, const float* dt_proj_, const float* dt_bias_,
              const float* decay_, const float* skip_) {
        first = block * LANES;
        count = size.lanes(block);
        int64_t channel = direction * size.channels + first;
        dt_proj.reset(new Lanes[size.rank]);
        decay.reset(new Lanes[size.states]);
        turn(dt_proj.get(), dt_proj_ + channel * size.rank, int(size.rank), count, 1.0f);
        turn(decay.get(), decay_ + channel * size.states, int(size.states), count, LOG2_E);
        dt_bias = load(dt_bias_ + channel, count);
        skip = load(skip_ + channel, count);
    }
    Lanes before_softplus(const float* step, int64_t rank) const {
        Lanes sum = dt_bias;
        for (int64_t r = 0; r < rank; ++r) sum += step[r] * dt_proj[r];
        return sum;
    }
};

// Sum over the taps that lie inside: inputs at visits visit − taps + 1 … visit. Those before the first are in `state`,
// the last K − 1 of a piece before this one [K − 1, E] from this block's channel on, or null.
template <typename T>
inline Lanes convolved(const Sizes& size, const T* inner, int64_t row, int64_t visit, int64_t direction,
                       const Lanes* weight, Lanes bias, int count, const T* state = nullptr) {
    Lanes sum = bias;
    const int64_t inside = std::max<int64_t>(0, size.taps - 1 - visit);
    if (state != nullptr)
        for (int64_t tap = 0; tap < inside; ++tap)
            sum += weight[tap] * load(state + (visit + tap) * size.channels, count);
    for (int64_t tap = inside; tap < size.taps; ++tap) {
        int64_t place = size.place(visit - (size.taps - 1) + tap, direction);
        sum += weight[tap] * load(inner + place * row, count);
    }
    return sum;
}

}  // namespace
