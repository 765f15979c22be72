#include "ops/core/timeline_format.h"

#include <algorithm>
#include <cstdio>

namespace hvd {
namespace {

enum Track : int {
  kTrain = 1,
  kExposed = 2,
  kCallbacks = 3,
  kNotes = 4,
  kFirstLane = 10,
  kMaxLanes = 64,
  kFirstThread = 100,  // plus the number of a thread of the program
};

// In microseconds, as the format wants them.
std::string Micros(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof(text), "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

// The length of the UTF-8 sequence at `at`, 0 if there is none.
size_t SequenceLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  size_t length = 0;
  if (first < 0x80) length = 1;
  if (first >= 0xC2 && first < 0xE0) length = 2;
  if (first >= 0xE0 && first < 0xF0) length = 3;
  if (first >= 0xF0 && first < 0xF5) length = 4;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = at + 1; i < at + length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what is beyond Unicode.
  if (first == 0xE0 && byte(at + 1) < 0xA0) return 0;
  if (first == 0xED && byte(at + 1) > 0x9F) return 0;
  if (first == 0xF0 && byte(at + 1) < 0x90) return 0;
  if (first == 0xF4 && byte(at + 1) > 0x8F) return 0;
  return length;
}

std::string Number(const char* key, int64_t value) {
  return std::string("\"") + key + "\":" + std::to_string(value);
}

}  // namespace

const char* TimelineName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return "ALLREDUCE";
    case CollectiveKind::kAllgather:
      return "ALLGATHER";
    case CollectiveKind::kBroadcast:
      return "BCAST";
    case CollectiveKind::kBarrier:
      return "BARRIER";
    case CollectiveKind::kReducescatter:
      return "REDUCESCATTER";
    case CollectiveKind::kAlltoall:
      return "ALLTOALL";
    case CollectiveKind::kJoin:
      return "JOIN";
  }
  return "UNKNOWN";
}

std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t length = SequenceLength(text, at);
    if (length == 0) {
      out += '?';
      ++at;
      continue;
    }
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out.append(text, at, length);
    }
    at += length;
  }
  return out + "\"";
}

std::string TimelineFormat::TrackName(int track) {
  switch (track) {
    case kTrain:
      return "training";
    case kExposed:
      return "exposed communication";
    case kCallbacks:
      return "callbacks";
    case kNotes:
      return "notes";
    default:
      break;
  }
  if (track >= kFirstThread) return "calls of thread " + std::to_string(track - kFirstThread);
  return "collectives " + std::to_string(track - kFirstLane + 1);
}

void TimelineFormat::AppendMetadata(const std::string& name, int track,
                                    const std::string& arguments, std::string* text) const {
  *text += ",\n{\"name\":" + JsonString(name) + ",\"ph\":\"M\",\"ts\":0," + Number("pid", rank_) +
           "," + Number("tid", track) + ",\"args\":{" + arguments + "}}";
}

void TimelineFormat::AppendTrackNames(std::string* text) const {
  for (int track : tracks_) {
    AppendMetadata("thread_name", track, "\"name\":" + JsonString(TrackName(track)), text);
    AppendMetadata("thread_sort_index", track, Number("sort_index", track), text);
  }
}

void TimelineFormat::UseTrack(int track, std::string* text) {
  if (!tracks_.insert(track).second) return;
  AppendMetadata("thread_name", track, "\"name\":" + JsonString(TrackName(track)), text);
  AppendMetadata("thread_sort_index", track, Number("sort_index", track), text);
}

void TimelineFormat::AppendSlice(const std::string& name, int track, int64_t begin_ns,
                                 int64_t end_ns, const std::string& arguments,
                                 std::string* text) const {
  *text += ",\n{\"name\":" + JsonString(name) + ",\"ph\":\"X\"," + Number("pid", rank_) + "," +
           Number("tid", track) + ",\"ts\":" + Micros(begin_ns) +
           ",\"dur\":" + Micros(std::max<int64_t>(end_ns - begin_ns, 0));
  if (!arguments.empty()) *text += ",\"args\":{" + arguments + "}";
  *text += "}";
}

void TimelineFormat::AppendNote(const std::string& name, int64_t at_ns, std::string* text) const {
  *text += ",\n{\"name\":" + JsonString(name) + ",\"ph\":\"i\",\"s\":\"t\"," +
           Number("pid", rank_) + "," + Number("tid", kNotes) + ",\"ts\":" + Micros(at_ns) + "}";
}

int TimelineFormat::LaneFor(const TimelineRecord& record) {
  size_t lane = 0;
  while (lane < lane_ends_.size() && lane_ends_[lane] > record.begin_ns) ++lane;
  if (lane == lane_ends_.size() && lane < kMaxLanes) lane_ends_.push_back(0);
  lane = std::min(lane, lane_ends_.size() - 1);
  lane_ends_[lane] = record.end_ns;
  return kFirstLane + static_cast<int>(lane);
}

// What it was occupied with, one after another, though the phases took turns, chunk by chunk.
void TimelineFormat::AppendExecution(const TimelineRecord& record, int track,
                                     std::string* text) const {
  const std::string name = std::string(record.transport) + "_" + TimelineName(record.collective);
  const PhaseTimes& phases = record.phases;
  std::string arguments = Number("bytes", record.bytes);
  const std::pair<const char*, int64_t> parts[] = {
      {"MEMCPY_IN_FUSION_BUFFER", phases.pack},    {"WAIT_FOR_OTHER_TENSOR_DATA", phases.wait},
      {"WAIT_FOR_NETWORK", phases.network},        {"REDUCE", phases.reduce},
      {"MEMCPY_OUT_FUSION_BUFFER", phases.unpack},
  };
  AppendSlice(name, track, record.started_ns, record.end_ns, arguments, text);
  int64_t at = record.started_ns;
  for (const auto& [phase, ns] : parts) {
    const int64_t end = std::min(at + ns, record.end_ns);
    if (end <= at) continue;
    AppendSlice(phase, track, at, end, "\"added_up\":true", text);
    at = end;
  }
}

void TimelineFormat::AppendCollective(const TimelineRecord& record, std::string* text) {
  const int lane = LaneFor(record);
  UseTrack(lane, text);
  // A collective that failed early has not got all of its times.
  const int64_t agreed = record.agreed_ns == 0
                             ? record.end_ns
                             : std::clamp(record.agreed_ns, record.begin_ns, record.end_ns);
  const std::string kind = TimelineName(record.collective);
  std::string arguments =
      "\"collective\":" + JsonString(kind) + "," + Number("occurrence", record.number) + "," +
      Number("process_set", record.process_set) + "," + Number("bytes", record.bytes) + "," +
      Number("tensors", record.pieces) + ",\"dtype\":" + JsonString(Name(record.dtype)) +
      ",\"planned\":" + (record.by_plan ? "true" : "false");
  if (record.code != Code::kOk) arguments += ",\"failed\":" + JsonString(CodeName(record.code));
  AppendSlice(record.name, lane, record.begin_ns, record.end_ns, arguments, text);
  std::string negotiation =
      Number("last_rank", record.last_rank) + "," + Number("ranks", record.ranks);
  if (record.first_ns > 0) {
    negotiation +=
        ",\"late_us\":" + Micros(std::max<int64_t>(record.begin_ns - record.first_ns, 0));
  }
  AppendSlice("NEGOTIATE_" + kind, lane, record.begin_ns, agreed, negotiation, text);
  if (record.started_ns == 0) return;
  const int64_t started = std::clamp(record.started_ns, agreed, record.end_ns);
  if (started > agreed) AppendSlice("QUEUE", lane, agreed, started, "", text);
  TimelineRecord execution = record;
  execution.started_ns = started;
  AppendExecution(execution, lane, text);
}

void TimelineFormat::Append(const TimelineRecord& record, std::string* text) {
  using Kind = TimelineRecord::Kind;
  switch (record.kind) {
    case Kind::kSubmit: {
      const int track = kFirstThread + record.thread;
      UseTrack(track, text);
      AppendSlice("SUBMIT", track, record.begin_ns, record.end_ns,
                  "\"name\":" + JsonString(record.name) + "," +
                      Number("occurrence", record.number) + "," +
                      Number("process_set", record.process_set),
                  text);
      return;
    }
    case Kind::kCollective:
      return AppendCollective(record, text);
    case Kind::kCallback:
      UseTrack(kCallbacks, text);
      return AppendSlice("CALLBACK", kCallbacks, record.begin_ns, record.end_ns,
                         "\"name\":" + JsonString(record.name), text);
    case Kind::kExposed:
      UseTrack(kExposed, text);
      return AppendSlice("EXPOSED", kExposed, record.begin_ns, record.end_ns, "", text);
    case Kind::kStep:
    case Kind::kEpoch:
      UseTrack(kTrain, text);
      return AppendSlice(record.kind == Kind::kStep ? "STEP" : "EPOCH", kTrain, record.begin_ns,
                         record.end_ns, Number("number", record.number), text);
    case Kind::kCycle:
      UseTrack(kNotes, text);
      return AppendNote("CYCLE_START", record.begin_ns, text);
    case Kind::kNote:
      UseTrack(kNotes, text);
      return AppendNote(record.name, record.begin_ns, text);
  }
}

}  // namespace hvd
