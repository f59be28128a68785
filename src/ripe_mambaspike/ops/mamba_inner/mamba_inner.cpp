// The inside of a bidirectional Mamba: convolution with silu, then step, scan, skip and gate.

#include "mamba_inner.h"

#include <algorithm>
#include <memory>

namespace {

constexpr int64_t PIECE = 64;  // tokens of one task of the convolution
constexpr int64_t AHEAD = 8;   // tokens fetched before they are needed: rows can lie a page apart

template <typename T>
void conv_silu(const Sizes& size, const T* inputs, const float* conv, const float* conv_bias, const T* state, float* u,
               int64_t threads) {
    int64_t pieces = (size.length + PIECE - 1) / PIECE, row = size.directions * 2 * size.channels;
    int64_t tasks = size.directions * size.batch * pieces;
#pragma omp parallel num_threads(int(threads))
    {
        FlushDenormals flush;
        std::unique_ptr<Lanes[]> weight(new Lanes[size.taps]);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            int64_t piece = task % pieces, b = task / pieces % size.batch, direction = task / pieces / size.batch;
            int64_t last = std::min(size.length, (piece + 1) * PIECE);
            for (int64_t block = 0; block < size.blocks(); ++block) {
                int64_t first = block * LANES, channel = direction * size.channels + first;
                int count = size.lanes(block);
                turn(weight.get(), conv + channel * size.taps, int(size.taps), count, 1.0f);
                Lanes bias = conv_bias ? load(conv_bias + channel, count) : Lanes{};
                const T* inner = inputs + size.mixed(b, 0, direction, 2 * size.channels) + first;
                const T* before = state ? state + b * (size.taps - 1) * size.channels + first : nullptr;
                for (int64_t visit = piece * PIECE; visit < last; ++visit) {
                    Lanes sum = convolved(size, inner, row, visit, direction, weight.get(), bias, count, before);
                    int64_t place = size.place(visit, direction);
                    save(u + size.apart(b, place, direction, size.channels) + first, silu_of(sum), count);
                }
            }
        }
    }
}

// One block of channels over all tokens. STATES is known to the compiler, so that the states stay in registers.
template <typename T, int STATES>
void scan_block(const Sizes& size, const Block& block, int64_t b, int64_t direction, const T* inputs, const float* u,
                const float* proj, const float* initial, T* out, float* final, Lanes* room) {
    const int64_t states = STATES ? STATES : size.states;
    Lanes kept[STATES ? STATES : 1];
    Lanes* state = STATES ? kept : room;
    const int64_t kept_at = (b * size.channels + block.first) * states;  // in [B, E, N]
    if (initial != nullptr)
        turn(state, initial + kept_at, int(states), block.count, 1.0f);
    else
        for (int64_t n = 0; n < states; ++n) state[n] = Lanes{};
    const int64_t row = size.directions * 2 * size.channels;
    const T* gate = inputs + size.mixed(b, 0, direction, 2 * size.channels) + size.channels + block.first;
    const float* inner = u + size.apart(b, 0, direction, size.channels) + block.first;
    for (int64_t visit = 0; visit < size.length; ++visit) {
        int64_t place = size.place(visit, direction);
        int64_t soon = size.place(std::min(visit + AHEAD, size.length - 1), direction);
        __builtin_prefetch(gate + soon * row);
        __builtin_prefetch(inner + soon * size.channels);
        const float* step = proj + size.apart(b, place, direction, size.proj_width());
        const float *into = step + size.rank, *out_of = into + states;
        Lanes x = load(inner + place * size.channels, block.count);
        Lanes delta = softplus_of(block.before_softplus(step, size.rank));
        Lanes drive = delta * x, y = block.skip * x, other = Lanes{};
#pragma GCC unroll 16
        for (int64_t n = 0; n < states; ++n) {
            state[n] = exp2_of(delta * block.decay[n]) * state[n] + drive * into[n];
            (n & 1 ? other : y) += state[n] * out_of[n];
        }
        Lanes gated = (y + other) * silu_of(load(gate + place * row, block.count));
        save(out + size.mixed(b, place, direction, size.channels) + block.first, gated, block.count);
    }
    if (final != nullptr)
        for (int64_t n = 0; n < states; ++n) {
            float whole[LANES];
            narrowed(whole, state[n]);
            for (int lane = 0; lane < block.count; ++lane) final[kept_at + lane * states + n] = whole[lane];
        }
}

template <typename T>
void scan(const Sizes& size, const T* inputs, const float* u, const float* proj, const float* dt_proj,
          const float* dt_bias, const float* decay, const float* skip, const float* initial, T* out, float* final,
          int64_t threads) {
    int64_t blocks = size.blocks(), tasks = size.batch * size.directions * blocks;
#pragma omp parallel num_threads(int(threads))
    {
        FlushDenormals flush;
        std::unique_ptr<Lanes[]> room(new Lanes[size.states]);
        Block block;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            int64_t direction = task / blocks % size.directions, b = task / blocks / size.directions;
            block.take(size, direction, task % blocks, dt_proj, dt_bias, decay, skip);
            auto run = size.states == 16 ? scan_block<T, 16> : scan_block<T, 0>;
            run(size, block, b, direction, inputs, u, proj, initial, out, final, room.get());
        }
    }
}

}  // namespace

extern "C" {

// state [B, K - 1, E] in the precision of the inputs, or null.
void ripe_mamba_conv(const int64_t* sizes, int64_t is_bfloat16, const void* inputs, const float* conv,
                     const float* conv_bias, const void* state, float* u, int64_t threads) {
    const Sizes& size = *reinterpret_cast<const Sizes*>(sizes);
    auto run = [&](auto type) {
        using T = decltype(type);
        conv_silu(size, static_cast<const T*>(inputs), conv, conv_bias, static_cast<const T*>(state), u, threads);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

// initial and final [B, E, N], or null.
void ripe_mamba_scan(const int64_t* sizes, int64_t is_bfloat16, const void* inputs, const float* u, const float* proj,
                     const float* dt_proj, const float* dt_bias, const float* decay, const float* skip,
                     const float* initial, void* out, float* final, int64_t threads) {
    const Sizes& size = *reinterpret_cast<const Sizes*>(sizes);
    auto run = [&](auto type) {
        using T = decltype(type);
        scan(size, static_cast<const T*>(inputs), u, proj, dt_proj, dt_bias, decay, skip, initial,
             static_cast<T*>(out), final, threads);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

}
