// Spikes of one scale as pooled cumulative rates on a grid, and the gradient.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "vector.h"

namespace {

// Where a cell of adaptive average pooling begins and ends on an axis of `size`.
struct Cells {
    int64_t size, cells;
    int64_t begin(int64_t cell) const { return cell * size / cells; }
    int64_t end(int64_t cell) const { return ((cell + 1) * size + cells - 1) / cells; }
    int64_t length(int64_t cell) const { return end(cell) - begin(cell); }

    // The cells that a place lies in.
    int64_t first(int64_t place) const { return place * cells / size; }
    int64_t last(int64_t place) const { return ((place + 1) * cells + size - 1) / size; }
};

struct Pooled {
    int64_t batch, steps, channels;
    Cells rows, columns;
    int64_t wide, offset;  // channels of the pooled tensor, and where this scale's begin
    const float* count;       // [B, cells, C]: spikes before the first step, averaged over the cell; or null
    const int64_t* first;     // [B]: steps before the first one; null where there were none
    const int64_t* state_rows;  // [B]: where in `count` and `final` a sample is; null where it is its own index
    float* final;             // [B, cells, C]: the count after the last step; or null; may be `count`
    int64_t position() const { return rows.size * columns.size * channels; }
    int64_t state_at(int64_t sample, int64_t row) const {
        return ((state_rows == nullptr ? sample : state_rows[sample]) * rows.cells + row) * columns.cells * channels;
    }
};

// A state's counts of one row of cells and back. Inside, spikes are summed and not averaged: hard spikes then add up
// exactly, and are whole numbers again when a state is read.
template <bool HARD>
void load_counts(const Pooled& task, int64_t sample, int64_t row, float* totals, float* rates) {
    const int64_t channels = task.channels, columns = task.columns.cells, before = task.first[sample];
    const float* from = task.count + task.state_at(sample, row);
    for (int64_t column = 0; column < columns; ++column) {
        const float area = static_cast<float>(task.rows.length(row) * task.columns.length(column));
        const float share = before == 0 ? 0.0f : 1.0f / (area * static_cast<float>(before));
#pragma omp simd
        for (int64_t c = column * channels; c < (column + 1) * channels; ++c) {
            const float total = from[c] * area;
            totals[c] = HARD ? std::nearbyint(total) : total;
            rates[c] = totals[c] * share;
        }
    }
}

void save_counts(const Pooled& task, int64_t sample, int64_t row, const float* totals) {
    const int64_t channels = task.channels, columns = task.columns.cells;
    float* to = task.final + task.state_at(sample, row);
    for (int64_t column = 0; column < columns; ++column) {
        const float area = static_cast<float>(task.rows.length(row) * task.columns.length(column));
#pragma omp simd
        for (int64_t c = column * channels; c < (column + 1) * channels; ++c) to[c] = totals[c] / area;
    }
}

// One row of cells of one sample, step after step; `total` counts the spikes of every cell so far.
template <typename S, typename X>
void pool_row(const Pooled& task, const S* spikes, int64_t sample, int64_t row, X* pooled, std::vector<float>& work) {
    const int64_t channels = task.channels, columns = task.columns.cells;
    work.assign(2 * columns * channels, 0.0f);
    float *totals = work.data(), *rates = totals + columns * channels;
    const int64_t before = task.first == nullptr ? 0 : task.first[sample];
    if (task.count != nullptr) load_counts<std::is_same<S, uint8_t>::value>(task, sample, row, totals, rates);
    for (int64_t t = 0; t < task.steps; ++t) {
        const S* plane = spikes + (sample * task.steps + t) * task.position();
        X* line = pooled + (((sample * task.steps + t) * task.rows.cells + row) * columns) * task.wide + task.offset;
        for (int64_t column = 0; column < columns; ++column) {
            float *__restrict total = totals + column * channels, *__restrict rate = rates + column * channels;
            const int64_t first = task.columns.begin(column), last = task.columns.end(column);
            for (int64_t y = task.rows.begin(row); y < task.rows.end(row); ++y)
                for (int64_t x = first; x < last; ++x) {
                    const S* __restrict from = plane + (y * task.columns.size + x) * channels;
#pragma omp simd
                    for (int64_t c = 0; c < channels; ++c) total[c] += to_float(from[c]);
                }
            const float share = 1.0f / static_cast<float>(task.rows.length(row) * (last - first) * (before + t + 1));
            X *__restrict now = line + column * task.wide, *__restrict change = now + channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; ++c) {
                const float value = total[c] * share;
                store(now[c], value);
                store(change[c], value - rate[c]);
                rate[c] = value;
            }
        }
    }
    if (task.final != nullptr) save_counts(task, sample, row, totals);
}

template <typename S, typename X>
void pool(const Pooled& task, const void* spikes, void* pooled, int threads) {
    const int64_t items = task.batch * task.rows.cells;
    const int team = useful_threads(threads, items, task.steps * task.position() / task.rows.cells);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        std::vector<float> work;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item)
            pool_row(task, static_cast<const S*>(spikes), item / task.rows.cells, item % task.rows.cells,
                     static_cast<X*>(pooled), work);
    }
}

// One row of positions: a spike counts in its own step's rate and in all later ones, in every cell it lies in.
template <typename X>
void spread_row(const Pooled& task, const X* grad, int64_t sample, int64_t y, X* out, std::vector<float>& work) {
    const int64_t channels = task.channels, columns = task.columns.cells, width = task.columns.size;
    work.assign(columns * channels + channels, 0.0f);
    float *cells = work.data(), *__restrict sum = cells + columns * channels;
    for (int64_t t = task.steps - 1; t >= 0; --t) {
        for (int64_t row = task.rows.first(y); row < task.rows.last(y); ++row) {
            const int64_t cell_row = (sample * task.steps + t) * task.rows.cells + row;
            const X* line = grad + cell_row * columns * task.wide + task.offset;
            const X* later = line + task.rows.cells * columns * task.wide;
            for (int64_t column = 0; column < columns; ++column) {
                const float area = static_cast<float>(task.rows.length(row) * task.columns.length(column));
                const float share = 1.0f / (area * static_cast<float>(t + 1));
                const X *__restrict to_rate = line + column * task.wide, *__restrict to_change = to_rate + channels;
                float* __restrict cell = cells + column * channels;
                if (t + 1 < task.steps) {
                    const X* __restrict to_next = later + column * task.wide + channels;
#pragma omp simd
                    for (int64_t c = 0; c < channels; ++c)
                        cell[c] += (to_float(to_rate[c]) + to_float(to_change[c]) - to_float(to_next[c])) * share;
                } else {
#pragma omp simd
                    for (int64_t c = 0; c < channels; ++c)
                        cell[c] += (to_float(to_rate[c]) + to_float(to_change[c])) * share;
                }
            }
        }
        X* line = out + (sample * task.steps + t) * task.position() + y * width * channels;
        for (int64_t x = 0; x < width; ++x) {
            std::fill(sum, sum + channels, 0.0f);
            for (int64_t column = task.columns.first(x); column < task.columns.last(x); ++column) {
                const float* __restrict cell = cells + column * channels;
#pragma omp simd
                for (int64_t c = 0; c < channels; ++c) sum[c] += cell[c];
            }
            X* __restrict to = line + x * channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; ++c) store(to[c], sum[c]);
        }
    }
}

template <typename X>
void spread(const Pooled& task, const void* grad, void* out, int threads) {
    const int64_t height = task.rows.size, items = task.batch * height;
    const int team = useful_threads(threads, items, task.steps * task.position() / height);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        std::vector<float> work;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item)
            spread_row(task, static_cast<const X*>(grad), item / height, item % height, static_cast<X*>(out), work);
    }
}

}  // namespace

// kind: 0 for bytes, 1 for numbers in the output's precision.
extern "C" void ripe_pooled_rates(int64_t is_bfloat16, int64_t kind, int64_t batch, int64_t steps, int64_t height,
                                  int64_t width, int64_t channels, int64_t rows, int64_t columns, int64_t wide,
                                  int64_t offset, const void* spikes, const float* count, const int64_t* first,
                                  const int64_t* state_rows, void* pooled, float* final, int64_t threads) {
    const Pooled task{batch,  steps, channels, {height, rows}, {width, columns}, wide,
                      offset, count, first,    state_rows,     final};
    auto run = is_bfloat16 ? (kind ? pool<bfloat16, bfloat16> : pool<uint8_t, bfloat16>)
                     : (kind ? pool<float, float> : pool<uint8_t, float>);
    run(task, spikes, pooled, static_cast<int>(threads));
}

extern "C" void ripe_pooled_rates_backward(int64_t is_bfloat16, int64_t batch, int64_t steps, int64_t height, int64_t width,
                                           int64_t channels, int64_t rows, int64_t columns, int64_t wide,
                                           int64_t offset, const void* grad, void* out, int64_t threads) {
    const Pooled task{batch, steps, channels, {height, rows}, {width, columns}, wide, offset};
    (is_bfloat16 ? spread<bfloat16> : spread<float>)(task, grad, out, static_cast<int>(threads));
}
