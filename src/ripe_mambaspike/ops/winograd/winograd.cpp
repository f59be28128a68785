// A 3x3 convolution of stride 1 with 3 products for an output instead of 9: Winograd's F(2x4, 3x3).
//
// A tile of 4x6 inputs becomes 24 numbers, each is multiplied with its own matrix of weights, and sums of those make
// 2x4 outputs. Polynomials are multiplied like that: down at the points 0, 1, -1, across at 0, 1, -1, 1/2, -2 too, with
// the one at infinity; 4x4 outputs would take fewer products still but round three times as much. Every number has one
// order of summation, whatever else is in the call.
#include <algorithm>
#include <vector>

#include "products.h"
#include "scratch.h"

namespace {

constexpr int TALL_IN = 4, TALL_OUT = 2, BROAD_IN = 6, BROAD_OUT = 4, POINTS = TALL_IN * BROAD_IN;
constexpr int64_t PANEL = 2 * LANES;   // outputs whose weights lie together
constexpr int64_t TILES = 4 * TALL;    // in a block: what they become stays in the cache

struct Convolution {
    int64_t batch, height, width, inputs, outputs;
    const float *x, *weights, *bias;  // [B, H, W, inputs], as ripe_winograd_weights leaves them, [outputs] or null
    float* out;                       // [B, H, W, outputs]
    int64_t down() const { return (height + TALL_OUT - 1) / TALL_OUT; }
    int64_t across() const { return (width + BROAD_OUT - 1) / BROAD_OUT; }
};

struct Place {
    int64_t image, row, column;  // of the tile's first output
    Place(const Convolution& task, int64_t tile)
        : image(tile / (task.across() * task.down())), row(tile / task.across() % task.down() * TALL_OUT),
          column(tile % task.across() * BROAD_OUT) {}
};

inline Lanes& lanes(float* at) { return *reinterpret_cast<Lanes*>(at); }
inline const Lanes& lanes(const float* at) { return *reinterpret_cast<const Lanes*>(at); }

// Inputs of a line -> what its outputs are made of.
inline void enter(const Lanes (&in)[4], Lanes (&out)[4]) {
    out[0] = in[0] - in[2];
    out[1] = in[1] + in[2];
    out[2] = in[2] - in[1];
    out[3] = in[1] - in[3];
}
inline void enter(const Lanes (&in)[6], Lanes (&out)[6]) {
    out[0] = in[0] + 1.5f * (in[3] - in[1]) - 2.0f * in[2] + in[4];
    out[1] = 0.5f * in[2] - in[1] + 2.5f * in[3] + in[4];
    out[2] = in[1] - 2.5f * in[2] + 0.5f * in[3] + in[4];
    out[3] = 2.0f * (in[3] - in[1]) - in[2] + in[4];
    out[4] = 0.5f * (in[1] - in[3]) - in[2] + in[4];
    out[5] = in[1] + 1.5f * (in[4] - in[2]) - 2.0f * in[3] + in[5];
}

// And back, once it has been multiplied.
inline void leave(const Lanes (&in)[4], Lanes (&out)[2]) {
    out[0] = in[0] + in[1] + in[2];
    out[1] = in[1] - in[2] - in[3];
}
inline void leave(const Lanes (&in)[6], Lanes (&out)[4]) {
    const Lanes sum = in[1] + in[2], apart = in[1] - in[2];
    out[0] = in[0] + sum + in[3] + in[4];
    out[1] = apart + 0.5f * in[3] - 2.0f * in[4];
    out[2] = sum + 0.25f * in[3] + 4.0f * in[4];
    out[3] = apart + 0.125f * in[3] - 8.0f * in[4] + in[5];
}

// Tiles [first, first + count) -> [POINTS, count, inputs], a plane for each point; beyond the border lie `zeros`.
void enter_tiles(const Convolution& task, int64_t first, int64_t count, int64_t plane, const float* zeros, float* to) {
    const int64_t inputs = task.inputs;
    for (int64_t tile = 0; tile < count; ++tile, to += inputs) {
        const Place place(task, first + tile);
        const float* from[TALL_IN][BROAD_IN];
        for (int i = 0; i < TALL_IN; ++i)
            for (int j = 0; j < BROAD_IN; ++j) {
                const int64_t y = place.row + i - 1, x = place.column + j - 1;
                const bool inside = y >= 0 && y < task.height && x >= 0 && x < task.width;
                from[i][j] = inside ? task.x + ((place.image * task.height + y) * task.width + x) * inputs : zeros;
            }
        for (int64_t c = 0; c < inputs; c += LANES) {
            Lanes half[TALL_IN][BROAD_IN];
#pragma GCC unroll 6
            for (int j = 0; j < BROAD_IN; ++j) {
                const Lanes column[4] = {lanes(from[0][j] + c), lanes(from[1][j] + c), lanes(from[2][j] + c),
                                         lanes(from[3][j] + c)};
                Lanes entered[TALL_IN];
                enter(column, entered);
#pragma GCC unroll 4
                for (int i = 0; i < TALL_IN; ++i) half[i][j] = entered[i];
            }
#pragma GCC unroll 4
            for (int i = 0; i < TALL_IN; ++i) {
                Lanes whole[BROAD_IN];
                enter(half[i], whole);
#pragma GCC unroll 6
                for (int j = 0; j < BROAD_IN; ++j) lanes(to + (BROAD_IN * i + j) * plane + c) = whole[j];
            }
        }
    }
}

// [POINTS, count, outputs] -> the outputs of the tiles; a tile may reach beyond the border.
void leave_tiles(const Convolution& task, int64_t first, int64_t count, int64_t plane, const float* from) {
    const int64_t outputs = task.outputs;
    for (int64_t tile = 0; tile < count; ++tile, from += outputs) {
        const Place place(task, first + tile);
        const int64_t tall = std::min<int64_t>(TALL_OUT, task.height - place.row);
        const int64_t broad = std::min<int64_t>(BROAD_OUT, task.width - place.column);
        float* to = task.out + ((place.image * task.height + place.row) * task.width + place.column) * outputs;
        for (int64_t c = 0; c < outputs; c += LANES) {
            Lanes half[TALL_OUT][BROAD_IN];
#pragma GCC unroll 6
            for (int j = 0; j < BROAD_IN; ++j) {
                const float* top = from + j * plane + c;
                const int64_t below = BROAD_IN * plane;
                const Lanes column[4] = {lanes(top), lanes(top + below), lanes(top + 2 * below),
                                         lanes(top + 3 * below)};
                Lanes left[TALL_OUT];
                leave(column, left);
                half[0][j] = left[0];
                half[1][j] = left[1];
            }
            const Lanes bias = task.bias == nullptr ? Lanes{} : lanes(task.bias + c);
#pragma GCC unroll 2
            for (int i = 0; i < TALL_OUT; ++i) {
                Lanes whole[BROAD_OUT];
                leave(half[i], whole);
                if (i >= tall) continue;
#pragma GCC unroll 4
                for (int j = 0; j < BROAD_OUT; ++j)
                    if (j < broad) lanes(to + (i * task.width + j) * outputs + c) = whole[j] + bias;
            }
        }
    }
}

void multiply_tiles(const Convolution& task, int64_t count, const float* entered, int64_t in_plane, float* leaving,
                    int64_t out_plane) {
    for (int64_t point = 0; point < POINTS; ++point)
        for (int64_t n = 0; n < task.outputs; n += PANEL) {
            const bool whole = n + PANEL <= task.outputs;
            const float* weights = task.weights + (point * task.outputs + n) * task.inputs;
            auto run = whole ? panel<float, false, 2> : panel<float, false, 1>;
            run(count, {entered + point * in_plane, task.inputs, 1}, weights, whole ? PANEL : LANES, task.inputs,
                leaving + point * out_plane + n, task.outputs);
        }
}

}  // namespace

// kernel [outputs, inputs, 3, 3] -> weights [POINTS, panels of outputs, inputs, PANEL], the last panel maybe narrower.
extern "C" void ripe_winograd_weights(int64_t outputs, int64_t inputs, const float* kernel, float* weights,
                                      int64_t threads) {
    const double tall[TALL_IN][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
    const double third = 1.0 / 3, fifteenth = 1.0 / 15;
    const double broad[BROAD_IN][3] = {{1, 0, 0},
                                       {third, third, third},
                                       {-third, third, -third},
                                       {-16 * fifteenth, -8 * fifteenth, -4 * fifteenth},
                                       {fifteenth, -2 * fifteenth, 4 * fifteenth},
                                       {0, 0, 1}};
    const int team = useful_threads(static_cast<int>(threads), outputs, inputs * POINTS);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t o = 0; o < outputs; ++o) {
        const int64_t begin = o / PANEL * PANEL, width = std::min(PANEL, outputs - begin);
        for (int64_t c = 0; c < inputs; ++c) {
            const float* taps = kernel + (o * inputs + c) * 9;
            for (int i = 0; i < TALL_IN; ++i) {
                double row[3];
                for (int x = 0; x < 3; ++x)
                    row[x] = tall[i][0] * taps[x] + tall[i][1] * taps[3 + x] + tall[i][2] * taps[6 + x];
                for (int j = 0; j < BROAD_IN; ++j) {
                    const double sum = broad[j][0] * row[0] + broad[j][1] * row[1] + broad[j][2] * row[2];
                    const int64_t matrix = ((BROAD_IN * i + j) * outputs + begin) * inputs;
                    weights[matrix + c * width + o - begin] = static_cast<float>(sum);
                }
            }
        }
    }
}

// x [B, H, W, inputs], zeros around it -> out [B, H, W, outputs]; inputs and outputs are whole numbers of LANES.
extern "C" void ripe_winograd(int64_t batch, int64_t height, int64_t width, int64_t inputs, int64_t outputs,
                              const float* x, const float* weights, const float* bias, float* out, int64_t threads) {
    const Convolution task{batch, height, width, inputs, outputs, x, weights, bias, out};
    const int64_t tiles = batch * task.down() * task.across();
    const int team = useful_threads(static_cast<int>(threads), tiles, POINTS * inputs * outputs);
    const int64_t rounds = (tiles + team * TILES - 1) / (team * TILES);
    const int64_t each = (tiles + team * rounds - 1) / (team * rounds), blocks = (tiles + each - 1) / each;
    const int64_t in_plane = each * inputs + LANES, out_plane = each * outputs + LANES;  // no power of two apart
    const std::vector<float> zeros(inputs, 0.0f);
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
    for (int64_t block = 0; block < blocks; ++block) {
        static thread_local Scratch scratch;
        scratch.open(4 * POINTS * (in_plane + out_plane), 2);
        float *entered = scratch.take<float>(POINTS * in_plane), *leaving = scratch.take<float>(POINTS * out_plane);
        const int64_t first = block * each, count = std::min(each, tiles - first);
        enter_tiles(task, first, count, in_plane, zeros.data(), entered);
        multiply_tiles(task, count, entered, in_plane, leaving, out_plane);
        leave_tiles(task, first, count, out_plane, leaving);
    }
}
