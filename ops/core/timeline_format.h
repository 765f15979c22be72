// TimelineFormat: records of a timeline as Chrome trace events.
//
// A collective takes a lane from its call to its end; below it lie what it waited for and what it
// did. Lanes are the tracks of that name; there are as many as there were collectives at once.
#ifndef HVD_CORE_TIMELINE_FORMAT_H_
#define HVD_CORE_TIMELINE_FORMAT_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ops/core/timeline.h"

namespace hvd {

class TimelineFormat {
 public:
  explicit TimelineFormat(int rank) : rank_(rank) {}

  // Appends the record's events, each preceded by a comma and a line break.
  void Append(const TimelineRecord& record, std::string* text);

  // An event that names something: a process or thread, or one of our own.
  void AppendMetadata(const std::string& name, int track, const std::string& arguments,
                      std::string* text) const;
  void AppendNote(const std::string& name, int64_t at_ns, std::string* text) const;

  // The names of tracks that are in use, which each part of a file needs again.
  void AppendTrackNames(std::string* text) const;

 private:
  void AppendSlice(const std::string& name, int track, int64_t begin_ns, int64_t end_ns,
                   const std::string& arguments, std::string* text) const;
  void AppendCollective(const TimelineRecord& record, std::string* text);
  void AppendExecution(const TimelineRecord& record, int track, std::string* text) const;
  int LaneFor(const TimelineRecord& record);
  void UseTrack(int track, std::string* text);
  static std::string TrackName(int track);

  const int rank_;
  std::vector<int64_t> lane_ends_;
  std::set<int> tracks_;
};

// Text as a JSON string, with its quotes. What is no UTF-8 becomes question marks.
std::string JsonString(const std::string& text);

// "ALLREDUCE", "BCAST", ...: as other timelines of this field name them.
const char* TimelineName(CollectiveKind kind);

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_FORMAT_H_
