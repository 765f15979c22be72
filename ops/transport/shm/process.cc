#include "ops/transport/shm/process.h"

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hvd::shm {
namespace {

// The state letter and start time out of /proc/PID/stat. The second field is the command's name in
// parentheses and may hold anything, so the fields are counted from its last parenthesis.
bool ReadStat(pid_t pid, char* state, uint64_t* start_ticks) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char text[1024];
  const size_t bytes = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[bytes] = '\0';
  const char* rest = std::strrchr(text, ')');
  if (rest == nullptr) return false;
  unsigned long long ticks = 0;
  const int matched = std::sscanf(
      rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
      state, &ticks);
  *start_ticks = ticks;
  return matched == 2;
}

}  // namespace

bool ProcessExists(pid_t pid) {
  if (pid <= 0) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return false;
  char state = '?';
  uint64_t ticks = 0;
  if (!ReadStat(pid, &state, &ticks)) return true;
  return state != 'Z' && state != 'X';
}

uint64_t ProcessStartTicks(pid_t pid) {
  char state = '?';
  uint64_t ticks = 0;
  return ReadStat(pid, &state, &ticks) ? ticks : 0;
}

}  // namespace hvd::shm
