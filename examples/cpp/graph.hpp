// A graph of an ONNX export in ONNX Runtime, through its C API: tensors by the names, types and shapes of export.json.
#ifndef RIPE_GRAPH_HPP
#define RIPE_GRAPH_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort.h"
#include "ripe_export.h"

inline const OrtApi *api = nullptr;

inline void check(OrtStatus *status) {
    if (status == nullptr) return;
    std::string message = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw std::runtime_error("onnxruntime: " + message.substr(0, message.find('\n')));
}

inline void require(bool fine, const std::string &sentence) {
    if (!fine) throw std::runtime_error(sentence);
}

inline void require(bool fine, const char *sentence) {  // which the call beside it may have written
    if (!fine) throw std::runtime_error(sentence);
}

template <typename T> using Owner = std::unique_ptr<T, void (*)(T *)>;
using Value = Owner<OrtValue>;

// The API, and the settings of sessions.
class Runtime {
    Owner<OrtEnv> env{nullptr, nullptr};
    Owner<OrtSessionOptions> options{nullptr, nullptr};

  public:
    explicit Runtime(int threads) {
        const OrtApiBase *base = OrtGetApiBase();
        api = base->GetApi(ORT_API_VERSION);
        const std::string expected = "onnxruntime: expected 1." + std::to_string(ORT_API_VERSION) + " or later, got ";
        require(api, expected + base->GetVersionString());
        OrtEnv *made_env = nullptr;
        OrtSessionOptions *made_options = nullptr;
        check(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "ripe", &made_env));
        env = {made_env, api->ReleaseEnv};
        check(api->CreateSessionOptions(&made_options));
        options = {made_options, api->ReleaseSessionOptions};
        check(api->SetIntraOpNumThreads(made_options, threads));
    }

    Owner<OrtSession> open(const std::string &path) const {
        OrtSession *made = nullptr;
        check(api->CreateSession(env.get(), path.c_str(), options.get(), &made));
        return {made, api->ReleaseSession};
    }
};

// An input or output of a graph, as export.json describes it.
struct Tensor {
    std::string name;
    ONNXTensorElementDataType type;
    std::vector<int64_t> shape;  // for one clip

    size_t count() const {
        size_t product = 1;
        for (int64_t side : shape) product *= static_cast<size_t>(side);
        return product;
    }

    template <typename T> bool holds(size_t numbers) const {
        const auto wanted = sizeof(T) == 4 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
        return type == wanted && count() == numbers;
    }

    Value zeros() const {
        OrtAllocator *allocator = nullptr;
        OrtValue *made = nullptr;
        check(api->GetAllocatorWithDefaultOptions(&allocator));
        check(api->CreateTensorAsOrtValue(allocator, shape.data(), shape.size(), type, &made));
        Value value(made, api->ReleaseValue);
        void *data = nullptr;
        check(api->GetTensorMutableData(made, &data));
        memset(data, 0, count() * (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ? 4 : 8));
        return value;
    }

    // The numbers of a value, after checking that it is such a tensor.
    template <typename T> T *data(const Value &value) const {
        OrtTensorTypeAndShapeInfo *info = nullptr;
        ONNXTensorElementDataType found{};
        size_t size = 0;
        void *data = nullptr;
        check(api->GetTensorTypeAndShape(value.get(), &info));
        const Owner<OrtTensorTypeAndShapeInfo> owner(info, api->ReleaseTensorTypeAndShapeInfo);
        check(api->GetTensorElementType(info, &found));
        check(api->GetTensorShapeElementCount(info, &size));
        require(found == type && size == count(), name + ": expected the shape of export.json, got another");
        check(api->GetTensorMutableData(value.get(), &data));
        return static_cast<T *>(data);
    }
};

// A graph of the folder in a session of its own.
struct Graph {
    std::vector<Tensor> inputs, outputs;
    std::vector<const char *> input_names, output_names;
    Owner<OrtSession> session{nullptr, nullptr};

    Graph(const Runtime &runtime, const std::string &folder, const char *json, const std::string &kind) {
        const char *graph = nullptr;
        for (int i = 0; (graph = ripe_json_get(json, ("graphs." + std::to_string(i)).c_str())); i++)
            if (ripe_json_is(graph, "kind", ("\"" + kind + "\"").c_str())) break;
        require(graph, "export.json: graphs: expected a " + kind + " graph, got none");
        for (int i = 0; const char *one = ripe_json_get(graph, ("tensors." + std::to_string(i)).c_str()); i++)
            (ripe_json_is(one, "role", "\"input\"") ? inputs : outputs).push_back(read(one));
        require(!inputs.empty() && !outputs.empty(), "export.json: tensors: expected those of the " + kind +
                " graph, got none; export the network again");
        for (const Tensor &one : inputs) input_names.push_back(one.name.c_str());
        for (const Tensor &one : outputs) output_names.push_back(one.name.c_str());
        session = runtime.open(folder + "/" + kind + ".onnx");
    }

    static Tensor read(const char *one) {
        const char *name = ripe_json_get(one, "name");
        require(name && *name == '"', "export.json: tensors: expected a name, got none");
        Tensor made{std::string(name + 1, ripe_json_end(name, 0) - 1), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {}};
        if (ripe_json_is(one, "dtype", "\"int64\"")) made.type = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
        else if (ripe_json_is(one, "dtype", "\"float64\"")) made.type = ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
        else require(ripe_json_is(one, "dtype", "\"float32\""), made.name + ": expected float32, float64 or int64");
        char error[RIPE_ERROR_SIZE];
        for (int i = 0; i < 8; i++) {
            const std::string path = "shape." + std::to_string(i);
            int64_t side = 1;  // of a free dimension, "B": one clip at a time
            if (!ripe_json_get(one, path.c_str())) break;
            if (!ripe_json_is(one, path.c_str(), "\"B\""))
                require(ripe_json_int(one, path.c_str(), 1, 1 << 24, &side, error), error);
            made.shape.push_back(side);
            require(made.count() <= 1u << 28, made.name + ": expected at most 2^28 numbers");
        }
        return made;
    }

    std::vector<Value> run(const std::vector<const OrtValue *> &values) const {
        std::vector<OrtValue *> found(outputs.size(), nullptr);
        require(values.size() == inputs.size(), "export.json: tensors: expected the graph's inputs, got others");
        check(api->Run(session.get(), nullptr, input_names.data(), values.data(), values.size(), output_names.data(),
                       found.size(), found.data()));
        std::vector<Value> kept;
        for (OrtValue *one : found) kept.emplace_back(one, api->ReleaseValue);
        return kept;
    }
};

#endif
