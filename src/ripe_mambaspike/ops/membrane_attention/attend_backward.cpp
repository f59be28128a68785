// The gradient of DS-MPA, in float32. One thread takes a whole step of a sample: keys, then queries with their
// gradients, then the keys' and the spikes' gradients. At the first step A is 0 and only the features have one. Where
// positions are fewer than channels, attention_backward_few.h has the cheaper order.
#include "attend_backward.h"
#include "attend_backward_few.h"

namespace {

constexpr int64_t TOGETHER = 128;  // positions whose share of the weights' gradients is summed in float, or one step's

// Sums of one thread over its steps: the three weights [C, wide] each, the gain [wide], scale and shift [T, wide].
struct Totals {
    std::vector<double> weights, gain, scale, shift;
    Totals(int64_t steps, int64_t channels, int64_t wide)
        : weights(3 * channels * wide, 0.0), gain(wide, 0.0), scale(steps * wide, 0.0), shift(steps * wide, 0.0) {}

    // What the desk's weights hold, if anything; they begin anew.
    void add(Desk& desk) {
        if (desk.summed == 0) return;
        for (size_t i = 0; i < weights.size(); ++i) weights[i] += desk.weights[i];
        desk.summed = 0;
    }
};

bool is_few(const Shape& shape) { return shape.positions < shape.channels; }

// phi(K), k, and of the centred spikes M; then G = phi(K)' S of the spikes themselves.
template <typename X>
void keys_of(const Task<X>& task, const Desk& desk, int64_t now, int64_t before) {
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    std::fill(desk.key_sum, desk.key_sum + wide, 0.0f);
    for (int64_t p = 0; p < positions; p += ROWS) {
        const int64_t rows = std::min(ROWS, positions - p);
        float* keys = desk.keys + p * wide;
        widen(task.potential + now + p * channels, rows, channels, desk.input, wide);
        product(wide, rows, channels, {desk.input, wide, 1}, task.key_turned, keys, false);
        key_features(desk, keys, rows, channels, wide);
        read_spikes(task, before + p * channels, rows, desk.mean, desk.spikes);
        product(wide, channels, rows, {keys, 1, wide}, desk.spikes, desk.gathered, p > 0);
    }
    product(wide, channels, channels, {desk.gathered, wide, 1}, task.value_turned, desk.mixed, false);
    transpose(desk.mixed, channels, channels, wide, desk.turned, wide);
    product(wide, channels, 1, {desk.key_sum, 1, wide}, desk.mean, desk.gathered, true);
}

// dX, dgain, the queries' share of dU, dW_Q, dM, dk.
template <typename X>
void queries_back(const Task<X>& task, const Desk& desk, int64_t t, int64_t now) {
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    std::fill(desk.to_key_sum, desk.to_key_sum + wide, 0.0f);
    for (int64_t p = 0; p < positions; p += ROWS) {
        const int64_t rows = std::min(ROWS, positions - p);
        widen(task.potential + now + p * channels, rows, channels, desk.input, wide);
        product(wide, rows, channels, {desk.input, wide, 1}, task.query_turned, desk.queries, false);
        query_features(desk, rows, channels, wide);
        product(wide, rows, channels, {desk.queries, wide, 1}, desk.mixed, desk.numerator, false);
        block_back(task, desk, t, now + p * channels, rows);
        product(wide, channels, rows, {desk.queries, 1, wide}, desk.numerator, desk.to_mixed, p > 0);
        product(wide, rows, channels, {desk.numerator, wide, 1}, desk.turned, desk.product, false);
        queries_through(desk, rows, channels, wide);
        product(wide, rows, channels, {desk.product, wide, 1}, task.query, desk.to_potential + p * wide, false);
        product(wide, channels, rows, {desk.product, 1, wide}, desk.input, desk.weights, desk.summed + p > 0);
    }
}

// dG and dW_V, then dS, the keys' share of dU, dW_K.
template <typename X>
void keys_back(const Task<X>& task, const Desk& desk, int64_t now, int64_t before) {
    const int64_t channels = task.shape.channels, wide = task.wide, positions = task.shape.positions;
    float *to_key = desk.weights + channels * wide, *to_value = to_key + channels * wide;
    product(wide, channels, channels, {desk.to_mixed, wide, 1}, task.value, desk.to_gathered, false);
    product(wide, channels, channels, {desk.to_mixed, 1, wide}, desk.gathered, to_value, desk.summed > 0);
    transpose(desk.to_gathered, channels, channels, wide, desk.turned, wide);
    for (int64_t p = 0; p < positions; p += ROWS) {
        const int64_t rows = std::min(ROWS, positions - p);
        float *keys = desk.keys + p * wide, *to_potential = desk.to_potential + p * wide;
        read_spikes(task, before + p * channels, rows, desk.mean, desk.spikes);
        product(wide, rows, channels, {desk.spikes, wide, 1}, desk.turned, desk.product, false);
        product(wide, rows, channels, {keys, wide, 1}, desk.to_gathered, desk.numerator, false);
        narrow(desk.numerator, rows, channels, wide, task.to_spikes + before + p * channels);
        keys_through(desk, keys, rows, channels, wide);
        widen(task.potential + now + p * channels, rows, channels, desk.input, wide);
        product(wide, rows, channels, {desk.product, wide, 1}, task.key, to_potential, true);
        product(wide, channels, rows, {desk.product, 1, wide}, desk.input, to_key, desk.summed + p > 0);
        narrow(to_potential, rows, channels, wide, task.to_potential + now + p * channels);
    }
}

// One step of one sample.
template <typename X>
void step_back(const Task<X>& task, Desk& desk, int64_t item, Totals& totals) {
    const int64_t t = item % task.shape.steps, channels = task.shape.channels, wide = task.wide;
    const int64_t plane = task.shape.positions * channels, now = item * plane;
    for (float* sum : {desk.gain, desk.scale, desk.shift}) std::fill(sum, sum + wide, 0.0f);
    if (t == 0) {
        std::fill(desk.mean_value, desk.mean_value + wide, 0.0f);
        std::fill(task.to_potential + now, task.to_potential + now + plane, X{});
        for (int64_t at = now; at < now + plane; at += channels) {
            std::fill(desk.numerator, desk.numerator + wide, 0.0f);
            modulated_back(task, t, at, 0.0f, desk.numerator, desk);
        }
    } else {
        mean_of(task, desk, now - plane);
        if (is_few(task.shape)) {
            few_back(task, desk, t, now, now - plane);
        } else {
            keys_of(task, desk, now, now - plane);
            queries_back(task, desk, t, now);
            keys_back(task, desk, now, now - plane);
        }
        desk.summed += task.shape.positions;
        if (desk.summed + task.shape.positions > TOGETHER) totals.add(desk);
    }
    if (t == task.shape.steps - 1)  // no step reads the last spikes
        std::fill(task.to_spikes + now, task.to_spikes + now + plane, X{});
    for (int64_t c = 0; c < channels; ++c) {
        totals.gain[c] += desk.gain[c];
        totals.scale[t * wide + c] += desk.scale[c];
        totals.shift[t * wide + c] += desk.shift[c];
    }
}

void collect(const std::vector<Totals>& all, std::vector<double> Totals::*kind, int64_t first, int64_t lines,
             int64_t channels, int64_t wide, float* out) {
    for (int64_t line = 0; line < lines && out != nullptr; ++line)
        for (int64_t c = 0; c < channels; ++c) {
            double total = 0.0;
            for (const Totals& own : all) total += (own.*kind)[first + line * wide + c];
            out[line * channels + c] = static_cast<float>(total);
        }
}

}  // namespace

extern "C" void ripe_attend_backward(int64_t is_bfloat16, int64_t bytes, int64_t batch, int64_t steps, int64_t positions,
                                     int64_t channels, const void* potential, const void* spikes, const void* features,
                                     const float* scale, const float* shift, const float* query, const float* key,
                                     const float* value, const float* gain, const void* grad_out,
                                     const void* grad_attention, void* to_potential, void* to_spikes,
                                     void* to_features, float* to_scale, float* to_shift, float* to_query,
                                     float* to_key, float* to_value, float* to_gain, int64_t threads) {
    const int64_t wide = padded(channels), matrix = channels * wide, items = batch * steps;
    const Row row(channels, 1);
    const std::vector<float> scales = row.repeated(scale, steps, 1), shifts = row.repeated(shift, steps, 0);
    std::vector<float> right(6 * matrix);
    const float* weights[] = {query, key, value};
    for (int i = 0; i < 3; ++i) {
        widen(weights[i], channels, channels, &right[i * matrix], wide);
        transpose(weights[i], channels, channels, channels, &right[(3 + i) * matrix], wide);
    }
    const int team = useful_threads(static_cast<int>(threads), items, positions * channels * channels);
    std::vector<Totals> totals(team, Totals(steps, channels, wide));
    auto run = [&](auto type) {
        using X = decltype(type);
        const std::vector<X> nothing(channels, X{});
        const Task<X> task{{batch, steps, positions, channels}, static_cast<const X*>(potential),
                           static_cast<const X*>(features), static_cast<const X*>(grad_out),
                           static_cast<const X*>(grad_attention), nothing.data(), spikes, bytes != 0,
                           scales.data(), shifts.data(), gain, static_cast<X*>(to_potential),
                           static_cast<X*>(to_spikes), static_cast<X*>(to_features),
                           wide, &right[0], &right[matrix], &right[2 * matrix], &right[3 * matrix],
                           &right[4 * matrix], &right[5 * matrix]};
#pragma omp parallel for num_threads(team) schedule(static, 1) if (team > 1)
        for (int member = 0; member < team; ++member) {
            static thread_local Desk desk;
            desk.open(positions, channels, wide, is_few(task.shape));
            const Share share(items, member, team);
            for (int64_t item = share.first; item < share.last; ++item) step_back(task, desk, item, totals[member]);
            totals[member].add(desk);
        }
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
    float* grads[] = {to_query, to_key, to_value};
    for (int i = 0; i < 3; ++i) collect(totals, &Totals::weights, i * matrix, channels, channels, wide, grads[i]);
    collect(totals, &Totals::gain, 0, 1, channels, wide, to_gain);
    collect(totals, &Totals::scale, 0, steps, channels, wide, to_scale);
    collect(totals, &Totals::shift, 0, steps, channels, wide, to_shift);
}
