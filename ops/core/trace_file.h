// TraceFile: a JSON array in a file that grows, and is valid JSON at every moment.
//
// There are two copies. The one that has the name is never written to; what is new goes to the end
// of the hidden one, and then the two exchange their names, in one step. So whoever looks after the
// process was killed in the middle of a write, or the disk was full, has a file that ends where an
// element ends; and so has a reader, who has until the call of Append() after the next one.
//
// Where a file system cannot exchange names (NFS), there is one copy. It is written to by one
// call, which replaces the end of the array by elements and another end.
#ifndef HVD_CORE_TRACE_FILE_H_
#define HVD_CORE_TRACE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "ops/core/status.h"

namespace hvd {

class TraceFile {
 public:
  // The first element of the array, of part 1, 2, ...
  using Header = std::function<std::string(int part)>;

  TraceFile() = default;
  ~TraceFile() { Close(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Creates the file, in place of one that may be there. When it has become long it is renamed to
  // NAME.part-N.json, where `path` is NAME.json, and begun anew; the oldest parts are removed, so
  // that all together have at most about `max_bytes`.
  Status Open(const std::string& path, int64_t max_bytes, Header header);

  // Appends elements, each preceded by a comma. After an error nothing of them is there, and the
  // next call may succeed.
  Status Append(const std::string& elements);

  // Leaves the one copy that has the name.
  void Close();

  const std::string& path() const { return path_; }

 private:
  struct Copy {
    int fd = -1;
    int64_t end = 0;  // of the elements
  };

  // Creates the file at `path` with the header.
  Status Create(const std::string& path, Copy* copy);
  Status Write(const std::string& elements, Copy* copy);
  Status Begin();
  Status FinishPart();
  Status AppendToPart(const std::string& elements);
  void Hide();  // makes the second copy, if there can be one
  void Unhide();
  std::string PartPath(int part) const;

  std::string path_;
  std::string hidden_path_;
  int64_t part_bytes_ = 0;
  Header header_;
  std::string first_;  // element of this part
  int part_ = 0;
  Copy shown_;
  Copy hidden_;
  std::string lacks_;  // what the shown copy has and the hidden one has not
};

}  // namespace hvd

#endif  // HVD_CORE_TRACE_FILE_H_
