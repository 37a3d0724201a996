// What ggml's CUDA backend does with its recordings, on containers of the same kinds: the tests read
// and change these as Parlay does on a GPU.
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

int64_t n_instances = 0; // that were made and not destroyed
int64_t n_graphs = 0;
int64_t n_numbers = 0;
int64_t now_us = 0;

void * made(int64_t & counter) {
    counter++;
    return new char;
}

struct Node {
    int64_t shape;
    char rest[1000];
};

struct Recording {
    ~Recording();

    void * graph = nullptr;
    void * instance = nullptr;
    size_t n_nodes = 0;
    std::vector<void *> nodes;
    bool forbidden = false;
    bool warm = false;
    uint64_t compared = 0;
    int64_t used_us = 0;
    std::vector<Node> properties;
};

struct Data {
    int device = 0;
    std::string name = "CUDA0";
    void * copied = nullptr;
    void * streams[16][8] = {};
    void * cublas[16][8] = {};
    void * spaces[16][8] = {};
    size_t space_sizes[16] = {};
    int stream = 0;
    std::unordered_map<const void *, std::unique_ptr<Recording>> recordings;
    int64_t swept_us = 0;
};

} // namespace

extern "C" {

void cudaGraphExecDestroy(void * instance) {
    n_instances--;
    delete static_cast<char *>(instance);
}

void cudaGraphDestroy(void * graph) {
    n_graphs--;
    delete static_cast<char *>(graph);
}

Data * open_data() { return new Data; }
void close_data(Data * data) { delete data; }
void set_now(int64_t us) { now_us = us; }
int64_t instances() { return n_instances; }
int64_t graphs() { return n_graphs; }

// One part of a pass; 0: launched, 1: recorded, 2: repeated.
int run(Data * data, const void * part, int64_t shape) {
    auto & held = data->recordings;
    if (now_us - data->swept_us >= 5000000) {
        data->swept_us = now_us;
        for (auto it = held.begin(); it != held.end();) {
            it = now_us - it->second->used_us >= 10000000 ? held.erase(it) : std::next(it);
        }
    }
    auto & place = held[part];
    if (!place) place = std::make_unique<Recording>();
    Recording & recording = *place;
    recording.used_us = now_us;
    if (recording.forbidden) return 0;
    recording.compared = ++n_numbers;
    const bool changed = recording.properties.size() != 3 || recording.properties[0].shape != shape;
    recording.properties.resize(3);
    for (auto & node : recording.properties) node.shape = shape;
    if (changed) {
        recording.warm = false;
        return 0;
    }
    if (recording.warm && recording.instance) return 2;
    recording.warm = true;
    if (recording.graph) cudaGraphDestroy(recording.graph);
    recording.graph = made(n_graphs);
    recording.nodes.resize(3);
    if (!recording.instance) recording.instance = made(n_instances);
    return 1;
}

} // extern "C"

namespace {

Recording::~Recording() {
    if (instance) cudaGraphExecDestroy(instance);
    if (graph) cudaGraphDestroy(graph);
}

} // namespace
