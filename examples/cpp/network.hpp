// An exported network, bin by bin: the step graph, the tail graph, and the states of every open window.
#ifndef RIPE_NETWORK_HPP
#define RIPE_NETWORK_HPP

#include "graph.hpp"
#include "ripe.h"

// The step graph and, unless the network is causal, the tail graph. Each open window is a row with its own states.
class Network {
    struct Row {
        std::vector<Value> states;  // in the order of the step graph's inputs
        std::vector<Value> series;  // features and attention of all steps, the tail's inputs
        std::vector<float> logits;  // of a causal network's last steps [T, classes]
    };

    const ripe_params params;
    Graph step;
    std::unique_ptr<Graph> tail;
    size_t heads;  // the step graph's outputs before the states: features and attention, or logits
    std::vector<Row> rows;

  public:
    Network(const Runtime &runtime, const ripe_params &given, const std::string &folder, const char *json, int row_count)
        : params(given), step(runtime, folder, json, "step"),
          tail(params.causal ? nullptr : new Graph(runtime, folder, json, "tail")), heads(params.causal ? 1 : 2) {
        const size_t steps = static_cast<size_t>(params.time_steps), classes = static_cast<size_t>(params.num_classes);
        const size_t cells = 2 * static_cast<size_t>(params.grid_height) * static_cast<size_t>(params.grid_width);
        bool fits = step.inputs.size() >= 2 && step.outputs.size() == step.inputs.size() - 2 + heads &&
                    step.inputs[0].holds<float>(cells) && step.inputs[1].holds<int64_t>(1);
        for (size_t k = 0; fits && k < heads; k++)
            fits = tail ? k < tail->inputs.size() && step.outputs[k].holds<float>(step.outputs[k].count()) &&
                              tail->inputs[k].holds<float>(steps * step.outputs[k].count())
                        : step.outputs[k].holds<float>(classes);
        require(fits && (!tail || tail->outputs[0].holds<float>(steps * classes)),
                "export.json: tensors: expected those of a step and a tail graph of this grid, got others");
        rows.resize(static_cast<size_t>(row_count));
        for (Row &row : rows) {
            row.logits.resize(steps * classes);
            for (size_t k = 0; tail && k < heads; k++) row.series.push_back(tail->inputs[k].zeros());
        }
    }

    void run(const ripe_step &now) {
        Row &row = rows[static_cast<size_t>(now.row)];
        if (now.step == 0) {
            row.states.clear();
            for (size_t k = 2; k < step.inputs.size(); k++) row.states.push_back(step.inputs[k].zeros());
        }
        Value x = step.inputs[0].zeros(), number = step.inputs[1].zeros();
        memcpy(step.inputs[0].data<float>(x), now.x, step.inputs[0].count() * sizeof(float));
        *step.inputs[1].data<int64_t>(number) = now.step;
        std::vector<const OrtValue *> inputs{x.get(), number.get()};
        for (const Value &state : row.states) inputs.push_back(state.get());
        std::vector<Value> outputs = step.run(inputs);
        for (size_t k = 0; k < heads; k++) {
            const size_t count = step.outputs[k].count();
            float *into = tail ? tail->inputs[k].data<float>(row.series[k]) : row.logits.data();
            into += static_cast<size_t>(now.step % params.time_steps) * count;
            memcpy(into, step.outputs[k].data<float>(outputs[k]), count * sizeof(float));
        }
        for (size_t k = heads; k < outputs.size(); k++) row.states[k - heads] = std::move(outputs[k]);
    }

    int predict(int which, double *probabilities) {
        Row &row = rows[static_cast<size_t>(which)];
        if (!tail) return ripe_probabilities(row.logits.data(), params.time_steps, params.num_classes, probabilities);
        std::vector<const OrtValue *> inputs;
        for (const Value &series : row.series) inputs.push_back(series.get());
        for (size_t k = heads; k < tail->inputs.size(); k++)  // the last states of the same name
            for (size_t j = 2; j < step.inputs.size(); j++)
                if (tail->inputs[k].name == step.inputs[j].name) inputs.push_back(row.states[j - 2].get());
        std::vector<Value> outputs = tail->run(inputs);
        const float *logits = tail->outputs[0].data<float>(outputs[0]);
        return ripe_probabilities(logits, params.time_steps, params.num_classes, probabilities);
    }
};

#endif
