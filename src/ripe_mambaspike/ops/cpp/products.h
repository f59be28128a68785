// Small matrix products held in registers. Matrices of floats, or of pairs of bfloat16 that lie along the summed axis
// where the processor multiplies those; the columns are padded with zeros to whole vectors.
#pragma once

#include "vector.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#define HAS_PAIRS 1
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, TALL = 12;  // 24 of 32 registers hold sums
#elif defined(__ARM_NEON)
constexpr int LANES = 4, TALL = 12;
#else
constexpr int LANES = 8, TALL = 6;  // 12 of 16
#endif

namespace {  // each file its own: names are short

typedef float Lanes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

struct Pair {
    uint32_t bits;
};

static inline int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

// sum + a * b for one a and a vector of b.
static inline Lanes multiply_add(Lanes sum, const float* a, const float* b) {
    return sum + *a * *reinterpret_cast<const Lanes*>(b);
}
#ifdef HAS_PAIRS
static inline Lanes multiply_add(Lanes sum, const Pair* a, const Pair* b) {
    const __m512i one = _mm512_set1_epi32(static_cast<int>(a->bits)), many = _mm512_loadu_si512(b);
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)one, (__m512bh)many);
}
#endif

template <typename E>
struct Matrix {
    const E* data;
    int64_t row, column;  // strides
};

// out[R, V vectors] = or += a[R, depth] b[depth, V vectors]. Compiled once for all callers: copies made for one
// caller's constants run out of registers.
template <typename E, bool ADD, int V, int R>
__attribute__((noinline, noclone)) static void tile(Matrix<E> a, const E* b, int64_t b_row, int64_t depth, float* out,
                                                    int64_t out_row) {
    Lanes sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
            sum[r][v] = ADD ? *reinterpret_cast<const Lanes*>(out + r * out_row + v * LANES) : Lanes{};
    const E* column = a.data;
    for (int64_t k = 0; k < depth; ++k, column += a.column, b += b_row) {
        asm("" : "+r"(column));  // or the compiler makes a version for stride 1 that copies every sum to the stack
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(sum[r][v], column + r * a.row, b + v * LANES);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) *reinterpret_cast<Lanes*>(out + r * out_row + v * LANES) = sum[r][v];
}

template <typename E, bool ADD, int V, int R>
static void last_rows(int64_t rows, Matrix<E> a, const E* b, int64_t b_row, int64_t depth, float* out,
                      int64_t out_row) {
    if (rows == R) return tile<E, ADD, V, R>(a, b, b_row, depth, out, out_row);
    if constexpr (R > 1) last_rows<E, ADD, V, R - 1>(rows, a, b, b_row, depth, out, out_row);
}

template <typename E, bool ADD, int V>
static void panel(int64_t rows, Matrix<E> a, const E* b, int64_t b_row, int64_t depth, float* out, int64_t out_row) {
    int64_t r = 0;
    for (; r + TALL <= rows; r += TALL)
        tile<E, ADD, V, TALL>({a.data + r * a.row, a.row, a.column}, b, b_row, depth, out + r * out_row, out_row);
    if (r < rows)
        last_rows<E, ADD, V, TALL - 1>(rows - r, {a.data + r * a.row, a.row, a.column}, b, b_row, depth,
                                       out + r * out_row, out_row);
}

// out[rows, columns] = (or += where `add`) a[rows, depth] b[depth, columns], columns a multiple of LANES.
template <typename E>
static void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix<E> a, const E* b, int64_t b_row, float* out,
                     int64_t out_row, bool add) {
    auto two = add ? panel<E, true, 2> : panel<E, false, 2>;
    auto one = add ? panel<E, true, 1> : panel<E, false, 1>;
    int64_t n = 0;
    for (; n + 2 * LANES <= columns; n += 2 * LANES) two(rows, a, b + n, b_row, depth, out + n, out_row);
    if (n < columns) one(rows, a, b + n, b_row, depth, out + n, out_row);
}

// The same of floats where both b and out have rows `wide` long.
static inline void product(int64_t wide, int64_t rows, int64_t depth, Matrix<float> a, const float* b, float* out,
                           bool add) {
    multiply<float>(rows, wide, depth, a, b, wide, out, wide, add);
}

// [rows, columns] of anything -> floats with rows `wide` long, zero beyond the columns.
template <typename X>
static void widen(const X* x, int64_t rows, int64_t columns, float* out, int64_t wide) {
    for (int64_t r = 0; r < rows; ++r) {
        const X* __restrict line = x + r * columns;
        float* __restrict to = out + r * wide;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) to[c] = to_float(line[c]);
        for (int64_t c = columns; c < wide; ++c) to[c] = 0.0f;
    }
}

// And back: rows `wide` long -> [rows, columns] in the given precision.
template <typename X>
static void narrow(const float* x, int64_t rows, int64_t columns, int64_t wide, X* out) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* __restrict line = x + r * wide;
        X* __restrict to = out + r * columns;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) store(to[c], line[c]);
    }
}

// [rows, columns] -> its transpose, rows `wide` long, zero beyond.
template <typename X>
static void transpose(const X* x, int64_t rows, int64_t columns, int64_t x_row, float* out, int64_t wide) {
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = 0; r < wide; ++r) out[c * wide + r] = r < rows ? to_float(x[r * x_row + c]) : 0.0f;
}

// The nearest bfloat16 as a float, all in words of 32 bits.
static inline float round_to_bfloat16(float x) {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    wide = (wide + 0x7fffu + ((wide >> 16) & 1u)) & 0xffff0000u;
    float out;
    std::memcpy(&out, &wide, 4);
    return x != x ? x : out;
}

static inline Pair pair_of(float first, float second) {
    uint32_t low, high;
    std::memcpy(&low, &first, 4);
    std::memcpy(&high, &second, 4);
    return {(high & 0xffff0000u) | (low >> 16)};
}

// Two rows after another into pairs along them, [rows, wide] -> [(rows + 1) / 2, wide]; floats are what they are.
static inline const float* paired_rows(const float* x, int64_t, int64_t, const float*) { return x; }
static inline const Pair* paired_rows(const float* x, int64_t rows, int64_t wide, Pair* out) {
    for (int64_t r = 0; r < rows; r += 2) {
        const float *__restrict first = x + r * wide, *__restrict second = first + wide;
        Pair* __restrict to = out + r / 2 * wide;
        if (r + 1 < rows)
#pragma omp simd
            for (int64_t c = 0; c < wide; ++c) to[c] = pair_of(round_to_bfloat16(first[c]), round_to_bfloat16(second[c]));
        else
            for (int64_t c = 0; c < wide; ++c) to[c] = pair_of(round_to_bfloat16(first[c]), 0.0f);
    }
    return out;
}

}  // namespace
