// The Python module `_core`: the life of the world, and collectives of bytes for Python objects.
//
// Everything here works in eager code, while a graph is built, and in TF1 alike, since it does not
// involve TensorFlow.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/core/clock.h"
#include "ops/world/world.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// The interval at which a blocked call looks for Ctrl-C.
constexpr auto kSignalInterval = std::chrono::milliseconds(50);

// Set once, when the module is imported; the interpreter keeps the module, and so the class, alive.
PyObject* g_collective_error = nullptr;

void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  py::object error =
      py::reinterpret_borrow<py::object>(g_collective_error)(py::str(status.message()));
  error.attr("code") = CodeName(status.code());
  PyErr_SetObject(g_collective_error, error.ptr());
  throw py::error_already_set();
}

std::shared_ptr<World> CurrentWorld() {
  std::shared_ptr<World> world;
  RaiseIfError(World::Current(&world));
  return world;
}

// A request of this thread and its memory. Shared with the engine, since a call that is interrupted
// by Ctrl-C returns while the request is still pending.
struct Call {
  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;
  Status status;
  std::string input;
  std::string output;
  std::vector<int64_t> rows;
};

void Wait(Call* call) {
  while (true) {
    {
      py::gil_scoped_release release;
      std::unique_lock<std::mutex> lock(call->mutex);
      if (call->changed.wait_for(lock, kSignalInterval, [&] { return call->finished; })) break;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  RaiseIfError(call->status);
}

void Run(std::shared_ptr<Call> call, std::unique_ptr<Request> request) {
  std::shared_ptr<World> world = CurrentWorld();
  request->done = [call](const Status& status) {
    std::lock_guard<std::mutex> lock(call->mutex);
    call->status = status;
    call->finished = true;
    call->changed.notify_all();
  };
  {
    py::gil_scoped_release release;
    world->engine().Submit(std::move(request));
  }
  Wait(call.get());
}

std::unique_ptr<Request> NewRequest(CollectiveKind kind, const std::string& name, int process_set) {
  auto request = std::make_unique<Request>();
  request->kind = kind;
  request->name = name;
  request->process_set = process_set;
  return request;
}

void BroadcastString(const std::string& name, int root, int process_set, int64_t bytes,
                     const std::shared_ptr<Call>& call) {
  auto request = NewRequest(CollectiveKind::kBroadcast, name, process_set);
  request->root_rank = root;
  call->output.resize(static_cast<size_t>(bytes));
  request->pieces.push_back({call->input.data(), call->output.data(), {bytes}});
  Run(call, std::move(request));
}

py::bytes BroadcastBytes(const py::bytes& data, int root, const std::string& name,
                         int process_set) {
  const bool is_root = CurrentWorld()->config().rank == root;
  auto size_call = std::make_shared<Call>();
  auto data_call = std::make_shared<Call>();
  if (is_root) data_call->input = data;
  const int64_t size = static_cast<int64_t>(data_call->input.size());
  size_call->input.assign(reinterpret_cast<const char*>(&size), sizeof(size));
  BroadcastString(name + ".size", root, process_set, sizeof(size), size_call);
  int64_t bytes = 0;
  std::memcpy(&bytes, size_call->output.data(), sizeof(bytes));
  BroadcastString(name + ".data", root, process_set, bytes, data_call);
  return py::bytes(data_call->output);
}

std::vector<py::bytes> AllgatherBytes(const py::bytes& data, const std::string& name,
                                      int process_set) {
  auto call = std::make_shared<Call>();
  call->input = data;
  auto request = NewRequest(CollectiveKind::kAllgather, name, process_set);
  request->pieces.push_back(
      {call->input.data(), nullptr, {static_cast<int64_t>(call->input.size())}});
  request->allocate = [call](const std::vector<std::vector<int64_t>>& rows,
                             std::vector<Piece>* pieces) {
    call->rows = rows[0];
    int64_t total = 0;
    for (int64_t member_rows : call->rows) total += member_rows;
    call->output.resize(static_cast<size_t>(total));
    (*pieces)[0].output = call->output.data();
    return Status::Ok();
  };
  Run(call, std::move(request));
  std::vector<py::bytes> parts;
  size_t begin = 0;
  for (int64_t rows : call->rows) {
    parts.emplace_back(call->output.data() + begin, static_cast<size_t>(rows));
    begin += static_cast<size_t>(rows);
  }
  return parts;
}

void Barrier(const std::string& name, int process_set, double timeout_seconds) {
  auto request = NewRequest(CollectiveKind::kBarrier, name, process_set);
  request->timeout_seconds = timeout_seconds;
  Run(std::make_shared<Call>(), std::move(request));
}

void Init(const WorldConfig& config) {
  Status status;
  {
    py::gil_scoped_release release;
    status = World::Init(config);
  }
  RaiseIfError(status);
}

void DefineConfig(const py::module_& module) {
  py::class_<WorldConfig>(module, "WorldConfig")
      .def(py::init<>())
      .def_readwrite("rank", &WorldConfig::rank)
      .def_readwrite("size", &WorldConfig::size)
      .def_readwrite("local_rank", &WorldConfig::local_rank)
      .def_readwrite("local_size", &WorldConfig::local_size)
      .def_readwrite("cross_rank", &WorldConfig::cross_rank)
      .def_readwrite("cross_size", &WorldConfig::cross_size)
      .def_readwrite("segment", &WorldConfig::segment)
      .def_readwrite("host_of_rank", &WorldConfig::host_of_rank)
      .def_readwrite("host_names", &WorldConfig::host_names)
      .def_readwrite("mpi_library", &WorldConfig::mpi_library)
      .def_readwrite("mpi_communicator", &WorldConfig::mpi_communicator)
      .def_readwrite("host_timeout", &WorldConfig::host_timeout_seconds)
      .def_readwrite("start_timeout", &WorldConfig::start_timeout_seconds)
      .def_readwrite("deadlock_seconds", &WorldConfig::deadlock_seconds)
      .def_readwrite("stall_warning_seconds", &WorldConfig::stall_warning_seconds)
      .def_readwrite("stall_shutdown_seconds", &WorldConfig::stall_shutdown_seconds)
      .def_readwrite("chunk_bytes", &WorldConfig::chunk_bytes);
}

// A function that returns a status and may wait for the engine's lock, called without Python's
// lock.
template <typename Function>
void CallUnlocked(const Function& function) {
  std::shared_ptr<World> world = CurrentWorld();
  Status status;
  {
    py::gil_scoped_release release;
    status = function(&world->engine());
  }
  RaiseIfError(status);
}

void AddProcessSet(int id, const std::vector<int>& ranks) {
  CallUnlocked([&](Engine* engine) { return engine->AddProcessSet(id, ranks); });
}

void RemoveProcessSet(int id) {
  CallUnlocked([&](Engine* engine) { return engine->RemoveProcessSet(id); });
}

std::vector<int> ProcessSetRanks(int id) {
  std::vector<int> ranks;
  CallUnlocked([&](Engine* engine) { return engine->GetProcessSet(id, &ranks); });
  return ranks;
}

// A rank's number among those of this host.
int RequireLocal(World* world, int rank) {
  shm::Segment& segment = world->segment();
  for (int r = 0; r < segment.ranks(); ++r) {
    if (segment.global_rank(r) == rank) return r;
  }
  throw py::value_error("rank " + std::to_string(rank) + " is not on this host");
}

py::dict ToDict(const FlightEntry& entry) {
  py::dict record;
  record["number"] = entry.number;
  record["kind"] = Name(entry.kind);
  record["name"] = entry.name;
  record["process_set"] = entry.process_set;
  record["occurrence"] = entry.occurrence;
  record["dtype"] = Name(entry.dtype);
  record["reduce_op"] = Name(entry.reduce_op);
  record["tensors"] = entry.pieces;
  record["shape"] = entry.shape;
  record["bytes"] = entry.bytes;
  record["fingerprint"] = entry.fingerprint;
  record["posted_ns"] = entry.posted_ns;
  record["started_ns"] = entry.started_ns;
  record["ended_ns"] = entry.ended_ns;
  record["code"] = entry.code == Code::kOk ? "" : CodeName(entry.code);
  return record;
}

std::vector<py::dict> FlightRecords(int rank) {
  std::shared_ptr<World> world = CurrentWorld();
  std::vector<py::dict> records;
  const FlightRing& ring = world->segment().report(RequireLocal(world.get(), rank)).flight_ring;
  for (const FlightEntry& entry : ReadRecords(ring)) records.push_back(ToDict(entry));
  return records;
}

uint32_t WaitForCalls(double seconds) {
  std::shared_ptr<World> world = CurrentWorld();
  py::gil_scoped_release release;
  return world->segment().WaitForCalls(
      world->config().local_rank, std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
}

void CallWatcher(uint32_t calls) {
  std::shared_ptr<World> world = CurrentWorld();
  world->segment().CallWatcher(world->config().local_rank, calls);
}

void AnswerStack(const std::string& text) {
  std::shared_ptr<World> world = CurrentWorld();
  shm::RankReport& report = world->segment().report(world->config().local_rank);
  const size_t bytes = std::min(text.size(), sizeof(report.stack) - 1);
  std::memcpy(report.stack, text.data() + text.size() - bytes, bytes);
  report.stack[bytes] = '\0';
  report.stack_answers.fetch_add(1, std::memory_order_release);
}

void AbortForException(const std::string& traceback) {
  std::shared_ptr<World> world = CurrentWorld();
  world->segment().AbortForException(world->config().local_rank, traceback);
}

std::string AbortText() {
  const Status status = CurrentWorld()->segment().AbortStatus();
  return status.message();
}

// Of the ranks on this host.
std::map<int, int> LocalPids() {
  std::shared_ptr<World> world = CurrentWorld();
  std::map<int, int> pids;
  shm::Segment& segment = world->segment();
  for (int r = 0; r < segment.ranks(); ++r) {
    pids[segment.global_rank(r)] = segment.line(r).pid.load();
  }
  return pids;
}

void StartTimeline(const std::string& path, bool mark_cycles, int64_t max_bytes) {
  std::shared_ptr<World> world = CurrentWorld();
  Status status;
  {
    py::gil_scoped_release release;
    status = world->StartTimeline(path, mark_cycles, max_bytes);
  }
  RaiseIfError(status);
}

void StopTimeline() {
  std::shared_ptr<World> world = CurrentWorld();
  py::gil_scoped_release release;
  world->StopTimeline();
}

bool TimelineIsOn() {
  std::shared_ptr<World> world;
  return World::Current(&world).ok() && world->timeline().is_on();
}

// A step or an epoch of the training, which has just ended.
void MarkTimeline(bool is_epoch, int64_t number, int64_t begin_ns, int64_t end_ns) {
  std::shared_ptr<World> world = CurrentWorld();
  TimelineRecord record;
  record.kind = is_epoch ? TimelineRecord::Kind::kEpoch : TimelineRecord::Kind::kStep;
  record.number = number;
  record.begin_ns = begin_ns;
  record.end_ns = end_ns;
  world->timeline().Add(record);
}

// Nanoseconds that one record of a call takes the calling thread, for benchmarks.
double TimeTimelineRecords(int64_t records) {
  std::shared_ptr<World> world = CurrentWorld();
  py::gil_scoped_release release;
  const std::string name = "multi_step_on_iterator/one_step_on_data/gradients.12";
  const int64_t begin_ns = ClockNs(CLOCK_MONOTONIC);
  for (int64_t i = 0; i < records; ++i) {
    TimelineRecord record;
    record.kind = TimelineRecord::Kind::kSubmit;
    record.begin_ns = begin_ns;
    record.number = i;
    record.SetName(name);
    record.end_ns = ClockNs(CLOCK_MONOTONIC);
    world->timeline().Add(record);
  }
  return static_cast<double>(ClockNs(CLOCK_MONOTONIC) - begin_ns) / static_cast<double>(records);
}

void AddBuckets(const std::string& base) {
  CallUnlocked([&](Engine* engine) {
    engine->AddBuckets(base);
    return Status::Ok();
  });
}

bool IsInitialized() {
  std::shared_ptr<World> world;
  return World::Current(&world).ok();
}

std::map<std::string, int64_t> Stats() {
  std::shared_ptr<World> world = CurrentWorld();
  int64_t exposed_ns = 0;
  {
    py::gil_scoped_release release;
    exposed_ns = world->engine().ExposedNs();
  }
  const EngineStats& stats = world->engine().stats();
  std::map<std::string, int64_t> result = {
      {"collectives", stats.collectives.load()},
      {"failures", stats.failures.load()},
      {"bytes", stats.bytes.load()},
      {"planned", stats.planned.load()},
      {"last", stats.last.load()},
      {"late_ns", stats.late_ns.load()},
      {"waited_ns", stats.waited_ns.load()},
      {"exposed_ns", exposed_ns},
      {"timeline_dropped", world->timeline().dropped()},
      {"sleeps", world->waiter().sleeps()},
      {"wakes", world->waiter().wakes()},
      {"messages", 0},
      {"message_bytes", 0},
      {"control_messages", 0},
  };
  if (world->exchange() != nullptr) {
    result["messages"] = world->exchange()->stats().messages.load();
    result["message_bytes"] = world->exchange()->stats().bytes.load();
  }
  if (world->agent() != nullptr) {
    result["control_messages"] = world->agent()->stats().control_messages.load();
  }
  return result;
}

}  // namespace
}  // namespace hvd::python

PYBIND11_MODULE(_core, module) {
  using namespace hvd;          // NOLINT
  using namespace hvd::python;  // NOLINT
  module.doc() = "The engine of hvd_keras. Private: use the functions of hvd_keras instead.";

  g_collective_error = PyErr_NewExceptionWithDoc(
      "hvd_keras._core.CollectiveError",
      "A collective, or hvd.init(), failed; `code` is the kind of failure, for example 'Aborted'.",
      PyExc_RuntimeError, nullptr);
  module.attr("CollectiveError") = py::reinterpret_borrow<py::object>(g_collective_error);

  DefineConfig(module);
  module.def("init", &Init, py::arg("config"));
  module.def("shutdown", &World::Shutdown, py::call_guard<py::gil_scoped_release>());
  module.def("is_initialized", &IsInitialized);
  module.def("rank", [] { return CurrentWorld()->config().rank; });
  module.def("size", [] { return CurrentWorld()->config().size; });
  module.def("local_rank", [] { return CurrentWorld()->config().local_rank; });
  module.def("local_size", [] { return CurrentWorld()->config().local_size; });
  module.def("cross_rank", [] { return CurrentWorld()->config().cross_rank; });
  module.def("cross_size", [] { return CurrentWorld()->config().cross_size; });
  module.def("broadcast_bytes", &BroadcastBytes, py::arg("data"), py::arg("root"), py::arg("name"),
             py::arg("process_set") = 0);
  module.def("allgather_bytes", &AllgatherBytes, py::arg("data"), py::arg("name"),
             py::arg("process_set") = 0);
  module.def("barrier", &Barrier, py::arg("name"), py::arg("process_set") = 0,
             py::arg("timeout_seconds") = 0.0);
  module.def("add_process_set", &AddProcessSet, py::arg("id"), py::arg("ranks"));
  module.def("remove_process_set", &RemoveProcessSet, py::arg("id"));
  module.def("process_set_ranks", &ProcessSetRanks, py::arg("id"));
  module.def("stats", &Stats);
  module.def("start_timeline", &StartTimeline, py::arg("path"), py::arg("mark_cycles"),
             py::arg("max_bytes"));
  module.def("stop_timeline", &StopTimeline);
  module.def("timeline_is_on", &TimelineIsOn);
  module.def("mark_timeline", &MarkTimeline, py::arg("is_epoch"), py::arg("number"),
             py::arg("begin_ns"), py::arg("end_ns"));
  module.def("time_timeline_records", &TimeTimelineRecords, py::arg("records"));
  module.def("add_buckets", &AddBuckets, py::arg("base"));

  // For hvd_keras.diagnostics.
  module.attr("CALL_STACK") = static_cast<uint32_t>(shm::kCallStack);
  module.attr("CALL_DUMP") = static_cast<uint32_t>(shm::kCallDump);
  module.attr("CALL_ABORT") = static_cast<uint32_t>(shm::kCallAbort);
  module.attr("CALL_RETURN") = static_cast<uint32_t>(shm::kCallReturn);
  module.def("wait_for_calls", &WaitForCalls, py::arg("seconds"));
  module.def("call_watcher", &CallWatcher, py::arg("calls"));
  module.def("call_watcher_on_signal", &World::CallWatcherOnSignal, py::arg("signum"));
  module.def("answer_stack", &AnswerStack, py::arg("text"));
  module.def("abort_for_exception", &AbortForException, py::arg("traceback"));
  module.def("abort_text", &AbortText);
  module.def("flight_records", &FlightRecords, py::arg("rank"));
  module.def("local_pids", &LocalPids);
}
