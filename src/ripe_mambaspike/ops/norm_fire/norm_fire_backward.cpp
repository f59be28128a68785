// The gradient of norm, neuron and temporal filter: the potentials are computed once more, block by block.
#include "neuron.h"

namespace {

constexpr int64_t BLOCK = 512;  // elements that go through all steps together

// What one thread has summed up, in double so that a batch of a billion elements still sums well. The row's sums of
// one block are kept in float.
struct Sums {
    enum { DECAY, ROTATION, GAIN, THRESHOLD, COEFFICIENT, KINDS };
    int64_t row, steps;
    std::vector<double> total;  // KINDS rows, then scale [T, row], shift [T, row]
    std::vector<float> block;
    void open(int64_t row_length, int64_t step_count) {
        row = row_length, steps = step_count;
        total.assign((KINDS + 2 * steps) * row, 0.0);
        block.assign(total.size(), 0.0f);
    }
    void flush() {
        for (size_t i = 0; i < total.size(); ++i) total[i] += block[i], block[i] = 0.0f;
    }
};

template <typename X>
struct Gradients {
    const X *spikes, *potential, *operand;  // may be null
    X* x;
};

// One row of the sweep back at step t. `kept_*` hold the potentials' real and imaginary parts of all steps.
template <typename X, bool RESONATING, bool RELAXED, bool FIRST>
void back_row(int64_t n, const X* __restrict x, const float* __restrict scale, const float* __restrict shift,
              const NeuronRow& neuron, float sharpness, const float* __restrict now_real,
              const float* __restrict old_real, const float* __restrict old_imag, const X* __restrict spikes,
              const X* __restrict potential, const X* __restrict operand, float* __restrict grad_real,
              float* __restrict grad_imag, float* __restrict grad_after, float* __restrict sums, int64_t row,
              float* __restrict sum_scale, float* __restrict sum_shift, X* __restrict grad_x) {
    const float *__restrict decay = neuron.decay.data(), *__restrict rotation = neuron.rotation.data();
    const float *__restrict gain = neuron.gain.data(), *__restrict threshold = neuron.threshold.data();
    const float* __restrict coefficient = neuron.coefficient.data();
    float *__restrict sum_decay = sums, *__restrict sum_rotation = sums + row, *__restrict sum_gain = sums + 2 * row;
    float *__restrict sum_threshold = sums + 3 * row, *__restrict sum_coefficient = sums + 4 * row;
    const float width = 1.57079632679489662f * sharpness;
    const float per_spike = RESONATING ? RESET : 1.0f, doubled = RESONATING ? 2.0f : 1.0f;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float v = threshold[i], given = to_float(x[i]), step_scale = scale[i];
        const float distance = doubled * now_real[i] - v, spike = fired<RELAXED>(distance, sharpness);
        const float slope = RELAXED ? sharpness * spike * (1.0f - spike)
                                    : 0.5f * sharpness / (1.0f + width * distance * width * distance);
        // The state before this step, nothing before the first.
        const float old_spike = FIRST ? 0.0f : fired<RELAXED>(doubled * old_real[i] - v, sharpness);
        const float left = FIRST ? 0.0f : old_real[i] - (RESONATING ? RESET : v) * old_spike;
        const float turned = RESONATING && !FIRST ? old_imag[i] : 0.0f;

        const float to_operand = to_float(operand[i]), later = grad_real[i];
        const float to_spike = to_float(spikes[i]) + to_operand + coefficient[i] * (to_operand - grad_after[i]) -
                               (RESONATING ? per_spike : v) * later;
        const float through = to_spike * slope, to_potential = to_float(potential[i]) + through;
        const float to_real = later + doubled * to_potential;
        const float to_imag = RESONATING ? grad_imag[i] : 0.0f;
        sum_threshold[i] -= through + (RESONATING ? 0.0f : later * spike);
        sum_coefficient[i] += to_operand * (spike - old_spike);
        sum_decay[i] += to_real * left + to_imag * turned;
        if (RESONATING) sum_rotation[i] += to_imag * left - to_real * turned;
        sum_gain[i] += to_real * (step_scale * given + shift[i]);
        const float to_normed = to_real * gain[i];
        sum_scale[i] += to_normed * given;
        sum_shift[i] += to_normed;
        store(grad_x[i], to_normed * step_scale);
        grad_after[i] = to_operand;
        grad_real[i] = RESONATING ? to_real * decay[i] + to_imag * rotation[i] : to_real * decay[i];
        if (RESONATING) grad_imag[i] = to_imag * decay[i] - to_real * rotation[i];
    }
}

// Step through a row once more for the potentials the sweep back needs.
template <typename X, bool RESONATING, bool RELAXED>
void again_row(int64_t n, const X* __restrict x, const float* __restrict scale, const float* __restrict shift,
               const NeuronRow& neuron, float sharpness, float* __restrict real, float* __restrict imag,
               float* __restrict kept_real, float* __restrict kept_imag) {
    const float *__restrict decay = neuron.decay.data(), *__restrict rotation = neuron.rotation.data();
    const float *__restrict gain = neuron.gain.data(), *__restrict threshold = neuron.threshold.data();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        float drive = scale[i] * to_float(x[i]) + shift[i];
        Step step = advance<RESONATING, RELAXED>(real[i], RESONATING ? imag[i] : 0.0f, drive, decay[i], rotation[i],
                                                 gain[i], threshold[i], sharpness);
        real[i] = step.real;
        if (RESONATING) imag[i] = kept_imag[i] = step.imag;
        kept_real[i] = RESONATING ? 0.5f * step.potential : step.potential;
    }
}

template <typename X, bool RESONATING, bool RELAXED>
void back_all(const FireTask& task, const void* given, const void* spikes, const void* potential, const void* operand,
              void* grad_x, std::vector<Sums>& sums) {
    const X* x = static_cast<const X*>(given);
    const Gradients<X> grads{static_cast<const X*>(spikes), static_cast<const X*>(potential),
                             static_cast<const X*>(operand), static_cast<X*>(grad_x)};
    const Blocks blocks(task.shape, task.row, BLOCK);
    const int64_t items = task.shape.batch * blocks.each, steps = task.shape.steps, row = task.row.length;
    const int team = static_cast<int>(sums.size());
    const std::vector<X> nothing(row, X{});
#pragma omp parallel for num_threads(team) schedule(static, 1) if (team > 1)
    for (int member = 0; member < team; ++member) {
        static thread_local std::vector<float> scratch;
        scratch.resize((2 * steps + 3) * blocks.length);
        float *real = scratch.data(), *imag = real + blocks.length, *after = imag + blocks.length;
        float *kept_real = after + blocks.length, *kept_imag = kept_real + steps * blocks.length;
        Sums& own = sums[member];
        own.open(row, steps);
        const Share share(items, member, team);
        for (int64_t item = share.first; item < share.last; ++item) {
            const int64_t sample = item / blocks.each, start = item % blocks.each * blocks.length;
            const int64_t size = std::min(blocks.length, blocks.plane - start);
            std::fill(real, real + 3 * blocks.length, 0.0f);
            for (int64_t t = 0; t < steps; ++t) {
                const int64_t base = (sample * steps + t) * blocks.plane + start, kept = t * blocks.length;
                for (int64_t i = 0; i < size; i += row)
                    again_row<X, RESONATING, RELAXED>(std::min(row, size - i), x + base + i, &task.scale[t * row],
                                                      &task.shift[t * row], task.neuron, task.sharpness, real + i,
                                                      imag + i, kept_real + kept + i, kept_imag + kept + i);
            }
            std::fill(real, real + 2 * blocks.length, 0.0f);
            for (int64_t t = steps - 1; t >= 0; --t) {
                const int64_t base = (sample * steps + t) * blocks.plane + start, kept = t * blocks.length;
                const int64_t old = t > 0 ? kept - blocks.length : kept;
                auto run = t > 0 ? back_row<X, RESONATING, RELAXED, false> : back_row<X, RESONATING, RELAXED, true>;
                float* by_step = own.block.data() + (Sums::KINDS + t) * row;
                for (int64_t i = 0; i < size; i += row) {
                    auto at = [&](const X* given) { return given == nullptr ? nothing.data() : given + base + i; };
                    run(std::min(row, size - i), x + base + i, &task.scale[t * row], &task.shift[t * row],
                        task.neuron, task.sharpness, kept_real + kept + i, kept_real + old + i, kept_imag + old + i,
                        at(grads.spikes), at(grads.potential), at(grads.operand), real + i, imag + i, after + i,
                        own.block.data(), row, by_step, by_step + steps * row, grads.x + base + i);
                }
            }
            own.flush();
        }
    }
}

// All threads' sums of one kind and its row's repetitions -> [C], always in the same order.
void collect(const std::vector<Sums>& sums, const Row& row, int64_t offset, int64_t lines, float* out) {
    if (out == nullptr) return;
    for (int64_t line = 0; line < lines; ++line)
        for (int64_t c = 0; c < row.channels; ++c) {
            double total = 0.0;
            for (const Sums& own : sums)
                for (int64_t i = c; i < row.length; i += row.channels)
                    total += own.total[offset + line * row.length + i];
            out[line * row.channels + c] = static_cast<float>(total);
        }
}

}  // namespace

extern "C" void ripe_norm_fire_backward(
    int64_t is_bfloat16, int64_t relaxed, int64_t batch, int64_t steps, int64_t positions, int64_t channels, const void* x,
    const float* scale, const float* shift, const float* decay, const float* rotation, const float* gain,
    const float* threshold, const float* coefficient, const void* grad_spikes, const void* grad_potential,
    const void* grad_operand, double sharpness, void* grad_x, float* grad_scale, float* grad_shift, float* grad_decay,
    float* grad_rotation, float* grad_gain, float* grad_threshold, float* grad_coefficient, int64_t threads) {
    const Shape shape{batch, steps, positions, channels};
    const FireTask task(shape, false, scale, shift, decay, rotation, gain, threshold, coefficient, sharpness);
    const Blocks blocks(shape, task.row, BLOCK);
    std::vector<Sums> sums(useful_threads(static_cast<int>(threads), batch * blocks.each, steps * blocks.length));
    const bool turns = rotation != nullptr;
    auto run = is_bfloat16 ? (turns ? (relaxed ? back_all<bfloat16, true, true> : back_all<bfloat16, true, false>)
                              : (relaxed ? back_all<bfloat16, false, true> : back_all<bfloat16, false, false>))
                     : (turns ? (relaxed ? back_all<float, true, true> : back_all<float, true, false>)
                              : (relaxed ? back_all<float, false, true> : back_all<float, false, false>));
    run(task, x, grad_spikes, grad_potential, grad_operand, grad_x, sums);
    const int64_t row = task.row.length, by_step = Sums::KINDS * row;
    float* kinds[] = {grad_decay, grad_rotation, grad_gain, grad_threshold, grad_coefficient};
    for (int64_t kind = 0; kind < Sums::KINDS; ++kind) collect(sums, task.row, kind * row, 1, kinds[kind]);
    collect(sums, task.row, by_step, steps, grad_scale);
    collect(sums, task.row, by_step + steps * row, steps, grad_shift);
}
