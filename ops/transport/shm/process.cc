#include "ops/transport/shm/process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hvd::shm {
namespace {

// The state letter out of /proc/PID/stat, or '?'. The second field is the command's name in
// parentheses and may hold anything, so the next one is found from its last parenthesis.
char StateLetter(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return '?';
  char text[1024];
  const size_t bytes = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[bytes] = '\0';
  const char* rest = std::strrchr(text, ')');
  char state = '?';
  if (rest == nullptr || std::sscanf(rest + 1, " %c", &state) != 1) return '?';
  return state;
}

}  // namespace

bool ProcessExists(pid_t pid) {
  if (pid <= 0) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return false;
  const char state = StateLetter(pid);
  return state != 'Z' && state != 'X';
}

std::string ProcessState(pid_t pid) {
  switch (StateLetter(pid)) {
    case 'R':
      return "running";
    case 'S':
    case 'I':
      return "sleeping";
    case 'D':
      return "waiting in the kernel, for a disk or a network file system";
    case 'T':
      return "stopped by a signal (SIGSTOP, or Ctrl-Z)";
    case 't':
      return "stopped by a debugger";
    case 'Z':
    case 'X':
      return "dead";
    default:
      return "";
  }
}

std::string RankOnThisHost(int rank, pid_t pid) {
  char host[256] = "?";
  gethostname(host, sizeof(host) - 1);
  return "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(pid) + ")";
}

std::string DescribeReturncode(int returncode) {
  if (returncode >= 0) return "exit code " + std::to_string(returncode);
  const char* name = sigabbrev_np(-returncode);
  std::string text =
      name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(-returncode);
  if (returncode == -SIGKILL) text += " (out of memory?)";
  return "killed by " + text;
}

}  // namespace hvd::shm
