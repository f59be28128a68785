// A 3×3 convolution of spikes by additions alone: for every output, the weight rows of the spikes it sees are summed.
//
// A row of the image is read once into a list of its spikes, each as its place in the row (position · channels +
// channel). The weights are a table of rows [6, 3, Cin], three rows of taps for now and three for before, so that a
// spike's weights lie at its own place in the table, counted from where the output begins to see. For every output row
// the lists it sees are merged by position; what one output sees is then one piece of the merged list.
//
// Weights are floats, doubles, or single bytes that are added up in 32 bits.

#include <algorithm>
#include <vector>

#include "lanes.h"

namespace {

constexpr int64_t STRIP = 16;  // output rows of a task
constexpr int64_t STEPS = 4;   // time steps of a task
constexpr int64_t MOST = 8;    // vectors of output channels that are summed together, in registers
constexpr int RUN = 8;         // list entries copied at once, wanted or not: lists have as much room beyond their end

typedef int32_t Run __attribute__((vector_size(4 * RUN)));

// What is added up: the weights of one vector of output channels as they lie in the table, and their sums.
template <typename InTable, typename InSum>
struct Numbers {
    using Weight = InTable;
    using Sum = InSum;
    static constexpr int64_t lanes = 64 / sizeof(Sum);
    typedef Weight Row __attribute__((vector_size(lanes * sizeof(Weight))));
    typedef Sum Sums __attribute__((vector_size(64)));

    static Sums row(const Weight* from) {
        Row row;
        std::memcpy(&row, from, sizeof(row));
#if defined(__AVX512F__)  // GCC 12 would widen bytes one by one
        if constexpr (sizeof(Weight) == 1) return (Sums)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)row);
#endif
        return __builtin_convertvector(row, Sums);
    }
    // The first `count` sums from memory, the others zero.
    static Sums read(const Sum* from, int64_t count) {
        Sums sums = {};
        std::memcpy(&sums, from, std::min(count, lanes) * sizeof(Sum));
        return sums;
    }
    static void write(Sum* to, Sums sums, int64_t count) {
        if (__builtin_expect(count >= lanes, 1)) std::memcpy(to, &sums, sizeof(sums));
        else std::memcpy(to, &sums, count * sizeof(Sum));
    }
};
using Floats = Numbers<float, float>;
using Doubles = Numbers<double, double>;
using Bytes = Numbers<int8_t, int32_t>;

struct Image {
    int64_t batch, steps, height, width, in_channels, channels, stride, block;

    int64_t out_height() const { return (height - 1) / stride + 1; }
    int64_t out_width() const { return (width - 1) / stride + 1; }
};

// Up to 64 bytes as bits, one for each that is set; `wrong` collects bits that no spike has.
inline uint64_t set_bytes(const uint8_t* bytes, int64_t size, uint64_t& wrong) {
#if defined(__AVX512BW__)
    const __m512i all = _mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - size), bytes);
    wrong |= _mm512_test_epi8_mask(all, _mm512_set1_epi8(char(0xfe)));
    return _mm512_test_epi8_mask(all, all);
#else
    uint64_t words[8] = {}, mask = 0;
    std::memcpy(words, bytes, size);
    // The product brings the lowest bits of the eight bytes together in the highest byte.
    for (int i = 0; i < 8; ++i) {
        wrong |= words[i] & ~0x0101010101010101u;
        if (words[i]) mask |= ((words[i] & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (8 * i);
    }
    return mask;
#endif
}

// Spikes by position: those of position x are places[starts[x]] … places[starts[x + 1]].
struct List {
    std::vector<int32_t> places, starts;

    void make_room(int64_t positions, int64_t most) {
        if (int64_t(places.size()) < most + RUN) places.resize(most + RUN);
        if (int64_t(starts.size()) < positions + 1) starts.resize(positions + 1);
    }
    // Returns the bits that no spike has.
    __attribute__((noinline)) uint64_t read(const Image& size, const uint8_t* row) {
        make_room(size.width, size.width * size.in_channels);
        uint64_t wrong = 0;
        int32_t count = 0, *out = places.data();
        for (int64_t x = 0; x < size.width; ++x) {
            starts[x] = count;
            for (int64_t place = x * size.in_channels, end = place + size.in_channels; place < end; place += 64) {
                uint64_t mask = set_bytes(row + place, std::min<int64_t>(64, end - place), wrong);
                for (; mask; mask &= mask - 1) out[count++] = int32_t(place) + __builtin_ctzll(mask);
            }
        }
        starts[size.width] = count;
        return wrong;
    }
};

// What an output row sees of one row of the image, and where the table holds its taps.
struct Seen {
    const int32_t *places, *starts;
    int32_t table;
};

template <int SEEN>
void merge(const Image& size, const Seen* rows, List& merged) {
    merged.make_room(size.width, size.width * size.in_channels * 6);
    Seen row[SEEN + 1];
    std::copy_n(rows, SEEN, row);
    int32_t count = 0, *starts = merged.starts.data(), *places = merged.places.data();
    for (int64_t x = 0; x < size.width; ++x) {
        starts[x] = count;
#pragma GCC unroll 6
        for (int k = 0; k < SEEN; ++k) {
            const int32_t first = row[k].starts[x], wanted = row[k].starts[x + 1] - first;
            for (int32_t done = 0; done == 0 || done < wanted; done += RUN) {
                Run run;
                std::memcpy(&run, row[k].places + first + done, sizeof(run));
                run += row[k].table;
                std::memcpy(places + count + done, &run, sizeof(run));
            }
            count += wanted;
        }
    }
    starts[size.width] = count;
}

using Merge = void (*)(const Image&, const Seen*, List&);
constexpr Merge MERGE[7] = {merge<0>, merge<1>, merge<2>, merge<3>, merge<4>, merge<5>, merge<6>};

// One output row: bias and all the weights its outputs see. Returns how many weight rows were added.
template <typename N, int VECTORS>
int64_t out_row(const Image& size, const List& list, const typename N::Weight* table, const typename N::Sums* bias,
                typename N::Sum* out, int64_t kept) {
    constexpr int64_t width = VECTORS * N::lanes;
    constexpr int PARTS = VECTORS < 3 ? 2 : 1;  // sums side by side where one would wait for itself
    int64_t added = 0;
    for (int64_t x = 0; x < size.out_width(); ++x) {
        int64_t left = x * size.stride - 1;
        const int32_t* place = list.places.data() + list.starts[std::max<int64_t>(left, 0)];
        const int32_t* end = list.places.data() + list.starts[std::min(left + 3, size.width)];
        const typename N::Weight* weight = table - left * size.in_channels * width;
        typename N::Sums sum[VECTORS], other[VECTORS] = {};
        for (int i = 0; i < VECTORS; ++i) sum[i] = bias[i];
        added += end - place;
        for (; end - place >= PARTS; place += PARTS)
            for (int i = 0; i < VECTORS; ++i) {
                sum[i] += N::row(weight + place[0] * width + i * N::lanes);
                if (PARTS == 2) other[i] += N::row(weight + place[1] * width + i * N::lanes);
            }
        if (PARTS == 2 && place < end)
            for (int i = 0; i < VECTORS; ++i) sum[i] += N::row(weight + place[0] * width + i * N::lanes);
        for (int i = 0; i < VECTORS && i * N::lanes < kept; ++i)
            N::write(out + x * size.channels + i * N::lanes, sum[i] + other[i], kept - i * N::lanes);
    }
    return added;
}

template <typename N>
using OutRow = int64_t (*)(const Image&, const List&, const typename N::Weight*, const typename N::Sums*,
                           typename N::Sum*, int64_t);
template <typename N>
constexpr OutRow<N> OUT_ROW[MOST] = {out_row<N, 1>, out_row<N, 2>, out_row<N, 3>, out_row<N, 4>,
                                     out_row<N, 5>, out_row<N, 6>, out_row<N, 7>, out_row<N, 8>};

// Some rows of one output image. `now` and `before` (or null) hold the image's rows [top, bottom).
template <typename N>
struct Strip {
    const Image& size;
    const typename N::Weight* table;  // [blocks, 6, 3, Cin, block], or 3 without a kernel for before
    const typename N::Sum* bias;      // [C] or null
    int64_t tap_rows;
    const std::vector<List>*now, *before;
    int64_t first, last, top, bottom;

    int64_t run(typename N::Sum* out, List& merged) const {
        int64_t additions = 0;
        for (int64_t y = first; y < last; ++y) {
            Seen rows[6];
            int seen = 0;
            for (const auto* lists : {now, before})
                for (int64_t tap = 0; lists && tap < 3; ++tap) {
                    int64_t row = y * size.stride - 1 + tap;
                    if (row < top || row >= bottom || !(*lists)[row - top].starts[size.width]) continue;
                    const List& list = (*lists)[row - top];
                    int64_t taps = lists == before ? 3 + tap : tap;
                    rows[seen++] = {list.places.data(), list.starts.data(), int32_t(taps * 3 * size.in_channels)};
                }
            MERGE[seen](size, rows, merged);
            additions += sum(merged, out + y * size.out_width() * size.channels);
        }
        return additions;
    }

    int64_t sum(const List& merged, typename N::Sum* out) const {
        int64_t additions = 0, block_size = tap_rows * 3 * size.in_channels * size.block;
        for (int64_t channel = 0, block = 0; channel < size.channels; channel += size.block, ++block) {
            int64_t kept = std::min(size.block, size.channels - channel);
            typename N::Sums start[MOST] = {};
            for (int64_t i = 0; bias && i * N::lanes < kept; ++i)
                start[i] = N::read(bias + channel + i * N::lanes, kept - i * N::lanes);
            auto row = OUT_ROW<N>[size.block / N::lanes - 1];
            additions += kept * row(size, merged, table + block * block_size, start, out + channel, kept);
        }
        return additions;
    }
};

template <typename N>
void convolve(const int64_t* sizes, int64_t dual, const uint8_t* spikes, const uint8_t* earlier_spikes,
              const typename N::Weight* table, const typename N::Sum* bias, typename N::Sum* out, int64_t* result,
              int64_t threads) {
    const Image& size = *reinterpret_cast<const Image*>(sizes);
    const int64_t strips = (size.out_height() + STRIP - 1) / STRIP, pieces = (size.steps + STEPS - 1) / STEPS;
    const int64_t row = size.width * size.in_channels, image = size.height * row;
    const int64_t out_image = size.out_height() * size.out_width() * size.channels;
    int64_t additions = 0;
    uint64_t wrong = 0;
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic, 1) reduction(+ : additions) reduction(| : wrong)
    for (int64_t task = 0; task < size.batch * pieces * strips; ++task) {
        static thread_local std::vector<List> kept[2];
        static thread_local List merged;
        int64_t first = task % strips * STRIP, last = std::min(first + STRIP, size.out_height());
        int64_t step = task / strips % pieces * STEPS, end = std::min(step + STEPS, size.steps);
        int64_t top = std::max<int64_t>(0, first * size.stride - 1);
        int64_t bottom = std::min(size.height, (last - 1) * size.stride + 2);
        const int64_t sample = task / strips / pieces;
        auto read = [&](int64_t which) {
            auto& lists = kept[which & 1];
            if (int64_t(lists.size()) < bottom - top) lists.resize(bottom - top);
            const uint8_t* from = which < 0 ? earlier_spikes + sample * image
                                            : spikes + (sample * size.steps + which) * image;
            for (int64_t y = top; y < bottom; ++y) wrong |= lists[y - top].read(size, from + y * row);
        };
        const bool begins = step == 0 && !earlier_spikes;  // nothing came before
        if (dual && !begins) read(step - 1);
        for (bool seen = dual && !begins; step < end; ++step, seen = dual) {
            read(step);
            const auto* earlier = seen ? &kept[(step - 1) & 1] : nullptr;
            Strip<N> strip{size, table, bias, dual ? 6 : 3, &kept[step & 1], earlier, first, last, top, bottom};
            additions += strip.run(out + (sample * size.steps + step) * out_image, merged);
        }
    }
    result[0] = additions;
    result[1] = wrong != 0;
}

}  // namespace

// spikes [B, T, H, W, Cin], those of the step before them [B, H, W, Cin] or null → out [B, T, H', W', C];
// result: the additions made, and whether a byte was no spike.
extern "C" void ripe_accumulate_conv(const int64_t* sizes, int64_t dual, const uint8_t* spikes, const uint8_t* earlier,
                                     const float* table, const float* bias, float* out, int64_t* result,
                                     int64_t threads) {
    convolve<Floats>(sizes, dual, spikes, earlier, table, bias, out, result, threads);
}
extern "C" void ripe_accumulate_conv_doubles(const int64_t* sizes, int64_t dual, const uint8_t* spikes,
                                             const uint8_t* earlier, const double* table, const double* bias,
                                             double* out, int64_t* result, int64_t threads) {
    convolve<Doubles>(sizes, dual, spikes, earlier, table, bias, out, result, threads);
}
extern "C" void ripe_accumulate_conv_bytes(const int64_t* sizes, int64_t dual, const uint8_t* spikes,
                                           const uint8_t* earlier, const int8_t* table, const int32_t* bias,
                                           int32_t* out, int64_t* result, int64_t threads) {
    convolve<Bytes>(sizes, dual, spikes, earlier, table, bias, out, result, threads);
}
