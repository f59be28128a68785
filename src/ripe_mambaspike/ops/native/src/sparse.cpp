// A 3×3 convolution of spikes by additions alone: for every output, the weight rows of the spikes it sees are summed.
//
// A row of the image is read once into a list of its spikes, each as its offset in the row (position · channels +
// channel), which is also its offset in the weight rows [3, 3 · Cin, C] when counted from the output's leftmost tap.

#include <algorithm>
#include <vector>

#include "lanes.h"

namespace {

constexpr int64_t STRIP = 8;  // output rows of a task
constexpr int64_t STEPS = 4;  // time steps of a task
constexpr int64_t MOST = 8;   // vectors of 16 output channels that are summed together, in registers

struct Image {
    int64_t batch, steps, height, width, in_channels, channels, stride, block;

    int64_t out_height() const { return (height - 1) / stride + 1; }
    int64_t out_width() const { return (width - 1) / stride + 1; }
};

// The spikes of some neighbouring rows of one image.
struct Spikes {
    int64_t first = 0, last = 0, row_size = 0, width = 0;
    std::vector<int32_t> offsets, starts;  // starts: for every position of a row where its offsets begin, and the end

    // Rows [first, last) of `image`; returns the union of all bytes' bits.
    uint64_t read(const Image& size, const uint8_t* image, int64_t first_, int64_t last_) {
        first = first_, last = last_, width = size.width, row_size = size.width * size.in_channels;
        if (int64_t(offsets.size()) < (last - first) * row_size) offsets.resize((last - first) * row_size);
        if (int64_t(starts.size()) < (last - first) * (width + 1)) starts.resize((last - first) * (width + 1));
        uint64_t seen = 0;
        for (int64_t row = first; row < last; ++row) {
            const uint8_t* bytes = image + row * row_size;
            int32_t *out = offsets_of(row), *start = starts_of(row), count = 0;
            for (int64_t x = 0; x < width; ++x) {
                start[x] = count;
                int64_t end = (x + 1) * size.in_channels;
                for (int64_t offset = x * size.in_channels; offset < end; offset += 64)
                    seen |= read_some(bytes + offset, std::min<int64_t>(64, end - offset), int32_t(offset), out, count);
            }
            start[width] = count;
        }
        return seen;
    }
    int32_t* offsets_of(int64_t row) { return offsets.data() + (row - first) * row_size; }
    int32_t* starts_of(int64_t row) { return starts.data() + (row - first) * (width + 1); }
    bool holds(int64_t row) const { return row >= first && row < last; }

   private:
    // Up to 64 bytes at once; nothing more is done where all are zero.
    static uint64_t read_some(const uint8_t* bytes, int64_t size, int32_t offset, int32_t* out, int32_t& count) {
        uint64_t words[8] = {}, seen = 0;
        if (size == 64) std::memcpy(words, bytes, 64);
        else if (size == 32) std::memcpy(words, bytes, 32);
        else std::memcpy(words, bytes, size);
        for (uint64_t word : words) seen |= word;
        if (!seen) return 0;
        uint64_t mask = 0;
        // The product brings the lowest bits of the eight bytes together in the highest byte.
        for (int i = 0; i < 8; ++i) mask |= ((words[i] & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (8 * i);
        for (; mask; mask &= mask - 1) out[count++] = offset + __builtin_ctzll(mask);
        return seen;
    }
};

// What one output row sees of one row of spikes, now or before.
struct Seen {
    const int32_t *offsets, *starts;
    const float* weight;  // rows of this row of taps
    bool subtract;
};

template <int VECTORS>
int64_t out_row(const Image& size, const Seen* rows, int seen, const Lanes* bias, float* out, int64_t kept) {
    int64_t additions = 0;
    constexpr int64_t width = VECTORS * LANES;
    for (int64_t x = 0; x < size.out_width(); ++x) {
        int64_t left = x * size.stride - 1, first = std::max<int64_t>(left, 0), last = std::min(left + 3, size.width);
        Lanes sum[VECTORS];
        for (int i = 0; i < VECTORS; ++i) sum[i] = bias[i];
        for (int k = 0; k < seen; ++k) {
            const int32_t* offset = rows[k].offsets + rows[k].starts[first];
            const int32_t* end = rows[k].offsets + rows[k].starts[last];
            const float* weight = rows[k].weight - left * size.in_channels * width;
            additions += end - offset;
            if (rows[k].subtract)
                for (; offset < end; ++offset)
                    for (int i = 0; i < VECTORS; ++i) sum[i] -= widened(weight + *offset * width + i * LANES);
            else
                for (; offset < end; ++offset)
                    for (int i = 0; i < VECTORS; ++i) sum[i] += widened(weight + *offset * width + i * LANES);
        }
        for (int i = 0; i < VECTORS; ++i) {
            int64_t count = std::min<int64_t>(LANES, kept - i * LANES);
            if (count > 0) save(out + x * size.channels + i * LANES, sum[i], int(count));
        }
    }
    return additions * kept;
}

using OutRow = int64_t (*)(const Image&, const Seen*, int, const Lanes*, float*, int64_t);
constexpr OutRow OUT_ROW[MOST] = {out_row<1>, out_row<2>, out_row<3>, out_row<4>,
                                  out_row<5>, out_row<6>, out_row<7>, out_row<8>};

struct Weights {
    const float *now, *before, *bias;  // rows [blocks, 9 Cin, block]; before and bias may be missing
};

// Rows [first, last) of the output of one image, from the spikes now and (or null) before.
int64_t strip(const Image& size, const Weights& weights, Spikes& now, Spikes* before, int64_t first, int64_t last,
              float* out) {
    int64_t additions = 0, taps = 3 * size.in_channels * size.block;
    for (int64_t channel = 0, block = 0; channel < size.channels; channel += size.block, ++block) {
        int64_t kept = std::min(size.block, size.channels - channel);
        Lanes bias[MOST] = {};
        for (int64_t i = 0; weights.bias && i * LANES < kept; ++i)
            bias[i] = load(weights.bias + channel + i * LANES, int(std::min<int64_t>(LANES, kept - i * LANES)));
        for (int64_t y = first; y < last; ++y) {
            Seen rows[6];
            int seen = 0;
            for (bool earlier : {false, true}) {
                Spikes* spikes = earlier ? before : &now;
                const float* weight = (earlier ? weights.before : weights.now) + block * 3 * taps;
                for (int64_t tap = 0; spikes && tap < 3; ++tap) {
                    int64_t row = y * size.stride - 1 + tap;
                    if (!spikes->holds(row) || !spikes->starts_of(row)[size.width]) continue;
                    rows[seen++] = {spikes->offsets_of(row), spikes->starts_of(row), weight + tap * taps, earlier};
                }
            }
            float* to = out + y * size.out_width() * size.channels + channel;
            additions += OUT_ROW[size.block / LANES - 1](size, rows, seen, bias, to, kept);
        }
    }
    return additions;
}

}  // namespace

// spikes [B, T, H, W, Cin] → out [B, T, H', W', C]; result: the additions made, and the union of all spikes' bits.
extern "C" void ripe_accumulate_conv(const int64_t* sizes, const uint8_t* spikes, const float* now, const float* before,
                                     const float* bias, float* out, int64_t* result, int64_t threads) {
    const Image& size = *reinterpret_cast<const Image*>(sizes);
    const Weights weights{now, before, bias};
    const int64_t strips = (size.out_height() + STRIP - 1) / STRIP, pieces = (size.steps + STEPS - 1) / STEPS;
    const int64_t image = size.height * size.width * size.in_channels;
    const int64_t out_image = size.out_height() * size.out_width() * size.channels;
    int64_t additions = 0;
    uint64_t bits = 0;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic, 1) reduction(+ : additions) reduction(| : bits)
    for (int64_t task = 0; task < size.batch * pieces * strips; ++task) {
        static thread_local Spikes kept[2];
        int64_t first = task % strips * STRIP, last = std::min(first + STRIP, size.out_height());
        int64_t step = task / strips % pieces * STEPS, end = std::min(step + STEPS, size.steps);
        int64_t top = std::max<int64_t>(0, first * size.stride - 1);
        int64_t bottom = std::min(size.height, (last - 1) * size.stride + 2);
        const uint8_t* sample = spikes + task / strips / pieces * size.steps * image;
        float* sample_out = out + task / strips / pieces * size.steps * out_image;
        if (before && step) bits |= kept[(step - 1) & 1].read(size, sample + (step - 1) * image, top, bottom);
        for (; step < end; ++step) {
            Spikes& here = kept[step & 1];
            bits |= here.read(size, sample + step * image, top, bottom);
            Spikes* earlier = before && step ? &kept[(step - 1) & 1] : nullptr;
            additions += strip(size, weights, here, earlier, first, last, sample_out + step * out_image);
        }
    }
    result[0] = additions;
    result[1] = int64_t(bits);
}
