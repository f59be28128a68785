// Norm over time, neuron and temporal filter in one pass.
#include <type_traits>

#include "neuron.h"

namespace {

template <typename X, typename S, bool RESONATING, bool RELAXED, bool KEEP>
void fire_row(int64_t n, const X* __restrict x, const float* __restrict scale, const float* __restrict shift,
              const NeuronRow& neuron, float sharpness, float* __restrict real, float* __restrict imag,
              float* __restrict before, S* __restrict spikes, X* __restrict potential, X* __restrict operand) {
    const float *__restrict decay = neuron.decay.data(), *__restrict rotation = neuron.rotation.data();
    const float *__restrict gain = neuron.gain.data(), *__restrict threshold = neuron.threshold.data();
    const float* __restrict coefficient = neuron.coefficient.data();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        float drive = scale[i] * to_float(x[i]) + shift[i];
        Step step = advance<RESONATING, RELAXED>(real[i], RESONATING ? imag[i] : 0.0f, drive, decay[i], rotation[i],
                                                 gain[i], threshold[i], sharpness);
        real[i] = step.real;
        if (RESONATING) imag[i] = step.imag;
        store(operand[i], step.spike + coefficient[i] * (step.spike - before[i]));
        before[i] = step.spike;
        if (KEEP) store(potential[i], step.potential);
        if (RELAXED)
            store(reinterpret_cast<X*>(spikes)[i], step.spike);
        else
            reinterpret_cast<uint8_t*>(spikes)[i] = step.spike > 0.5f;
    }
}

template <typename X, bool RESONATING, bool RELAXED, bool KEEP>
void fire_all(const FireTask& task, const X* x, const State& state, void* spikes_out, X* potential, X* operand,
              int threads) {
    using S = typename std::conditional<RELAXED, X, uint8_t>::type;
    S* spikes = static_cast<S*>(spikes_out);
    const Blocks blocks(task.shape, task.row, 1024);
    const int64_t items = task.shape.batch * blocks.each, steps = task.shape.steps, row = task.row.length;
    const int team = useful_threads(threads, items, steps * blocks.length);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < items; ++item) {
        static thread_local std::vector<float> scratch;
        scratch.resize(3 * blocks.length);
        const int64_t sample = item / blocks.each, start = item % blocks.each * blocks.length;
        const int64_t size = std::min(blocks.length, blocks.plane - start);
        const float* scale = &task.scale[sample * task.sample_rows * row];
        const float* shift = &task.shift[sample * task.sample_rows * row];
        const WorkingState<RELAXED> now(state, state.row(sample) * blocks.plane + start, size, scratch.data());
        for (int64_t t = 0; t < steps; ++t) {
            const int64_t base = (sample * steps + t) * blocks.plane + start;
            for (int64_t i = 0; i < size; i += row)
                fire_row<X, S, RESONATING, RELAXED, KEEP>(
                    std::min(row, size - i), x + base + i, scale + t * row, shift + t * row, task.neuron, task.sharpness,
                    now.real + i, now.imag + i, now.before + i, spikes + base + i,
                    KEEP ? potential + base + i : nullptr, operand + base + i);
        }
        now.save();
    }
}

template <typename X, bool RESONATING, bool RELAXED>
void fire_kept(const FireTask& task, const void* x, const State& state, void* spikes, void* potential, void* operand,
               int threads) {
    const X* input = static_cast<const X*>(x);
    X *kept = static_cast<X*>(potential), *out = static_cast<X*>(operand);
    if (kept != nullptr)
        fire_all<X, RESONATING, RELAXED, true>(task, input, state, spikes, kept, out, threads);
    else
        fire_all<X, RESONATING, RELAXED, false>(task, input, state, spikes, kept, out, threads);
}

}  // namespace

extern "C" void ripe_norm_fire(int64_t is_bfloat16, int64_t relaxed, int64_t batch, int64_t steps, int64_t positions,
                               int64_t channels, const void* x, int64_t own_rows, const float* scale,
                               const float* shift, const float* decay, const float* rotation, const float* gain,
                               const float* threshold, const float* coefficient, double sharpness,
                               const float* membrane, const float* membrane_imag, const void* last_spikes,
                               const int64_t* state_rows, void* spikes, void* potential, void* operand,
                               float* final_membrane, float* final_imag, void* final_spikes, int64_t threads) {
    const Shape shape{batch, steps, positions, channels};
    const FireTask task(shape, own_rows, scale, shift, decay, rotation, gain, threshold, coefficient, sharpness);
    const bool turns = rotation != nullptr;
    auto run = is_bfloat16 ? (turns ? (relaxed ? fire_kept<bfloat16, true, true> : fire_kept<bfloat16, true, false>)
                              : (relaxed ? fire_kept<bfloat16, false, true> : fire_kept<bfloat16, false, false>))
                     : (turns ? (relaxed ? fire_kept<float, true, true> : fire_kept<float, true, false>)
                              : (relaxed ? fire_kept<float, false, true> : fire_kept<float, false, false>));
    const State state{membrane, membrane_imag, last_spikes, state_rows, final_membrane, final_imag, final_spikes};
    run(task, x, state, spikes, potential, operand, static_cast<int>(threads));
}
