// The gradients of the inside of a Mamba. The states are computed again: once over all tokens to keep every TILE-th,
// then tile by tile from the last to the first, each swept backwards while its states are at hand.

#include "mamba_inner.h"

#include <vector>

namespace {

constexpr int64_t TILE = 32;   // tokens whose states are kept at a time
constexpr int64_t BLOCKS = 64 / LANES;  // blocks of channels that share one sum of the gradients of B and C

struct Given {
    const float *u, *proj, *dt_proj, *dt_bias, *decay, *skip;
};
struct Wanted {
    float* grad_u;       // [D, B, L, E], without what comes through proj
    float* grad_step;    // before softplus [D, B, L, E]
    float* grad_proj;    // of B and C, one sum for each group of blocks [groups, D, B, L, 2N]
    float* grad_params;  // decay, skip and dt_bias of every sample [B, D, E, N + 2]
};

// Memory of one thread.
struct Room {
    std::vector<Lanes> starts, states, decays, sums, carry, tile_sums, totals;
    Lanes x[TILE], before[TILE], delta[TILE];
    Room(const Sizes& size, int64_t tiles)
        : starts(tiles * BLOCKS * size.states), states((TILE + 1) * size.states), decays(TILE * size.states),
          sums(TILE * 2 * size.states), carry(BLOCKS * size.states), tile_sums(size.states + 2),
          totals(BLOCKS * (size.states + 2)) {}
};

// The task of one sample, one direction and one group of blocks.
template <typename T, int STATES>
struct Task {
    const Sizes& size;
    const Given& given;
    const Wanted& wanted;
    const T *inputs, *grad;
    T* grad_inputs;
    int64_t b, direction, group;
    Room& room;

    int64_t states() const { return STATES ? STATES : size.states; }
    int64_t at(int64_t visit, int64_t width) const {
        return size.apart(b, size.place(visit, direction), direction, width);
    }
    int64_t mixed(int64_t visit, int64_t width) const {
        return size.mixed(b, size.place(visit, direction), direction, width);
    }
    const float* proj(int64_t visit) const { return given.proj + at(visit, size.proj_width()); }

    // Advance the states over one token; `now` may be `last`.
    void advance(const Block& block, int64_t visit, Lanes& x, Lanes& before, Lanes& delta, const Lanes* last,
                 Lanes* now, Lanes* decays) const {
        const float *step = proj(visit), *into = step + size.rank;
        x = load(given.u + at(visit, size.channels) + block.first, block.count);
        before = block.before_softplus(step, size.rank);
        delta = softplus_of(before);
        Lanes drive = delta * x;
        const int64_t count = states();
#pragma GCC unroll 16
        for (int64_t n = 0; n < count; ++n) {
            Lanes decay = exp2_of(delta * block.decay[n]);
            if (decays) decays[n] = decay;
            now[n] = decay * last[n] + drive * into[n];
        }
    }

    void keep_starts(const Block& block, Lanes* starts, int64_t stride, int64_t tiles) const {
        Lanes* state = room.states.data();
        std::fill(state, state + states(), Lanes{});
        for (int64_t tile = 0; tile < tiles; ++tile) {
            std::copy(state, state + states(), starts + tile * stride);
            if (tile + 1 == tiles) return;
            Lanes x, before, delta;
            for (int64_t visit = tile * TILE; visit < (tile + 1) * TILE; ++visit)
                advance(block, visit, x, before, delta, state, state, nullptr);
        }
    }

    // Sweep one tile backwards; adds to the sums over channels (room.sums) and over tokens (totals).
    void sweep(const Block& block, const Lanes* start, int64_t first, int64_t last, Lanes* carry, Lanes* totals) const {
        const int64_t count = states(), channels = size.channels;
        Lanes *state = room.states.data(), *decays = room.decays.data(), *sums = room.sums.data();
        Lanes* tile_sums = room.tile_sums.data();
        std::copy(start, start + count, state);
        for (int64_t i = 0; i < last - first; ++i)
            advance(block, first + i, room.x[i], room.before[i], room.delta[i], state + i * count,
                    state + (i + 1) * count, decays + i * count);
        std::fill(tile_sums, tile_sums + count + 2, Lanes{});
        for (int64_t i = last - first - 1; i >= 0; --i) {
            int64_t visit = first + i, here = at(visit, channels) + block.first;
            const float *into = proj(visit) + size.rank, *out_of = into + count;
            Lanes x = room.x[i], delta = room.delta[i], drive = delta * x;
            Lanes gate = load(inputs + mixed(visit, 2 * channels) + channels + block.first, block.count);
            Lanes grad_out = load(grad + mixed(visit, channels) + block.first, block.count);
            Lanes opened = sigmoid_of(gate), grad_y = grad_out * gate * opened;
            Lanes y = block.skip * x, grad_drive = Lanes{}, grad_exponent = Lanes{};
            const Lanes *previous = state + i * count, *now = previous + count, *decay = decays + i * count;
            Lanes* sum = sums + i * 2 * count;
#pragma GCC unroll 16
            for (int64_t n = 0; n < count; ++n) {
                Lanes grad_state = carry[n] + grad_y * out_of[n];
                sum[n] += grad_state * drive;
                sum[count + n] += grad_y * now[n];
                y += now[n] * out_of[n];
                grad_drive += grad_state * into[n];
                carry[n] = grad_state * decay[n];
                Lanes product = carry[n] * previous[n];
                grad_exponent += product * block.decay[n];
                tile_sums[n] += product * delta;
            }
            Lanes grad_delta = grad_drive * x + grad_exponent * (1.0f / LOG2_E);
            Lanes grad_before = grad_delta * sigmoid_of(room.before[i]);
            tile_sums[count] += grad_y * x;
            tile_sums[count + 1] += grad_before;
            save(wanted.grad_step + here, grad_before, block.count);
            save(wanted.grad_u + here, grad_y * block.skip + grad_drive * delta, block.count);
            save(grad_inputs + mixed(visit, 2 * channels) + channels + block.first,
                 grad_out * y * silu_slope(gate, opened), block.count);
        }
        for (int64_t n = 0; n < count + 2; ++n) totals[n] += tile_sums[n];
    }

    void run() const {
        const int64_t count = states(), tiles = (size.length + TILE - 1) / TILE;
        int64_t blocks = std::min(BLOCKS, size.blocks() - group * BLOCKS);
        Block taken[BLOCKS];
        for (int64_t i = 0; i < blocks; ++i) {
            taken[i].take(size, direction, group * BLOCKS + i, given.dt_proj, given.dt_bias, given.decay, given.skip);
            keep_starts(taken[i], &room.starts[i * count], BLOCKS * count, tiles);
        }
        std::fill(room.carry.begin(), room.carry.end(), Lanes{});
        std::fill(room.totals.begin(), room.totals.end(), Lanes{});
        float* grad_proj = wanted.grad_proj + group * size.directions * size.batch * size.length * 2 * count;
        for (int64_t tile = tiles - 1; tile >= 0; --tile) {
            int64_t first = tile * TILE, last = std::min(first + TILE, size.length);
            std::fill(room.sums.begin(), room.sums.end(), Lanes{});
            for (int64_t i = 0; i < blocks; ++i)
                sweep(taken[i], &room.starts[(tile * BLOCKS + i) * count], first, last, &room.carry[i * count],
                      &room.totals[i * (count + 2)]);
            for (int64_t i = 0; i < last - first; ++i) {
                float* out = grad_proj + at(first + i, 2 * count);
                for (int64_t n = 0; n < 2 * count; ++n) out[n] = sum_of(room.sums[i * 2 * count + n]);
            }
        }
        for (int64_t i = 0; i < blocks; ++i) {
            int64_t channel = (b * size.directions + direction) * size.channels + taken[i].first;
            float* out = wanted.grad_params + channel * (count + 2);
            for (int64_t n = 0; n < count + 2; ++n)
                for (int lane = 0; lane < taken[i].count; ++lane)
                    out[lane * (count + 2) + n] = room.totals[i * (count + 2) + n][lane];
        }
    }
};

template <typename T>
void scan_backward(const Sizes& size, const Given& given, const Wanted& wanted, const T* inputs, const T* grad,
                   T* grad_inputs, int64_t threads) {
    int64_t groups = (size.blocks() + BLOCKS - 1) / BLOCKS, tasks = size.batch * size.directions * groups;
#pragma omp parallel num_threads(int(threads))
    {
        FlushDenormals flush;
        Room room(size, (size.length + TILE - 1) / TILE);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            int64_t group = task % groups, direction = task / groups % size.directions;
            int64_t b = task / groups / size.directions;
            if (size.states == 16)
                Task<T, 16>{size, given, wanted, inputs, grad, grad_inputs, b, direction, group, room}.run();
            else
                Task<T, 0>{size, given, wanted, inputs, grad, grad_inputs, b, direction, group, room}.run();
        }
    }
}

// From the gradient of u to those of the inner half of the inputs, the kernel and its bias [B, D, E, K + 1].
template <typename T>
void conv_backward(const Sizes& size, const T* inputs, const float* conv, const float* conv_bias, const float* grad_u,
                   T* grad_inputs, float* grad_params, int64_t threads) {
    const int64_t taps = size.taps, blocks = size.blocks(), row = size.directions * 2 * size.channels;
    const int64_t tasks = size.batch * size.directions * blocks;
#pragma omp parallel num_threads(int(threads))
    {
        FlushDenormals flush;
        std::vector<Lanes> weight(taps), later(taps), sums(taps + 1), totals(taps + 1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            int64_t block = task % blocks, direction = task / blocks % size.directions;
            int64_t b = task / blocks / size.directions, first = block * LANES;
            int64_t channel = direction * size.channels + first;
            int count = size.lanes(block);
            turn(weight.data(), conv + channel * taps, int(taps), count, 1.0f);
            Lanes bias = conv_bias ? load(conv_bias + channel, count) : Lanes{};
            const int64_t offset = size.mixed(b, 0, direction, 2 * size.channels) + first;
            const T* inner = inputs + offset;
            for (auto* zeroed : {&later, &sums, &totals}) std::fill(zeroed->begin(), zeroed->end(), Lanes{});
            for (int64_t visit = size.length - 1; visit >= 0; --visit) {
                int64_t place = size.place(visit, direction);
                Lanes before = convolved(size, inner, row, visit, direction, weight.data(), bias, count);
                Lanes grad = load(grad_u + size.apart(b, place, direction, size.channels) + first, count);
                grad *= silu_slope(before, sigmoid_of(before));
                // later[tap]: the gradient at the visit to which this input goes through that tap
                for (int64_t tap = 0; tap + 1 < taps; ++tap) later[tap] = later[tap + 1];
                later[taps - 1] = grad;
                Lanes grad_in = Lanes{};
                for (int64_t tap = 0; tap < taps; ++tap) {
                    int64_t from = visit - (taps - 1) + tap;
                    grad_in += weight[tap] * later[tap];
                    if (from >= 0) sums[tap] += grad * load(inner + size.place(from, direction) * row, count);
                }
                sums[taps] += grad;
                save(grad_inputs + offset + place * row, grad_in, count);
                if (visit % TILE) continue;
                for (int64_t i = 0; i <= taps; ++i) totals[i] += sums[i], sums[i] = Lanes{};
            }
            float* out = grad_params + ((b * size.directions + direction) * size.channels + first) * (taps + 1);
            for (int64_t i = 0; i <= taps; ++i)
                for (int lane = 0; lane < count; ++lane) out[lane * (taps + 1) + i] = totals[i][lane];
        }
    }
}

}  // namespace

extern "C" {

int ripe_mamba_groups(int64_t channels) {
    return int((channels + LANES * BLOCKS - 1) / (LANES * BLOCKS));
}

void ripe_mamba_scan_backward(const int64_t* sizes, int64_t bf16, const void* inputs, const float* u, const float* proj,
                              const float* dt_proj, const float* dt_bias, const float* decay, const float* skip,
                              const void* grad, void* grad_inputs, float* grad_u, float* grad_step, float* grad_proj,
                              float* grad_params, int64_t threads) {
    const Sizes& size = *reinterpret_cast<const Sizes*>(sizes);
    Given given{u, proj, dt_proj, dt_bias, decay, skip};
    Wanted wanted{grad_u, grad_step, grad_proj, grad_params};
    if (bf16)
        scan_backward(size, given, wanted, static_cast<const bfloat16*>(inputs), static_cast<const bfloat16*>(grad),
                      static_cast<bfloat16*>(grad_inputs), threads);
    else
        scan_backward(size, given, wanted, static_cast<const float*>(inputs), static_cast<const float*>(grad),
                      static_cast<float*>(grad_inputs), threads);
}

void ripe_mamba_conv_backward(const int64_t* sizes, int64_t bf16, const void* inputs, const float* conv,
                              const float* conv_bias, const float* grad_u, void* grad_inputs, float* grad_params,
                              int64_t threads) {
    const Sizes& size = *reinterpret_cast<const Sizes*>(sizes);
    if (bf16)
        conv_backward(size, static_cast<const bfloat16*>(inputs), conv, conv_bias, grad_u,
                      static_cast<bfloat16*>(grad_inputs), grad_params, threads);
    else
        conv_backward(size, static_cast<const float*>(inputs), conv, conv_bias, grad_u,
                      static_cast<float*>(grad_inputs), grad_params, threads);
}

}
