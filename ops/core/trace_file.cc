#include "ops/core/trace_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr char kEnd[] = "\n]\n";
constexpr size_t kEndBytes = sizeof(kEnd) - 1;

// The current part, its other copy, and two that are complete.
constexpr int kPartsAtOnce = 4;
constexpr int kCompleteParts = 2;

Status Failed(const std::string& what, const std::string& path) {
  return Unavailable("cannot " + what + " " + path + ": " + std::strerror(errno));
}

Status WriteAll(int fd, const std::string& text, int64_t offset, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = pwrite(fd, text.data() + done, text.size() - done,
                                   static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return Failed("write to", path);
    done += static_cast<size_t>(written);
  }
  return Status::Ok();
}

}  // namespace

Status TraceFile::Open(const std::string& path, int64_t max_bytes, Header header) {
  path_ = path;
  const size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  hidden_path_ = path.substr(0, name) + "." + path.substr(name) + ".next";
  part_bytes_ = max_bytes / kPartsAtOnce;
  header_ = std::move(header);
  part_ = 0;
  return Begin();
}

Status TraceFile::Create(const std::string& path, Copy* copy) {
  unlink(path.c_str());
  copy->fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (copy->fd < 0) return Failed("create", path);
  const std::string header = "[\n" + first_;
  copy->end = static_cast<int64_t>(header.size());
  const Status status = WriteAll(copy->fd, header + kEnd, 0, path);
  if (status.ok()) return status;
  close(copy->fd);
  copy->fd = -1;
  unlink(path.c_str());
  return status;
}

Status TraceFile::Begin() {
  Copy copy;
  first_ = header_(++part_);
  const std::string fresh = hidden_path_ + ".new";
  Status status = Create(fresh, &copy);
  if (status.ok() && rename(fresh.c_str(), path_.c_str()) != 0) {
    status = Failed("create", path_);
    close(copy.fd);
    unlink(fresh.c_str());
  }
  if (!status.ok()) {
    --part_;
    return status;
  }
  if (shown_.fd >= 0) close(shown_.fd);
  shown_ = copy;
  Hide();
  return Status::Ok();
}

void TraceFile::Hide() {
  lacks_.clear();
  (void)Create(hidden_path_, &hidden_).ok();  // without it there is one copy
}

void TraceFile::Unhide() {
  if (hidden_.fd < 0) return;
  close(hidden_.fd);
  hidden_.fd = -1;
  unlink(hidden_path_.c_str());
  lacks_.clear();
}

Status TraceFile::Write(const std::string& elements, Copy* copy) {
  const Status status = WriteAll(copy->fd, elements + kEnd, copy->end, path_);
  if (status.ok()) {
    copy->end += static_cast<int64_t>(elements.size());
    return status;
  }
  // Where the end was there is room for it, also on a full disk.
  (void)WriteAll(copy->fd, kEnd, copy->end, path_).ok();
  (void)!ftruncate(copy->fd, static_cast<off_t>(copy->end + static_cast<int64_t>(kEndBytes)));
  return status;
}

std::string TraceFile::PartPath(int part) const {
  const std::string suffix = ".json";
  std::string stem = path_;
  if (stem.size() > suffix.size() &&
      stem.compare(stem.size() - suffix.size(), suffix.size(), suffix) == 0) {
    stem.resize(stem.size() - suffix.size());
  }
  return stem + ".part-" + std::to_string(part) + suffix;
}

Status TraceFile::FinishPart() {
  const std::string complete = PartPath(part_);
  // What is beside the file belongs to an earlier run.
  unlink(complete.c_str());
  if (link(path_.c_str(), complete.c_str()) != 0 && rename(path_.c_str(), complete.c_str()) != 0) {
    return Failed("rename to " + complete + " the file", path_);
  }
  Unhide();
  const int before = part_;
  const Status status = Begin();
  if (!status.ok()) {
    // Goes on with this one, under its own name again.
    if (access(path_.c_str(), F_OK) != 0) (void)!rename(complete.c_str(), path_.c_str());
    unlink(complete.c_str());
    return status;
  }
  if (before > kCompleteParts - 1) unlink(PartPath(before - kCompleteParts).c_str());
  return status;
}

Status TraceFile::Append(const std::string& elements) {
  if (shown_.fd < 0) return FailedPrecondition(path_ + " is not open");
  const auto bytes = static_cast<int64_t>(elements.size() + kEndBytes);
  if (shown_.end + bytes > part_bytes_) HVD_RETURN_IF_ERROR(FinishPart());
  return AppendToPart(elements);
}

Status TraceFile::AppendToPart(const std::string& elements) {
  if (hidden_.fd < 0) return Write(elements, &shown_);
  HVD_RETURN_IF_ERROR(Write(lacks_ + elements, &hidden_));
  if (renameat2(AT_FDCWD, hidden_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    const int error = errno;
    if (access(path_.c_str(), F_OK) != 0) {
      // Somebody has moved or removed it: what comes next goes to a new one.
      errno = error;
      const Status status = Failed("write to", path_);
      Unhide();
      HVD_RETURN_IF_ERROR(Begin());
      return status;
    }
    Unhide();
    return Write(elements, &shown_);
  }
  std::swap(shown_, hidden_);
  lacks_ = elements;
  return Status::Ok();
}

void TraceFile::Close() {
  Unhide();
  if (shown_.fd >= 0) close(shown_.fd);
  shown_.fd = -1;
}

}  // namespace hvd
