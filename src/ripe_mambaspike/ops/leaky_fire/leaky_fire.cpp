// The leaky neuron over all steps and its gradient. A block of elements goes through all steps before the next one.
#include <algorithm>
#include <vector>

#include "vector.h"

namespace {

constexpr int64_t BLOCK = 1024;        // elements of a block, forward
constexpr int64_t BACK_BLOCK = 512;    // backward, where the membranes of all its steps are kept
constexpr int64_t BACK_FLOATS = 16384;  // of them, so that they stay in the cache

enum Surrogate { ATAN, SIGMOID, TRIANGLE };

struct Neuron {
    float decay, gain, threshold, sharpness;
};

// a·b + c, rounded alike wherever it is computed: the backward pass has to see the spikes of the forward pass.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;  // nothing to contract into
#endif
}

inline float charged(const Neuron& neuron, float before, float x) {
    return multiply_add(neuron.decay, before, neuron.gain * x);
}

inline float spiked(const Neuron& neuron, float potential) { return potential >= neuron.threshold ? 1.0f : 0.0f; }

template <bool HARD>
inline float after_reset(const Neuron& neuron, float potential, float spike) {
    return HARD ? potential * (1.0f - spike) : potential - neuron.threshold * spike;
}

template <int SURROGATE>
inline float slope_at(float distance, float sharpness) {
    if (SURROGATE == ATAN) {
        const float angle = 1.57079632679489662f * sharpness * distance;
        return 0.5f * sharpness / (1.0f + angle * angle);
    }
    if (SURROGATE == SIGMOID) {
        const float spike = sigmoid(sharpness * distance);
        return sharpness * spike * (1.0f - spike);
    }
    const float height = 1.0f - sharpness * std::fabs(distance);
    return sharpness * (height < 0.0f ? 0.0f : height);  // NaN stays NaN
}

// x [G, T, N] cut into blocks of some of the N elements.
struct Cut {
    int64_t groups, steps, size, length, each;
    Cut(int64_t groups, int64_t steps, int64_t size, int64_t length)
        : groups(groups), steps(steps), size(size), length(length), each((size + length - 1) / length) {}
    int64_t items() const { return groups * each; }
};

struct Place {
    int64_t first, state, size;  // of x, of the state, elements
    Place(const Cut& cut, int64_t item) {
        const int64_t group = item / cut.each, start = item % cut.each * cut.length;
        first = group * cut.steps * cut.size + start;
        state = group * cut.size + start;
        size = std::min(cut.length, cut.size - start);
    }
};

void copy_or_zero(const float* from, int64_t n, float* to) {
    if (from == nullptr)
        std::fill(to, to + n, 0.0f);
    else
        std::copy(from, from + n, to);
}

template <typename X, bool HARD>
void fire_row(int64_t n, Neuron neuron, const X* __restrict x, float* __restrict membrane, X* __restrict spikes) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float potential = charged(neuron, membrane[i], to_float(x[i])), spike = spiked(neuron, potential);
        membrane[i] = after_reset<HARD>(neuron, potential, spike);
        store(spikes[i], spike);
    }
}

template <typename X, bool HARD>
void fire_all(const Cut& cut, const Neuron& neuron, const void* given, const float* initial, void* spikes_out,
              float* final_state, int threads) {
    const X* x = static_cast<const X*>(given);
    X* spikes = static_cast<X*>(spikes_out);
    const int team = useful_threads(threads, cut.items(), cut.steps * cut.length);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < cut.items(); ++item) {
        const Place place(cut, item);
        float* membrane = final_state + place.state;
        copy_or_zero(initial == nullptr ? nullptr : initial + place.state, place.size, membrane);
        for (int64_t t = 0; t < cut.steps; ++t) {
            const int64_t at = place.first + t * cut.size;
            fire_row<X, HARD>(place.size, neuron, x + at, membrane, spikes + at);
        }
    }
}

// Step once more through a row: the membrane before the step -> the one after it.
template <typename X, bool HARD>
void again_row(int64_t n, Neuron neuron, const X* __restrict x, const float* __restrict before,
               float* __restrict after) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float potential = charged(neuron, before[i], to_float(x[i]));
        after[i] = after_reset<HARD>(neuron, potential, spiked(neuron, potential));
    }
}

struct Sums {
    double decay = 0.0, gain = 0.0;
};

// `later` is the gradient of the membrane after the step, and then of the one before it.
template <typename X, bool HARD, bool DETACHED, int SURROGATE>
void back_row(int64_t n, Neuron neuron, const X* __restrict x, const float* __restrict before,
              const X* __restrict grad_spikes, float* __restrict later, X* __restrict grad_x, Sums& sums) {
    float sum_decay = 0.0f, sum_gain = 0.0f;
#pragma omp simd reduction(+ : sum_decay, sum_gain)
    for (int64_t i = 0; i < n; ++i) {
        const float given = to_float(x[i]), potential = charged(neuron, before[i], given);
        const float spike = spiked(neuron, potential), to_membrane = later[i];
        const float by_reset = DETACHED ? 0.0f : (HARD ? potential : neuron.threshold) * to_membrane;
        const float through = (to_float(grad_spikes[i]) - by_reset) *
                              slope_at<SURROGATE>(potential - neuron.threshold, neuron.sharpness);
        const float to_potential = through + (HARD ? to_membrane * (1.0f - spike) : to_membrane);
        sum_decay += to_potential * before[i];
        sum_gain += to_potential * given;
        later[i] = neuron.decay * to_potential;
        store(grad_x[i], neuron.gain * to_potential);
    }
    sums.decay += sum_decay;
    sums.gain += sum_gain;
}

struct Gradients {
    const void* spikes;        // null for zeros
    const float* final_state;  // null for zeros
    void* x;
    float *initial, *decay, *gain;  // initial may be null
};

template <typename X, bool HARD, bool DETACHED, int SURROGATE>
void back_all(const Cut& cut, const Neuron& neuron, const void* given, const float* initial, const Gradients& grads,
              int threads) {
    const X *x = static_cast<const X*>(given), *grad_spikes = static_cast<const X*>(grads.spikes);
    X* grad_x = static_cast<X*>(grads.x);
    const int team = useful_threads(threads, cut.items(), cut.steps * cut.length);
    const std::vector<X> nothing(cut.length, X{});
    std::vector<Sums> sums(cut.items());  // one a block, added up in their order: the same bits for all threads
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < cut.items(); ++item) {
        static thread_local std::vector<float> scratch;
        scratch.resize((cut.steps + 1) * cut.length);
        float *later = scratch.data(), *membranes = later + cut.length;  // before each step
        const Place place(cut, item);
        copy_or_zero(initial == nullptr ? nullptr : initial + place.state, place.size, membranes);
        for (int64_t t = 0; t + 1 < cut.steps; ++t) {
            float* before = membranes + t * cut.length;
            again_row<X, HARD>(place.size, neuron, x + place.first + t * cut.size, before, before + cut.length);
        }
        copy_or_zero(grads.final_state == nullptr ? nullptr : grads.final_state + place.state, place.size, later);
        for (int64_t t = cut.steps - 1; t >= 0; --t) {
            const int64_t at = place.first + t * cut.size;
            back_row<X, HARD, DETACHED, SURROGATE>(
                place.size, neuron, x + at, membranes + t * cut.length,
                grad_spikes == nullptr ? nothing.data() : grad_spikes + at, later, grad_x + at, sums[item]);
        }
        if (grads.initial != nullptr) std::copy(later, later + place.size, grads.initial + place.state);
    }
    Sums total;
    for (const Sums& one : sums) total.decay += one.decay, total.gain += one.gain;
    *grads.decay = static_cast<float>(total.decay);
    *grads.gain = static_cast<float>(total.gain);
}

template <typename X, bool HARD, bool DETACHED>
auto back_for(int64_t surrogate) {
    return surrogate == ATAN      ? back_all<X, HARD, DETACHED, ATAN>
           : surrogate == SIGMOID ? back_all<X, HARD, DETACHED, SIGMOID>
                                  : back_all<X, HARD, DETACHED, TRIANGLE>;
}

template <typename X>
auto back_for(bool hard, bool detached, int64_t surrogate) {
    return hard ? (detached ? back_for<X, true, true>(surrogate) : back_for<X, true, false>(surrogate))
                : (detached ? back_for<X, false, true>(surrogate) : back_for<X, false, false>(surrogate));
}

}  // namespace

extern "C" void ripe_leaky_fire(int64_t is_bfloat16, int64_t hard, int64_t groups, int64_t steps, int64_t size,
                                const void* x, const float* decay, const float* gain, double threshold,
                                const float* initial, void* spikes, float* final_state, int64_t threads) {
    const Neuron neuron{*decay, *gain, static_cast<float>(threshold), 0.0f};
    auto run = is_bfloat16 ? (hard ? fire_all<bfloat16, true> : fire_all<bfloat16, false>)
                           : (hard ? fire_all<float, true> : fire_all<float, false>);
    run(Cut(groups, steps, size, BLOCK), neuron, x, initial, spikes, final_state, static_cast<int>(threads));
}

extern "C" void ripe_leaky_fire_backward(int64_t is_bfloat16, int64_t hard, int64_t detached, int64_t surrogate,
                                         int64_t groups, int64_t steps, int64_t size, const void* x,
                                         const float* decay, const float* gain, double threshold, double sharpness,
                                         const float* initial, const void* grad_spikes, const float* grad_final,
                                         void* grad_x, float* grad_decay, float* grad_gain, float* grad_initial,
                                         int64_t threads) {
    const Neuron neuron{*decay, *gain, static_cast<float>(threshold), static_cast<float>(sharpness)};
    const int64_t length = std::max<int64_t>(64, std::min(BACK_BLOCK, BACK_FLOATS / (steps + 1) / 64 * 64));
    auto run = is_bfloat16 ? back_for<bfloat16>(hard, detached, surrogate) : back_for<float>(hard, detached, surrogate);
    const Gradients grads{grad_spikes, grad_final, grad_x, grad_initial, grad_decay, grad_gain};
    run(Cut(groups, steps, size, length), neuron, x, initial, grads, static_cast<int>(threads));
}
