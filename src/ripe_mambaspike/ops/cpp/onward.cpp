// One step of neurons and of rates whose state is kept by the caller: many recordings at once, each at its own step.
//
// The arithmetic is that of a step inside norm_fire and pooled_rates, so that steps done one by one have the bits of
// all done together.
#include "neuron.h"

namespace {

struct Onward {
    Shape shape;  // of one step: steps is 1
    Row row;
    NeuronRow neuron;
    std::vector<float> scale, shift;  // [B, row]: every recording has its own step's
    const int64_t* slots;             // where in the state each recording's lies
    float* state;                     // [slots, 2, P C]: real and imaginary
    uint8_t* spiked;                  // [slots, P C]: spikes of the step before
};

// Returns how many fired.
template <bool RESONATING, bool KEEP>
int64_t onward_row(int64_t n, const float* __restrict x, const float* __restrict scale, const float* __restrict shift,
                   const NeuronRow& neuron, float* __restrict real, float* __restrict imag, uint8_t* __restrict spiked,
                   uint8_t* __restrict earlier, uint8_t* __restrict spikes, float* __restrict potential,
                   float* __restrict operand) {
    const float *__restrict decay = neuron.decay.data(), *__restrict rotation = neuron.rotation.data();
    const float *__restrict gain = neuron.gain.data(), *__restrict threshold = neuron.threshold.data();
    const float* __restrict coefficient = neuron.coefficient.data();
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; ++i) {
        float drive = scale[i] * to_float(x[i]) + shift[i];
        Step step = advance<RESONATING, false>(real[i], RESONATING ? imag[i] : 0.0f, drive, decay[i], rotation[i],
                                               gain[i], threshold[i], 0.0f);
        real[i] = step.real;
        if (RESONATING) imag[i] = step.imag;
        store(operand[i], step.spike + coefficient[i] * (step.spike - to_float(spiked[i])));
        if (KEEP) {
            store(potential[i], step.potential);
            earlier[i] = spiked[i];
        }
        spiked[i] = spikes[i] = step.spike > 0.5f;
        total += step.spike;
    }
    return static_cast<int64_t>(total);
}

template <bool RESONATING, bool KEEP>
void onward_all(const Onward& task, const float* x, uint8_t* earlier, uint8_t* spikes, float* potential,
                float* operand, int64_t* counts, int threads) {
    const Blocks blocks(task.shape, task.row, 1024);
    const int64_t items = task.shape.batch * blocks.each, row = task.row.length, plane = blocks.plane;
    const int team = useful_threads(threads, items, blocks.length);
    std::fill(counts, counts + task.shape.batch, 0);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < items; ++item) {
        const int64_t sample = item / blocks.each, start = item % blocks.each * blocks.length;
        const int64_t size = std::min(blocks.length, plane - start), base = sample * plane + start;
        float *real = task.state + task.slots[sample] * 2 * plane + start, *imag = real + plane;
        uint8_t* spiked = task.spiked + task.slots[sample] * plane + start;
        int64_t fired = 0;
        for (int64_t i = 0; i < size; i += row)
            fired += onward_row<RESONATING, KEEP>(std::min(row, size - i), x + base + i, &task.scale[sample * row],
                                                  &task.shift[sample * row], task.neuron, real + i, imag + i,
                                                  spiked + i, KEEP ? earlier + base + i : nullptr, spikes + base + i,
                                                  KEEP ? potential + base + i : nullptr, operand + base + i);
#pragma omp atomic
        counts[sample] += fired;
    }
}

// Rates of one scale, pooled to a grid by cells that begin at c size / cells and may overlap.
struct OnwardRates {
    int64_t batch, height, width, channels, rows, columns, wide, offset;
    const int64_t *slots, *steps;  // steps done before this one
    float* state;                  // [slots, cells, 2, C]: spikes so far, rate of the step before
};

int64_t cell_begin(int64_t cell, int64_t size, int64_t cells) { return cell * size / cells; }
int64_t cell_end(int64_t cell, int64_t size, int64_t cells) { return ((cell + 1) * size + cells - 1) / cells; }

void onward_cell_row(const OnwardRates& task, const uint8_t* spikes, int64_t sample, int64_t row, float* pooled) {
    const int64_t channels = task.channels, top = cell_begin(row, task.height, task.rows);
    const int64_t bottom = cell_end(row, task.height, task.rows);
    const uint8_t* plane = spikes + sample * task.height * task.width * channels;
    for (int64_t column = 0; column < task.columns; ++column) {
        const int64_t first = cell_begin(column, task.width, task.columns);
        const int64_t last = cell_end(column, task.width, task.columns), cell = row * task.columns + column;
        float* __restrict total = task.state + (task.slots[sample] * task.rows * task.columns + cell) * 2 * channels;
        float* __restrict rate = total + channels;
        for (int64_t y = top; y < bottom; ++y)
            for (int64_t x = first; x < last; ++x) {
                const uint8_t* __restrict from = plane + (y * task.width + x) * channels;
#pragma omp simd
                for (int64_t c = 0; c < channels; ++c) total[c] += to_float(from[c]);
            }
        const int64_t area = (bottom - top) * (last - first);
        const float share = 1.0f / static_cast<float>(area * (task.steps[sample] + 1));
        float* __restrict now = pooled + (sample * task.rows * task.columns + cell) * task.wide + task.offset;
        float* __restrict change = now + channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
            const float value = total[c] * share;
            store(now[c], value);
            store(change[c], value - rate[c]);
            rate[c] = value;
        }
    }
}

}  // namespace

// x [B, P, C]; scale and shift [B, C] or null; earlier (spikes of the step before) and potential null unless wanted;
// counts [B]: how many fired.
extern "C" void ripe_onward_fire(int64_t batch, int64_t positions, int64_t channels, const float* x, const float* scale,
                                 const float* shift, const float* decay, const float* rotation, const float* gain,
                                 const float* threshold, const float* coefficient, const int64_t* slots, float* state,
                                 uint8_t* spiked, uint8_t* earlier, uint8_t* spikes, float* potential, float* operand,
                                 int64_t* counts, int64_t threads) {
    const Row row(channels);
    const Onward task{{batch, 1, positions, channels},
                      row,
                      NeuronRow(row, decay, rotation, gain, threshold, coefficient),
                      row.repeated(scale, batch, 1),
                      row.repeated(shift, batch, 0),
                      slots,
                      state,
                      spiked};
    auto run = rotation != nullptr ? (potential != nullptr ? onward_all<true, true> : onward_all<true, false>)
                                   : (potential != nullptr ? onward_all<false, true> : onward_all<false, false>);
    run(task, x, earlier, spikes, potential, operand, counts, static_cast<int>(threads));
}

// spikes [B, H, W, C] -> channels [offset, offset + 2C) of pooled [B, rows, columns, wide].
extern "C" void ripe_onward_rates(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t rows,
                                  int64_t columns, int64_t wide, int64_t offset, const uint8_t* spikes,
                                  const int64_t* slots, const int64_t* steps, float* state, float* pooled,
                                  int64_t threads) {
    const OnwardRates task{batch, height, width, channels, rows, columns, wide, offset, slots, steps, state};
    const int64_t items = batch * rows;
    const int team = useful_threads(static_cast<int>(threads), items, height * width * channels / rows);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < items; ++item) onward_cell_row(task, spikes, item / rows, item % rows, pooled);
}
