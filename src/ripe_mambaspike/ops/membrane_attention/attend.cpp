// DS-MPA over all steps, alone or together with the neuron that reads it.
//
// For every step t > 0, and for the first where the spikes before it are given: G = phi(K)' S with the spikes S of the step before, k = the sum of phi(K), M = G W_V' (or M
// from the values, where positions are fewer than channels); then A = phi(Q) M / (phi(Q) k + eps) and X + gain A X.
// Before the first step there are no spikes: A is 0 there and nothing is multiplied.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "neuron.h"
#include "products.h"
#include "scratch.h"

namespace {

constexpr int64_t ROWS = 8 * TALL;  // positions in a block
constexpr float EPSILON = 1e-5f;

#ifdef HAS_PAIRS
template <typename X>
using Element = typename std::conditional<std::is_same<X, bfloat16>::value, Pair, float>::type;
#else
template <typename X>
using Element = float;
#endif

template <typename E>
constexpr int64_t depth_of(int64_t length) {
    return std::is_same<E, Pair>::value ? (length + 1) / 2 : length;
}

// Activations [rows, C] as the left side of a product over C: as they lie where they can be read like that.
const float* as_left(const float* x, int64_t, int64_t, float*) { return x; }
[[maybe_unused]] const float* as_left(const bfloat16* x, int64_t rows, int64_t channels, float* out) {
    widen(x, rows, channels, out, channels);
    return out;
}
const Pair* as_left(const bfloat16* x, int64_t rows, int64_t channels, Pair* out) {
    if (channels % 2 == 0) return reinterpret_cast<const Pair*>(x);
    const int64_t depth = depth_of<Pair>(channels);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < depth; ++c) {
            const uint32_t second = 2 * c + 1 < channels ? x[r * channels + 2 * c + 1].bits : 0;
            out[r * depth + c].bits = second << 16 | x[r * channels + 2 * c].bits;
        }
    return out;
}

// phi of a block in place, rounded as the products will round it; the sum over its rows is added to `sum`.
template <bool ROUND>
void feature_rows(float* block, int64_t rows, int64_t channels, int64_t wide, float* __restrict sum) {
    for (int64_t r = 0; r < rows; ++r) {
        float* __restrict line = block + r * wide;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
            const float feature = positive_feature(line[c]);
            const float value = ROUND ? round_to_bfloat16(feature) : feature;
            line[c] = value;
            sum[c] += value;
        }
    }
}

// phi(Q) / (phi(Q) k + eps) of a block of queries in place, as the left side of the next product.
template <typename E>
const E* feature_queries(float* block, int64_t rows, int64_t channels, int64_t wide, const float* __restrict key_sum,
                         E* out) {
    const int64_t depth = depth_of<E>(wide);
    for (int64_t r = 0; r < rows; ++r) {
        float* __restrict line = block + r * wide;
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < channels; ++c) {
            const float feature = positive_feature(line[c]);
            line[c] = feature;
            total += feature * key_sum[c];
        }
        const float inverse = 1.0f / (total + EPSILON);
        uint16_t* __restrict to = reinterpret_cast<uint16_t*>(out + r * depth);
#pragma omp simd
        for (int64_t c = 0; c < wide; ++c) {
            const float value = line[c] * inverse;
            if (std::is_same<E, Pair>::value) {
                bfloat16 rounded;
                store(rounded, value);
                to[c] = rounded.bits;
            } else {
                line[c] = value;
            }
        }
    }
    if constexpr (std::is_same<E, Pair>::value) return out;
    else return block;
}

template <typename X>
struct Attend {
    Shape shape;
    const X *potential, *features;
    const void *spikes, *input_spikes;  // and those of the step before the first [B, P, C], or null
    void* final_spikes;                 // where the last ones go: null, or the same memory
    bool bytes;  // spikes are bytes, else numbers like the potential
    float sharpness;
    X *out, *attention;  // out: the modulated features, or the operand of the next convolution
    void* fired;
    int64_t wide;  // columns of the weights as right sides of products, [depth, wide]
    const Element<X>*query, *key;
    const float* value;
    int64_t row;  // parameters repeated to this length, of one position where positions are padded
    const float *scale, *shift, *gain;  // [T, row] twice, [B, T, row] where samples are at different steps; [row]
    int64_t sample_rows;                // from one sample's rows to the next: 0 or T
    const NeuronRow* neuron;
    State state;
    int64_t skipped() const { return input_spikes == nullptr ? 1 : 0; }  // steps without attention
};

// The spikes of the step before, from position p of a sample on.
template <typename S, typename X>
const S* spikes_before(const Attend<X>& task, int64_t sample, int64_t t, int64_t p) {
    const int64_t step = task.shape.positions * task.shape.channels, at = p * task.shape.channels;
    if (t == 0) return static_cast<const S*>(task.input_spikes) + task.state.row(sample) * step + at;
    return static_cast<const S*>(task.spikes) + (sample * task.shape.steps + t - 1) * step + at;
}

// What step t of a sample's attention multiplies queries with: M [C, wide] and k [wide].
template <typename X>
void gather_keys(const Attend<X>& task, int64_t sample, int64_t t, Element<X>* mixed, float* key_sum) {
    using E = Element<X>;
    static thread_local Scratch scratch;
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    const int64_t depth = depth_of<E>(channels), block = ROWS * wide;
    scratch.open(4 * (6 * block + 2 * channels * wide), 8);
    float *keys = scratch.take<float>(block), *values = scratch.take<float>(block);
    float *gathered = scratch.take<float>(channels * wide), *turned = scratch.take<float>(channels * wide);
    float* formed = scratch.take<float>(block);
    E *left = scratch.take<E>(block), *key_pairs = scratch.take<E>(block), *value_pairs = scratch.take<E>(block);
    const bool few = positions < channels;  // then values are less work than M from G
    std::fill(key_sum, key_sum + wide, 0.0f);
    for (int64_t p = 0; p < positions; p += ROWS) {
        const int64_t rows = std::min(ROWS, positions - p);
        const int64_t now = ((sample * task.shape.steps + t) * positions + p) * channels;
        const E* from = as_left(task.potential + now, rows, channels, left);
        multiply<E>(rows, wide, depth, {from, depth, 1}, task.key, wide, keys, wide, false);
        feature_rows<std::is_same<E, Pair>::value>(keys, rows, channels, wide, key_sum);
        if (task.bytes)
            widen(spikes_before<uint8_t>(task, sample, t, p), rows, channels, values, wide);
        else
            widen(spikes_before<X>(task, sample, t, p), rows, channels, values, wide);
        if (few) product(wide, rows, channels, {values, wide, 1}, task.value, formed, false);
        const E* by_key = paired_rows(keys, rows, wide, key_pairs);
        const E* by_value = paired_rows(few ? formed : values, rows, wide, value_pairs);
        multiply<E>(channels, wide, depth_of<E>(rows), {by_key, 1, wide}, by_value, wide, gathered, wide, p > 0);
    }
    if (!few) product(wide, channels, channels, {gathered, wide, 1}, task.value, turned, false);
    const E* packed = paired_rows(few ? gathered : turned, channels, wide, mixed);
    if (packed != mixed) std::copy(packed, packed + channels * wide, mixed);
}

// n elements that begin at `at`, normalized by row `table` of scale and shift: the modulated features, and the neuron if there is one.
template <typename X, bool FIRES, bool RESONATING, bool RELAXED>
void finish_row(const Attend<X>& task, int64_t n, int64_t table, int64_t at, const float* __restrict weight,
                float* __restrict real, float* __restrict imag, float* __restrict before) {
    const NeuronRow& neuron = *task.neuron;
    const float *__restrict scale = task.scale + table * task.row, *__restrict shift = task.shift + table * task.row;
    const float* __restrict gain = task.gain;
    const X* __restrict features = task.features + at;
    X* __restrict out = task.out + at;
    const float *__restrict decay = neuron.decay.data(), *__restrict rotation = neuron.rotation.data();
    const float *__restrict drive = neuron.gain.data(), *__restrict threshold = neuron.threshold.data();
    const float* __restrict coefficient = neuron.coefficient.data();
    uint8_t* __restrict bytes = static_cast<uint8_t*>(task.fired) + (RELAXED ? 0 : at);
    X* __restrict numbers = static_cast<X*>(task.fired) + (RELAXED ? at : 0);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float normed = scale[i] * to_float(features[i]) + shift[i];
        const float modulated = normed + gain[i] * weight[i] * normed;
        if (FIRES) {
            Step step = advance<RESONATING, RELAXED>(real[i], RESONATING ? imag[i] : 0.0f, modulated, decay[i],
                                                     rotation[i], drive[i], threshold[i], task.sharpness);
            real[i] = step.real;
            if (RESONATING) imag[i] = step.imag;
            store(out[i], step.spike + coefficient[i] * (step.spike - before[i]));
            before[i] = step.spike;
            if (RELAXED)
                store(numbers[i], step.spike);
            else
                bytes[i] = step.spike > 0.5f;
        } else {
            store(out[i], modulated);
        }
    }
}

// A block of positions through all steps.
template <typename X, bool FIRES, bool RESONATING, bool RELAXED>
void finish_block(const Attend<X>& task, int64_t sample, int64_t first, int64_t rows, const Element<X>* mixed,
                  const float* key_sums) {
    using E = Element<X>;
    static thread_local Scratch scratch;
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    const int64_t depth = depth_of<E>(channels), block = rows * wide, matrix = depth * wide;
    const int64_t together = task.row / channels;  // positions in one long loop
    scratch.open(4 * 7 * block, 5);
    float *queries = scratch.take<float>(block), *weights = scratch.take<float>(block);
    E *left = scratch.take<E>(block), *features = scratch.take<E>(block);
    float* own = scratch.take<float>(3 * block);
    const int64_t size = rows * channels, skipped = task.skipped();
    const int64_t at = (task.state.row(sample) * positions + first) * channels;
    const WorkingState<RELAXED> state(task.state, at, FIRES ? size : 0, own);
    for (int64_t t = 0; t < task.shape.steps; ++t) {
        const int64_t now = ((sample * task.shape.steps + t) * positions + first) * channels;
        if (t < skipped) {
            std::fill(weights, weights + block, 0.0f);
        } else {
            const E* from = as_left(task.potential + now, rows, channels, left);
            multiply<E>(rows, wide, depth, {from, depth, 1}, task.query, wide, queries, wide, false);
            const E* phi = feature_queries(queries, rows, channels, wide, key_sums + (t - skipped) * wide, features);
            multiply<E>(rows, wide, depth, {phi, depth_of<E>(wide), 1}, mixed + (t - skipped) * matrix, wide, weights, wide,
                        false);
        }
        if (task.attention != nullptr) narrow(weights, rows, channels, wide, task.attention + now);
        for (int64_t r = 0; r < rows; r += together) {
            const int64_t i = r * channels;
            finish_row<X, FIRES, RESONATING, RELAXED>(task, std::min(together, rows - r) * channels,
                                                      sample * task.sample_rows + t, now + i, weights + r * wide,
                                                      state.real + i, state.imag + i, state.before + i);
        }
    }
    if (FIRES) state.save();
    if (task.final_spikes != nullptr) {
        const int64_t last = ((sample * task.shape.steps + task.shape.steps - 1) * positions + first) * channels;
        const int64_t width = task.bytes ? 1 : sizeof(X);
        std::memcpy(static_cast<char*>(task.final_spikes) + at * width,
                    static_cast<const char*>(task.spikes) + last * width, size * width);
    }
}

// Samples in groups small enough that their matrices M stay in the cache, large enough that every thread has work.
template <typename X, bool FIRES, bool RESONATING, bool RELAXED>
void attend_all(const Attend<X>& task, int threads) {
    using E = Element<X>;
    static thread_local Scratch scratch;
    const int64_t batch = task.shape.batch, skipped = task.skipped();
    const int64_t later = task.shape.steps - skipped, positions = task.shape.positions;
    const int64_t matrix = depth_of<E>(task.shape.channels) * task.wide;
    const int64_t group = std::min(batch, later > 0 ? (2 * threads + later - 1) / later : batch);
    scratch.open(group * later * (matrix + task.wide) * 4, 2);
    E* mixed = scratch.take<E>(group * later * matrix);
    float* key_sums = scratch.take<float>(group * later * task.wide);
    int64_t blocks = (positions + ROWS - 1) / ROWS;
    if (blocks >= threads) blocks = (blocks + threads - 1) / threads * threads;
    const int64_t rows = (positions + blocks - 1) / blocks;
    const int64_t work = positions * task.wide * task.wide;
    for (int64_t first = 0; first < batch; first += group) {
        const int64_t samples = std::min(group, batch - first);
        const int team = useful_threads(threads, std::max(samples * later, samples * blocks), work);
#pragma omp parallel num_threads(team) if (team > 1)
        {
#pragma omp for schedule(dynamic, 1)
            for (int64_t item = 0; item < samples * later; ++item)
                gather_keys(task, first + item / later, skipped + item % later, mixed + item * matrix,
                            key_sums + item * task.wide);
#pragma omp for schedule(dynamic, 1)
            for (int64_t item = 0; item < samples * blocks; ++item) {
                const int64_t sample = item / blocks, start = item % blocks * rows;
                if (start < positions)
                    finish_block<X, FIRES, RESONATING, RELAXED>(
                        task, first + sample, start, std::min(rows, positions - start),
                        mixed + sample * later * matrix, key_sums + sample * later * task.wide);
            }
        }
    }
}

}  // namespace

extern "C" void ripe_attend(int64_t is_bfloat16, int64_t bytes, int64_t relaxed, int64_t batch, int64_t steps,
                            int64_t positions, int64_t channels, const void* potential, const void* spikes,
                            const void* features, int64_t own_rows, const float* scale, const float* shift,
                            const void* query, const void* key, const void* value, const float* gain,
                            const float* decay, const float* rotation, const float* drive, const float* threshold,
                            const float* coefficient, double sharpness, const void* input_spikes,
                            const float* membrane, const float* membrane_imag, const void* last_spikes,
                            const int64_t* state_rows, void* out, void* attention, void* fired,
                            void* final_input_spikes, float* final_membrane, float* final_imag, void* final_spikes,
                            int64_t threads) {
    const int64_t wide = padded(channels), size = channels * wide;
    const Row row(channels, wide == channels ? 256 : 1);
    const int64_t lines = own_rows ? batch * steps : steps;
    const NeuronRow neuron(row, decay, rotation, drive, threshold, coefficient);
    const std::vector<float> scales = row.repeated(scale, lines, 1), shifts = row.repeated(shift, lines, 0);
    const std::vector<float> gains = row.repeated(gain, 1, 0);
    auto run = [&](auto type) {
        using X = decltype(type);
        std::vector<float> turned(3 * size);
        std::vector<Element<X>> pairs(2 * size);
        const void* weights[] = {query, key, value};
        for (int i = 0; i < 3; ++i)
            transpose(static_cast<const X*>(weights[i]), channels, channels, channels, &turned[i * size], wide);
        const Attend<X> task{{batch, steps, positions, channels},
                             static_cast<const X*>(potential), static_cast<const X*>(features), spikes, input_spikes,
                             final_input_spikes, bytes != 0,
                             static_cast<float>(sharpness), static_cast<X*>(out), static_cast<X*>(attention), fired,
                             wide, paired_rows(&turned[0], channels, wide, &pairs[0]),
                             paired_rows(&turned[size], channels, wide, &pairs[size]), &turned[2 * size],
                             row.length, scales.data(), shifts.data(), gains.data(), own_rows ? steps : 0, &neuron,
                             {membrane, membrane_imag, last_spikes, state_rows, final_membrane, final_imag,
                              final_spikes}};
        auto turning = relaxed ? attend_all<X, true, true, true> : attend_all<X, true, true, false>;
        auto leaky = relaxed ? attend_all<X, true, false, true> : attend_all<X, true, false, false>;
        auto chosen = decay == nullptr ? attend_all<X, false, false, false> : rotation == nullptr ? leaky : turning;
        chosen(task, static_cast<int>(threads));
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}
