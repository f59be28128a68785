// Classify a stream of events with the step graph of an ONNX export:
//
//     stream FOLDER RECORDING|- [--window MS] [--hop MS] [--threads N]
//
// FOLDER is written by `ripe export --to onnx`. RECORDING is a .bin, .csv or .txt file that `ripe data convert` writes;
// - takes packets on standard input. Prints one JSON line for every window, with the fields of `ripe stream --json`.
// ripe.h has bins and windows, network.hpp the network in ONNX Runtime; this file joins them.

#include <chrono>
#include <cinttypes>

#include "network.hpp"
#include "ripe_recording.h"

using Clock = std::chrono::steady_clock;

static void print(const ripe_step &step, const ripe_params &params, const char *json, int best,
                  const std::vector<double> &probabilities, double seconds) {
    printf("{\"start_us\": %" PRId64 ", \"stop_us\": %" PRId64 ", \"step\": %d, \"time_steps\": %d, \"probabilities\": [",
           step.start_us, step.stop_us, params.time_steps, params.time_steps);
    for (size_t c = 0; c < probabilities.size(); c++) printf(c ? ", %.9g" : "%.9g", probabilities[c]);
    const char *name = ripe_json_get(json, ("labels.classes." + std::to_string(best)).c_str());  // as it is written there
    const std::string label = name ? std::string(name, ripe_json_end(name, 0)) : "\"" + std::to_string(best) + "\"";
    printf("], \"label\": %s, \"probability\": %.9g, \"seconds\": %.6f, \"final\": true}\n", label.c_str(),
           probabilities[static_cast<size_t>(best)], seconds);
    require(!fflush(stdout), "stdout: expected an output that can be written, got an error");
}

static void stream(const std::string &folder, const char *path, int64_t window_us, int64_t hop_us, int threads) {
    char error[RIPE_ERROR_SIZE] = "";
    const std::unique_ptr<char, void (*)(void *)> json(ripe_read_json(folder.c_str(), error), free);
    require(json != nullptr, error);
    ripe_params params;
    require(ripe_read_params(json.get(), &params, error), error);
    ripe_reader reader;
    ripe_event event;
    int got = 0;
    bool any = false;
    const Owner<ripe_reader> close_later(&reader, ripe_close);
    require(ripe_open(&reader, path, error), error);
    if (reader.format != 'p') {  // a file is checked before the first prediction
        while ((got = ripe_read_event(&reader, &event, error)) > 0)
            require((any = ripe_check_sensor(&reader, &event, &params, error)), error);
        require(!got, error);
        require(any, std::string(path) + ": events: expected at least one, got none");
        ripe_close(&reader);
        require(ripe_open(&reader, path, error), error);
    }
    ripe_stream windows;
    require(ripe_stream_init(&windows, &params, window_us, hop_us, error), error);
    const Owner<ripe_stream> free_later(&windows, ripe_stream_free);

    const Runtime runtime(threads);
    Network network(runtime, params, folder, json.get(), windows.rows);
    std::vector<double> probabilities(static_cast<size_t>(params.num_classes));

    int64_t first = RIPE_MAX_TIME, last = -RIPE_MAX_TIME, predictions = 0;
    const auto advance = [&](int64_t to_us) {
        for (ripe_step step; ripe_next_step(&windows, to_us, &step);) {
            const auto began = Clock::now();
            network.run(step);
            if (!step.predict) continue;
            const int best = network.predict(step.row, probabilities.data());
            require(best >= 0, "logits: expected finite numbers, got some that are not");
            predictions++;
            print(step, params, json.get(), best, probabilities, std::chrono::duration<double>(Clock::now() - began).count());
        }
    };
    while ((got = ripe_read_event(&reader, &event, error)) > 0) {
        require(ripe_check_sensor(&reader, &event, &windows.params, error), error);
        advance(event.t);
        ripe_add(&windows, &event);
        first = event.t < first ? event.t : first, last = event.t > last ? event.t : last;
    }
    require(!got, error);
    advance(last + 1);  // a recording ends with its last event: a window that ends there is full
    if (!predictions && first <= last && last - first < windows.window_us)
        fprintf(stderr, "the stream lasted %" PRId64 " us, less than the window of %" PRId64 " us; give a shorter --window\n",
                last + 1 - first, windows.window_us);
    if (windows.late) fprintf(stderr, "%" PRId64 " events came after their bin had closed and were left out\n", windows.late);
}

static int64_t number(const char *name, const char *text, double scale, double most) {
    char *end = nullptr;
    const double value = text ? strtod(text, &end) * scale : 0;
    require(text && end != text && !*end && value >= 1 && value <= most, std::string(name) + ": expected a number from " +
            std::to_string(1 / scale) + " on, got " + (text ? text : "nothing"));
    return static_cast<int64_t>(value + 0.5);
}

int main(int count, char **words) {
    try {
        require(count >= 3, "expected: stream FOLDER RECORDING|- [--window MS] [--hop MS] [--threads N]");
        int64_t window_us = 0, hop_us = 0, threads = 1;
        for (int i = 3; i < count; i += 2) {
            const std::string option = words[i];
            const char *value = i + 1 < count ? words[i + 1] : nullptr;
            if (option == "--window") window_us = number("window", value, 1000, 1e15);
            else if (option == "--hop") hop_us = number("hop", value, 1000, 1e15);
            else if (option == "--threads") threads = number("threads", value, 1, 1024);
            else require(false, option + ": expected --window, --hop or --threads");
        }
        stream(words[1], words[2], window_us, hop_us, static_cast<int>(threads));
        return 0;
    } catch (const std::exception &error) {
        fprintf(stderr, "stream: %s\n", error.what());
        return 2;
    }
}
