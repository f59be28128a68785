// Mean and variance of every step and channel, and their gradient.
#include "neuron.h"

namespace {

constexpr int64_t ROWS = 64;     // a block is read twice, the second time from the cache
constexpr int64_t PIECES = 32;   // of a step; fixed, so that the sums do not depend on the number of threads

// Count, mean and sum of squared deviations of a set, per element of a row.
struct Moments {
    double count = 0.0;
    std::vector<double> mean, deviation;
    explicit Moments(int64_t row) : mean(row, 0.0), deviation(row, 0.0) {}

    void add(double other_count, const float* other_mean, const float* other_deviation, int64_t n, int64_t first) {
        for (int64_t i = 0; i < n; ++i) merge(first + i, count, other_count, other_mean[i], other_deviation[i]);
    }
    void merge(int64_t i, double own_count, double other_count, double other_mean, double other_deviation) {
        const double all = own_count + other_count, gap = other_mean - mean[i];
        if (other_count == 0.0) return;
        mean[i] += gap * other_count / all;
        deviation[i] += other_deviation + gap * gap * own_count * other_count / all;
    }
};

// `rows` positions of C channels each, read twice: first for the mean, then for the distance from it.
template <typename X>
void block_moments(const X* x, int64_t rows, int64_t channels, float* __restrict mean, float* __restrict deviation) {
    std::fill(mean, mean + channels, 0.0f);
    std::fill(deviation, deviation + channels, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
        const X* __restrict line = x + r * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) mean[c] += to_float(line[c]);
    }
    for (int64_t c = 0; c < channels; ++c) mean[c] /= static_cast<float>(rows);
    for (int64_t r = 0; r < rows; ++r) {
        const X* __restrict line = x + r * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
            const float gap = to_float(line[c]) - mean[c];
            deviation[c] += gap * gap;
        }
    }
}

// Few channels: several positions make one row; only a sample's last row may be short.
template <typename X>
void moments(const Shape& shape, const X* x, float* mean_out, float* variance_out, int threads) {
    const Row row(shape.channels);
    const int64_t plane = shape.positions * shape.channels, whole = plane / row.length * row.length;
    const int64_t block = ROWS * row.length, blocks = std::max<int64_t>(1, (whole + block - 1) / block);
    const int64_t units = shape.batch * blocks, pieces = std::min(PIECES, units), items = shape.steps * pieces;
    std::vector<Moments> partial(items, Moments(row.length)), rest(items, Moments(row.length));
    const int team = useful_threads(threads, items, units / pieces * block);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < items; ++item) {
        const int64_t t = item / pieces;
        const Share share(units, static_cast<int>(item % pieces), static_cast<int>(pieces));
        std::vector<float> mean(row.length), deviation(row.length);
        Moments &own = partial[item], &short_rows = rest[item];
        for (int64_t unit = share.first; unit < share.last; ++unit) {
            const int64_t start = unit % blocks * block, rows = (std::min(block, whole - start)) / row.length;
            const X* plane_start = x + (unit / blocks * shape.steps + t) * plane;
            if (rows > 0) {
                block_moments(plane_start + start, rows, row.length, mean.data(), deviation.data());
                own.add(static_cast<double>(rows), mean.data(), deviation.data(), row.length, 0);
                own.count += static_cast<double>(rows);
            }
            if (unit % blocks == blocks - 1 && whole < plane) {
                block_moments(plane_start + whole, 1, plane - whole, mean.data(), deviation.data());
                short_rows.add(1.0, mean.data(), deviation.data(), plane - whole, 0);
                short_rows.count += 1.0;
            }
        }
    }
    const int64_t tail = plane - whole;
    for (int64_t t = 0; t < shape.steps; ++t)
        for (int64_t c = 0; c < shape.channels; ++c) {
            Moments all(1);
            for (int64_t item = t * pieces; item < (t + 1) * pieces; ++item)
                for (int64_t i = c; i < row.length; i += shape.channels) {
                    const Moments &own = partial[item], &short_rows = rest[item];
                    all.merge(0, all.count, own.count, own.mean[i], own.deviation[i]);
                    all.count += own.count;
                    if (i >= tail) continue;
                    all.merge(0, all.count, short_rows.count, short_rows.mean[i], short_rows.deviation[i]);
                    all.count += short_rows.count;
                }
            mean_out[t * shape.channels + c] = static_cast<float>(all.mean[0]);
            variance_out[t * shape.channels + c] = static_cast<float>(all.deviation[0] / all.count);
        }
}

template <typename X>
void moments_back(const Shape& shape, const X* x, const float* mean, const float* grad_mean,
                  const float* grad_variance, X* grad_x, int threads) {
    const Row row(shape.channels);
    const std::vector<float> means = row.repeated(mean, shape.steps, 0);
    const std::vector<float> to_mean = row.repeated(grad_mean, shape.steps, 0);
    const std::vector<float> to_variance = row.repeated(grad_variance, shape.steps, 0);
    const int64_t plane = shape.positions * shape.channels, block = ROWS * row.length;
    const int64_t blocks = (plane + block - 1) / block, items = shape.batch * shape.steps * blocks;
    const float share = static_cast<float>(1.0 / static_cast<double>(shape.batch * shape.positions));
    const int team = useful_threads(threads, items, block);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t item = 0; item < items; ++item) {
        const int64_t t = item / blocks % shape.steps, start = item % blocks * block;
        const int64_t base = item / blocks * plane;
        for (int64_t first = start; first < std::min(plane, start + block); first += row.length) {
            const int64_t n = std::min(row.length, plane - first);
            const X* __restrict given = x + base + first;
            X* __restrict out = grad_x + base + first;
            const float *__restrict centre = &means[t * row.length], *__restrict level = &to_mean[t * row.length];
            const float* __restrict spread = &to_variance[t * row.length];
#pragma omp simd
            for (int64_t i = 0; i < n; ++i)
                store(out[i], (level[i] + 2.0f * (to_float(given[i]) - centre[i]) * spread[i]) * share);
        }
    }
}

}  // namespace

extern "C" void ripe_step_moments(int64_t is_bfloat16, int64_t batch, int64_t steps, int64_t positions, int64_t channels,
                                  const void* x, float* mean, float* variance, int64_t threads) {
    const Shape shape{batch, steps, positions, channels};
    if (is_bfloat16)
        moments(shape, static_cast<const bfloat16*>(x), mean, variance, static_cast<int>(threads));
    else
        moments(shape, static_cast<const float*>(x), mean, variance, static_cast<int>(threads));
}

extern "C" void ripe_step_moments_backward(int64_t is_bfloat16, int64_t batch, int64_t steps, int64_t positions,
                                           int64_t channels, const void* x, const float* mean, const float* grad_mean,
                                           const float* grad_variance, void* grad_x, int64_t threads) {
    const Shape shape{batch, steps, positions, channels};
    const int team = static_cast<int>(threads);
    if (is_bfloat16)
        moments_back(shape, static_cast<const bfloat16*>(x), mean, grad_mean, grad_variance,
                     static_cast<bfloat16*>(grad_x), team);
    else
        moments_back(shape, static_cast<const float*>(x), mean, grad_mean, grad_variance, static_cast<float*>(grad_x),
                     team);
}
