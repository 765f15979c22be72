// The engine without TensorFlow: allreduce on host memory, as one of the ranks of a job.
//
//   engine_alone PREFIX LABEL:DTYPE:BYTES[,BYTES...]:ROUNDS:REPEAT ...
//
// Started once for each rank, with HVD_RANK, HVD_SIZE and HVD_SEGMENT. Writes what it has measured
// to PREFIX.RANK.json (benchmarks/protocol.py). Three variants take turns:
//   memcpy  all ranks copy as many bytes at once, on the thread that called
//   engine  REPEAT allreduces, each submitted by the end of the one before, on the engine's thread
//   call    REPEAT allreduces, each waited for by the thread that submits it
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ops/world/world.h"

namespace hvd::benchmarks {
namespace {

constexpr int64_t kAlignment = 64;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Die(const std::string& text) {
  std::fprintf(stderr, "engine_alone: %s\n", text.c_str());
  std::exit(1);
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) Die(std::string(name) + " is not set");
  return value;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

struct Type {
  DataType dtype;
  int64_t bytes;
  uint32_t one;  // the bits of 1.0
};

Type TypeOf(const std::string& name) {
  if (name == "float32") return {DataType::kFloat32, 4, 0x3F800000};
  if (name == "float16") return {DataType::kFloat16, 2, 0x3C00};
  if (name == "bfloat16") return {DataType::kBfloat16, 2, 0x3F80};
  Die("unknown type " + name);
}

// What one word of the command line asks for.
struct Task {
  std::string label;
  std::string dtype;
  std::vector<int64_t> pieces;  // bytes
  int rounds = 0;
  int repeat = 0;

  int64_t Total() const {
    int64_t total = 0;
    for (int64_t bytes : pieces) total += bytes;
    return total;
  }
};

Task ParseTask(const std::string& word) {
  const std::vector<std::string> parts = Split(word, ':');
  if (parts.size() != 5) Die("cannot read " + word);
  Task task;
  task.label = parts[0];
  task.dtype = parts[1];
  for (const std::string& bytes : Split(parts[2], ',')) task.pieces.push_back(std::stoll(bytes));
  task.rounds = std::stoi(parts[3]);
  task.repeat = std::stoi(parts[4]);
  return task;
}

// A flag that one thread waits for and another one sets.
class Event {
 public:
  void Set() {
    std::lock_guard<std::mutex> lock(mutex_);
    set_ = true;
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return set_; });
    set_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

class Bench {
 public:
  Bench(Engine* engine, const Task& task)
      : engine_(engine), task_(task), type_(TypeOf(task.dtype)) {
    for (int64_t bytes : task.pieces) {
      inputs_.push_back(Allocate(bytes, type_.one));
      outputs_.push_back(Allocate(bytes, 0));
    }
  }

  std::map<std::string, std::vector<double>> Run() {
    std::map<std::string, std::vector<double>> times;
    for (int round = -1; round < task_.rounds; ++round) {  // the first does not count
      const std::pair<const char*, double> measured[] = {
          {"memcpy", Memcpy()}, {"engine", EngineChain()}, {"call", Calls()}};
      for (const auto& [name, seconds] : measured) {
        if (round >= 0) times[name].push_back(seconds);
      }
    }
    Check();
    return times;
  }

 private:
  using Memory = std::unique_ptr<char, decltype(&std::free)>;

  Memory Allocate(int64_t bytes, uint32_t value) const {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    Memory memory(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)), &std::free);
    if (!memory) Die("out of memory");
    for (int64_t i = 0; i < rounded; i += type_.bytes) {
      std::memcpy(memory.get() + i, &value, type_.bytes);
    }
    return memory;
  }

  void Submit(CollectiveKind kind, std::function<void()> next) {
    auto request = std::make_unique<Request>();
    request->kind = kind;
    request->name = kind == CollectiveKind::kBarrier ? "barrier" : task_.label;
    if (kind == CollectiveKind::kAllreduce) {
      request->dtype = type_.dtype;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        request->pieces.push_back(
            {inputs_[i].get(), outputs_[i].get(), {task_.pieces[i] / type_.bytes}});
      }
    }
    request->done = [next = std::move(next)](const Status& status) {
      if (!status.ok()) Die(status.message());
      next();
    };
    engine_->Submit(std::move(request));
  }

  void Barrier() {
    Submit(CollectiveKind::kBarrier, [this] { event_.Set(); });
    event_.Wait();
  }

  double Memcpy() {
    Barrier();
    const double begin = Seconds();
    for (int k = 0; k < task_.repeat; ++k) {
      for (size_t i = 0; i < inputs_.size(); ++i) {
        std::memcpy(outputs_[i].get(), inputs_[i].get(), task_.pieces[i]);
        // So that the compiler copies each time.
        asm volatile("" : : "r"(outputs_[i].get()) : "memory");
      }
    }
    return (Seconds() - begin) / task_.repeat;
  }

  double Calls() {
    Barrier();
    const double begin = Seconds();
    for (int k = 0; k < task_.repeat; ++k) {
      Submit(CollectiveKind::kAllreduce, [this] { event_.Set(); });
      event_.Wait();
    }
    return (Seconds() - begin) / task_.repeat;
  }

  // From the end of a barrier to that of the last allreduce, both seen by the engine's thread.
  double EngineChain() {
    Barrier();
    double begin = 0;
    double end = 0;
    int left = task_.repeat;
    std::function<void()> next = [&] {
      if (left-- > 0) {
        Submit(CollectiveKind::kAllreduce, next);
      } else {
        end = Seconds();
        event_.Set();
      }
    };
    Submit(CollectiveKind::kBarrier, [&] {
      begin = Seconds();
      next();
    });
    event_.Wait();
    return (end - begin) / task_.repeat;
  }

  // All ranks sent ones.
  void Check() const {
    if (task_.dtype != "float32") return;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const auto* values = reinterpret_cast<const float*>(outputs_[i].get());
      for (int64_t k = 0; k < task_.pieces[i] / 4; k += 1009) {
        if (values[k] != static_cast<float>(engine_->size())) Die("the sum is wrong");
      }
    }
  }

  Engine* const engine_;
  const Task task_;
  const Type type_;
  std::vector<Memory> inputs_;
  std::vector<Memory> outputs_;
  Event event_;
};

std::string ToJson(const Task& task, const std::string& variant,
                   const std::vector<double>& seconds) {
  std::ostringstream text;
  text.precision(9);
  text << R"({"key": {"what": ")" << task.label << R"(", "variant": ")" << variant
       << R"(", "dtype": ")" << task.dtype << R"(", "bytes": )" << task.Total()
       << R"(}, "values": [)";
  for (size_t i = 0; i < seconds.size(); ++i) text << (i > 0 ? ", " : "") << seconds[i];
  text << "]}";
  return text.str();
}

int Run(int argc, char** argv) {
  WorldConfig config;
  config.rank = config.local_rank = std::stoi(Variable("HVD_RANK"));
  config.size = config.local_size = std::stoi(Variable("HVD_SIZE"));
  config.segment = Variable("HVD_SEGMENT");
  const Status status = World::Init(config);
  if (!status.ok()) Die(status.message());
  std::shared_ptr<World> world;
  if (!World::Current(&world).ok()) Die("no world");
  std::string series;
  for (int i = 2; i < argc; ++i) {
    const Task task = ParseTask(argv[i]);
    for (const auto& [variant, seconds] : Bench(&world->engine(), task).Run()) {
      series += (series.empty() ? "" : ",\n") + ToJson(task, variant, seconds);
    }
  }
  world.reset();
  World::Shutdown();
  const std::string path = std::string(argv[1]) + "." + std::to_string(config.rank) + ".json";
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) Die("cannot write " + path);
  std::fprintf(file, "{\"rank\": %d, \"size\": %d, \"versions\": {}, \"series\": [\n%s]}\n",
               config.rank, config.size, series.c_str());
  return std::fclose(file) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace hvd::benchmarks

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return hvd::benchmarks::Run(argc, argv);
}
